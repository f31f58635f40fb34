"""What must hold whatever the bytes are. Every check raises `AssertionError` where it does not.

Only `DuramenError` may escape from the program, and each check says where it may. Anything else (another exception, a
crash, too much memory, a call that does not return) is a finding of the fuzzer.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from duramen.errors import DuramenError
from duramen.formats import Block, Format, Role, Rows, ScanPosition, Segment, Severity
from duramen.formats.fixed_slot import FixedSlotSegment
from duramen.formats.frame import FrameSegment
from duramen.formats.kafka.segment import KafkaSegment
from duramen.formats.osiris.chunk import MAGIC
from duramen.formats.osiris.segment import OsirisSegment
from duramen.kernel.layout import GAVE_UP, NOT_FOUND, ChunkColumns, FrameColumns, Stop
from duramen.log.read.log import Log
from duramen.log.segments.segment_end import EndKind, SegmentEnd, classify_end
from duramen.log.verify.report import Report
from duramen.log.verify.verify import verify_log
from duramen.record import COLUMNS, Record
from fuzz.memory import MemoryDisk

MOST_READS = 4


@contextmanager
def may_refuse() -> Iterator[None]:
    """A refusal by Duramen's own errors is fine; its words must be sayable."""
    try:
        yield
    except DuramenError as error:
        if not str(error):
            raise AssertionError("an error without words") from error


# --- segments


def segment(fmt: Format, data: bytes, base: int | None) -> None:
    """Open, scan in small steps, decode, read by offset, judge the end, look for records behind it, dump."""
    dump(fmt, Role.SEGMENT, data, base)
    with may_refuse():
        opened = fmt.open_segment(data, base)
        walk(fmt, opened)
        places(opened, zlib.crc32(data))


def walk(fmt: Format, opened: Segment) -> None:
    cursor, count = opened.start, 0
    assert 0 <= cursor.position <= len(opened.buf)
    while True:
        rows = opened.scan(cursor, max_records=5, max_bytes=2000)
        step(opened, cursor, rows)
        decode(fmt, opened, rows)
        cursor, count = rows.cursor, count + rows.count
        if rows.stop != Stop.LIMIT:
            break
    whole = opened.scan(opened.start, max_records=1 << 14, max_bytes=1 << 40)
    if whole.stop != Stop.LIMIT:
        assert (whole.count, whole.end[1:]) == (count, rows.end[1:])
    for is_last in (True, False):
        end(opened, classify_end(opened, cursor, rows.stop, is_last=is_last))


def step(opened: Segment, cursor: ScanPosition, rows: Rows) -> None:
    """Rows lie within the bytes that the step consumed, in order, and a limit is only met after progress."""
    assert cursor.position <= rows.end.position <= len(opened.buf)
    assert rows.end.last_offset >= cursor.previous_offset
    assert rows.end.position > cursor.position or rows.stop != Stop.LIMIT
    columns = rows.columns
    positions, firsts, lasts = columns.position, columns.first_offsets, columns.last_offsets
    assert len(positions) == rows.end.count
    if not len(positions):
        assert rows.end.position == cursor.position
        return
    assert positions[0] == cursor.position
    assert (np.diff(positions) > 0).all()
    assert positions[-1] < rows.end.position
    assert firsts[0] > cursor.previous_offset
    assert (firsts[1:] > lasts[:-1]).all()
    assert (firsts >= 0).all()
    assert lasts[-1] == rows.end.last_offset
    ends = np.append(positions[1:], rows.end.position)
    if isinstance(columns, FrameColumns):
        assert (columns.value_position - columns.headers_length.astype(np.int64) >= positions).all()
        assert (columns.value_position + columns.value_length.astype(np.int64) <= ends).all()
    if isinstance(columns, ChunkColumns):
        assert (columns.data_position + columns.data_length.astype(np.int64) <= ends).all()


