"""The state of a partition's producers, as its batches add up to it: what a producer snapshot holds.

Kafka numbers producers; ours have names. The id of a name is 2^62 plus 62 bits of its SHA-256. A cluster counts its ids
up from 0, so it gives none of these away, and ours are never taken for a cluster's. A sequence of ours becomes Kafka's
epoch (15 bits) and sequence (31 bits). One that needs more than these 46 bits is not stored in the batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen.errors import CorruptionError
from duramen.formats.arrow import number_array
from duramen.formats.extensions import SequenceRun
from duramen.formats.kafka.batch import ABORT, COMMIT, CONTROL_VALUE, HEADER, TRANSACTIONAL, is_control, unfold
from duramen.formats.kafka.encoder import PRODUCER_ID, SEQUENCE, SEQUENCE_BITS, put_producer
from duramen.formats.kafka.segment import KafkaSegment, batches_of
from duramen.formats.kafka.state_files import LeaderEpoch, ProducerEntry, parse_snapshot, snapshot_bytes
from duramen.formats.kafka.transactions import TXN_ENTRY, Transactions, control_types, refuse_damage
from duramen.formats.segment import Encoded, Segment
from duramen.formats.struct import Buffer
from duramen.kernel import NULL_LENGTH, BatchColumns, Int64s, crc32c

_CONTROL_BYTES = 4 << 20
NAMED = 1 << 62
"""The first id of a producer with a name."""
MOST_STORED_SEQUENCE = 2 ** (15 + SEQUENCE_BITS) - 1
MAX_NAMED = 10_000
"""How many of them a snapshot keeps: those with the youngest records, as the sidecar does."""
_CRC_AT, _COVERED_FROM = HEADER.at("crc"), HEADER.at("attributes")
_NO_PRODUCER = ProducerEntry(-1, -1, -1, -1, 0, -1, -1, -1)


class Producers:
    """The producers of a log. `add` takes its batches in order, one scan step after another."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._entries = {entry.producer_id: entry for entry in entries}

    def snapshot(self) -> bytes:
        """The entries in the order of a broker, which is that of Java's hash map."""
        entries, slots = list(self._entries.values()), 16
        named = sorted(entry.last_offset for entry in entries if entry.producer_id >= NAMED)
        if len(named) > MAX_NAMED:
            first = named[-MAX_NAMED]
            entries = [entry for entry in entries if entry.producer_id < NAMED or entry.last_offset >= first]
        while len(entries) > slots * 3 // 4:
            slots *= 2
        return snapshot_bytes(sorted(entries, key=lambda one: _hashed(one.producer_id) % slots))

    @property
    def entries(self) -> dict[int, ProducerEntry]:
        """The state of each producer, by its id."""
        return self._entries

    def add_segment(self, segment: KafkaSegment) -> None:
        for rows in segment.steps(verify=False):
            self.add(segment, batches_of(rows))

    def add(self, segment: KafkaSegment, batches: BatchColumns) -> None:
        control = is_control(batches)
        for row in _decisive(batches, control).tolist():
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


def producers_before(offset: int, snapshot: Buffer) -> list[ProducerEntry]:
    """The producers of the snapshot at an offset, without those whose last record it puts after that. Raises
    `CorruptionError`."""
    return [entry for entry in parse_snapshot(snapshot) if entry.last_offset < offset]


def _hashed(number: int) -> int:
    folded = (number ^ number >> 32) % 2**32
    return folded ^ folded >> 16


def _decisive(batches: BatchColumns, control: npt.NDArray[np.bool_]) -> Int64s:
    """The rows that decide about the state of producers: every batch of a transaction; of the others the first and the
    last of each producer."""
    has_producer = (batches.producer_id >= 0) & (batches.magic == 2)
    plain = np.flatnonzero(has_producer & ~control & (batches.attributes & TRANSACTIONAL == 0))
    others = np.flatnonzero(has_producer & (control | (batches.attributes & TRANSACTIONAL != 0)))
    ids = batches.producer_id[plain]
    first, last = np.unique(ids, return_index=True)[1], np.unique(ids[::-1], return_index=True)[1]
    found: Int64s = np.unique(np.concatenate([others, plain[first], plain[len(plain) - 1 - last]]))
    return found


# --- producers with names


@lru_cache(maxsize=MAX_NAMED)
def producer_id(name: bytes) -> int:
    return NAMED | int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 2


def stored_name(producer_id: int) -> bytes:
    return producer_id.to_bytes(8, "big")


def _in_batches(run: SequenceRun) -> int:
    """How many of its records, from the first on, have sequences that batches can hold."""
    return min(run.stop - run.start, max(MOST_STORED_SEQUENCE + 1 - run.sequence, 0))


