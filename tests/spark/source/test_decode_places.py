"""Values decoded where they lie in the segment: the same rows as from a copy of them, in every format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import duramen
from duramen.errors import MalformedError
from duramen.record import TIMESTAMP
from duramen.values import Decoding
from tests.spark.source_logs import START_MS, START_US, read_here
from tests.values import amqp_messages as amqp

RECORD_SIZE = 48
FORMATS = ("durable-log", "keratin", "rustlog", "osiris", "fixed-slot", "kafka")
JUNK = {17, 18, 91}


def value_of(number: int) -> bytes:
    """A message of `RECORD_SIZE` bytes, or junk."""
    if number in JUNK:
        return b"junk %d" % number + b"." * (RECORD_SIZE - 7)
    pairs = amqp.section(0x74, amqp.map_of([(amqp.text("n"), b"\x50" + bytes([number]))]))
    return pairs + amqp.data((b"body %d" % number).ljust(RECORD_SIZE - len(pairs) - 5))


@pytest.fixture(params=FORMATS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    name = request.param
    values = [value_of(number) for number in range(120)]
    columns: dict[str, Any] = {"value": pa.array(values, pa.binary())}
    options: dict[str, Any] = {"record_size": RECORD_SIZE} if name == "fixed-slot" else {"segment_max_bytes": 2048}
    if name in ("keratin", "kafka"):
        columns["value"] = pa.array([None if number % 7 == 2 else one for number, one in enumerate(values)])
        columns["key"] = pa.array([b"k"] * 120)
    if name not in ("fixed-slot", "durable-log"):
        times = pa.array([START_US + number * 1_000_000 for number in range(120)], pa.int64())
        columns["timestamp"] = times.view(TIMESTAMP.type)
    batch = pa.RecordBatch.from_pydict(columns)
    with duramen.open(tmp_path / name, "a", format=name, **options) as opened:
        for first in range(0, 120, 30):
            opened.append_batch(batch.slice(first, 30), durability="write")
    return tmp_path / name


OPTIONS = ({}, {"startingOffsets": 16, "endingOffsets": 95}, {"startingTimestamp": START_MS + 15_000})


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_rows_are_those_of_a_copy(log: Path, options: dict[str, Any]) -> None:
    if "startingTimestamp" in options and log.name in ("durable-log", "fixed-slot"):
        pytest.skip("the format stores no times")
    plain = read_here(log, columns="offset,value", **options)
    decoding = Decoding.of({"decode": "amqp", "on_malformed": "raw"})
    assert decoding is not None
    expected = [row for batch in plain.to_batches() for row in decoding.decode(batch).to_pylist()]
    found = read_here(log, columns="offset,value", decode="amqp", onMalformed="raw", **options).to_pylist()
    assert found == expected
    assert 60 < len(found) <= 120
    bad = [row["_malformed"]["bytes"] for row in found if row["_malformed"] is not None]
    assert bad == [value_of(row["offset"]) for row in found if row["offset"] in JUNK]


def test_the_first_malformed_value_is_named(log: Path) -> None:
    with pytest.raises(MalformedError, match="offset 17: the value is not amqp"):
        read_here(log, columns="offset,value", decode="amqp")
