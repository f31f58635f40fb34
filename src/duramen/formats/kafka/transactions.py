"""Transactions of a partition, from its batches alone: which were aborted, and which are still open.

A transactional batch opens its producer's transaction, a marker (a control batch) ends it. The `.txnindex` and the
producer snapshots repeat this; they are never needed.

::

    entry of {base:020}.txnindex, for each aborted transaction whose marker is in the segment
      0  version             i16  0
      2  producer_id         i64
     10  first_offset        i64  of its first batch
     18  last_offset         i64  of its marker
     26  last_stable_offset  i64  when it ended
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from duramen.errors import CorruptionError, DuramenError
from duramen.formats.format import SegmentSource
from duramen.formats.kafka.batch import ABORT, COMMIT, CONTROL_KEY, TRANSACTIONAL, is_control, unfold
from duramen.formats.kafka.segment import AbortedRange, KafkaSegment, batches_of
from duramen.formats.segment import Rows
from duramen.formats.struct import Struct
from duramen.kernel import NOT_FOUND, NULL_LENGTH, BatchColumns

TXN_ENTRY = Struct(
    ">", version="h", producer_id="q", first_offset="q", last_offset="q", last_stable_offset="q"
)  # fmt: skip
_CONTROL_BYTES = 4 << 20
"""A control record has about twenty bytes; this is for those of a scan step."""


class AbortedTransaction(NamedTuple):
    """An entry of the transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass
class Transactions:
    """The transactions of a log. `add` takes its batches in order, one scan step after another."""

    aborted: list[AbortedTransaction] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    """The first offset of each transaction that has not ended, by producer id."""
    abort_markers: set[tuple[int, int]] = field(default_factory=set)
    """Producer id and offset of every marker of an aborted transaction."""
    empty_markers: list[int] = field(default_factory=list)
    """The offsets of the markers of transactions without a batch."""

    def add(self, segment: KafkaSegment, batches: BatchColumns) -> None:
        wanted = (batches.attributes & TRANSACTIONAL != 0) & (batches.magic == 2)
        control = wanted & is_control(batches)
        kinds = dict(zip(np.flatnonzero(control).tolist(), control_types(segment.buf, batches, control), strict=True))
        for row in np.flatnonzero(wanted).tolist():
            producer_id = int(batches.producer_id[row])
            if row not in kinds:
                self.open.setdefault(producer_id, int(batches.base_offset[row]))
            elif kinds[row] in (ABORT, COMMIT):
                self._end(producer_id, int(batches.last_offset[row]), kinds[row])

    def _end(self, producer_id: int, last_offset: int, kind: int) -> None:
        if kind == ABORT:
            self.abort_markers.add((producer_id, last_offset))
        first = self.open.pop(producer_id, None)
        if first is None:
            self.empty_markers.append(last_offset)
        if kind == ABORT and first is not None:
            stable = min(self.open.values(), default=last_offset + 1)
            self.aborted.append(AbortedTransaction(producer_id, first, last_offset, stable))

    def copy(self) -> Transactions:
        return Transactions(list(self.aborted), dict(self.open), set(self.abort_markers), list(self.empty_markers))

    @property
    def last_stable_offset(self) -> int | None:
        """The first offset of the oldest open transaction; None where none is open."""
        return min(self.open.values(), default=None)


def control_types(buf: memoryview, batches: BatchColumns, control: npt.NDArray[np.bool_]) -> list[int]:
    """The type of the first record of each control batch; -1 where it cannot be read."""
    chosen = batches.take(control)
    try:
        records = unfold(buf, chosen, _CONTROL_BYTES)
    except DuramenError:
        if len(chosen) <= 1:
            return [-1] * len(chosen)
        alone = np.eye(len(chosen), dtype=np.bool_)
        return [kind for row in alone for kind in control_types(buf, chosen, row)]
    columns, counts = records.columns, chosen.records.astype(np.int64)
    found = []
    for row, count in zip((np.cumsum(counts) - counts).tolist(), counts.tolist(), strict=True):
        is_key = count and columns.key_length[row] != NULL_LENGTH and columns.key_length[row] >= CONTROL_KEY.size
        source = memoryview(records.plain) if count and records.in_plain[row] else buf
        found.append(int(CONTROL_KEY.unpack(source, int(columns.key_position[row]))["type"]) if is_key else -1)
    return found


class SealedTransactions(NamedTuple):
    """The transactions of the segments that another one follows, which no longer change."""

    stamps: tuple[Hashable, ...] = ()
    found: Transactions = Transactions()
    checked: Mapping[tuple[Hashable, int], int] = MappingProxyType({})
    """Of segments in which a transaction is open, by stamp and its first offset: where the check of them started."""


_HINT = 'isolation="read_uncommitted" reads the records; `duramen verify` shows the damage'


def transactions_of(
    segments: Sequence[SegmentSource], known: SealedTransactions
) -> tuple[Transactions, SealedTransactions]:
    """The transactions of a log, and those of its sealed segments. Only headers and markers are looked at, and nothing
    of segments that are ``known``. Raises `CorruptionError` where damage hides how transactions ended: what follows it
    may be committed or not."""
    stamps = tuple(segment.stamp for segment in segments)
    if not len(known.stamps) < len(stamps) or stamps[: len(known.stamps)] != known.stamps:
        known = SealedTransactions()
    found, sealed = known.found.copy(), known
    for number, source in enumerate(segments[len(known.stamps) :], len(known.stamps)):
        is_last = number == len(segments) - 1
        if is_last:
            sealed = SealedTransactions(stamps[:-1], found.copy(), known.checked)
        segment = source.open()
        assert isinstance(segment, KafkaSegment)
        for rows in segment.steps(verify=False):
            found.add(segment, batches_of(rows))
        refuse_damage(segment, rows, is_last=is_last)
    return found, sealed


def refuse_damage(
    segment: KafkaSegment, rows: Rows, *, is_last: bool, hides: str = "how transactions ended", hint: str = _HINT
) -> None:
    """Raise unless the last step of a scan ended cleanly, or at the torn tail of the last segment."""
    if rows.stop.clean or (is_last and segment.resync(rows.cursor) == NOT_FOUND):
        return
    raise CorruptionError(
        f"damage hides {hides}: {rows.stop.meaning}",
        position=rows.end.position, offset=rows.end.last_offset + 1, hint=hint,
    )  # fmt: skip


def ranges_text(aborted: Iterable[AbortedTransaction]) -> str:
    """Aborted transactions as the value of an option.

    >>> ranges_text([AbortedTransaction(7, 10, 19, 20)])
    '7:10-19'
    """
    return ",".join(f"{one.producer_id}:{one.first_offset}-{one.last_offset}" for one in aborted)


def ranges_of(text: str) -> tuple[AbortedRange, ...]:
    """The value of the option as ranges. Raises `ValueError` for anything else.

    >>> ranges_of("7:10-19")
    (AbortedRange(producer_id=7, first_offset=10, last_offset=19),)
    """
    found = []
    for one in filter(None, text.split(",")):
        producer_id, _, offsets = one.partition(":")
        first, _, last = offsets.partition("-")
        found.append(AbortedRange(int(producer_id), int(first), int(last)))
    return tuple(found)
