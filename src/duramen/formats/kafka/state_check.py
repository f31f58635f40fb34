"""Compare the derived files of a partition with its batches: transaction index, producer snapshots, leader epochs.

Files may know more than the batches: retention and compaction remove batches, and a broker forgets idle producers. What
a file says about batches that exist must be right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from duramen.errors import DuramenError
from duramen.formats.format import FileName
from duramen.formats.kafka.segment import KafkaSegment, batches_of
from duramen.formats.kafka.state_files import (
    PRODUCER,
    SNAPSHOT_HEADER,
    LeaderEpoch,
    ProducerEntry,
    parse_epochs,
    parse_snapshot,
)
from duramen.formats.kafka.transactions import TXN_ENTRY, AbortedTransaction, Transactions
from duramen.formats.segment import Problem, Role, Severity
from duramen.formats.struct import Buffer
from duramen.kernel import BatchColumns

_REBUILT = "nothing is lost: Kafka rebuilds it from the records"
NamedFile = tuple[str, FileName, Buffer]


class _LastBatch(NamedTuple):
    """The last batch of a producer, or what a snapshot says about it."""

    producer_id: int
    last_offset: int
    epoch: int
    sequence: int


def check_state(segments: Sequence[KafkaSegment], files: Sequence[NamedFile]) -> Iterator[tuple[str, Problem]]:
    """Problems of the derived files, each with the path of its file."""
    snapshots = sorted(
        ((name.base or 0, path, buf) for path, name, buf in files if name.role == Role.PRODUCER_SNAPSHOT),
        key=lambda one: one[0],
    )
    epochs = [(path, _epochs(buf)) for path, name, buf in files if name.role == Role.LEADER_EPOCHS]
    indexes = [(path, name.base or 0, buf) for path, name, buf in files if name.role == Role.TXN_INDEX]
    walk = _StateWalk(
        segments[0].base_offset if segments else 0, [buf for _, _, buf in snapshots], [buf for _, _, buf in indexes]
    )
    yield from _check_swaps({segment.base_offset for segment in segments}, files)
    for segment in segments:
        for rows in segment.steps(verify=False):
            batches = batches_of(rows)
            for path, known in epochs:
                yield from _check_epochs(path, known, batches)
            while snapshots and len(batches) and snapshots[0][0] <= int(batches.last_offset[-1]):
                offset, path, buf = snapshots.pop(0)
                before = int(np.searchsorted(batches.base_offset, offset))
                walk.add(segment, batches.head(before))
                batches = batches.slice(before, len(batches))
                yield from walk.check_snapshot(offset, path, buf)
            walk.add(segment, batches)
        walk.end_segment(segment.base_offset)
    for offset, path, buf in snapshots:
        yield from walk.check_snapshot(offset, path, buf)
    yield from walk.check_indexes(indexes)


class _StateWalk:
    """The state of producers and transactions, as the batches so far show it."""

    def __init__(self, first_offset: int, snapshots: Sequence[Buffer], indexes: Sequence[Buffer]) -> None:
        self._first = first_offset
        self._transactions = Transactions()
        named = {entry.last_offset for buf in snapshots for entry in _producers(buf)}
        named |= {entry.transaction_offset for buf in snapshots for entry in _producers(buf)}
        named |= {offset for buf in indexes for _, one in _entries(buf) for offset in one[1:]}
        self._named = np.array(sorted(named), np.int64)
        """The offsets that snapshots and transaction indexes name."""
        self._held: dict[int, _LastBatch] = {}
        """The batches that hold these offsets."""
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        self._seen = 0

    def add(self, segment: KafkaSegment, batches: BatchColumns) -> None:
        self._transactions.add(segment, batches)
        if not len(batches):
            return
        first, last = np.searchsorted(self._named, (batches.base_offset[0], batches.last_offset[-1] + 1)).tolist()
        for offset in self._named[first:last].tolist():
            row = int(np.searchsorted(batches.last_offset, offset))
            if batches.base_offset[row] <= offset:
                sequence = int(batches.base_sequence[row])
                delta = int(batches.last_offset[row]) - int(batches.base_offset[row])
                self._held[offset] = _LastBatch(
                    int(batches.producer_id[row]), int(batches.last_offset[row]), int(batches.producer_epoch[row]),
                    -1 if sequence < 0 else (sequence + delta) % 2**31,
                )  # fmt: skip

    def end_segment(self, base: int) -> None:
        self._aborted[base] = self._transactions.aborted[self._seen :]
        self._seen = len(self._transactions.aborted)

    def check_snapshot(self, offset: int, path: str, buf: Buffer) -> Iterator[tuple[str, Problem]]:
        for number, entry in enumerate(_producers(buf)):
            wrong = self._wrong_producer(entry, offset)
            if wrong is not None:
                at = SNAPSHOT_HEADER.size + number * PRODUCER.size
                message = f"producer {entry.producer_id} {wrong}"
                yield path, Problem("wrong-producer-snapshot", Severity.WARNING, message, at, action=_REBUILT)

    def _wrong_producer(self, entry: ProducerEntry, offset: int) -> str | None:
        """What is wrong with an entry of the snapshot at ``offset``."""
        if entry.last_offset >= offset:
            return f"names offset {entry.last_offset}, which is after the snapshot"
        held = self._held.get(entry.last_offset)
        said = _LastBatch(entry.producer_id, entry.last_offset, entry.producer_epoch, entry.last_sequence)
        if held is not None and held[:2] != said[:2]:
            return f"names offset {entry.last_offset}, where no batch of this producer ends"
        if held is not None and held != said:
            return f"says epoch and sequence {said[2:]}, the batch says {held[2:]}"
        began = self._transactions.open.get(entry.producer_id, -1)
        is_compacted = self._is_compacted(entry.transaction_offset, began)
        if (
            entry.transaction_offset != began
            and max(entry.transaction_offset, began) >= self._first
            and not is_compacted
        ):
            return f"says that a transaction began at {entry.transaction_offset}, the batches say {began}"
        return None

    def _is_compacted(self, offset: int, found: int) -> bool:
        """Whether compaction may have removed the batch with that offset, so that only a later one was ``found``, or
        none (-1)."""
        return offset >= 0 and (found < 0 or offset < found) and offset not in self._held

    def check_indexes(self, files: Sequence[tuple[str, int, Buffer]]) -> Iterator[tuple[str, Problem]]:
        there = {base: (path, buf) for path, base, buf in files}
        for base, expected in self._aborted.items():
            path, buf = there.get(base, (f"{base:020}.txnindex", b""))
            yield from self._check_index(path, buf, expected)

    def _is_explained(self, entry: AbortedTransaction, found: AbortedTransaction) -> bool:
        """Whether an entry differs from the ``found`` transaction as it does where the first batches are missing: those
        before the log's start, or those that compaction removed."""
        if 0 <= entry.first_offset < self._first:
            return True
        pairs = ((entry.first_offset, found.first_offset), (entry.last_stable_offset, found.last_stable_offset))
        return all(stored == seen or self._is_compacted(stored, seen) for stored, seen in pairs)

    def _check_index(
        self, path: str, buf: Buffer, expected: Sequence[AbortedTransaction]
    ) -> Iterator[tuple[str, Problem]]:
        view = memoryview(buf)
        held: dict[tuple[int, int], AbortedTransaction] = {}
        for at, entry in _entries(view):
            if (entry.producer_id, entry.last_offset) not in self._transactions.abort_markers:
                message = f"producer {entry.producer_id} has no aborted transaction that ends at {entry.last_offset}"
                yield path, Problem("wrong-txn-index", Severity.WARNING, message, at, action=_REBUILT)
                return
            held[entry.producer_id, entry.last_offset] = entry
        for one in expected:
            entry = held.get((one.producer_id, one.last_offset), one._replace(first_offset=-1))
            # The beginning of the log may lack batches: then only the file knows where a transaction began.
            if entry != one and not self._is_explained(entry, one):
                is_missing = entry.first_offset < 0
                what = "is missing" if is_missing else f"is stored as {entry.first_offset} to {entry.last_offset}"
                message = f"the aborted transaction {one.first_offset} to {one.last_offset} of {one.producer_id} {what}"
                yield path, Problem(
                    "wrong-txn-index", Severity.WARNING, message, 0, one.first_offset, _REBUILT
                )  # fmt: skip
                return


