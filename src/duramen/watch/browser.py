"""Records for the page: a range of them, one with every byte annotated, and those whose value contains a text.

Every result is bounded in records and bytes, whatever the log contains. Values are bytes; text is shown only where they
decode as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from duramen.errors import DuramenError, UsageError
from duramen.formats import Role
from duramen.log import Log, records_of
from duramen.record import Record, to_us

PREVIEW_BYTES = 160
DETAIL_BYTES = 64 << 10
FIELD_BYTES = 256
MAX_FIELDS = 500
NULL = "∅ (null: a tombstone)"
PAGE_RECORDS = 200
PAGE_BYTES = 8 << 20
SEARCH_BYTES = 256 << 20
SEARCH_RECORDS = 2_000_000
_WHOLE = re.compile(r"-?[0-9]{1,18}")


def start_offset(log: Log, at: str) -> int:
    """Resolve a position: an offset, ``-N`` (N before the end), ``beginning``, ``end`` or ``@TIME``."""
    text = at.strip()
    if text in ("", "beginning"):
        return log.first_offset
    if text == "end":
        return max(log.next_offset - PAGE_RECORDS, log.first_offset)
    if text.startswith("@"):
        return log.offset_at(_time(text[1:].strip()))
    if not _WHOLE.fullmatch(text):
        raise UsageError(f"not a position in a log: {at[:40]!r}", hint="give an offset, -N, beginning, end or @TIME")
    offset = int(text)
    return max(log.next_offset + offset, log.first_offset) if offset < 0 else offset


def _time(text: str) -> int | str:
    time = int(text) if _WHOLE.fullmatch(text) else text
    try:
        if abs(to_us(time)) < 2**63:
            return time
    except (ValueError, OverflowError):
        pass
    raise UsageError(f"not a time: {text[:40]!r}", hint="for example @2024-01-31T12:00:00, or epoch milliseconds")


def page(log: Log, at: str, count: int) -> dict[str, Any]:
    """Some records from a position on, abbreviated."""
    first = start_offset(log, at)
    count = max(1, min(count, PAGE_RECORDS))
    rows = [
        _short(record)
        for batch in log.batches(first, max_records=count, max_bytes=PAGE_BYTES, verify=False)
        for record in records_of(_neutral(log, batch))
    ]
    following = rows[-1]["offset"] + 1 if rows else first
    return {
        "records": rows,
        "next": following if following < log.next_offset else None,
        "first_offset": log.first_offset,
        "next_offset": log.next_offset,
    }


def search(log: Log, text: str, at: str, count: int) -> dict[str, Any]:
    """Records whose value contains ``text`` (UTF-8, or bytes as ``0x…``); ``next`` is the offset to continue at."""
    needle = _needle(text)
    first = start_offset(log, at)
    count = max(1, min(count, PAGE_RECORDS))
    found: list[dict[str, Any]] = []
    looked, position = 0, first
    for batch in log.batches(first, max_bytes=SEARCH_BYTES, max_records=SEARCH_RECORDS, verify=False):
        looked += batch.num_rows
        hits = batch.filter(pc.match_substring(batch.column("value"), needle))
        for record in records_of(_neutral(log, hits)):
            found.append(_short(record, needle))
            if len(found) == count:
                return {"records": found, "looked": looked, "next": record.offset + 1}
        if batch.num_rows:
            position = batch.column("offset")[-1].as_py() + 1
    return {"records": found, "looked": looked, "next": position if position < log.next_offset else None}


def one(log: Log, offset: int) -> dict[str, Any]:
    """A record with its fields, byte ranges and bytes."""
    record = log.read(offset)
    shown = _short(record)
    value = record.value or b""
    shown["value_hex"] = value[:DETAIL_BYTES].hex()
    shown["value_text"] = NULL if record.value is None else printable(value[:DETAIL_BYTES])
    shown["is_cut"] = len(value) > DETAIL_BYTES
    shown["headers"] = [
        [printable(name.encode()), "–" if value is None else printable(value)] for name, value in record.headers or []
    ]
    place = log.locate(offset)
    shown["path"], shown["position"] = place.path, place.position
    blocks = log.codec.dump(Role.SEGMENT, place.buf, place.base_offset, place.position, place.indexes.get(Role.INDEX))
    block = next((block for block in blocks if block.position >= place.position), None)
    shown["fields"] = [
        {
            "name": field.name,
            "position": field.position,
            "length": field.length,
            "value": printable(field.value[:FIELD_BYTES]) if isinstance(field.value, bytes) else str(field.value),
            "note": field.note,
            "hex": bytes(place.buf[field.position : field.position + min(field.length, FIELD_BYTES)]).hex(),
        }
        for field in (block.fields[:MAX_FIELDS] if block is not None else [])
    ]
    return shown


def printable(raw: bytes) -> str:
    """Bytes as harmless text, with one replacement per byte that is not text.

    >>> printable(b"<b>caf\\xc3\\xa9\\x1b[31m\\xff")
    '<b>café·[31m·'
    """
    text = raw.decode("utf-8", "replace").replace("\ufffd", "·")
    return "".join(char if char.isprintable() or char in "\n\t" else "·" for char in text)


def _short(record: Record, needle: bytes = b"") -> dict[str, Any]:
    value = record.value or b""
    at = max(value.find(needle) - PREVIEW_BYTES // 4, 0) if needle else 0
    preview = ("…" if at else "") + printable(value[at : at + PREVIEW_BYTES])
    return {
        "offset": record.offset,
        "timestamp": None if record.timestamp is None else record.timestamp.isoformat(),
        "key": None if record.key is None else printable(record.key[:PREVIEW_BYTES]),
        "size_bytes": len(value),
        "preview": NULL if record.value is None else preview,
        "preview_hex": value[:32].hex(),
        "headers_count": len(record.headers or []),
    }


def _needle(text: str) -> bytes:
    if not text:
        raise UsageError("the search text is empty")
    if text.lower().startswith("0x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            raise UsageError(f"not hexadecimal bytes: {text!r}", hint="give two digits per byte: 0x0aff") from None
    return text.encode()


def _neutral(log: Log, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The neutral columns; extra columns of a format are shown among its fields."""
    return batch.select(["offset", "timestamp", "key", "value", "headers"])


