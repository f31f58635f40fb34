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

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from duramen.errors import DuramenError
from duramen.formats.kafka.batch import ABORT, COMMIT, CONTROL_KEY, TRANSACTIONAL, is_control, unfold
from duramen.formats.kafka.segment import AbortedRange, KafkaSegment, batches_of
from duramen.formats.struct import Struct
from duramen.kernel import NULL_LENGTH, BatchColumns

TXN_ENTRY = Struct(
    ">", version="h", producer_id="q", first_offset="q", last_offset="q", last_stable_offset="q"
)  # fmt: skip
_CONTROL_BYTES = 1 << 16
"""A control record has about twenty bytes."""


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

    def add(self, segment: KafkaSegment, batches: BatchColumns) -> None:
        wanted = (batches.attributes & TRANSACTIONAL != 0) & (batches.magic == 2)
        control = is_control(batches)
        for row in np.flatnonzero(wanted).tolist():
            producer_id = int(batches.producer_id[row])
            if not control[row]:
                self.open.setdefault(producer_id, int(batches.base_offset[row]))
                continue
            kind = control_type(segment.buf, batches.slice(row, row + 1))
            if kind in (ABORT, COMMIT):
                self._end(producer_id, int(batches.last_offset[row]), kind)

    def _end(self, producer_id: int, last_offset: int, kind: int) -> None:
        if kind == ABORT:
            self.abort_markers.add((producer_id, last_offset))
        first = self.open.pop(producer_id, None)
        if kind == ABORT and first is not None:
            stable = min(self.open.values(), default=last_offset + 1)
            self.aborted.append(AbortedTransaction(producer_id, first, last_offset, stable))

    @property
    def last_stable_offset(self) -> int | None:
        """The first offset of the oldest open transaction; None where none is open."""
        return min(self.open.values(), default=None)


def control_type(buf: memoryview, batch: BatchColumns) -> int | None:
    """The type of the first record of a control batch; None where it cannot be read."""
    try:
        records = unfold(buf, batch, _CONTROL_BYTES)
    except DuramenError:
        return None
    columns = records.columns
    if not len(columns) or columns.key_length[0] == NULL_LENGTH or columns.key_length[0] < CONTROL_KEY.size:
        return None
    source = memoryview(records.plain) if records.in_plain[0] else buf
    return int(CONTROL_KEY.unpack(source, int(columns.key_position[0]))["type"])


def transactions_of(segments: Iterable[KafkaSegment]) -> Transactions:
    """The transactions of a log, as far as its batches can be read. Only headers and markers are looked at."""
    found = Transactions()
    for segment in segments:
        for rows in segment.steps(verify=False):
            found.add(segment, batches_of(rows))
    return found


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
