"""Profile: the numbers against a plain count of the same records; the page holds no surprise."""

from __future__ import annotations

import io
import random
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import duramen
from duramen.cli.output import Output
from duramen.cli.pipeline.pipeline import show_fields
from duramen.formats import make
from duramen.record import TIMESTAMP
from duramen.spark import jobs
from duramen.spark.jobs import sketches
from duramen.spark.jobs.sketches import Distinct, Heavy, Order, Sizes, SketchRates
from tests.sampling import examples
from tests.values import amqp_messages as amqp

START_US = 1_700_000_000_000_000


def order_of(offsets: list[int], times: list[int | None]) -> Order:
    order = Order()
    order.add(np.array(offsets, np.int64), pa.array(times, pa.int64()).view(TIMESTAMP.type))
    return order


@given(st.lists(st.tuples(st.integers(1, 4), st.none() | st.integers(0, 50)), max_size=40), st.integers(0, 40))
def test_order_is_the_same_however_it_is_cut(steps: list[tuple[int, int | None]], at: int) -> None:
    offsets, last = [], -1
    for step, _ in steps:
        last += step
        offsets.append(last)
    times = [time for _, time in steps]
    whole, parts = order_of(offsets, times), order_of(offsets[:at], times[:at])
    parts.join(order_of(offsets[at:], times[at:]))
    assert parts == whole
    known = [time for time in times if time is not None]
    assert whole.backwards == sum(b < a for a, b in pairwise(known))
    if offsets:
        assert whole.missing == offsets[-1] - offsets[0] + 1 - len(offsets)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1))
def test_sizes(lengths: list[int]) -> None:
    sizes = Sizes()
    sizes.add(np.array(lengths, np.int64))
    assert sizes.powers == [sum(n.bit_length() == p for n in lengths) for p in range(33)]
    assert (sizes.least, sizes.most, sizes.total_bytes) == (min(lengths), max(lengths), sum(lengths))


@settings(max_examples=examples(30))
@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=200), st.integers(0, 200))
def test_rates_keep_every_record(seconds: list[int], at: int) -> None:
    def rates(times: list[int]) -> SketchRates:
        found = SketchRates()
        found.add(np.array(times, np.int64) * 1_000_000, np.ones(len(times), np.int64))
        return found

    both = rates(seconds[:at])
    both.merge(rates(seconds[at:]))
    assert sum(n for n, _ in both.buckets.values()) == len(seconds)
    few = both.narrowed(10)
    assert max(few.buckets) - min(few.buckets) < 10
    assert sum(n for n, _ in few.buckets.values()) == len(seconds)


