"""The golden vectors in the program's own terms, and what a check says about changed bytes.

Loaded at import, so that tests can be made from the list of files.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import duramen
from duramen.formats import Format, Role, Rows, ScanPosition, Segment
from duramen.formats.struct import Block, Struct
from duramen.kernel.layout import Stop
from duramen.log.segments.segment_end import SegmentEnd, classify_end
from duramen.record import COLUMNS, TIMESTAMP

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
VECTORS: dict[str, dict[str, Any]] = json.loads((GOLDEN / "vectors.json").read_text(encoding="utf-8"))


def names(start: str, suffix: str = "", *, negative: bool | None = False) -> list[str]:
    """The vectors below ``start``: the good ones, the ``negative`` ones, or (None) both."""
    return [
        name
        for name in VECTORS
        if name.startswith(start) and name.endswith(suffix) and (negative is None or ("/negative/" in name) == negative)
    ]


def read(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def records(name: str) -> list[dict[str, Any]]:
    """The records that a segment holds, as `vectors.json` lists them; an empty segment is not listed there."""
    return VECTORS[name].get("expect", {}).get("records", [])


# --- fields


class Shown(NamedTuple):
    """A field of a file as both sides know it; None where the vector does not say."""

    block: str | None
    name: str
    position: int
    length: int
    value: int | bytes | None


def fields_expected(name: str) -> list[Shown]:
    shown = []
    for field in VECTORS[name].get("fields", []):
        block, _, own = field["name"].rpartition(".")
        value: int | bytes | None = None
        if number := re.match(r"(\d+) \(0x", field["value"]):
            value = int(number[1])
        elif field["value"].startswith("b"):
            value = ast.literal_eval(field["value"])
        shown.append(Shown(block or None, own, field["at"], field["len"], value))
    return shown


def assert_dump(blocks: Iterable[Block], name: str) -> None:
    """``blocks`` show every field of the golden file and nothing else."""
    dumped = []
    for block in blocks:
        assert block.problem is None
        dumped += [(block.title, field) for field in block.fields]
    expected = fields_expected(name)
    assert len(dumped) == len(expected)
    for (title, field), want in zip(dumped, expected, strict=True):
        assert (field.name, field.position, field.length) == (want.name, want.position, want.length)
        assert want.block in (None, title)
        assert want.value in (None, field.value)


# --- segments


def scan_all(segment: Segment) -> Rows:
    """All rows up to where records end, in one step."""
    return segment.scan(segment.start, max_records=1 << 16, max_bytes=1 << 40)


def judge_all(segment: Segment) -> tuple[Rows, SegmentEnd]:
    """The rows before the first place that is no record, and what that place is."""
    rows = scan_all(segment)
    return rows, classify_end(segment, rows.cursor, rows.stop, is_last=True)


def values(segment: Segment) -> list[bytes]:
    return segment.decode(scan_all(segment), ["value"]).column("value").to_pylist()


def batch_of(values: Sequence[bytes], offsets: Sequence[int], times_us: Sequence[int] | None = None) -> pa.RecordBatch:
    columns = {"offset": pa.array(offsets, pa.int64()), "value": pa.array(values, pa.binary())}
    if times_us is not None:
        columns["timestamp"] = pa.array(times_us, pa.int64()).view(TIMESTAMP.type)
    return pa.RecordBatch.from_pydict(columns)


def assert_reads_as_listed(fmt: Format, name: str, base: int) -> None:
    """The segment decodes to what `vectors.json` says, all at once and record by record."""
    data, listed = read(name), records(name)
    segment = fmt.open_segment(data, base)
    rows = scan_all(segment)
    assert (rows.stop, rows.count, rows.end.position) == (Stop.END, len(listed), len(data))
    batch = segment.decode(rows, COLUMNS)
    batch.validate(full=True)
    assert batch.column("offset").to_pylist() == [record["offset"] for record in listed]
    assert batch.column("value").to_pylist() == [bytes.fromhex(record["payload"]) for record in listed]
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    assert times == [record.get("timestamp_us") for record in listed]
    assert batch.column("key").null_count == batch.column("headers").null_count == len(listed)
    for record in listed:
        found = segment.read(segment.start, record["offset"])
        assert isinstance(found, duramen.Record)
        assert (found.offset, found.value) == (record["offset"], bytes.fromhex(record["payload"]))
    expect = VECTORS[name].get("expect", {})
    assert rows.end.position == expect.get("valid_bytes", 0)
    assert rows.end.last_offset + 1 == expect.get("next_offset", base)


def assert_encodes_to(fmt: Format, batch: pa.RecordBatch, files: Mapping[str, bytes]) -> None:
    """The batch written as a log gives these files, byte for byte, and scans to the rows that encoding told."""
    assert dict(fmt.build([batch])) == dict(files)
    base = batch.column("offset")[0].as_py() if batch.num_rows else 0
    encoded = fmt.encode(batch, ScanPosition(0, base - 1))
    segment = fmt.open_segment(encoded.data, base)
    rows = scan_all(segment)
    assert (rows.count, rows.end) == (encoded.rows.count, encoded.rows.end)
    for column, array in vars(rows.columns).items():
        assert array.tolist() == getattr(encoded.rows.columns, column).tolist(), column


def directory(name: str) -> dict[str, bytes]:
    """The files of a golden directory."""
    return {path.name: path.read_bytes() for path in sorted((GOLDEN / name).iterdir())}


# --- what a check says


def put(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def findings(report: duramen.Report) -> set[tuple[str, int | None]]:
    """What was found and where; the numbers inside a message are not evidence that something changed."""
    return {(finding.code, finding.position) for finding in report.findings}


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Every single bit flipped: the byte's position, and all bytes."""
    changed = bytearray(data)
    for position in range(len(data)):
        for bit in range(8):
            changed[position] ^= 1 << bit
            yield position, bytes(changed)
            changed[position] ^= 1 << bit


