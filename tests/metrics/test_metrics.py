"""The declared list, counters, histograms, and what Prometheus gets."""

from __future__ import annotations

import gc
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import duramen
from duramen.formats.frame import FrameSegment
from duramen.log.repair.reindex import reindex
from duramen.metrics import METRICS, RULES, Histogram, LogCounters, MetricKind, Sample, exposition, process, snapshot
from duramen.metrics.counting import BYTES, RECORDS
from duramen.metrics.rules import prometheus_rules

NAME = re.compile(r"[a-z_][a-z0-9_]*")
LINE = re.compile(r'^([a-z0-9_]+)(\{(?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)*\})? (\S+)$')


def test_every_name_is_one_that_prometheus_takes() -> None:
    for name, metric in METRICS.items():
        assert NAME.fullmatch(name)
        assert name.startswith("duramen_")
        assert name.endswith("_total") == (metric.kind == MetricKind.COUNTER)
        assert metric.meaning.endswith(".")
        assert metric.unit


def test_what_is_not_declared_is_refused() -> None:
    with pytest.raises(ValueError, match="not a declared"):
        Sample("duramen_made_up", 1)
    with pytest.raises(ValueError, match="labels"):
        Sample("duramen_segments", 1)


@given(st.lists(st.floats(0, 1e6), max_size=50), st.lists(st.floats(0.1, 1e5), min_size=1, unique=True))
def test_a_histogram_counts_what_is_at_most_each_bound(values: list[float], bounds: list[float]) -> None:
    bounds.sort()
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    expected = [sum(value <= bound for value in values) for bound in bounds]
    assert histogram.cumulative() == [*expected, len(values)]
    assert histogram.count == len(values)
    assert histogram.sum == pytest.approx(sum(values))
    if values:
        median = histogram.quantile(0.5)
        assert median is not None
        assert sum(value <= median for value in values) >= len(values) / 2


@given(st.lists(st.tuples(st.integers(1, 10**7), st.integers(1, 10**11)), max_size=30))
def test_groups_are_counted_as_a_histogram_would(groups: list[tuple[int, int]]) -> None:
    counters = LogCounters("/here")
    records, sizes = Histogram(RECORDS), Histogram(BYTES)
    for count, size_bytes in groups:
        counters.committed(count, size_bytes)
        records.observe(count)
        sizes.observe(size_bytes)
    assert (counters.batch_records.counts, counters.batch_records.sum) == (records.counts, records.sum)
    assert (counters.batch_bytes.counts, counters.batch_bytes.sum) == (sizes.counts, sizes.sum)


def test_counters_are_there_as_long_as_their_writer() -> None:
    counters = LogCounters("/here")
    counters.committed(records=5, size_bytes=700)
    counters.noted_seconds += [0.001, 0.002]
    counters.sync_seconds.observe(0.002)
    found = {sample.name: sample.value for sample in snapshot() if ("log", "/here") in sample.labels}
    assert found["duramen_appends_total"] == 2
    assert found["duramen_append_records_total"] == 5
    assert found["duramen_batch_bytes"].sum == 700
    del counters, found
    gc.collect()
    assert not [sample for sample in snapshot() if ("log", "/here") in sample.labels]


@given(st.text(max_size=30))
def test_the_exposition_can_be_parsed_whatever_a_log_is_called(path: str) -> None:
    counters = LogCounters(path.replace("\r", ""))
    counters.committed(1, 10)
    text = exposition(counters.samples())
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        assert line.startswith("# ") or LINE.match(line), line


def test_a_histogram_in_prometheus_words() -> None:
    histogram = Histogram((0.1, 1))
    for value in (0.05, 0.5, 5):
        histogram.observe(value)
    text = exposition([Sample("duramen_recovery_seconds", histogram)])
    assert text.splitlines()[2:] == [
        'duramen_recovery_seconds_bucket{le="0.1"} 1',
        'duramen_recovery_seconds_bucket{le="1"} 2',
        'duramen_recovery_seconds_bucket{le="+Inf"} 3',
        "duramen_recovery_seconds_sum 5.55",
        "duramen_recovery_seconds_count 3",
    ]


def test_the_process_knows_its_handles_and_faults() -> None:
    names = {sample.name: sample.value for sample in snapshot()}
    assert names["duramen_open_handles"] > 0
    assert names["duramen_resident_bytes"] > 1 << 20
    assert names["duramen_minor_page_faults_total"] > 0


def test_the_process_knows_how_much_it_has_mapped(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        log.append_batch([b"x" * 1000] * 1000)
    gc.collect()
    before = process.mapped_bytes
    with duramen.open(tmp_path / "log") as log:
        log.read(500)
        assert process.mapped_bytes >= before + 1_000_000
        assert "duramen_mapped_bytes" in {sample.name for sample in snapshot()}
    del log
    gc.collect()
    assert process.mapped_bytes <= before


def test_the_time_of_an_append_includes_the_wait_in_the_queue(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="keratin", linger_ms=20, durability="write") as log:
        log.append(b"x")
        log.append_batch([b"y", b"z"])
        log.sync()
        assert log.counters.append_seconds.count == log.counters.appends == 2
        assert log.counters.append_seconds.sum >= 0.04


def test_a_snapshot_stays_what_it_was() -> None:
    counters = LogCounters("/here")
    counters.sync_seconds.observe(0.1)
    found = [sample.value for sample in snapshot() if sample.name == "duramen_sync_seconds"]
    counters.sync_seconds.observe(0.1)
    assert 1 in [histogram.count for histogram in found]
    counters.unlist()


def test_rules_speak_of_declared_metrics_only() -> None:
    for rule in RULES:
        for name in re.findall(r"duramen_[a-z_]+", rule.expression):
            assert name in METRICS or name.removesuffix("_bucket") in METRICS
    text = prometheus_rules()
    assert text.count("- alert:") == len(RULES)
    thresholds = {rule.name: rule.expression for rule in RULES}
    assert thresholds["DuramenIndexRebuilds"].endswith("[1h]) > 1")
    assert thresholds["DuramenPageFaults"].endswith("> 10000")
    assert thresholds["DuramenSlowSync"].endswith("> 0.1")


def test_rebuilding_an_index_is_counted_with_the_walk_over_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `reindex` and by recovery, and once for both files that are made from one walk."""
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        log.append_batch([b"x"] * 1000)
    index = next((tmp_path / "log" / "segments").glob("*.idx"))
    real = FrameSegment.scan

    def slow(self: FrameSegment, *arguments: Any, **options: Any) -> Any:
        time.sleep(0.05)
        return real(self, *arguments, **options)

    monkeypatch.setattr(FrameSegment, "scan", slow)
    for mend in (lambda: reindex(str(tmp_path / "log")), lambda: duramen.open(tmp_path / "log", "a").close()):
        index.unlink()
        before = process.index_rebuilds, process.index_rebuild_seconds.sum
        mend()
        assert process.index_rebuilds == before[0] + 1
        assert 0.05 <= process.index_rebuild_seconds.sum - before[1] < 5
    reindex(str(tmp_path / "log"), dry_run=True)
    assert process.index_rebuilds == before[0] + 1
