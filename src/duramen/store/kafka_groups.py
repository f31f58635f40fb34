"""The consumer groups of a Kafka broker, from the partitions of ``__consumer_offsets`` in its directory. Only reads.

A group's offsets are in one of these partitions, and may name partitions that other brokers store.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from typing import NamedTuple

from duramen.consumers import ConsumableLog, ConsumerLag
from duramen.disk import Disk
from duramen.errors import DuramenError
from duramen.formats import CONSUMER_OFFSETS, SETTLED, CommittedOffset, GroupTable, KafkaGroup
from duramen.store import broker

_COLUMNS = ("key", "value")


class GroupLag(NamedTuple):
    """An offset that a group committed, and how far its partition goes."""

    committed: CommittedOffset
    next_offset: int | None = None
    """None if this directory does not hold the partition, or cannot read it."""
    lag: int | None = None


class KafkaGroups(NamedTuple):
    """What the directory of a broker says about groups."""

    offsets: list[GroupLag]
    """By group, topic and partition."""
    groups: list[KafkaGroup]
    """Those whose coordinator stored more than offsets, by name."""
    skipped: dict[str, int]
    """Records that were not decoded, by reason."""
    failed: list[DuramenError]
    """Partitions of ``__consumer_offsets`` that cannot be read to their end: offsets may be missing or old."""

    def lags_of(self, topic: str, partition: int) -> list[ConsumerLag]:
        """The groups with an offset in a partition."""
        return [
            ConsumerLag("group", one.committed.group, one.committed.offset, one.next_offset, one.lag)
            for one in self.offsets
            if one.committed[1:3] == (topic, partition) and one.next_offset is not None
        ]


def read_groups(disk: Disk, root: str) -> KafkaGroups:
    """The groups in the directory of a broker."""
    offsets: dict[tuple[str, str, int], CommittedOffset] = {}
    groups: dict[str, KafkaGroup] = {}
    skipped: Counter[str] = Counter()
    failed: list[DuramenError] = []
    for topic, number in sorted(broker.partitions(disk, root)):
        if topic == CONSUMER_OFFSETS:
            table = GroupTable()
            try:
                _replay(disk, root, number, table)
            except DuramenError as error:
                failed.append(error)
            offsets |= table.offsets
            groups |= table.groups
            skipped += table.skipped
    ends = _ends(disk, root, {(topic, number) for _, topic, number in offsets})
    lags = [_lag(committed, ends.get(place[1:])) for place, committed in sorted(offsets.items())]
    return KafkaGroups(lags, [groups[name] for name in sorted(groups)], dict(skipped), failed)


def _replay(disk: Disk, root: str, number: int, table: GroupTable) -> None:
    path = broker.partition_path(root, CONSUMER_OFFSETS, number)
    with ConsumableLog(path, disk=disk, format=broker.FORMAT, isolation=SETTLED) as log:
        for batch in log.batches(columns=_COLUMNS):
            for key, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                try:
                    table.add(key, value)
                except DuramenError as error:
                    error.path = error.path or path
                    raise


def _ends(disk: Disk, root: str, wanted: set[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
    """First and next offset of those partitions that the directory holds and that can be read."""
    found, starts = {}, broker.log_starts(disk, root)
    for topic, number in wanted.intersection(broker.partitions(disk, root)):
        options = broker.start_option(starts, topic, number)
        try:
            path = broker.partition_path(root, topic, number)
            with ConsumableLog(path, disk=disk, format=broker.FORMAT, **options) as log:
                found[topic, number] = log.first_offset, log.next_offset
        except DuramenError:
            continue  # the partition's own row reports it
    return found


def _lag(committed: CommittedOffset, ends: tuple[int, int] | None) -> GroupLag:
    if ends is None:
        return GroupLag(committed)
    first, following = ends
    return GroupLag(committed, following, max(following - max(committed.offset, first), 0))


class GroupsByRoot:
    """Groups of partitions by path; the directory of each broker is read once."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._known: dict[str, KafkaGroups] = {}

    def of(self, path: str) -> list[ConsumerLag]:
        """The groups of the log at ``path``, if it is a partition of a broker."""
        root, name = posixpath.split(posixpath.normpath(path))
        place = broker.parse_directory(name)
        root = root or "."
        if place is None or not broker.is_broker(self._disk, root):
            return []
        if root not in self._known:
            self._known[root] = read_groups(self._disk, root)
        return self._known[root].lags_of(*place)

    def failed(self) -> list[tuple[str, DuramenError]]:
        """Partitions of ``__consumer_offsets`` that cannot be read, with their paths."""
        errors = [error for groups in self._known.values() for error in groups.failed]
        return [(error.path or "", error) for error in errors]

    def skipped(self) -> dict[str, int]:
        """Records that were not decoded, by reason."""
        return dict(sum((Counter(groups.skipped) for groups in self._known.values()), Counter[str]()))
