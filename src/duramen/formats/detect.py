"""Detect the format of a log: by magic numbers, then by names, then by structure and checksums.

RustLog and fixed-slot have no magic number. Where the evidence for them is weak or contradictory, detection raises and
asks for the format instead of guessing. The caller brings names and bytes; nothing is opened here.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from duramen.errors import DetectionError
from duramen.formats import fixed_slot, rustlog
from duramen.formats.kafka import starts_with_batch
from duramen.formats.registry import FORMATS
from duramen.formats.rustlog import RustLogWalk
from duramen.formats.segment import Role
from duramen.formats.struct import Buffer
from duramen.kernel import Stop, is_zero


class Detected(NamedTuple):
    """The detected format, the evidence as text, and the role of a single file. Where all files are empty, only their
    names speak, and those of another format may be the same: then it is not ``certain``."""

    format: str
    why: str
    role: Role = Role.SEGMENT
    certain: bool = True


class Files(Protocol):
    """A directory as `detect` sees it: relative paths, and the bytes of each."""

    def names(self) -> Sequence[str]: ...

    def read(self, name: str) -> Buffer: ...


ASK = "say which with format=… (--format on the command line)"

_MAGICS: tuple[tuple[bytes, str, Role], ...] = tuple(
    (magic, name, role) for name, kind in FORMATS.items() for magic, role in kind.magics.items()
)
_NUMBERED = re.compile(r"[0-9]+\.log")
_OF_KAFKA = (Role.TIME_INDEX, Role.TXN_INDEX, Role.PRODUCER_SNAPSHOT, Role.LEADER_EPOCHS, Role.METADATA)
"""Roles of files whose names only Kafka uses."""
_OF_BROKER = "meta.properties"
"""A file of the directory that holds a broker's partitions."""


def detect_file(name: str, buf: Buffer) -> Detected:
    """The format and role of a single file, from its bytes and its name."""
    head = bytes(memoryview(buf)[:8])
    for magic, fmt, role in _MAGICS:
        if head.startswith(magic):
            return Detected(fmt, f"{name} starts with the magic number of {fmt} ({role})", role)
    if _is_kafka_index(name, buf) and not _is_rustlog_index(name, buf):
        return Detected("kafka", f"{name} is named like a kafka index, and its entries increase", Role.INDEX)
    for fmt in ("durable-log", "osiris"):
        known = FORMATS[fmt]().classify(name)
        if known is not None and not (known.role == Role.INDEX and _is_rustlog_index(name, buf)):
            return Detected(fmt, f"{name} is named like a {fmt} {known.role}", known.role)
    kafka = _kafka([name], {name: buf}.__getitem__)
    if kafka is not None:
        return kafka
    known = FORMATS["rustlog"]().classify(name)
    if known is not None and known.role in (Role.INDEX, Role.CHECKPOINT):
        return Detected("rustlog", f"{name} is named like a rustlog {known.role}", known.role)
    return _without_magic(name, buf, has_index=False)


def detect_directory(path: str, files: Files) -> Detected:
    """The format of a directory, from its file names and their first bytes."""
    names = sorted(files.names())
    if not names:
        raise DetectionError("the directory is empty: it holds no log", path=path)
    if any(name.startswith("topics/") for name in names):
        raise DetectionError(
            "this is a store of many logs, not one log",
            path=path,
            hint="open topics/<topic>/partitions/<n> inside it",
        )
    if _OF_BROKER in names:
        raise DetectionError(
            "this is the directory of a Kafka broker, not one log",
            path=path,
            hint="open one of the partitions inside it, or all with duramen.Store",
        )
    for fmt in ("keratin", "osiris", "durable-log"):
        kind = FORMATS[fmt]()
        segments = [n for n in names if (known := kind.classify(n)) and known.role == Role.SEGMENT]
        if segments:
            return _confirm(path, fmt, segments, files)
    kafka = _kafka(names, files.read)
    if kafka is not None:
        return kafka
    numbered = [n for n in names if _NUMBERED.fullmatch(n)]
    if not numbered:
        return _without_segment(path, names, files)
    try:
        return _numbered(numbered, names, files)
    except DetectionError as error:
        error.path = posixpath.join(path, error.path) if error.path else path
        raise


def _without_segment(path: str, names: Sequence[str], files: Files) -> Detected:
    """A directory without segments may still hold a file with a magic number."""
    for name in names:
        head = bytes(memoryview(files.read(name))[:8])
        for magic, fmt, role in _MAGICS:
            if head.startswith(magic):
                return Detected(fmt, f"{name} is a {fmt} {role}; the segments are missing", role)
    some = f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
    raise DetectionError(f"no file here is named like a log's: {some}", path=path)


def _kafka(names: Sequence[str], read: Callable[[str], Buffer]) -> Detected | None:
    """Kafka, by a valid batch at the start of a segment, or by the names that only Kafka uses; None if neither."""
    kind = FORMATS["kafka"]()
    known = [(name, found) for name in names if (found := kind.classify(name)) is not None]
    for name, found in known:
        if found.role == Role.SEGMENT and starts_with_batch(memoryview(read(name))):
            return Detected("kafka", f"{name} starts with a valid batch or message of Kafka")
    for name, found in known:
        if found.role in _OF_KAFKA:
            role = found.role if len(names) == 1 else Role.SEGMENT
            return Detected("kafka", f"{name} is named like a kafka {found.role}", role)
    return None


