"""Keratin's ``manifest.bin``: the state of the log when the manifest was last written. A derived file.

::

      0  KERATIN\\0          8 bytes
      8  version            u16
     10  flags              u16
     12  header_len         u32  20; the checksum does not cover this header
     16  crc32c             u32  CRC-32C of everything after this field
     20  created_ts_ms      u64
     28  segment_max_bytes  u64
     36  index_stride_bytes u32
          the document's, 44 + 32n bytes      what the program writes: 48, 56 or 64 bytes
     40   max_open_segments  u16              pad                 u32
     42   reserved0          u16
     44   active_base_offset u64              active_base_offset  u64
     52   next_offset        u64              next_offset         u64
     60   segment_count      u32              head_offset         u64
     64   segment_count ×                     epoch               u64  from version 2 on
          base_offset, last_offset,           shared_marker   8 bytes  from version 3 on
          log_bytes, idx_bytes  u64 each

Where records and manifest differ, the records win; a manifest that is ahead of them means that records are lost.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from duramen import kernel
from duramen.errors import CorruptionError, UnknownVersionError, UsageError
from duramen.formats.format import DOCUMENT, PROGRAM
from duramen.formats.segment import Problem, SegmentSummary, Severity
from duramen.formats.struct import Block, Buffer, Field, Struct
from duramen.record import MAX_OFFSET

MANIFEST_MAGIC = b"KERATIN\0"
MANIFEST_HEADER = Struct(">", magic="8s", version="H", flags="H", header_len="I", crc32c="I")
SEALED = Struct(">", base_offset="Q", last_offset="Q", log_bytes="Q", idx_bytes="Q")

_COMMON = {"created_ts_ms": "Q", "segment_max_bytes": "Q", "index_stride_bytes": "I"}
_PLACE = {"active_base_offset": "Q", "next_offset": "Q"}
_V1 = {**_COMMON, "pad": "I", **_PLACE, "head_offset": "Q"}
_V2 = {**_V1, "epoch": "Q"}
_V3 = {**_V2, "shared_marker": "8s"}


MEND_BYTES = 4096
"""The longest manifest in which every single-bit repair is tried."""
SHARED_MARKER = b"SHARED\0\0"


class ManifestLayout(NamedTuple):
    """One of the payloads that a manifest can have. They differ in length."""

    version: int
    payload: Struct
    known_flags: int


MANIFEST_LAYOUTS = {
    "spec": ManifestLayout(
        1, Struct(">", **_COMMON, max_open_segments="H", reserved0="H", **_PLACE, segment_count="I"), 0
    ),
    "program v1": ManifestLayout(1, Struct(">", **_V1), 0),
    "program v2": ManifestLayout(2, Struct(">", **_V2), 1),
    "program v3": ManifestLayout(3, Struct(">", **_V3), 1),
}


MANIFEST_BYTES = 8 << 20
"""The largest manifest that is read: room for 262,000 sealed segments."""


class SealedSegment(NamedTuple):
    """A sealed segment in the document's manifest."""

    base_offset: int
    last_offset: int
    log_bytes: int
    idx_bytes: int