def decode(fmt: Format, opened: Segment, rows: Rows) -> None:
    names = (*COLUMNS, *(field.name for field in fmt.capabilities.extras))
    with may_refuse():
        list(opened.check(rows))
        batch = opened.decode(rows, names)
        batch.validate(full=True)
        assert batch.num_rows == rows.count
        assert tuple(batch.schema.names) == names
        offsets = batch.column("offset").to_numpy()
        assert (np.diff(offsets) > 0).all()
        for row in range(min(rows.count, MOST_READS)):
            found = opened.read(opened.start, int(offsets[row]))
            assert isinstance(found, Record)
            assert (found.offset, found.value) == (int(offsets[row]), batch.column("value")[row].as_py())
            assert (found.key, found.headers is None) == (
                batch.column("key")[row].as_py(), batch.column("headers")[row].as_py() is None,
            )  # fmt: skip


def end(opened: Segment, verdict: SegmentEnd) -> None:
    """A torn tail has no valid record behind it; where records are said to go on, one is there."""
    assert verdict.why
    if verdict.ending == EndKind.TORN:
        assert verdict.goes_on_at is None
        for position in behind(opened, verdict.position):
            rows = opened.scan(ScanPosition(position, verdict.previous_offset), max_records=1)
            assert not counts_as_valid(opened, rows, verdict.previous_offset), f"a valid record at {position}"
    if verdict.goes_on_at is not None:
        assert verdict.position < verdict.goes_on_at <= len(opened.buf)
        rows = opened.scan(ScanPosition(verdict.goes_on_at, verdict.previous_offset), max_records=1)
        assert len(rows.columns) == 1
    if verdict.ending in (EndKind.DAMAGE, EndKind.UNKNOWN_VERSION):
        assert isinstance(verdict.error("path"), DuramenError)


def behind(opened: Segment, position: int) -> Iterator[int]:
    """The places behind a torn tail where a record could start, for formats whose records have a checksum."""
    if isinstance(opened, FixedSlotSegment):
        yield from range(position + opened.slot_bytes, len(opened.buf), opened.slot_bytes)
    elif opened.record_checksum:
        begins = _first_bytes(opened)
        for place in range(position + 1, len(opened.buf)):
            if opened.buf[place] in begins:
                yield place


def _first_bytes(opened: Segment) -> set[int]:
    """What a record can begin with: both formats of frames with a checksum have their magic number there."""
    if isinstance(opened, OsirisSegment):
        return {MAGIC << 4 | version for version in range(16)}
    if isinstance(opened, KafkaSegment):
        return {0}  # the highest byte of an offset
    assert isinstance(opened, FrameSegment)
    layout = opened._dialect.layout
    magic = layout.consts[0]
    assert magic.position == 0
    return {magic.value.to_bytes(magic.width, "big" if layout.big_endian else "little")[0]}


def counts_as_valid(opened: Segment, rows: Rows, previous_offset: int) -> bool:
    if isinstance(opened, OsirisSegment) and len(rows.columns):
        # The header is not covered: a chunk without records, or one that is absurdly far, proves nothing.
        chunks = rows.columns
        assert isinstance(chunks, ChunkColumns)
        return bool(chunks.records[0]) and int(chunks.chunk_id[0]) - previous_offset <= 2**32
    if isinstance(opened, KafkaSegment) and len(rows.columns):
        return int(rows.columns.first_offsets[0]) - previous_offset <= 2**32
    return len(rows.columns) > 0


