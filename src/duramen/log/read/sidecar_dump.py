"""Shows the files of the sidecar field by field, for `duramen dump`."""

from __future__ import annotations

import json
import posixpath
import sys
from collections.abc import Callable, Iterator

from duramen import kernel
from duramen.errors import CorruptionError
from duramen.formats import SHOWN_BYTES, Block, Field, Struct, dump_index
from duramen.sidecar import (
    DIRECTORY,
    LOCK_NAME,
    ORIGIN_CHUNKS_NAME,
    PAGE_BYTES,
    SEALED_NAME,
    STATE_BYTES,
    WATERMARK_NAME,
    Watermark,
    bounded_copy,
    lines,
    parse_json,
)

_COUNTER = Struct("<" if sys.byteorder == "little" else ">", stores="I")
_FIELDS = (*Watermark._fields[:8], "flags")  # which hold is_open and has_digest
_NUMBERS = {name: "I" if name in ("crc32c", "durable_crc32c", "flags") else "q" for name in _FIELDS}
SLOT = Struct("<", magic="8s", number="q", **_NUMBERS, checksum="I")
SLOTS = ("now", "synced0", "synced1")
assert SLOT.size * len(SLOTS) == PAGE_BYTES, "the page of the sidecar has changed"

CHUNK = Struct("<", first_offset="q")
_Dump = Callable[[memoryview, int], Iterator[Block]]


def dump_for(path: str) -> _Dump | None:
    """The function that shows the file at ``path``, if it is in a sidecar; called with the bytes and a start."""
    parts = path.replace("\\", "/").split("/")
    if DIRECTORY not in parts[:-1]:
        return None
    name = posixpath.basename(path)
    if name in _DUMPS:
        return _DUMPS[name]
    return _json if name.endswith(".json") else None


def _watermark(view: memoryview, begin: int) -> Iterator[Block]:
    yield Block("counter", 0, list(_COUNTER.fields(view, 0)))
    for number, title in enumerate(SLOTS):
        start = _COUNTER.size + number * SLOT.size
        raw = bytes(view[start : start + SLOT.size])
        if not raw:
            return
        problem = None
        if Watermark.decode(raw) is None and any(raw):
            problem = "torn: this slot holds no whole watermark" if len(raw) == SLOT.size else "the page is cut short"
        fields = list(SLOT.fields(view, start))
        covered = fields[-1].position + fields[-1].length if fields else start
        if covered < min(start + SLOT.size, len(view)):
            fields.append(Field("bytes", covered, len(view) - covered, bytes(view[covered : covered + SHOWN_BYTES])))
        if title == SLOTS[0] and problem is not None and len(raw) == SLOT.size:
            # Every commit overwrites it without a sync, so a crash may tear it; the other two slots survive.
            fields[-1], problem = fields[-1]._replace(note="torn, which is not damage: see the slots below"), None
        yield Block(title, start, fields, problem)


def _sealed(view: memoryview, begin: int) -> Iterator[Block]:
    """One block for the line of every sealed segment."""
    position = 0
    for number, line in enumerate(lines(view)):
        body, _, crc = line.rstrip(b"\n").rpartition(b" ")
        problem = None
        if not line.endswith(b"\n"):
            problem = "the line is cut short"
        elif crc != b"%08x" % kernel.crc32c(body):
            problem = "checksum mismatch"
        fields = [Field("json", position, len(body), body.decode("utf-8", "backslashreplace"))]
        rest = position + len(body)
        fields.append(Field("crc32c", rest, position + len(line) - rest, bytes(view[rest : position + len(line)])))
        yield Block(f"line{number}", position, fields, problem)
        position += len(line)


def _json(view: memoryview, begin: int) -> Iterator[Block]:
    text, problem = bytes(view[:SHOWN_BYTES]).decode("utf-8", "backslashreplace"), None
    try:
        text = json.dumps(parse_json(bounded_copy(view, "", STATE_BYTES)))
    except ValueError as error:
        problem = f"not JSON: {error}"
    except CorruptionError as error:
        problem = error.message
    yield Block("json", 0, [Field("json", 0, len(view), text)], problem)


def _text(view: memoryview, begin: int) -> Iterator[Block]:
    if len(view):
        yield Block("holder", 0, [Field("text", 0, len(view), bytes(view[:SHOWN_BYTES]))])


def _chunks(view: memoryview, begin: int) -> Iterator[Block]:
    return dump_index(view, 0, CHUNK, begin)


_DUMPS: dict[str, _Dump] = {
    WATERMARK_NAME: _watermark,
    SEALED_NAME: _sealed,
    LOCK_NAME: _text,
    ORIGIN_CHUNKS_NAME: _chunks,
}