@dataclass(frozen=True)
class Manifest:
    """The contents of ``manifest.bin``.

    >>> Manifest.decode(Manifest(created_ts_ms=1, next_offset=3).encode()).next_offset
    3
    """

    created_ts_ms: int
    segment_max_bytes: int = 256 << 20
    index_stride_bytes: int = 65_536
    max_open_segments: int = 64
    active_base_offset: int = 0
    next_offset: int = 0
    segments: tuple[SealedSegment, ...] = ()
    layout: str = "spec"
    flags: int = 0
    """Bit 0 in the program's versions 2 and 3: clean shutdown."""
    head_offset: int = 0
    epoch: int = 0
    shared_marker: bytes = b""
    reserved0: int = 0
    """The field ``pad`` of the program's layouts."""

    @property
    def is_of_program(self) -> bool:
        return self.layout != "spec"

    @property
    def is_shared(self) -> bool:
        """Whether segments may be hard links to those of another log, which must not change."""
        return bool(self.shared_marker)

    def at(self, active: SegmentSummary, first_offset: int) -> Manifest:
        """The manifest of the log as it is now, without its list of segments. Keeps the epoch, and clears the clean
        shutdown: the program would trust it instead of reading records that another program wrote."""
        following = active.last_offset + 1
        head = min(max(self.head_offset, first_offset), following)
        return replace(
            self, active_base_offset=active.base_offset, next_offset=following, segments=(), flags=0,
            head_offset=head if self.is_of_program else 0,
        )  # fmt: skip

    def encode(self) -> bytes:
        """The bytes, in ``layout``."""
        kind = MANIFEST_LAYOUTS[self.layout]
        values = {**self.__dict__, "segment_count": len(self.segments), "pad": self.reserved0}
        try:
            payload = kind.payload.pack(**{name: values[name] for name in kind.payload.names})
            payload += b"".join(SEALED.pack_row(*segment) for segment in self.segments)
            header = MANIFEST_HEADER.pack(
                magic=MANIFEST_MAGIC, version=kind.version, flags=self.flags, header_len=MANIFEST_HEADER.size,
                crc32c=kernel.crc32c(payload),
            )  # fmt: skip
        except struct.error as error:
            raise UsageError(f"the manifest holds a number that does not fit: {error}") from error
        return header + payload

    @classmethod
    def decode(cls, buf: Buffer) -> Manifest:
        """The manifest in ``buf``; raises `CorruptionError` with the position of what is wrong."""
        view = memoryview(buf)
        head, count = cls.decode_head(view)
        first = len(view) - count * SEALED.size
        rows = (SEALED.unpack(view, first + row * SEALED.size) for row in range(count))
        return replace(head, segments=tuple(SealedSegment(*map(int, row.values())) for row in rows))

    @classmethod
    def decode_head(cls, buf: Buffer) -> tuple[Manifest, int]:
        """The manifest without its list of sealed segments, and how many they are. Its checksum covers them, too."""
        view = memoryview(buf)
        start = _check_header(view)
        layout = _layout_of(view, start)
        payload = MANIFEST_LAYOUTS[layout].payload
        values: dict[str, Any] = {"flags": MANIFEST_HEADER.unpack(view)["flags"], **payload.unpack(view, start)}
        values["reserved0"] = values.pop("pad", values.get("reserved0"))
        count = int(values.pop("segment_count", 0))
        return cls(**values, layout=layout), count

    def problems(self) -> Iterator[Problem]:
        """Numbers that contradict each other, under a checksum that is right."""
        previous = -1
        for segment in self.segments:
            if segment.base_offset <= previous or segment.last_offset < segment.base_offset:
                yield Problem(
                    "bad-manifest", Severity.WARNING,
                    f"the sealed segments overlap or go backwards at {segment.base_offset}",
                    offset=segment.base_offset,
                )  # fmt: skip
            previous = segment.last_offset
        if not previous < self.active_base_offset <= self.next_offset <= MAX_OFFSET:
            yield Problem(
                "bad-manifest", Severity.WARNING,
                f"active_base_offset {self.active_base_offset} and next_offset {self.next_offset} do not fit together",
            )  # fmt: skip


