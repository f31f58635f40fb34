"""The small files beside the segments: producer snapshots, leader epochs, partition metadata, checkpoints of a broker.

::

    {offset:020}.snapshot          the state of producers before that offset
      0  version        i16  1
      2  crc            u32  CRC-32C of everything after it
      6  producers      i32  how many; then for each, 46 bytes:
         producer_id i64, producer_epoch i16, last_sequence i32, last_offset i64, offset_delta i32, timestamp i64,
         coordinator_epoch i32, transaction_offset i64 (-1: none)

    leader-epoch-checkpoint        text: "0", the number of entries, then "epoch start_offset" in each line
    partition.metadata             text: "version: 0", "topic_id: …"
    *-offset-checkpoint            text, in the directory of a broker: "0", the number of entries, then
                                   "topic partition offset" in each line
    meta.properties                text, in the directory of a broker: name=value in each line
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from duramen.errors import CorruptionError
from duramen.formats.struct import Buffer, Struct
from duramen.kernel import crc32c

SNAPSHOT_HEADER = Struct(">", version="h", crc="I", producers="i")
PRODUCER = Struct(
    ">", producer_id="q", producer_epoch="h", last_sequence="i", last_offset="q", offset_delta="i", timestamp="q",
    coordinator_epoch="i", transaction_offset="q",
)  # fmt: skip
EPOCHS_NAME = "leader-epoch-checkpoint"
METADATA_NAME = "partition.metadata"
_CRC_STOP = SNAPSHOT_HEADER.at("producers")
_MOST_LINES = 1 << 20
_MOST_TEXT_BYTES = 64 << 20


class ProducerEntry(NamedTuple):
    """The state of one producer in a snapshot."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_offset: int


class LeaderEpoch(NamedTuple):
    epoch: int
    start_offset: int


class PartitionOffset(NamedTuple):
    """A line of a checkpoint of a broker."""

    topic: str
    partition: int
    offset: int


def parse_snapshot(buf: Buffer) -> list[ProducerEntry]:
    """The producers of a snapshot. Raises `CorruptionError`."""
    view = memoryview(buf)
    if len(view) < SNAPSHOT_HEADER.size:
        raise CorruptionError("the snapshot is cut short", position=len(view))
    head = SNAPSHOT_HEADER.unpack(view)
    if head["version"] != 1:
        raise CorruptionError(f"the snapshot has version {head['version']!r}; only 1 is known", position=0)
    if crc32c(view[_CRC_STOP:]) != head["crc"]:
        raise CorruptionError("checksum mismatch", position=SNAPSHOT_HEADER.at("crc"))
    count = int(head["producers"])
    if count < 0 or SNAPSHOT_HEADER.size + count * PRODUCER.size != len(view):
        raise CorruptionError(f"it states {count} producers, which is not its size", position=_CRC_STOP)
    rows = (PRODUCER.unpack(view, SNAPSHOT_HEADER.size + n * PRODUCER.size) for n in range(count))
    return [ProducerEntry(*map(int, row.values())) for row in rows]


def snapshot_bytes(producers: Sequence[ProducerEntry]) -> bytes:
    """The content of a snapshot."""
    entries = len(producers).to_bytes(4, "big") + b"".join(PRODUCER.pack_row(*entry) for entry in producers)
    return SNAPSHOT_HEADER.pack(version=1, crc=crc32c(entries))[:_CRC_STOP] + entries


def _lines(buf: Buffer) -> list[str]:
    view = memoryview(buf)
    if len(view) > _MOST_TEXT_BYTES:
        raise CorruptionError(f"the file has {len(view)} bytes, more than {_MOST_TEXT_BYTES}")
    try:
        return bytes(view).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CorruptionError("the file is not text", position=error.start) from None


def _entries(buf: Buffer, fields: int) -> Iterator[list[str]]:
    """The entries of a checkpoint: a version, a count, and as many lines of that many fields."""
    lines = _lines(buf)
    if len(lines) < 2 or lines[0].strip() != "0" or not lines[1].strip().isdigit():
        raise CorruptionError("the checkpoint does not start with the version 0 and a count", position=0)
    count, rows = int(lines[1]), [line.split() for line in lines[2:] if line.strip()]
    if count != len(rows) or count > _MOST_LINES:
        raise CorruptionError(f"the checkpoint states {count} entries and has {len(rows)}", position=0)
    for row in rows:
        if len(row) != fields:
            raise CorruptionError(f"a line of the checkpoint has {len(row)} fields instead of {fields}", position=0)
        yield row


def parse_epochs(buf: Buffer) -> list[LeaderEpoch]:
    """The epochs of a partition's leaders, and the offset where each starts. Raises `CorruptionError`."""
    try:
        found = [LeaderEpoch(int(epoch), int(start)) for epoch, start in _entries(buf, 2)]
    except ValueError:
        raise CorruptionError("an entry is not two numbers", position=0) from None
    for before, after in itertools.pairwise(found):
        if after.epoch <= before.epoch or after.start_offset < before.start_offset:
            raise CorruptionError(f"epoch {after.epoch} is out of order", position=0)
    return found


def epochs_text(epochs: Sequence[LeaderEpoch]) -> bytes:
    """The content of ``leader-epoch-checkpoint``.

    >>> epochs_text([LeaderEpoch(0, 0), LeaderEpoch(3, 10)])
    b'0\\n2\\n0 0\\n3 10\\n'
    """
    lines = ["0", str(len(epochs)), *(f"{one.epoch} {one.start_offset}" for one in epochs)]
    return "".join(f"{line}\n" for line in lines).encode()


def metadata_text(topic_id: str) -> bytes:
    """The content of ``partition.metadata``."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def parse_offsets(buf: Buffer) -> list[PartitionOffset]:
    """The lines of a checkpoint of a broker. Raises `CorruptionError`."""
    try:
        found = [PartitionOffset(topic, int(number), int(offset)) for topic, number, offset in _entries(buf, 3)]
    except ValueError:
        raise CorruptionError("a line is not a topic and two numbers", position=0) from None
    for line in found:
        if not -(2**63) <= line.offset < 2**63:
            raise CorruptionError(f"the offset {line.offset} of {line.topic} is not one", position=0)
    return found


def parse_properties(buf: Buffer, separator: str) -> dict[str, str]:
    """Names and values, one in each line; lines that start with # are comments."""
    lines = [line.strip() for line in _lines(buf)]
    pairs = [line.partition(separator) for line in lines if line and not line.startswith("#")]
    if not pairs or any(not found for _, found, _ in pairs):
        raise CorruptionError(f"a line is not NAME{separator}VALUE", position=0)
    return {name.strip(): value.strip() for name, _, value in pairs}
