"""Values that a scan takes along are those that `decode` would have copied, and their memory is nobody else's."""

from __future__ import annotations

import pyarrow as pa
import pytest

from duramen.formats import PLACE, ScanPosition, Segment, make
from duramen.formats.arrow import REUSED_FROM_BYTES, allocate
from duramen.kernel.layout import Stop

COLUMNS = ["offset", "timestamp", "key", "value"]
LENGTHS = {"fixed-slot": [32] * 40}
VARIED = [0, 1, 5, 300, 0, 70, 4000, 12, 0, 33] * 4


def segment_of(name: str) -> Segment:
    fmt = make(name, **({"record_size": 32} if name == "fixed-slot" else {}))
    lengths = LENGTHS.get(name, VARIED)
    values = [bytes([n]) * length for n, length in enumerate(lengths)]
    header = fmt.segment_header(7, 1_700_000_000_000)
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    encoded = fmt.encode(batch, ScanPosition(len(header), 6), 1_700_000_000_000_000)
    return fmt.open_segment(header + bytes(encoded.data), 7)


def rows_of(segment: Segment, *, max_bytes: int, take_values: bool, verify: bool) -> list[dict[str, object]]:
    cursor, rows = segment.start, []
    for _ in range(1000):
        found = segment.scan(cursor, max_records=7, max_bytes=max_bytes, verify=verify, take_values=take_values)
        rows += segment.decode(found, COLUMNS).to_pylist() if found.count else []
        cursor = found.cursor
        if found.stop != Stop.LIMIT:
            return rows
    raise AssertionError("the scan does not end")


@pytest.mark.parametrize("name", ["durable-log", "keratin", "rustlog", "osiris", "fixed-slot"])
@pytest.mark.parametrize("max_bytes", [64, 1000, 1 << 20])  # the longest value is longer than the first two
def test_rows_are_the_same(name: str, max_bytes: int) -> None:
    segment = segment_of(name)
    expected = rows_of(segment, max_bytes=1 << 20, take_values=False, verify=True)
    assert len(expected) == 40
    for verify in (True, False):
        assert rows_of(segment, max_bytes=max_bytes, take_values=True, verify=verify) == expected


@pytest.mark.parametrize("name", ["durable-log", "keratin", "rustlog", "osiris", "fixed-slot"])
def test_places_are_those_of_the_values(name: str) -> None:
    segment = segment_of(name)
    assert segment.has_value_places
    rows = segment.scan(segment.start)
    places = segment.value_places(rows)
    assert places is not None
    assert places.type == PLACE
    found = [bytes(segment.buf[start : start + length]) for start, length in (p.values() for p in places.to_pylist())]
    assert found == segment.decode(rows, ["value"]).column("value").to_pylist()


def test_a_changed_value_is_noticed() -> None:
    segment = segment_of("keratin")
    data = bytearray(segment.buf)
    data[-6] ^= 1
    changed = make("keratin").open_segment(bytes(data), 7)
    found = changed.scan(changed.start, take_values=True)
    assert (found.count, found.stop) == (39, Stop.BAD_CHECKSUM)
    assert len(changed.decode(found, ["value"])) == 39


def test_memory_is_reused_only_without_references_to_it() -> None:
    size = REUSED_FROM_BYTES
    held = [allocate(size) for _ in range(4)]
    for number, memory in enumerate(held):
        memory[:] = bytes([number]) * size
    assert [memory[0] for memory in held] == [memory[-1] for memory in held] == [0, 1, 2, 3]
    array = pa.Array.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(size.to_bytes(4, "little").rjust(8, b"\0")), pa.py_buffer(held[3])]
    )
    del held, memory
    allocate(size)[:] = b"x" * size
    assert array[0].as_py() == b"\3" * size
