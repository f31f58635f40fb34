"""What compaction leaves of a partition: the batches that Kafka's log cleaner would write.

- A batch keeps its offsets, its producer and its sequences, whatever it loses.
- A batch without records goes, unless it is the last one of its producer, whose sequence a broker checks, or the last
  one of the first or the last segment, so that the log's start and end stay: then it stays without records.
- Records of aborted transactions go. A marker stays while its transaction has a batch, and expires then.
- What expires, a tombstone or a marker, first gets a delete horizon: bit 6, and ``base_timestamp`` is when it may go. A
  later compaction removes it. With a delay of 0 it goes at once.

From the segment with the first open transaction on, a log stays as it is. Refuses messages of the older formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen import kernel
from duramen.errors import CorruptionError, UsageError
from duramen.formats.format import Cleaner, Examined, Format, Survives
from duramen.formats.kafka.batch import (
    APPEND_TIME,
    DELETE_HORIZON,
    TRANSACTIONAL,
    UnfoldedRecords,
    is_control,
)
from duramen.formats.kafka.encoder import EncodedFields, encode_batches
from duramen.formats.kafka.producers import Producers
from duramen.formats.kafka.segment import KafkaSegment, batches_of, rows_where
from duramen.formats.kafka.transactions import TXN_ENTRY, Transactions, ranges_text, refuse_damage
from duramen.formats.segment import Encoded, Role, Rows, ScanPosition, Segment
from duramen.kernel import (
    CODEC,
    CONTROL,
    NULL_LENGTH,
    BatchColumns,
    HeaderColumns,
    Int64s,
    RecordColumns,
    ScanEnd,
    Stop,
)

Mask = npt.NDArray[np.bool_]
_GOES, _AS_IS, _PLAIN, _COMPRESSED = range(4)
"""What happens to a batch: it goes, stays byte for byte, or is encoded again, from the file or what it unfolds to."""


class _Fates(NamedTuple):
    """What happens to some batches, and to their records."""

    kinds: npt.NDArray[np.uint8]
    counts: Int64s
    """How many records each batch keeps."""
    new_horizon: Mask
    records: UnfoldedRecords
    kept: Mask
    """Which of the records stay."""
    row: Int64s
    """The batch of each record."""


class KafkaCleaner(Cleaner):
    columns = ("value", "chunk_id")
    keeps_state = True

    def __init__(
        self, hiding: Callable[[str], Format], segments: Iterable[Segment], now_us: int, delay_ms: int
    ) -> None:
        """``hiding`` returns the format that hides the ranges of offsets in a text."""
        self._now_ms, self._delay_ms = now_us // 1000, delay_ms
        self._ends: dict[int, int] = {}
        """The last offset of each segment, by base."""
        transactions, producers = Transactions(), Producers()
        last: tuple[KafkaSegment, Rows] | None = None
        for segment in segments:
            assert isinstance(segment, KafkaSegment)
            if last is not None:
                refuse_damage(*last, is_last=False)
            last = segment, self._walk(segment, transactions, producers)
        if last is not None:
            refuse_damage(*last, is_last=True)
        self.until = transactions.last_stable_offset
        self.fmt = hiding(ranges_text(transactions.aborted))
        self._aborted = transactions.aborted
        self._empty_markers = np.array(sorted(transactions.empty_markers), np.int64)
        entries = producers.entries.items()
        self._last_data = np.array(
            sorted(entry.last_offset for _, entry in entries if entry.last_offset >= 0), np.int64
        )
        self._marker_epochs = {key: entry.producer_epoch for key, entry in entries if entry.last_offset < 0}
        self._seams = np.empty(0, np.int64)

    def _walk(self, segment: KafkaSegment, transactions: Transactions, producers: Producers) -> Rows:
        """Checks every batch on the way: a marker that says something else decides about records."""
        for rows in segment.steps():
            batches = batches_of(rows)
            _refuse_numbers(batches)
            if (batches.magic < 2).any():
                version = int(batches.magic[batches.magic < 2][0])
                raise UsageError(
                    f"the log holds messages of format v{version}, which are only read", offset=segment.base_offset,
                    hint="`duramen convert` makes a log of the present format from one",
                )  # fmt: skip
            transactions.add(segment, batches)
            producers.add(segment, batches)
            if len(batches):
                self._ends[segment.base_offset] = int(batches.last_offset[-1])
        return rows

    def begin(self, first_base: int, last_base: int) -> None:
        ends = (self._ends.get(base) for base in (first_base, last_base))
        self._seams = np.array(sorted(end for end in ends if end is not None), np.int64)

    # --- before it is known what stays

    def examine(self, rows: Rows, batch: pa.RecordBatch) -> Examined:
        batches = batches_of(rows)
        is_null = batch.column("value").is_null().to_numpy(zero_copy_only=False)
        row = np.searchsorted(batches.base_offset, batch.column("chunk_id").to_numpy())
        has_horizon = batches.attributes & DELETE_HORIZON != 0
        may_change = bool((batches.visible == 0).any()) or bool((is_null & ~has_horizon[row]).any())
        return Examined(is_null & self._is_due(batches)[row], may_change)

    def _is_due(self, batches: BatchColumns) -> Mask:
        """Whether what expires in a batch may go now."""
        if not self._delay_ms:
            return np.ones(len(batches), np.bool_)
        return (batches.attributes & DELETE_HORIZON != 0) & (batches.base_timestamp <= self._now_ms)

    # --- what stays

    def changes(self, segment: Segment, rows: Rows, survives: Survives) -> bool:
        assert isinstance(segment, KafkaSegment)
        return bool((self._fates(segment, batches_of(rows), survives).kinds != _AS_IS).any())

    def select(self, segment: Segment, rows: Rows, survives: Survives, cursor: ScanPosition) -> Encoded:
        assert isinstance(segment, KafkaSegment)
        batches = batches_of(rows)
        fates = self._fates(segment, batches, survives)
        stays = np.flatnonzero(fates.kinds)
        kinds = fates.kinds[stays]
        parts, columns, position = [], [BatchColumns.empty(0)], cursor.position
        borders = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(stays)]
        for start, stop in pairwise(borders if len(stays) else ()):
            chosen = stays[start:stop]
            if kinds[start] == _AS_IS:
                kept = np.zeros(len(batches), np.bool_)
                kept[chosen] = True
                copied = segment.select(rows, kept, ScanPosition(position, -1))
                data, moved = copied.data, batches_of(copied.rows)
            else:
                data, moved = self._encoded(segment, batches, fates, chosen, position)
            parts.append(data)
            columns.append(moved)
            position += len(data)
        found = BatchColumns.concat(columns)
        last = int(found.last_offset[-1]) if len(found) else cursor.previous_offset
        data = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        end = ScanEnd(len(found), position, int(Stop.END), last)
        return Encoded(data, Rows(found, int(found.visible.sum(dtype=np.int64)), end))

    def _fates(self, segment: KafkaSegment, batches: BatchColumns, survives: Survives) -> _Fates:
        control = is_control(batches)
        readable = (batches.visible > 0) | (control & (batches.records > 0))
        chosen = rows_where(batches, readable)
        records = segment.unfolded(chosen)
        row = np.repeat(np.flatnonzero(readable), chosen.records)
        is_empty_marker = control & np.isin(batches.last_offset, self._empty_markers)
        marker_goes = is_empty_marker & self._is_due(batches)
        kept = np.where(control[row], ~marker_goes[row], survives(records.columns.offset))
        counts = np.bincount(row[kept], minlength=len(batches)).astype(np.int64)
        is_tombstone = kept & (records.columns.value_length == NULL_LENGTH) & ~control[row]
        expires = np.bincount(row[is_tombstone], minlength=len(batches)) > 0
        has_horizon = batches.attributes & DELETE_HORIZON != 0
        new_horizon = (counts > 0) & ~has_horizon & (expires | is_empty_marker)
        is_changed = new_horizon | (counts != batches.records)
        kinds = np.where(is_changed, np.where(batches.attributes & CODEC, _COMPRESSED, _PLAIN), _AS_IS)
        kinds[is_changed & (counts == 0)] = _PLAIN  # its header alone
        kinds[(counts == 0) & ~self._is_needed(batches, control)] = _GOES
        return _Fates(kinds.astype(np.uint8), counts, new_horizon, records, kept, row)

    def _is_needed(self, batches: BatchColumns, control: Mask) -> Mask:
        """Which batches stay without records."""
        found = np.isin(batches.last_offset, self._seams)
        found |= ~control & (batches.producer_id >= 0) & np.isin(batches.last_offset, self._last_data)
        for row in np.flatnonzero(control).tolist():
            if self._marker_epochs.get(int(batches.producer_id[row])) == int(batches.producer_epoch[row]):
                found[row] = True
        return found

    def _encoded(
        self, segment: KafkaSegment, batches: BatchColumns, fates: _Fates, chosen: Int64s, position: int
    ) -> tuple[memoryview, BatchColumns]:
        """Those batches with what they keep."""
        first, stop = np.searchsorted(fates.row, (chosen[0], chosen[-1] + 1)).tolist()
        picked = np.flatnonzero(fates.kept[first:stop]) + first
        picked = picked[np.isin(fates.row[picked], chosen)]
        records = fates.records.columns.take(picked)
        found = batches.take(chosen)
        found.records[:] = fates.counts[chosen]
        self._set_times(found, records, fates.new_horizon[chosen])
        source: Any = fates.records.plain if found.attributes[0] & CODEC else segment.buf
        headers = HeaderColumns.empty(int(records.headers.sum(dtype=np.int64)))
        if kernel.scan_headers(source, records.headers_position, records.headers, headers) < 0:
            raise CorruptionError("the bytes changed between scan and decode", position=int(found.position[0]))
        fields = EncodedFields(records, headers, (source, source, source, source))
        return encode_batches(found, fields, int(fields.sizes.sum()), position), found

    def _set_times(self, batches: BatchColumns, records: RecordColumns, new_horizon: Mask) -> None:
        """The base and the greatest of the times, and the bits of the attributes, for the records that stay."""
        has_records = batches.records > 0
        stops = np.cumsum(batches.records.astype(np.int64))[has_records]
        starts = np.append(0, stops[:-1]) if len(stops) else stops
        batches.attributes[~has_records] &= np.uint32(APPEND_TIME | TRANSACTIONAL | CONTROL)
        batches.base_timestamp[~has_records] = -1
        if not len(starts):
            return
        is_created = has_records & (batches.attributes & APPEND_TIME == 0)
        batches.max_timestamp[is_created] = np.maximum.reduceat(records.timestamp, starts)[is_created[has_records]]
        batches.attributes[new_horizon] |= np.uint32(DELETE_HORIZON)
        has_horizon = batches.attributes & DELETE_HORIZON != 0
        base = np.empty(len(batches), np.int64)
        base[has_records] = records.timestamp[starts]
        moved = has_records & ~has_horizon
        batches.base_timestamp[moved] = base[moved]
        batches.base_timestamp[new_horizon] = self._now_ms + self._delay_ms

    # --- the other files of a segment

    def state_of(self, base: int) -> dict[str, bytes]:
        """The aborted transactions whose markers the segment holds: their markers stay as long."""
        end = self._ends.get(base, base - 1)
        entries = b"".join(TXN_ENTRY.pack_row(0, *one) for one in self._aborted if base <= one.last_offset <= end)
        return {self.fmt.path_of(Role.TXN_INDEX, base): entries} if entries else {}


def _refuse_numbers(batches: BatchColumns) -> None:
    """Raise for numbers that no batch can have, and that could not be written again."""
    least = np.minimum(np.minimum(batches.leader_epoch, batches.producer_epoch), batches.base_sequence)
    for row in np.flatnonzero(least < -1)[:1].tolist():
        raise CorruptionError(
            f"the batch has an epoch or a sequence of {int(least[row])}, which must be at least -1",
            position=int(batches.position[row]), offset=int(batches.base_offset[row]),
        )  # fmt: skip
