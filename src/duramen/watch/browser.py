"""Records for the page: some of them, one with every byte annotated, the latest, and the value of one.

Every result is bounded in records and bytes, whatever the log contains. Values are bytes; text is shown only where they
decode as text.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from duramen.arguments import check_choice
from duramen.errors import DuramenError, LimitError, UsageError
from duramen.formats import Role
from duramen.log import Log
from duramen.record import MAX_OFFSET, Record, to_us
from duramen.values import decoded_json, decoder, python_values
from duramen.watch.search import Found, RecordFilter, SearchRange, find

PREVIEW_BYTES = 160
DETAIL_BYTES = 256 << 10
DOWNLOAD_BYTES = 64 << 20
FIELD_BYTES = 256
MAX_FIELDS = 500
NULL = "∅ (null: a tombstone)"
PAGE_RECORDS = 200
AUTO, NONE = "auto", "none"
DECODED = ("amqp", "json", "msgpack", "utf8")
"""Kinds that need no schema."""
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


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


def records(log: Log, query: Mapping[str, str], count: int) -> dict[str, Any]:
    """Some records, abbreviated: from the position ``at`` on, in the order ``order`` (``newest`` or ``oldest`` first),
    that match the filters ``q``, ``key`` and ``header`` and lie between the times ``since`` and ``until``."""
    wanted = RecordFilter.of(query.get("q", ""), query.get("key", ""), query.get("header", ""))
    newest = query.get("order", "oldest") == "newest"
    first, stop = log.first_offset, log.next_offset
    if query.get("since"):
        first = max(first, log.offset_at(_time(query["since"])))
    if query.get("until"):
        stop = min(stop, log.offset_at(_time(query["until"])))
    at = query.get("at", "").strip()
    if newest and at in ("", "end"):
        start = stop - 1
    else:
        start = min(start_offset(log, at), MAX_OFFSET - 1) if at else first
    found = find(log, wanted, SearchRange(start, first, stop, newest), max(1, min(count, PAGE_RECORDS)))
    return shown(found, wanted, query.get("decode", AUTO))


def tail(log: Log, query: Mapping[str, str], after: int, count: int) -> dict[str, Any]:
    """The latest records from the offset ``after`` on that match, newest first; ``next`` is its next ``after``."""
    wanted = RecordFilter.of(query.get("q", ""), query.get("key", ""), query.get("header", ""))
    stop = log.next_offset
    found = find(log, wanted, SearchRange(stop - 1, max(after, log.first_offset), stop, True), min(count, PAGE_RECORDS))
    skipped = 0 if found.next is None else max(found.next - max(after, log.first_offset) + 1, 0)
    return {**shown(found, wanted, query.get("decode", AUTO)), "next": stop, "skipped": skipped}


def shown(found: Found, wanted: RecordFilter, decode: str) -> dict[str, Any]:
    check_choice("decode", decode, (AUTO, NONE, *DECODED))
    return {**found._asdict(), "records": [_short(record, wanted.text, decode) for record in found.records]}


def value_of(log: Log, offset: int) -> bytes:
    """The whole value of a record, for a download."""
    value = log.read(offset).value or b""
    if len(value) > DOWNLOAD_BYTES:
        raise LimitError(
            f"the value has {len(value):,} bytes; the page sends at most {DOWNLOAD_BYTES:,}",
            offset=offset, hint=f"duramen cat {log.path} --from {offset} --count 1 --output raw",
        )  # fmt: skip
    return value


def one(log: Log, offset: int, decode: str = AUTO) -> dict[str, Any]:
    """A record with its fields, byte ranges and bytes, and its value decoded: as ``decode`` says, or as what it is."""
    record = log.read(offset)
    shown = _short(record, decode=decode)
    shown["decoded"] = decoded_value(record.value, decode)
    value = (record.value or b"")[:DETAIL_BYTES]
    shown["value_hex"] = value.hex()
    shown["value_text"] = NULL if record.value is None else printable(value)
    shown["is_cut"] = shown["size_bytes"] > DETAIL_BYTES
    shown["is_text"] = is_text(value, is_whole=not shown["is_cut"])
    shown["headers"] = [
        [printable(name.encode()), "–" if value is None else _legible(value)]
        for name, value in (record.headers or [])[:MAX_FIELDS]
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


def is_text(raw: bytes, *, is_whole: bool = True) -> bool:
    """Whether bytes are UTF-8 without control characters; a cut may split the last character.

    >>> is_text(b"caf\\xc3", is_whole=False), is_text(b"caf\\xc3"), is_text(b"a\\x00")
    (True, False, False)
    """
    try:
        text = getincrementaldecoder("utf-8")().decode(raw, is_whole)
    except UnicodeDecodeError:
        return False
    return not _CONTROL.search(text)


def _legible(raw: bytes, at: int = 0) -> str:
    """Some bytes as text if they are text, else in hexadecimal."""
    part = raw[at : at + PREVIEW_BYTES]
    if is_text(raw[: at + PREVIEW_BYTES], is_whole=len(raw) <= at + PREVIEW_BYTES):
        return ("…" if at else "") + printable(part)
    return "0x" + raw[at : at + PREVIEW_BYTES // 4].hex()


def decoded_value(value: bytes | None, decode: str) -> dict[str, str] | None:
    """A value as JSON with the kind that it was decoded as; the reason where it is not of the kind that was asked for.
    ``auto`` tries AMQP, which begins with its own bytes; ``none`` decodes nothing."""
    check_choice("decode", decode, (AUTO, NONE, *DECODED))
    if value is None or decode == NONE or len(value) > DETAIL_BYTES or (decode == AUTO and value[:1] != b"\0"):
        return None
    kind = "amqp" if decode == AUTO else decode
    found, malformed = decoder(kind, on_malformed="raw").decode(pa.array([0]), pa.array([value], pa.binary()))
    if not malformed[0].is_valid:
        return {"kind": kind, "text": decoded_json(python_values(found)[0])}
    return None if decode == AUTO else {"kind": kind, "problem": malformed[0].as_py()["reason"]}


def _body(value: bytes, decode: str) -> bytes:
    """The body of a message, for a line of a list; any other value as it is."""
    if decode != AUTO or value[:2] != b"\0\x53" or len(value) > DETAIL_BYTES:
        return value
    found, malformed = decoder("amqp", on_malformed="raw").decode(pa.array([0]), pa.array([value], pa.binary()))
    body = found[0]["body"]["data"].as_py() if not malformed[0].is_valid else None
    return value if body is None else body


def _short(record: Record, needle: bytes = b"", decode: str = NONE) -> dict[str, Any]:
    value = record.value or b""
    body = value if needle else _body(value, decode)
    at = max(value.find(needle) - PREVIEW_BYTES // 4, 0) if needle else 0
    return {
        "offset": record.offset,
        "timestamp": None if record.timestamp is None else record.timestamp.isoformat(),
        "key": None if record.key is None else _legible(record.key),
        "size_bytes": len(value),
        "is_null": record.value is None,
        "preview": NULL if record.value is None else _legible(body, at),
        "headers_count": len(record.headers or []),
    }


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