def unnoticed_flips(path: Path, fmt: str, **options: Any) -> set[int]:
    """The bytes of a segment file in which some flipped bit changes nothing that `verify` reports.

    ``path`` may lie in a log's directory: the whole log is checked."""
    data = path.read_bytes()
    unchanged = findings(duramen.verify(path.parent, format=fmt, **options))
    unnoticed = set()
    for position, flipped in flips(data):
        path.write_bytes(flipped)
        if findings(duramen.verify(path.parent, format=fmt, **options)) == unchanged:
            unnoticed.add(position)
    path.write_bytes(data)
    return unnoticed


def fields_of(header: Struct, positions: Iterable[int], bounds: Sequence[int]) -> set[str]:
    """The fields that the bytes belong to, for records that start at ``bounds`` (the last one is the end)."""
    touched = set()
    for position in positions:
        start = max(bound for bound in bounds if bound <= position)
        inside = [n for n in header.names if 0 <= position - start - header.at(n) < header.width(n)]
        touched.add(inside[0] if inside else "payload")
    return touched


def assert_cuts_are_torn(
    path: Path, bounds: Sequence[int], fmt: str, *, but: Sequence[int] = (), **options: Any
) -> None:
    """A segment cut at any byte is a torn tail or a clean end, never damage; every whole record is counted."""
    data = path.read_bytes()
    for size in sorted({*range(len(data) + 1)} - {*but}):
        path.write_bytes(data[:size])
        report = duramen.verify(path.parent, format=fmt, **options)
        (segment,) = report.segments
        whole = sum(bound <= size for bound in bounds[1:])
        assert report.ok, (size, report.findings)
        assert (segment.records, segment.valid_bytes) == (whole, bounds[whole]), size
        clean = not any(data[bounds[whole] : size])
        assert segment.ending == ("clean" if clean else "torn tail"), size
    path.write_bytes(data)


def role_of(fmt: Format, name: str) -> Role:
    known = fmt.classify(name)
    assert known is not None
    return known.role