def _entries(buf: Buffer) -> Iterator[tuple[int, AbortedTransaction]]:
    """The entries of a transaction index, each with its position."""
    view = memoryview(buf)
    for at in range(0, len(view) - TXN_ENTRY.size + 1, TXN_ENTRY.size):
        _, *numbers = (int(value) for value in TXN_ENTRY.unpack(view, at).values())
        yield at, AbortedTransaction(*numbers)


def _producers(buf: Buffer) -> list[ProducerEntry]:
    try:
        return parse_snapshot(buf)
    except DuramenError:
        return []  # the file's own check reports it


def _check_swaps(bases: set[int], files: Sequence[NamedFile]) -> Iterator[tuple[str, Problem]]:
    """A compacted segment that has not taken its place yet, although the segments that it replaces are gone."""
    for path, name, _ in files:
        if name.role == Role.SWAP and path.endswith(".log.swap") and name.base not in bases:
            message = "compaction removed the segments that this file replaces, and has not put it in their place"
            action = "let Kafka start once, or rename it to end with .log: its records are not read now"
            yield path, Problem("unfinished-swap", Severity.DAMAGE, message, offset=name.base, action=action)


def _epochs(buf: Buffer) -> list[LeaderEpoch]:
    try:
        return parse_epochs(buf)
    except DuramenError:
        return []  # the file's own check reports it


def _check_epochs(path: str, known: Sequence[LeaderEpoch], batches: BatchColumns) -> Iterator[tuple[str, Problem]]:
    """The epoch of every batch must be the one that the checkpoint names for its offset."""
    if not known or not len(batches):
        return
    starts = np.array([one.start_offset for one in known], np.int64)
    epochs = np.array([one.epoch for one in known], np.int64)
    entry = np.searchsorted(starts, batches.base_offset, side="right") - 1
    wrong = (entry >= 0) & (batches.magic == 2) & (batches.leader_epoch >= 0)
    wrong &= epochs[np.maximum(entry, 0)] != batches.leader_epoch
    for row in np.flatnonzero(wrong)[:1].tolist():
        message = (
            f"it gives epoch {int(epochs[entry[row]])} to offset {int(batches.base_offset[row])}, "
            f"the batch says {int(batches.leader_epoch[row])}"
        )
        offset = int(batches.base_offset[row])
        yield path, Problem("wrong-leader-epochs", Severity.WARNING, message, None, offset, _REBUILT)
