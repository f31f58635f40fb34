"""The files of the sidecar field by field, for `dump`. Their layouts are those of `sidecar` and `origin`."""

from __future__ import annotations

import json
import posixpath
import sys
from collections.abc import Callable, Iterator

from duramen import kernel
from duramen.formats.index import dump_index
from duramen.formats.showing import SHOWN_BYTES
from duramen.formats.structs import Block, Field, Struct
from duramen.log.sidecar import DIRECTORY, PAGE_BYTES, Watermark

_COUNTER = Struct("<" if sys.byteorder == "little" else ">", stores="I")
_NUMBERS = {name: "I" if name in ("crc32c", "durable_crc32c", "is_open") else "q" for name in Watermark._fields}
SLOT = Struct("<", magic="8s", number="q", **_NUMBERS, checksum="I")
SLOTS = ("now", "synced0", "synced1")
assert SLOT.size * len(SLOTS) == PAGE_BYTES, "the page of the sidecar has changed"

CHUNK = Struct("<", first_offset="q")
_Dump = Callable[[memoryview, int], Iterator[Block]]


def dump_for(path: str) -> _Dump | None:
    """How the file at ``path`` is shown, if it is one of a sidecar: called with its bytes and where to begin."""
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
            problem = "torn: no whole watermark is here" if len(raw) == SLOT.size else "the page is cut short"
        fields = list(SLOT.fields(view, start))
        covered = fields[-1].position + fields[-1].length if fields else start
        if covered < min(start + SLOT.size, len(view)):
            fields.append(Field("bytes", covered, len(view) - covered, bytes(view[covered:])))
        if title == SLOTS[0] and problem is not None and len(raw) == SLOT.size:
            # It is overwritten without a sync: a crash may tear it, and the other two are there for that.
            fields[-1], problem = fields[-1]._replace(note="torn, which is no damage: see the slots below"), None
        yield Block(title, start, fields, problem)


def _sealed(view: memoryview, begin: int) -> Iterator[Block]:
    """One line for every sealed segment: what is known of it, and a checksum of that."""
    position = 0
    for number, line in enumerate(bytes(view).splitlines(keepends=True)):
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
    raw, problem = bytes(view), None
    text = raw[:SHOWN_BYTES].decode("utf-8", "backslashreplace")
    try:
        text = json.dumps(json.loads(raw))
    except (ValueError, RecursionError) as error:
        problem = f"not JSON: {error}"
    yield Block("json", 0, [Field("json", 0, len(raw), text)], problem)


def _text(view: memoryview, begin: int) -> Iterator[Block]:
    if len(view):
        yield Block("holder", 0, [Field("text", 0, len(view), bytes(view))])


def _chunks(view: memoryview, begin: int) -> Iterator[Block]:
    return dump_index(view, 0, CHUNK, begin)


_DUMPS: dict[str, _Dump] = {
    "watermark": _watermark,
    "sealed.jsonl": _sealed,
    "lock": _text,
    "origin.chunks": _chunks,
}
