"""The state of a partition's producers, as its batches add up to it: what a producer snapshot holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from duramen.formats.kafka.batch import ABORT, COMMIT, CONTROL_VALUE, TRANSACTIONAL, is_control, unfold
from duramen.formats.kafka.segment import KafkaSegment, batches_of
from duramen.formats.kafka.state_files import LeaderEpoch, ProducerEntry, snapshot_bytes
from duramen.formats.kafka.transactions import TXN_ENTRY, Transactions, control_types
from duramen.kernel import NULL_LENGTH, BatchColumns

_CONTROL_BYTES = 4 << 20
_NO_PRODUCER = ProducerEntry(-1, -1, -1, -1, 0, -1, -1, -1)


class Producers:
    """The producers of a log. `add` takes its batches in order, one scan step after another."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._entries = {entry.producer_id: entry for entry in entries}

    def snapshot(self) -> bytes:
        """The entries in the order of a broker, which is that of Java's hash map."""
        slots = 16
        while len(self._entries) > slots * 3 // 4:
            slots *= 2
        return snapshot_bytes(sorted(self._entries.values(), key=lambda one: _hashed(one.producer_id) % slots))

    @property
    def entries(self) -> dict[int, ProducerEntry]:
        """The state of each producer, by its id."""
        return self._entries

    def add_segment(self, segment: KafkaSegment) -> None:
        for rows in segment.steps(verify=False):
            self.add(segment, batches_of(rows))

    def add(self, segment: KafkaSegment, batches: BatchColumns) -> None:
        control = is_control(batches)
        for row in np.flatnonzero((batches.producer_id >= 0) & (batches.magic == 2)).tolist():
            if not control[row]:
                self._add_data(batches, row)
            elif batches.records[row]:  # otherwise compaction has removed the whole transaction
                self._add_marker(segment, batches, row)

    def _entry(self, batches: BatchColumns, row: int) -> ProducerEntry:
        """The producer of a batch as it was before; a new epoch forgets its last batch."""
        producer_id, epoch = int(batches.producer_id[row]), int(batches.producer_epoch[row])
        entry = self._entries.get(producer_id, _NO_PRODUCER._replace(producer_id=producer_id))
        if entry.producer_epoch != epoch:
            entry = entry._replace(producer_epoch=epoch, last_sequence=-1, last_offset=-1, offset_delta=0)
        return entry

    def _add_data(self, batches: BatchColumns, row: int) -> None:
        entry = self._entry(batches, row)
        first, last, sequence = (
            int(column[row]) for column in (batches.base_offset, batches.last_offset, batches.base_sequence)
        )
        began = entry.transaction_offset
        if began < 0 and int(batches.attributes[row]) & TRANSACTIONAL:
            began = first
        self._entries[entry.producer_id] = entry._replace(
            last_sequence=-1 if sequence < 0 else (sequence + last - first) % 2**31, last_offset=last,
            offset_delta=last - first, timestamp=int(batches.max_timestamp[row]), transaction_offset=began,
        )  # fmt: skip

    def _add_marker(self, segment: KafkaSegment, batches: BatchColumns, row: int) -> None:
        if control_types(segment.buf, batches, np.arange(len(batches)) == row) not in ([ABORT], [COMMIT]):
            return  # it ends no transaction
        entry = self._entry(batches, row)
        records = unfold(segment.buf, batches.slice(row, row + 1), _CONTROL_BYTES)
        columns, epoch = records.columns, entry.coordinator_epoch
        if columns.value_length[0] != NULL_LENGTH and columns.value_length[0] >= CONTROL_VALUE.size:
            source = memoryview(records.plain) if records.in_plain[0] else segment.buf
            epoch = int(CONTROL_VALUE.unpack(source, int(columns.value_position[0]))["coordinator_epoch"])
        self._entries[entry.producer_id] = entry._replace(
            coordinator_epoch=epoch, timestamp=int(columns.timestamp[0]), transaction_offset=-1
        )


def _hashed(number: int) -> int:
    folded = (number ^ number >> 32) % 2**32
    return folded ^ folded >> 16


class DerivedState:
    """The derived files about the whole log, rebuilt from its batches."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self._producers, self._transactions = Producers(), Transactions()
        self._epochs: list[LeaderEpoch] = []

    def add_segment(self, segment: KafkaSegment, *, is_first: bool) -> None:
        """The next segment; its files and the snapshot before it are complete after that."""
        if not is_first:
            self.files[f"{segment.base_offset:020}.snapshot"] = self._producers.snapshot()
        known = len(self._transactions.aborted)
        for rows in segment.steps(verify=False):
            batches = batches_of(rows)
            self._transactions.add(segment, batches)
            self._producers.add(segment, batches)
            self._add_epochs(batches)
        aborted = self._transactions.aborted[known:]
        if aborted:
            entries = (TXN_ENTRY.pack_row(0, *entry) for entry in aborted)
            self.files[f"{segment.base_offset:020}.txnindex"] = b"".join(entries)

    def _add_epochs(self, batches: BatchColumns) -> None:
        last = self._epochs[-1].epoch if self._epochs else -1
        before = np.maximum.accumulate(np.append(last, batches.leader_epoch))
        for row in np.flatnonzero(before[1:] > before[:-1]).tolist():
            self._epochs.append(LeaderEpoch(int(batches.leader_epoch[row]), int(batches.base_offset[row])))

    def epochs(self, known: Sequence[LeaderEpoch]) -> list[LeaderEpoch]:
        """The epochs of the batches; and those that a file knows besides, before and after them."""
        found = self._epochs
        if not found:
            return list(known)
        before = [one for one in known if one.epoch < found[0].epoch and one.start_offset <= found[0].start_offset]
        after = [one for one in known if one.epoch > found[-1].epoch and one.start_offset > found[-1].start_offset]
        return [*before, *found, *after]
