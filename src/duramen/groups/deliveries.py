"""What a group hands out, and what it is handed back.

One record with its lease (`Delivery`), or many as an Arrow batch (`DeliveryBatch`): bulk users never make an object per
record. Whatever comes back is turned into claims: runs of offsets with the epoch that the holder was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen.errors import UsageError
from duramen.groups.machine import Claim
from duramen.log.rows import records_of
from duramen.model import MAX_OFFSET, Record, from_us

Int64s = npt.NDArray[np.int64]
Seconds = float | timedelta


class Delivery(NamedTuple):
    """A record that is yours until its deadline. ``epoch`` says the how manyth delivery of this record it is."""

    record: Record
    deadline_ms: int
    epoch: int

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def value(self) -> bytes:
        return self.record.value

    @property
    def deadline(self) -> datetime | None:
        """When the lease ends; None for one that ends after the year 9999."""
        return from_us(self.deadline_ms * 1000)


_delivery: Callable[[Iterable[Any]], Delivery] = partial(tuple.__new__, Delivery)


@dataclass(frozen=True, eq=False)
class DeliveryBatch:
    """Many deliveries as columns: a batch with the neutral columns, the epoch of each row, one deadline."""

    records: pa.RecordBatch
    deadline_ms: int
    claims: tuple[Claim, ...]
    """The same in short, for giving it back."""

    @cached_property
    def epochs(self) -> Int64s:
        """The how manyth delivery of its record each row is."""
        counts = [claim.end - claim.start for claim in self.claims]
        return np.repeat(np.array([claim.epoch for claim in self.claims], np.int64), counts)

    def __len__(self) -> int:
        return int(self.records.num_rows)

    @property
    def offsets(self) -> Int64s:
        offsets: Int64s = self.records.column("offset").to_numpy()
        return offsets

    def __iter__(self) -> Iterator[Delivery]:
        """One object per record, for those who want that."""
        epochs = chain.from_iterable(repeat(claim.epoch, claim.end - claim.start) for claim in self.claims)
        return map(_delivery, zip(records_of(self.records), repeat(self.deadline_ms, len(self)), epochs, strict=True))


Handed = Delivery | DeliveryBatch | int | Iterable[Any]
"""A delivery, a batch of them, an offset, or several of either; also an array of offsets."""


def claims_of(handed: Handed, epoch: Any = None) -> list[Claim]:
    """The runs of offsets that somebody says he holds. ``epoch`` goes with plain offsets: one for all, or one each.

    >>> claims_of([4, 5, 9], epoch=1)
    [Claim(start=4, end=6, epoch=1), Claim(start=9, end=10, epoch=1)]
    """
    if isinstance(handed, Delivery):
        return [Claim(handed.record.offset, handed.record.offset + 1, handed.epoch)]
    if isinstance(handed, DeliveryBatch):
        return list(handed.claims)
    if isinstance(handed, int | np.integer):
        handed = [handed]
    if not isinstance(handed, Iterable):
        raise UsageError(f"neither deliveries nor offsets: {handed!r}")
    if not isinstance(handed, np.ndarray | pa.Array | pa.ChunkedArray):
        items = list(handed)
        if set(map(type, items)) == {Delivery}:
            return _runs(_array([item[0][0] for item in items]), _array([item[2] for item in items]))
        handed = items
    offsets = _array(handed)
    if len(offsets) and int(offsets.min()) < 0:
        raise UsageError(f"{int(offsets.min())} is no offset")
    if epoch is None:
        return [claim._replace(epoch=None) for claim in _runs(offsets, np.zeros_like(offsets))]
    epochs = _array(epoch) if np.ndim(epoch) else np.full(len(offsets), int(epoch), np.int64)
    if len(epochs) != len(offsets):
        raise UsageError(f"{len(offsets)} offsets and {len(epochs)} epochs do not fit together")
    return _runs(offsets, epochs)


def joined_claims(claims: Iterable[Claim]) -> list[Claim] | None:
    """The same with fewer claims, where they are in order; None where they are not, or where two are about the same.

    >>> joined_claims([Claim(0, 2, 1), Claim(2, 5, 1), Claim(5, 6, 2)])
    [Claim(start=0, end=5, epoch=1), Claim(start=5, end=6, epoch=2)]
    """
    joined: list[Claim] = []
    for claim in claims:
        last = joined[-1] if joined else None
        if last is not None and claim.start < last.end:
            return None
        if last is not None and claim.start == last.end and claim.epoch == last.epoch:
            joined[-1] = Claim(last.start, claim.end, last.epoch)
        else:
            joined.append(claim)
    return joined


def _array(numbers: Any) -> Int64s:
    try:
        array = np.asarray(numbers)
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise TypeError(f"{array.dtype} is no integer")
        if array.size and int(array.max()) > MAX_OFFSET:
            raise OverflowError(f"{int(array.max())} has more than 63 bits")
        return array.astype(np.int64).reshape(-1)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"neither deliveries nor offsets: {error}") from error


def _runs(offsets: Int64s, epochs: Int64s) -> list[Claim]:
    if not len(offsets):
        return []
    steps = np.diff(offsets)
    if len(steps) and int(steps.min()) < 0:
        order = np.argsort(offsets, kind="stable")
        offsets, epochs = offsets[order], epochs[order]
        steps = np.diff(offsets)
    breaks = np.flatnonzero((steps != 1) | (np.diff(epochs) != 0))
    starts, ends = np.append(0, breaks + 1), np.append(breaks, len(offsets) - 1)
    columns = (offsets[starts], offsets[ends], epochs[starts])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [Claim(start, last + 1, epoch) for start, last, epoch in rows]  # which 63 bits may not hold


def to_ms(duration: Seconds, what: str) -> int:
    """Seconds, or a timedelta, as milliseconds.

    >>> to_ms(1.5, "lease"), to_ms(timedelta(minutes=1), "lease")
    (1500, 60000)
    """
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not 0 <= seconds <= _LONGEST_S:
        raise UsageError(f"{what}={duration!r} is not between 0 and {_LONGEST_S} seconds")
    return round(seconds * 1000)


_LONGEST_S = 10 * 365 * 86_400