def _is_kafka_index(name: str, buf: Buffer) -> bool:
    """Kafka and Osiris name their indexes alike; one without Osiris' magic number whose entries increase is Kafka's."""
    kind = FORMATS["kafka"]()
    known = kind.classify(name)
    if known is None or known.role != Role.INDEX or known.base is None:
        return False
    index = kind.open_index(Role.INDEX, buf, known.base)
    return index is not None and len(index) > 0 and not index.rest_bytes and index.in_order()


def _is_rustlog_index(name: str, buf: Buffer) -> bool:
    """RustLog and Osiris name their indexes alike; RustLog's starts with an entry for the segment's first record."""
    known = FORMATS["rustlog"]().classify(name)
    if known is None or known.base is None:
        return False
    first = rustlog.ENTRY.pack(offset=known.base, position=0)
    view = memoryview(buf)
    return len(view) % len(first) == 0 and bytes(view[: len(first)]) == first


def _confirm(path: str, fmt: str, segments: Sequence[str], files: Files) -> Detected:
    """Check that the first segment of a directory named like ``fmt`` does not start like another format."""
    first = segments[0]
    head = bytes(memoryview(files.read(first))[:8])
    magics = [m for m, f, role in _MAGICS if f == fmt and role == Role.SEGMENT]
    if any(head.startswith(m) for m in magics):
        return Detected(fmt, f"{first} is named like a {fmt} segment and starts with its magic number")
    if not head.strip(b"\0") or any(m.startswith(head) for m in magics):
        return Detected(fmt, f"{first} is named like a {fmt} segment; it holds no complete magic number yet")
    other = next((f for m, f, _ in _MAGICS if head.startswith(m)), None)
    if other is not None:
        raise DetectionError(f"{first} is named like {fmt} but starts like {other}", path=path, position=0, hint=ASK)
    return Detected(fmt, f"{first} is named like a {fmt} segment, though its first bytes are damaged")


def _numbered(numbered: Sequence[str], names: Sequence[str], files: Files) -> Detected:
    """``000….log`` files: RustLog, fixed-slot, or the inside of a Keratin log."""
    has_index = any(n.endswith(".index") for n in names) or ".cleaner_checkpoint" in names
    for name in numbered:
        buf = files.read(name)
        head = bytes(memoryview(buf)[:8])
        magic = next(((f, role) for m, f, role in _MAGICS if head.startswith(m)), None)
        if magic == ("keratin", Role.SEGMENT):
            raise DetectionError(
                f"{name} is a Keratin segment: this is the segments/ directory of a log",
                hint="open its parent",
            )
        if magic is not None:
            return Detected(magic[0], f"{name} starts with the magic number of {magic[0]} ({magic[1]})")
        if memoryview(buf) or name == numbered[-1]:
            return _without_magic(name, buf, has_index=has_index)
    raise AssertionError("the last file is always classified")


def _without_magic(name: str, buf: Buffer, *, has_index: bool) -> Detected:
    """RustLog or fixed-slot, by structure, checksum and name; raises where they disagree."""
    size = len(memoryview(buf))
    slot_name = name == fixed_slot.NAME
    if not bytes(memoryview(buf)[:1]).strip(b"\0") and is_zero(buf, 0, size):
        if slot_name and not has_index:
            why = f"{name} holds nothing yet and is named like fixed-slot's only file"
            return Detected("fixed-slot", why, certain=False)
        if _NUMBERED.fullmatch(name):
            why = f"{name} holds nothing yet and is named like a rustlog segment"
            return Detected("rustlog", why, certain=False)
        raise DetectionError("the file is empty or holds only zeros, which fits any format", path=name, hint=ASK)
    dialect = rustlog.dialect_of(buf)
    end = rustlog.walk(buf, dialect)
    records = _looks_like_records(end, size)
    record_size = fixed_slot.infer(buf)
    if len(set(bytes(memoryview(buf)[: record_size + 4]))) == 1 and not slot_name:
        record_size = 0  # the checksum of four bytes FF is four bytes FF
    if records and not record_size:
        return Detected(
            "rustlog",
            f"{name} holds {end.records} records in order with RustLog's {dialect.name}, up to byte {end.position}",
        )
    if record_size and not records:
        return Detected("fixed-slot", f"{name}: the checksum of slot 0 fits a record size of {record_size} bytes")
    if records and record_size:
        raise DetectionError(
            f"could be rustlog ({dialect.name}) or fixed-slot (record size {record_size})",
            path=name,
            hint=ASK,
        )
    if has_index:
        return Detected("rustlog", f"{name} lies beside an .index file, though its first record is damaged")
    raise DetectionError("no known magic number, record structure or checksum", path=name, position=0, hint=ASK)


def _looks_like_records(end: RustLogWalk, size: int) -> bool:
    if end.records == 0:
        return False
    return end.stop in (Stop.END, Stop.ZEROS, Stop.LIMIT) or end.records > 1 or end.position * 2 >= size
