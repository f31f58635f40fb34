"""Osiris tracking: what producers have sent and how far consumers have read, kept in the log itself.

::

    a block of a trailer, or of the entry of a delta chunk
      0  type     u8   0 sequence, 1 offset, 2 timestamp
      1  id_size  u8   1 to 255
      2  id
      .  value    u64  (a timestamp: i64, milliseconds)

    a block of the entry of a snapshot chunk is the same, but a sequence has the id of its chunk before it
      .  chunk_id u64
      .  value    u64

Blocks follow one another without a count until their section ends. A snapshot replaces the state, everything else
adds to it. No checksum covers a trailer: refuses bytes that are no list of blocks, and an empty id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from duramen.errors import CorruptionError, UsageError
from duramen.formats.struct import Buffer

MAX_ID_BYTES = 255
MAX_SEQUENCES = 255
"""How many producers a snapshot of RabbitMQ remembers; the ones with the oldest chunks are forgotten."""

_UNSIGNED = struct.Struct(">Q")
_SIGNED = struct.Struct(">q")


class TrackingKind(IntEnum):
    SEQUENCE = 0
    OFFSET = 1
    TIMESTAMP = 2


class TrackingBlock(NamedTuple):
    """One fact: a producer's last sequence, a consumer's offset, or a timestamp. ``chunk_id`` only in snapshots."""

    kind: TrackingKind
    id: bytes
    value: int
    chunk_id: int | None = None


def iter_blocks(raw: Buffer, *, snapshot: bool, position: int = 0) -> Iterator[tuple[int, TrackingBlock]]:
    """Every block with the byte where it starts; ``position`` is where ``raw`` lies in its file."""
    data = bytes(raw)
    at = 0
    while at < len(data):
        kind, id_bytes = data[at], data[at + 1] if at + 1 < len(data) else 0
        with_chunk = snapshot and kind == TrackingKind.SEQUENCE
        value_at = at + 2 + id_bytes
        end = value_at + (16 if with_chunk else 8)
        if kind > TrackingKind.TIMESTAMP or id_bytes == 0 or end > len(data):
            raise CorruptionError("these bytes are no tracking block", position=position + at)
        number = _SIGNED if kind == TrackingKind.TIMESTAMP else _UNSIGNED
        chunk_id = _UNSIGNED.unpack_from(data, value_at)[0] if with_chunk else None
        value = number.unpack_from(data, end - 8)[0]
        yield position + at, TrackingBlock(TrackingKind(kind), data[at + 2 : value_at], value, chunk_id)
        at = end


def parse_blocks(raw: Buffer, *, snapshot: bool = False, position: int = 0) -> tuple[TrackingBlock, ...]:
    """The blocks of a trailer, a delta or a snapshot.

    >>> parse_blocks(encode_blocks([TrackingBlock(TrackingKind.OFFSET, b"reader", 7)]))[0].value
    7
    """
    return tuple(block for _, block in iter_blocks(raw, snapshot=snapshot, position=position))


def encode_blocks(blocks: Iterable[TrackingBlock], *, snapshot: bool = False) -> bytes:
    """The bytes of the blocks, in the order given."""
    return b"".join(_encode_block(block, snapshot) for block in blocks)


def _encode_block(block: TrackingBlock, snapshot: bool) -> bytes:
    if not 1 <= len(block.id) <= MAX_ID_BYTES:
        raise UsageError(f"a tracking id has 1 to {MAX_ID_BYTES} bytes, not {len(block.id)}")
    if (block.chunk_id is not None) != (snapshot and block.kind == TrackingKind.SEQUENCE):
        raise UsageError("a tracking block has a chunk id if and only if it is a sequence in a snapshot")
    number = _SIGNED if block.kind == TrackingKind.TIMESTAMP else _UNSIGNED
    try:
        chunk_id = b"" if block.chunk_id is None else _UNSIGNED.pack(block.chunk_id)
        return bytes((block.kind, len(block.id))) + block.id + chunk_id + number.pack(block.value)
    except struct.error as error:
        raise UsageError(f"the tracking of {block.id!r} does not fit into 64 bits: {block.value}") from error


def delta_blocks(
    *,
    offsets: Mapping[bytes, int] | None = None,
    sequences: Mapping[bytes, int] | None = None,
    timestamps: Mapping[bytes, int] | None = None,
) -> tuple[TrackingBlock, ...]:
    """What changed, as the blocks of a trailer or a delta chunk in RabbitMQ's order."""
    return (
        *_descending(TrackingKind.TIMESTAMP, timestamps or {}),
        *_descending(TrackingKind.SEQUENCE, sequences or {}),
        *_descending(TrackingKind.OFFSET, offsets or {}),
    )