def places(opened: Segment, dice: int) -> None:
    """Cursors, reads and searches from anywhere."""
    size = len(opened.buf)
    stride = opened.slot_bytes if isinstance(opened, FixedSlotSegment) else 1
    position = dice % (size + 1) // stride * stride
    for offset in (0, dice % 97, opened.base_offset, 2**63 - 1):
        cursor = opened.cursor_at(offset, position)
        if isinstance(opened, KafkaSegment):  # an entry of its index names the last offset of a batch
            assert cursor is None or (cursor.position == position and cursor.previous_offset < offset)
        else:
            assert cursor in (None, ScanPosition(position, offset - 1))
        for start in (opened.start, cursor):
            if start is not None:
                with may_refuse():
                    found = opened.read(start, offset)
                    assert isinstance(found, Stop) or found.offset == offset
    found_at = opened.resync(ScanPosition(position, -1))
    assert found_at in (NOT_FOUND, GAVE_UP) or position < found_at <= size
    for verify in (True, False):
        step(opened, ScanPosition(position, -1), opened.scan(ScanPosition(position, -1), verify=verify))


# --- other files


def dump(fmt: Format, role: Role, data: bytes, base: int | None = None) -> None:
    with may_refuse():
        blocks(fmt.dump(role, data, base), len(data))


def blocks(shown: Iterator[Block], size: int) -> None:
    """Every field lies within the file."""
    for block in shown:
        assert 0 <= block.position <= size
        for field in block.fields:
            assert 0 <= field.position <= field.position + field.length <= size, (block.title, field)


def index(fmt: Format, role: Role, data: bytes, files: Mapping[str, bytes], records: Mapping[int, bytes]) -> None:
    """An index that may lie, beside a log that is whole: every record is found. What an entry repeats of a record may
    be called damage, because it may be the record that is wrong."""
    dump(fmt, role, data, 0)
    name = fmt.path_of(role, 0)
    opened = fmt.open_index(role, data, 0)
    if opened is not None:
        for wanted in (-1, 0, 1, 7, 2**63 - 1):
            opened.floor(wanted)
            opened.floor_time(wanted)
    disk = MemoryDisk({**files, name: data})
    report = verify_log(MemoryDisk.ROOT, format=fmt.name, disk=disk)
    damage = {f.code for f in report.findings if f.severity == Severity.DAMAGE}
    assert damage <= {"index-disagrees", "records-lost", "records-replaced"}
    assert report.records == len(records)
    report_is_sane(report)
    with Log(MemoryDisk.ROOT, format=fmt.name, disk=disk) as log:
        assert {record.offset: record.value for record in log.scan()} == records
        for offset, value in records.items():
            assert log.read(offset).value == value
        for offset in (min(records), max(records)):
            assert next(log.scan(offset)).offset == offset
        assert log.next_offset == max(records) + 1
        if fmt.capabilities.timestamps:
            log.offset_at(0)
            log.offset_at(1_700_000_000_001)


# --- a whole log


def log(fmt: Format, name: str, data: bytes, **options: Any) -> None:
    """The segment as the only file of a log: `verify` and the reader tell the same story."""
    disk = MemoryDisk({name: data})
    with may_refuse():
        report = verify_log(MemoryDisk.ROOT, format=fmt.name, disk=disk, **options)
        report_is_sane(report)
        assert [len(data)] == [found.size_bytes for found in report.segments]
        read = read_all(fmt, disk, options)
        if read is not None and report.ok:
            assert read == report.records


def read_all(fmt: Format, disk: MemoryDisk, options: dict[str, Any]) -> int | None:
    """How many records the reader hands out; None where it raised."""
    count = 0
    try:
        with Log(MemoryDisk.ROOT, format=fmt.name, disk=disk, **options) as opened:
            for batch in opened.batches():
                assert isinstance(batch, pa.RecordBatch)
                count += batch.num_rows
            assert opened.first_offset <= opened.next_offset
    except DuramenError:
        return None
    return count


def report_is_sane(report: Report) -> None:
    json.dumps(report.as_dict())
    for found in report.segments:
        assert 0 <= found.valid_bytes <= found.size_bytes
        assert found.records >= 0
    for finding in report.findings:
        assert finding.code
        assert finding.message
        assert finding.action
        assert finding.position is None or finding.position >= 0
    assert report.ok == all(finding.severity != Severity.DAMAGE for finding in report.findings)