@pytest.mark.parametrize("count", [10, 5_000, 200_000])
def test_distinct_keys_are_counted_within_three_percent(count: int) -> None:
    a, b = Distinct(), Distinct()
    a.add(pa.array([b"key-%d" % n for n in range(count * 2 // 3)], pa.binary()))
    b.add(pa.array([b"key-%d" % n for n in range(count // 3, count)], pa.binary()))
    a.merge(b)
    assert a.estimate() == pytest.approx(count, rel=0.03)


def test_frequent_keys_and_their_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketches, "MAX_KEYS", 50)
    dice = random.Random(1)
    keys = [b"big"] * 4000 + [b"k%d" % dice.randrange(3000) for _ in range(6000)]
    dice.shuffle(keys)
    heavy = Heavy()
    for at in range(0, len(keys), 500):
        part = Heavy()
        part.add(pa.array(keys[at : at + 500], pa.binary()))
        heavy.merge(part)
    truth = Counter(keys)
    assert not heavy.is_exact
    assert heavy.top(1)[0][0] == b"big"
    for key, count in heavy.top(20):
        assert truth[key] - heavy.error <= count <= truth[key]


def batch(offsets: list[int]) -> pa.RecordBatch:
    """A second apart, every hundredth five seconds too early; a tenth without key."""
    times = [START_US + n * 1_000_000 - (5_000_000 if n % 100 == 99 else 0) for n in offsets]
    return pa.RecordBatch.from_pydict(
        {
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array(times, pa.int64()).view(TIMESTAMP.type),
            "key": pa.array([None if n % 10 == 0 else b"<b>k%d" % (n % 7) for n in offsets], pa.binary()),
            "value": pa.array([b"x" * (n % 50) for n in offsets], pa.binary()),
        }
    )


@pytest.fixture
def events(tmp_path: Path) -> Path:
    root = tmp_path / "events"
    offsets = [n for n in range(2000) if not 500 <= n < 510]
    codec = make("keratin")
    batches = [batch(offsets[:700]), batch(offsets[700:])]
    for path, content in codec.build(batches, START_US // 1000):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


def test_the_numbers(spark: SparkSession, events: Path) -> None:
    found = jobs.profile(spark, str(events), max_bytes_per_partition=20_000).as_dict()
    with duramen.open(events) as log:
        records = list(log)
    assert found["records"] == len(records) == 1990
    assert found["values"]["bytes"] == sum(len(r.value) for r in records)
    assert found["keys"]["missing"] == sum(r.key is None for r in records)
    assert (found["keys"]["distinct"], found["keys"]["distinct_is_exact"]) == (7, True)
    keys = Counter(r.key for r in records if r.key is not None)
    assert {row["key"]: row["records"] for row in found["keys"]["top"]} == keys
    (order,) = found["logs"]
    assert (order["gaps"], order["missing_offsets"], order["largest_gaps"]) == (1, 10, [[500, 509]])
    assert order["times_backwards"] == 20
    assert order["largest_step_back_us"] == 4_000_000
    assert sum(bucket["records"] for bucket in found["rates"]["buckets"]) == 1990
    seen: Counter[tuple[bytes | None, bytes]] = Counter((r.key, r.value) for r in records)
    assert found["duplicates"] == sum(count - 1 for count in seen.values())


def test_the_page(spark: SparkSession, events: Path) -> None:
    page = jobs.profile_page(jobs.profile(spark, str(events), duplicates=False))

    names: Counter[str] = Counter()

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            names[tag] += 1
            assert not any(name in ("src", "href") or name.startswith("on") for name, _ in attrs)

    Tags().feed(page)
    assert names["svg"] >= 4
    assert names["rect"] > 50
    assert not names["script"]
    assert not names["b"], "a key's markup is shown, not obeyed"
    assert "&lt;b&gt;k1" in page
    assert "http" not in page


def test_an_empty_log(spark: SparkSession, tmp_path: Path) -> None:
    with duramen.open(tmp_path / "empty", "a", format="durable-log"):
        pass
    found = jobs.profile(spark, str(tmp_path / "empty"))
    assert (found.records, found.duplicates) == (0, 0)
    assert "<svg" not in jobs.profile_page(found)


def test_the_fields_of_decoded_values(spark: SparkSession, tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", segment_max_bytes=4096) as log:
        for number in range(400):
            wood = '"oak"' if number % 4 else "null"
            log.append(b'{"n": %d, "wood": %s, "tags": ["a"], "o": {"x": 1.5}}' % (number, wood.encode()))
        log.append(b"junk")
    found = jobs.profile(spark, str(tmp_path / "log"), duplicates=False, decode="json", on_malformed="null").as_dict()
    assert found["decoded"]["malformed"] == 1
    fields = found["decoded"]["fields"]
    assert list(fields) == ["value.n", "value.wood", "value.tags", "value.o.x"]
    assert (fields["value.n"]["min"], fields["value.n"]["max"], fields["value.n"]["nulls"]) == (0, 399, 1)
    assert fields["value.wood"]["null_rate"] == round(101 / 401, 6)
    assert (fields["value.tags"]["min"], fields["value.tags"]["is_size"]) == (1, True)
    out = io.StringIO()
    show_fields(found["decoded"], Output(out))
    assert "value.o.x" in out.getvalue()
    assert "1 value did not decode" in out.getvalue()


def test_the_fields_of_messages(spark: SparkSession, tmp_path: Path) -> None:
    pairs = amqp.map_of([(amqp.text("n"), b"\x50\x01"), (amqp.text("s"), amqp.text("x"))])
    with duramen.open(tmp_path / "log", "a") as log:
        log.append_batch([amqp.data(b"four"), amqp.section(0x74, pairs) + amqp.data(b"b"), b"junk"])
    found = jobs.profile(spark, str(tmp_path / "log"), decode="amqp", on_malformed="null").as_dict()["decoded"]
    assert found["malformed"] == 1
    fields = found["fields"]
    sizes = [(fields[f"value.{name}"]["min"], fields[f"value.{name}"]["max"], fields[f"value.{name}"]["nulls"])
             for name in ("body.data", "application_properties", "annotations")]  # fmt: skip
    assert sizes == [(1, 4, 1), (2, 2, 2), (None, None, 3)]
