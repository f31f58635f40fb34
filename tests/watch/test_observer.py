"""Looking at a log again and again: rates, lag, what its writer measures, and logs that cannot be read."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.metrics import exposition
from duramen.watch.discovery import WatchedPath
from duramen.watch.observer import Observation, Observer, rates_of

WRITER = """
import sys, time, duramen
log = duramen.open(sys.argv[1], "a", format="keratin")
for number in range(10_000):
    log.append(b"x" * 100)
    if number % 10 == 9:
        time.sleep(0.005)
        print(number, flush=True)
"""


def observer_of(path: Path) -> Observer:
    return Observer(PosixDisk(), WatchedPath(str(path), str(path)))


def test_rates_are_those_between_two_looks(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        log.append_batch([b"x" * 100] * 10)
        observer = observer_of(tmp_path / "log")
        first = observer.observe()
        log.append_batch([b"x" * 100] * 30)
        log.cursor("slow").store(15)
        second = observer.observe()
        assert (first.next_offset, second.next_offset, second.first_offset) == (10, 40, 0)
        assert second.size_bytes > first.size_bytes + 3000
        assert second.is_written
        assert [(one.name, one.lag) for one in second.standings] == [("slow", 25)]
        rates = observer.rates()
        assert rates.records == pytest.approx(30 / (second.at - first.at))
        observer.close()
    assert not observer.observe().is_written
    observer.close()


def test_several_callers_open_a_log_at_once(tmp_path: Path) -> None:
    """Whoever comes while the first look is under way waits for it."""
    duramen.open(tmp_path / "log", "a", format="durable-log").close()
    observer = observer_of(tmp_path / "log")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: (observer.seen(), observer.rates()), range(16)))
    assert all(history for history, _ in answers)
    assert len(observer.history) == 1
    observer.close()


def test_rates_of_nothing_or_of_a_recreated_log() -> None:
    assert rates_of([]).records == 0
    assert rates_of([Observation(1.0)]).records == 0
    assert rates_of([Observation(1.0, next_offset=5), Observation(2.0, next_offset=1)]).records == 0
    wrong = Observation(2.0, problem="it is gone")
    assert rates_of([Observation(1.0, next_offset=5), wrong, Observation(3.0, next_offset=9)]).records == 2


def test_what_is_wrong_is_an_observation_and_may_end(tmp_path: Path) -> None:
    observer = observer_of(tmp_path / "log")
    (tmp_path / "log").mkdir()
    assert "it holds no log" in (observer.observe().problem or "")
    assert [(sample.name, sample.value) for sample in observer.samples()] == [("duramen_readable", 0)]
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        log.append(b"x")
        assert observer.observe().problem is None
        assert observer.observe().next_offset == 1
        assert next(observer.samples()).value == 1
    for path in sorted((tmp_path / "log").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "log").rmdir()
    assert observer.observe().problem is not None
    observer.close()


@pytest.mark.slow
def test_what_a_writer_in_another_process_measures(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            observer = observer_of(tmp_path / "log")
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                seen = observer.observe()
                if seen.published is not None and observer.rates(60).syncs > 0:
                    break
                time.sleep(0.1)
            rates = observer.rates(60)
            assert rates.sync_p50_s is not None
            assert rates.sync_p99_s is not None
            assert 0 < rates.sync_p50_s <= rates.sync_p99_s
            assert rates.records > 0
            assert seen.published is not None
            assert 0 < seen.published.counters["records"] <= seen.next_offset
            text = exposition(observer.samples())
            assert f'duramen_append_records_total{{log="{tmp_path}/log"}} {seen.published.counters["records"]}' in text
            assert "duramen_sync_seconds_bucket" in text
            observer.close()
        finally:
            writer.kill()


def test_a_measurement_that_is_half_written_is_none(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        log.append(b"x")
    (tmp_path / "log" / ".duramen" / "metrics.json").write_bytes(b'{"at_us": 1, "counters": {')
    observer = observer_of(tmp_path / "log")
    seen = observer.observe()
    assert seen.problem is None
    assert seen.published is None
    observer.close()