def _descending(kind: TrackingKind, values: Mapping[bytes, int]) -> Iterator[TrackingBlock]:
    for key in sorted(values, reverse=True):
        yield TrackingBlock(kind, key, values[key])


@dataclass
class Tracking:
    """The state that the chunks of the last segment add up to. Ids are bytes, as stored.

    >>> state = Tracking()
    >>> state.update(40, delta_blocks(sequences={b"writer": 9}))
    >>> state.sequences
    {b'writer': (40, 9)}
    """

    offsets: dict[bytes, int] = field(default_factory=dict)
    sequences: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Chunk id and sequence of each producer's last message."""
    timestamps: dict[bytes, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.offsets or self.sequences or self.timestamps)

    def update(self, chunk_id: int, blocks: Iterable[TrackingBlock]) -> None:
        """Take in the trailer or the delta of the chunk ``chunk_id``, or, block by block, a snapshot."""
        for block in blocks:
            if block.kind == TrackingKind.SEQUENCE:
                of_chunk = chunk_id if block.chunk_id is None else block.chunk_id
                self.sequences[block.id] = (of_chunk, block.value)
            elif block.kind == TrackingKind.OFFSET:
                self.offsets[block.id] = block.value
            else:
                self.timestamps[block.id] = block.value

    def replace(self, blocks: Iterable[TrackingBlock]) -> None:
        """Take in a snapshot: nothing of the state before it stays."""
        self.offsets.clear()
        self.sequences.clear()
        self.timestamps.clear()
        self.update(0, blocks)

    def pruned(self, first_offset: int, first_timestamp: int, max_sequences: int = MAX_SEQUENCES) -> Tracking:
        """What RabbitMQ carries over into a new segment. Offsets and timestamps from before the log's first record
        stay in the state until the next snapshot is written, and are left out of it; reading leaves them in."""
        youngest = sorted(self.sequences.items(), key=lambda item: item[1][0])
        return Tracking(
            {key: value for key, value in self.offsets.items() if value >= first_offset},
            dict(youngest[max(len(youngest) - max_sequences, 0) :]),
            {key: value for key, value in self.timestamps.items() if value >= first_timestamp},
        )

    def snapshot_blocks(self) -> tuple[TrackingBlock, ...]:
        """The whole state as the blocks of a snapshot chunk in RabbitMQ's order."""
        return (
            *_descending(TrackingKind.TIMESTAMP, self.timestamps),
            *_descending(TrackingKind.OFFSET, self.offsets),
            *(
                TrackingBlock(TrackingKind.SEQUENCE, key, self.sequences[key][1], self.sequences[key][0])
                for key in sorted(self.sequences, reverse=True)
            ),
        )

    def as_text(self) -> dict[str, dict[str, object]]:
        """The state for people: ids as text, bytes that are no UTF-8 escaped."""
        return {
            "offsets": {_text(key): value for key, value in sorted(self.offsets.items())},
            "sequences": {
                _text(key): {"chunk_id": chunk_id, "sequence": sequence}
                for key, (chunk_id, sequence) in sorted(self.sequences.items())
            },
            "timestamps": {_text(key): value for key, value in sorted(self.timestamps.items())},
        }


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