def _is_one(runs: Sequence[SequenceRun], rows: int) -> bool:
    """Whether all records have the same producer and epoch."""
    (start, stop, _, sequence), *others = runs
    last = sequence + stop - start - 1
    is_whole = (start, stop, others) == (0, rows, [])
    return is_whole and last <= MOST_STORED_SEQUENCE and sequence >> SEQUENCE_BITS == last >> SEQUENCE_BITS


def sequence_columns(runs: Sequence[SequenceRun], rows: int) -> dict[str, pa.Array]:
    """The producer and the sequence of each record; nothing where `with_sequences` is enough."""
    if _is_one(runs, rows) or not any(map(_in_batches, runs)):
        return {}
    ids, sequences = np.full(rows, -1, np.int64), np.full(rows, -1, np.int64)
    for run in runs:
        count = _in_batches(run)
        ids[run.start : run.start + count] = producer_id(run.name)
        sequences[run.start : run.start + count] = np.arange(run.sequence, run.sequence + count)
    return {PRODUCER_ID: number_array(ids), SEQUENCE: number_array(sequences)}


def with_sequences(encoded: Encoded, runs: Sequence[SequenceRun]) -> Encoded:
    """The batches with the producer of all their records, where `sequence_columns` has not given them theirs."""
    if batches_of(encoded.rows).producer_id.max() < 0 and _is_one(runs, encoded.rows.count):
        put_producer(encoded, producer_id(runs[0].name), runs[0].sequence)
    return encoded


def named_sequences(
    segments: Iterable[Segment], read_snapshot: Callable[[int], Buffer | None]
) -> dict[bytes, tuple[int, int]]:
    """By stored name, the last (offset, sequence) of each producer with a name. ``segments`` come last one first:
    batches are read back to the first snapshot that can be used, named by its offset. Raises `CorruptionError` where
    damage hides a last sequence."""
    found: dict[int, tuple[int, int]] = {}
    for number, segment in enumerate(segments):
        assert isinstance(segment, KafkaSegment)
        _add_missing(found, _last_batches(segment, is_last=not number))
        try:
            held = read_snapshot(segment.base_offset)
            known = None if held is None else producers_before(segment.base_offset, held)
        except CorruptionError:
            continue
        if known is not None:
            _add_missing(found, {
                one.producer_id: (one.last_offset, one.producer_epoch << SEQUENCE_BITS | one.last_sequence)
                for one in known
                if one.producer_id >= NAMED and min(one.producer_epoch, one.last_sequence, one.last_offset) >= 0
            })  # fmt: skip
            break
    return {stored_name(number): last for number, last in found.items()}


def _add_missing(found: dict[int, tuple[int, int]], older: dict[int, tuple[int, int]]) -> None:
    for number, last in older.items():
        found.setdefault(number, last)


def _last_batches(segment: KafkaSegment, *, is_last: bool) -> dict[int, tuple[int, int]]:
    """By id, the last (offset, sequence) of each producer with a name, in batches whose checksum is right."""
    ends: dict[int, tuple[int, int, int, int]] = {}
    for rows in segment.steps(verify=False):
        batches = batches_of(rows)
        has_name = (batches.producer_id >= NAMED) & (batches.magic == 2) & ~is_control(batches)
        chosen = np.flatnonzero(has_name & (batches.producer_epoch >= 0) & (batches.base_sequence >= 0))
        if not len(chosen):
            continue
        _, last = np.unique(batches.producer_id[chosen][::-1], return_index=True)
        one = batches.take(chosen[len(chosen) - 1 - last])
        sequences = (one.producer_epoch << SEQUENCE_BITS) + one.base_sequence + one.last_offset - one.base_offset
        ends_at = one.data_position + one.data_length
        columns = (one.last_offset, sequences, one.position, ends_at)
        ends |= zip(one.producer_id.tolist(), zip(*(column.tolist() for column in columns), strict=True), strict=True)
    hint = "`duramen verify` shows the damage, `duramen repair` removes it"
    refuse_damage(segment, rows, is_last=is_last, hides="last sequences of producers", hint=hint)
    for number, (offset, _, start, end) in ends.items():
        stored = int.from_bytes(segment.buf[start + _CRC_AT : start + _COVERED_FROM], "big")
        if crc32c(segment.buf[start + _COVERED_FROM : end]) != stored:
            message = f"the batch with the last sequence of producer {number} is damaged"
            raise CorruptionError(message, position=start, offset=offset, hint=hint)
    return {number: (offset, sequence) for number, (offset, sequence, _, _) in ends.items()}


class DerivedState:
    """The derived files about the whole log, rebuilt from its batches."""

    def __init__(self, before: Iterable[ProducerEntry] = ()) -> None:
        """``before``: the producers before the first segment."""
        self.files: dict[str, bytes] = {}
        self._producers, self._transactions = Producers(before), Transactions()
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
