"""The snapshot that the Stroma program itself writes (SSNAP): decoded and shown. Duramen writes the document's.

::

      0  magic                      8 bytes  SSNAP\\0\\0\\0
      8  version                    u16  1
     10  reserved                   u16
     12  last_applied_event_offset  u64  of the program's event log: the state includes its events up to here
     20  blob_len                   u32
     24  settled_until              u64  everything below is acknowledged
     32  ack_window_base            u64
     40  window_len                 u32
     44  ack_window                 bits, lowest first: bit n says that base + n is acknowledged
      …  inflight_len               u32
      …  inflight_len ×             offset u64, deadline u64
      …  enqueued_len               u32
      …  enqueued_len ×             offset u64, retries u32
      …  crc32c                     u32  CRC-32C from version through the blob

A group of Duramen does not start from it: the events after it are records of another log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from duramen import kernel
from duramen.errors import CorruptionError, UnknownVersionError
from duramen.formats.stroma.columns import check_size
from duramen.formats.stroma.header import CRC, VERSION, crc_stored
from duramen.formats.struct import Block, Buffer, Field, Struct
from duramen.kernel import Int64s, Stop
from duramen.record import MAX_OFFSET

MAX_WINDOW_BYTES = 1 << 20
"""Largest window of acknowledgements that is decoded; the program's has 1,024 bytes."""
OFFSETS_SHOWN = 20

HEADER = Struct(">", magic="8s", version="H", reserved="H", last_applied_event_offset="Q", blob_len="I")
WINDOW = Struct(">", settled_until="Q", ack_window_base="Q", window_len="I")
COUNT = Struct(">", count="I")
LISTS = {
    "inflight": Struct(">", offset="Q", deadline="Q"),
    "enqueued": Struct(">", offset="Q", retries="I"),
}


class ProgramSnapshot(NamedTuple):
    """The state of a consumer group, as the Stroma program stores it."""

    last_applied_event_offset: int
    settled_until: int
    """Every offset below it is acknowledged."""
    acked: Int64s
    """Offsets from ``settled_until`` on that are acknowledged."""
    inflight: npt.NDArray[Any]
    """Rows of ``offset`` and ``deadline``, in milliseconds."""
    enqueued: npt.NDArray[Any]
    """Rows of ``offset`` and ``retries``."""

    @property
    def facts(self) -> dict[str, int]:
        """The numbers that `info` shows."""
        counts = {name: len(getattr(self, name)) for name in ("acked", *LISTS)}
        return {**counts, "settled_until": self.settled_until, "last_event": self.last_applied_event_offset}


def decode_program_snapshot(buf: Buffer) -> ProgramSnapshot:
    """Check and decode an SSNAP file. Raises `CorruptionError` with the position of the problem."""
    view = memoryview(buf)
    check_size(view)
    if len(view) < HEADER.size + WINDOW.size:
        raise CorruptionError("the snapshot is cut short", position=len(view))
    head, window = HEADER.unpack(view), WINDOW.unpack(view, HEADER.size)
    if head["version"] != VERSION:
        raise UnknownVersionError(
            f"the snapshot has version {head['version']!r}; only {VERSION} is known", position=HEADER.at("version")
        )
    end = HEADER.size + int(head["blob_len"])
    if end + CRC.size > len(view):
        raise CorruptionError("the snapshot is cut short", position=len(view))
    if crc_stored(view, end) != kernel.crc32c(view[HEADER.at("version") : end]):
        raise CorruptionError("checksum mismatch in the snapshot", position=end)
    position = HEADER.size + WINDOW.size
    bits, position = view[position:end], position + int(window["window_len"])
    acked = _acked(bits[: int(window["window_len"])], int(window["ack_window_base"]))
    found = []
    for row in LISTS.values():
        start = position + COUNT.size
        count = int(COUNT.unpack(view, position)["count"]) if start <= end else 0
        if start + count * row.size > end:
            raise CorruptionError("a list of the snapshot is cut short", position=min(position, end))
        kind = np.dtype([(name, f">u{row.width(name)}") for name in row.names])
        found.append(np.frombuffer(view, kind, count, start))
        position = start + count * row.size
    if position != end or not kernel.is_zero(view, end + CRC.size, len(view)):
        raise CorruptionError("unknown bytes follow the snapshot", position=position)
    settled = min(int(window["settled_until"]), MAX_OFFSET)
    return ProgramSnapshot(int(head["last_applied_event_offset"]), settled, acked[acked >= settled], *found)


def _acked(window: memoryview, base: int) -> Int64s:
    if len(window) > MAX_WINDOW_BYTES or base >= 2**62:
        raise CorruptionError(
            f"a window of {len(window)} bytes at offset {base} is too large", position=HEADER.size + WINDOW.size
        )
    return np.flatnonzero(np.unpackbits(np.frombuffer(window, np.uint8), bitorder="little")) + base


def dump_program_snapshot(view: memoryview) -> Iterator[Block]:
    """The fields of an SSNAP file, as far as they lie within the blob."""
    header = list(HEADER.fields(view, 0))
    if len(view) < HEADER.size:
        yield Block("hdr", 0, header, "the snapshot is cut short")
        return
    yield Block("hdr", 0, header)
    start = HEADER.size
    end = start + int(HEADER.unpack(view)["blob_len"])
    if end + CRC.size > len(view):
        rest = bytes(view[start:])
        yield Block("blob", start, [Field("bytes", start, len(rest), rest)], "the snapshot is cut short")
        return
    yield from _dump_blob(view[:end], start)
    sound = crc_stored(view, end) == kernel.crc32c(view[HEADER.at("version") : end])
    yield Block("end", end, list(CRC.fields(view, end)), None if sound else Stop.BAD_CHECKSUM.meaning)


def _dump_blob(view: memoryview, position: int) -> Iterator[Block]:
    window = list(WINDOW.fields(view, position))
    if len(window) < len(WINDOW.names):
        yield Block("blob", position, window, "the blob is cut short")
        return
    position += WINDOW.size
    bits = view[position : position + int(window[-1].value)]
    try:
        acked = _acked(bits, int(window[1].value))
        more = ", …" if len(acked) > OFFSETS_SHOWN else ""
        note = f"acknowledged: {', '.join(map(str, acked[:OFFSETS_SHOWN].tolist())) or 'none'}{more}"
    except CorruptionError as error:
        note = error.message
    yield Block("blob", window[0].position, [*window, Field("ack_window", position, len(bits), bytes(bits), note)])
    position += len(bits)
    for name, row in LISTS.items():
        size = Struct(">", **{f"{name}_len": "I"})
        listed = list(size.fields(view, position))
        if not listed:
            yield Block("blob", min(position, len(view)), [], "the blob is cut short")
            return
        yield Block("blob", position, listed)
        position += size.size
        for number in range(int(listed[0].value)):
            if position + row.size > len(view):
                yield Block(f"blob.{name}{number}", position, [], "the list is longer than the blob")
                return
            yield Block(f"blob.{name}{number}", position, list(row.fields(view, position)))
            position += row.size
    if position < len(view):
        rest = bytes(view[position:])
        yield Block("blob", position, [Field("bytes", position, len(rest), rest)], "bytes follow the lists")
