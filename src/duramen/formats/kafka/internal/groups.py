"""The groups and committed offsets that the records of ``__consumer_offsets`` add up to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from duramen.formats.kafka.internal.records import (
    CONSUMER_GROUP,
    CONSUMER_OFFSETS,
    GROUP_METADATA,
    OFFSET_COMMIT,
    decode_record,
)


class CommittedOffset(NamedTuple):
    """The offset that a group of Kafka committed: the first that it has not processed."""

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    """-1 where the group gave none."""
    metadata: str
    """What the group stored beside the offset."""
    committed_ms: int


class KafkaGroup(NamedTuple):
    """A group of Kafka, as its coordinator stored it last."""

    name: str
    protocol: str
    """``classic`` or ``consumer``."""
    generation: int
    """How often its partitions were assigned."""
    members: tuple[str, ...] = ()
    """Client ids; those of the protocol ``consumer`` are not decoded."""


@dataclass
class GroupTable:
    """`add` takes the records of a partition in order; those of aborted and open transactions are not among them."""

    offsets: dict[tuple[str, str, int], CommittedOffset] = field(default_factory=dict)
    groups: dict[str, KafkaGroup] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    """Records that were not understood, by reason."""

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """Apply one record. Raises `CorruptionError`."""
        record = decode_record(CONSUMER_OFFSETS, key, value)
        if record.note:
            self.skipped[record.note] += 1
        elif record.kind == OFFSET_COMMIT:
            self._add_offset((record.key["group"], record.key["topic"], record.key["partition"]), record.value)
        elif record.kind in (GROUP_METADATA, CONSUMER_GROUP):
            self._add_group(record.kind, record.key["group"], record.value)

    def _add_offset(self, place: tuple[str, str, int], value: object) -> None:
        if not isinstance(value, dict):
            self.offsets.pop(place, None)
            return
        self.offsets[place] = CommittedOffset(
            *place, value["offset"], value.get("leader_epoch", -1), value["metadata"] or "", value["commit_timestamp"]
        )

    def _add_group(self, kind: str, name: str, value: object) -> None:
        if not isinstance(value, dict):
            self.groups.pop(name, None)
        elif kind == CONSUMER_GROUP:
            self.groups[name] = KafkaGroup(name, "consumer", value["epoch"])
        else:
            members = tuple(member["client_id"] or "" for member in value["members"] or ())
            self.groups[name] = KafkaGroup(name, "classic", value["generation"], members)