def mended(buf: Buffer) -> Manifest | None:
    """The manifest, also where one of its bits is flipped: the checksum tells which. None where it cannot be read."""
    try:
        return Manifest.decode(buf)
    except CorruptionError:
        pass
    if len(memoryview(buf)) > MEND_BYTES:
        return None
    raw = bytearray(buf)
    for place in range(len(raw) * 8):
        raw[place // 8] ^= 1 << place % 8
        try:
            return Manifest.decode(raw)
        except CorruptionError:
            raw[place // 8] ^= 1 << place % 8
    return None


def layout_of_size(size_bytes: int) -> str | None:
    """The layout of a manifest that cannot be read, as far as its size tells; no two layouts share one."""
    for name, kind in MANIFEST_LAYOUTS.items():
        if name != "spec" and size_bytes == MANIFEST_HEADER.size + kind.payload.size:
            return name
    return None


def _check_header(view: memoryview) -> int:
    """Where the payload starts. The checksum does not cover the header, so each of its fields is judged by value."""
    if len(view) > MANIFEST_BYTES:
        raise CorruptionError(f"a manifest has at most {MANIFEST_BYTES} bytes, not {len(view)}", position=0)
    if len(view) < MANIFEST_HEADER.size:
        raise CorruptionError(f"the manifest is cut short: {len(view)} bytes", position=0)
    header = MANIFEST_HEADER.unpack(view)
    if header["magic"] != MANIFEST_MAGIC:
        raise CorruptionError(f"bad magic number {header['magic']!r} of the manifest", position=0)
    if header["version"] not in {kind.version for kind in MANIFEST_LAYOUTS.values()}:
        raise UnknownVersionError(
            f"unknown version {header['version']!r} of the manifest", position=MANIFEST_HEADER.at("version")
        )
    start = int(header["header_len"])
    if not MANIFEST_HEADER.size <= start <= len(view):
        raise CorruptionError(
            f"the manifest's header claims {start} bytes of {len(view)}", position=MANIFEST_HEADER.at("header_len")
        )
    if header["crc32c"] != kernel.crc32c(view[MANIFEST_HEADER.size :]):
        raise CorruptionError("checksum mismatch in the manifest", position=MANIFEST_HEADER.at("crc32c"))
    return start


def _layout_of(view: memoryview, start: int) -> str:
    """The layout of the payload, from its length, the version and the length of the list.

    The document's 44 + 32n bytes are never the 48, 56 or 64 of the program.
    """
    header = MANIFEST_HEADER.unpack(view)
    length = len(view) - start
    for name, (version, payload, known_flags) in MANIFEST_LAYOUTS.items():
        segments = 0
        if "segment_count" in payload.names and length >= payload.size:
            segments = int(payload.unpack(view, start)["segment_count"])
        if header["version"] != version or length != payload.size + segments * SEALED.size:
            continue
        if int(header["flags"]) & ~known_flags:
            raise CorruptionError(
                f"unknown flags {header['flags']!r} of the manifest", position=MANIFEST_HEADER.at("flags")
            )
        return name
    raise CorruptionError(
        f"no manifest of version {header['version']!r} has {length} bytes after its header", position=start
    )


def dump_manifest(buf: Buffer) -> Iterator[Block]:
    view = memoryview(buf)
    fields = list(MANIFEST_HEADER.fields(view, 0))
    try:
        start = _check_header(view)
        layout = _layout_of(view, start)
    except CorruptionError as error:
        if len(view) > MANIFEST_HEADER.size:
            rest = len(view) - MANIFEST_HEADER.size
            fields.append(Field("bytes", MANIFEST_HEADER.size, rest, bytes(view[MANIFEST_HEADER.size :][:64])))
        yield Block("hdr", 0, fields, error.message)
        return
    yield Block("hdr", 0, fields)
    payload = MANIFEST_LAYOUTS[layout].payload
    yield Block("payload", start, list(payload.fields(view, start)))
    for number, position in enumerate(range(start + payload.size, len(view), SEALED.size)):
        yield Block(f"seg{number}", position, list(SEALED.fields(view, position)))


def lost_since(manifest: Manifest, segments: Sequence[SegmentSummary]) -> Iterator[Problem]:
    """Records that the manifest lists and the log no longer holds. A manifest older than the log is normal."""
    found = {segment.base_offset: segment.last_offset for segment in segments}
    oldest = min(found, default=0)
    for base, last, _, _ in manifest.segments:
        if base not in found and base < oldest:
            message = f"the segment {base}, which it lists, was removed from the log's beginning"
            yield Problem("stale-manifest", Severity.NOTE, message, offset=base)
        elif found.get(base, base - 1) < last:
            what = f"ends at offset {found[base]}" if base in found else "is missing"
            message = f"the segment {base} {what}, and it went up to {last} when it was sealed"
            yield Problem("manifest-ahead", Severity.DAMAGE, message, offset=found.get(base, base - 1) + 1)
    following = max(found.values(), default=-1) + 1
    if manifest.next_offset > following:
        message = f"its next offset is {manifest.next_offset}, and the records end before {following}"
        yield Problem("manifest-ahead", Severity.DAMAGE, message, offset=following)


def manifest_facts(buf: Buffer) -> dict[str, Any]:
    manifest = Manifest.decode(buf)
    facts: dict[str, Any] = {
        "layout": manifest.layout,
        "dialect": PROGRAM if manifest.is_of_program else DOCUMENT,
        "created_ts_ms": manifest.created_ts_ms,
        "segment_max_bytes": manifest.segment_max_bytes,
        "index_stride_bytes": manifest.index_stride_bytes,
        "active_base_offset": manifest.active_base_offset,
        "next_offset": manifest.next_offset,
    }
    payload = MANIFEST_LAYOUTS[manifest.layout].payload.names
    if manifest.layout == "spec":
        facts["max_open_segments"] = manifest.max_open_segments
        facts["segments"] = [segment._asdict() for segment in manifest.segments]
    facts |= {name: getattr(manifest, name) for name in ("head_offset", "epoch") if name in payload}
    if manifest.is_of_program:
        facts["manifest_version"] = min(MANIFEST_LAYOUTS[manifest.layout].version, 2)
    if manifest.layout in ("program v2", "program v3"):
        facts["clean_shutdown"] = bool(manifest.flags & 1)
    return facts
