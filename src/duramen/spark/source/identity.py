"""Which log an offset of a stream belongs to, as a short text that lies in the checkpoint beside the offset.

The text has two parts, and either may be missing: ``keratin/1763300000000 keratin+0+4096:9bd2a17c``.

- *Made*: the format and the time at which the log was created, as the sidecar has them. `duramen.log.read.log` goes by
  the same. A copy, a compaction and an appended record keep it; a log that is created again under the same path has
  another.
- *Beginning*: how the log is read (the format, and the size of its records where that is an option), the base of the
  first segment, a number of bytes, and the CRC-32C of that many bytes from its start. It is all that a log of another
  program has, and it is compared only where one side has no sidecar.

Where neither part can be compared, because retention has removed the first segment or an older version wrote the
checkpoint, the logs count as the same: nothing here guesses. Reads at most `BEGINNING_BYTES` of one file.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from duramen.disk import Disk, Look
from duramen.errors import CorruptionError, StorageError
from duramen.kernel import crc32c
from duramen.log import Log, SegmentInfo
from duramen.sidecar import read_config

BEGINNING_BYTES = 4096
_TEXT = re.compile(r"(?P<made>[\w-]+/-?\d+)?(?: ?(?P<kind>[\w-]+)\+(?P<base>\d+)\+(?P<size>\d+):(?P<crc>[0-9a-f]{8}))?")


class Beginning(NamedTuple):
    """The first bytes of a log's first segment."""

    kind: str
    base: int
    size_bytes: int
    crc32c: str

    def __str__(self) -> str:
        return f"{self.kind}+{self.base}+{self.size_bytes}:{self.crc32c}"


class Identity(NamedTuple):
    """What tells one log from another."""

    made: str | None = None
    beginning: Beginning | None = None

    def __str__(self) -> str:
        return " ".join(str(part) for part in self if part is not None)


def parse_identity(text: str) -> Identity:
    """The identity that `str` made a text of. Raises ValueError for any other text."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} does not identify a log")
    if found["kind"] is None:
        return Identity(found["made"])
    return Identity(found["made"], Beginning(found["kind"], int(found["base"]), int(found["size"]), found["crc"]))


def identity_of(log: Log, disk: Disk) -> Identity:
    segments = log.segments
    begin = None
    if segments and segments[0].size_bytes:
        begin = _beginning(log, disk, segments[0], min(segments[0].size_bytes, BEGINNING_BYTES))
    return Identity(made_at(disk, log.path), begin)


def is_other(held: Identity, log: Log, disk: Disk) -> bool:
    """Whether the log is certainly another one than the one that ``held`` was taken of."""
    made = made_at(disk, log.path)
    if held.made is not None and made is not None:
        return held.made != made
    begin, segments = held.beginning, log.segments
    if begin is None or not segments or segments[0].base_offset > begin.base:
        return False
    info = next((info for info in segments if info.base_offset == begin.base), None)
    return info is None or info.size_bytes < begin.size_bytes or _beginning(log, disk, info, begin.size_bytes) != begin


def made_at(disk: Disk, root: str) -> str | None:
    """The first part of the identity of the log that is at ``root`` now; None without a sidecar."""
    try:
        config = read_config(disk, root)
    except (CorruptionError, StorageError):
        return None
    return None if config is None else f"{config.format}/{config.created_ms}"


def _beginning(log: Log, disk: Disk, info: SegmentInfo, size_bytes: int) -> Beginning:
    record_bytes = log.codec.options.get("record_size")
    kind = log.format if record_bytes is None else f"{log.format}-{record_bytes}"
    return Beginning(kind, info.base_offset, size_bytes, f"{crc32c(Look(disk, info.path).data[:size_bytes]):08x}")