def segment_cells(log: Log, cells: int, first_times: dict[int, str | None]) -> list[dict[str, Any]]:
    """The log as a limited number of cells, each one or several segments. ``first_times`` caches the time of each
    segment's first record."""
    segments = log.segments
    per_cell = max(1, -(-len(segments) // max(cells, 1)))
    shown = list(_cells(segments, per_cell, log.next_offset))
    known = dict(first_times)
    for cell in shown:
        base = cell["first_offset"]
        if known.get(base) is None:
            known[base] = _first_time(log, base, cell["next_offset"])
        cell["first_time"] = known[base]
    first_times.clear()
    first_times.update({cell["first_offset"]: cell["first_time"] for cell in shown})
    return shown


def _first_time(log: Log, base: int, until: int) -> str | None:
    if log.codec.capabilities.timestamps is None:
        return None
    try:
        for batch in log.batches(base, until, max_records=1, columns=("timestamp",), verify=False):
            time = batch.column(0)[0].as_py()
            return None if time is None else str(time.isoformat())
    except DuramenError:
        pass  # a check says what is wrong with it
    return None


def _cells(segments: list[Any], per_cell: int, next_offset: int) -> Iterator[dict[str, Any]]:
    bases = [segment.base_offset for segment in segments] + [next_offset]
    for start in range(0, len(segments), per_cell):
        part = segments[start : start + per_cell]
        yield {
            "number": start,
            "segments": len(part),
            "first_offset": part[0].base_offset,
            "next_offset": bases[start + len(part)],
            "size_bytes": sum(segment.size_bytes for segment in part),
            "sealed": all(segment.sealed for segment in part),
        }
