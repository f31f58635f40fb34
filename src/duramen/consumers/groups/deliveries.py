"""What a group delivers, and what consumers give back.

`Delivery` is one record with its lease; `DeliveryBatch` is many as an Arrow batch, without an object per record.
`claims_of` turns what a consumer gives back into claims: runs of offsets with the epoch of the delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import chain, repeat
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen.arguments import LONGEST_S, check_int
from duramen.consumers.groups.state_machine import LeaseClaim
from duramen.errors import UsageError
from duramen.log import records_of
from duramen.record import MAX_OFFSET, Record, from_us

Int64s = npt.NDArray[np.int64]
Seconds = float | timedelta


class Delivery(NamedTuple):
    """A record that its consumer holds until the deadline. ``epoch`` is the delivery attempt (1 = first)."""

    record: Record
    deadline_ms: int
    epoch: int

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def value(self) -> bytes | None:
        return self.record.value

    @property
    def deadline(self) -> datetime | None:
        """When the lease ends; None after the year 9999."""
        return from_us(self.deadline_ms * 1000)


_delivery: Callable[[Iterable[Any]], Delivery] = partial(tuple.__new__, Delivery)


@dataclass(frozen=True, eq=False)
class DeliveryBatch:
    """Many deliveries as columns: a batch with the neutral columns, the epoch of each row and a common deadline."""

    records: pa.RecordBatch
    deadline_ms: int
    claims: tuple[LeaseClaim, ...]
    """The same deliveries as runs of offsets."""

    @cached_property
    def epochs(self) -> Int64s:
        """Delivery attempt of each row (1 = first)."""
        counts = [claim.end - claim.start for claim in self.claims]
        return np.repeat(np.array([claim.epoch for claim in self.claims], np.int64), counts)

    def __len__(self) -> int:
        return int(self.records.num_rows)

    @property
    def offsets(self) -> Int64s:
        offsets: Int64s = self.records.column("offset").to_numpy()
        return offsets

    def __iter__(self) -> Iterator[Delivery]:
        """Iterate over the deliveries, one object per record."""
        epochs = chain.from_iterable(repeat(claim.epoch, claim.end - claim.start) for claim in self.claims)
        return map(_delivery, zip(records_of(self.records), repeat(self.deadline_ms, len(self)), epochs, strict=True))


EPOCHS = (list, tuple, np.ndarray, pa.Array, pa.ChunkedArray)
Handed = Delivery | DeliveryBatch | int | Iterable[Any]
"""A delivery, a batch, an offset, an iterable of deliveries or offsets, or an array of offsets."""


def claims_of(handed: Handed, epoch: Any = None) -> list[LeaseClaim]:
    """The runs of offsets that a consumer claims to hold. ``epoch`` belongs to plain offsets: one for all or one each.

    >>> claims_of([4, 5, 9], epoch=1)
    [LeaseClaim(start=4, end=6, epoch=1), LeaseClaim(start=9, end=10, epoch=1)]
    """
    if isinstance(handed, Delivery):
        return [LeaseClaim(handed.record.offset, handed.record.offset + 1, handed.epoch)]
    if isinstance(handed, DeliveryBatch):
        return list(handed.claims)
    if isinstance(handed, int | np.integer):
        handed = [handed]
    if not isinstance(handed, Iterable):
        raise UsageError(f"expected deliveries or offsets (got {handed!r})")
    if not isinstance(handed, np.ndarray | pa.Array | pa.ChunkedArray):
        items = list(handed)
        if set(map(type, items)) == {Delivery}:
            return _runs(_array([item[0][0] for item in items]), _array([item[2] for item in items]))
        handed = items
    offsets = _array(handed)
    if len(offsets) and int(offsets.min()) < 0:
        raise UsageError(f"an offset must be at least 0 (got {int(offsets.min())})")
    if epoch is None:
        return [claim._replace(epoch=None) for claim in _runs(offsets, np.zeros_like(offsets))]
    epochs = _array(epoch) if isinstance(epoch, EPOCHS) else np.full(len(offsets), check_int("epoch", epoch), np.int64)
    if len(epochs) != len(offsets):
        raise UsageError(f"epochs must have one entry per offset (got {len(epochs)} for {len(offsets)} offsets)")
    return _runs(offsets, epochs)


def joined_claims(claims: Iterable[LeaseClaim]) -> list[LeaseClaim] | None:
    """Join adjacent claims of one epoch; None if the claims are unsorted or overlap.

    >>> joined_claims([LeaseClaim(0, 2, 1), LeaseClaim(2, 5, 1), LeaseClaim(5, 6, 2)])
    [LeaseClaim(start=0, end=5, epoch=1), LeaseClaim(start=5, end=6, epoch=2)]
    """
    joined: list[LeaseClaim] = []
    for claim in claims:
        last = joined[-1] if joined else None
        if last is not None and claim.start < last.end:
            return None
        if last is not None and claim.start == last.end and claim.epoch == last.epoch:
            joined[-1] = LeaseClaim(last.start, claim.end, last.epoch)
        else:
            joined.append(claim)
    return joined


def _array(numbers: Any) -> Int64s:
    try:
        array = np.asarray(numbers)
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise TypeError(f"not integers: {array.dtype}")
        if array.size and int(array.max()) > MAX_OFFSET:
            raise OverflowError(f"{int(array.max())} has more than 63 bits")
        return array.astype(np.int64).reshape(-1)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"expected deliveries or offsets: {error}") from error


def _runs(offsets: Int64s, epochs: Int64s) -> list[LeaseClaim]:
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
    return [LeaseClaim(start, last + 1, epoch) for start, last, epoch in rows]  # the end may need 64 bits


def to_ms(duration: Seconds, what: str) -> int:
    """Convert seconds or a timedelta to milliseconds.

    >>> to_ms(1.5, "lease"), to_ms(timedelta(minutes=1), "lease")
    (1500, 60000)
    """
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, Real) or not 0 <= seconds <= LONGEST_S:
        raise UsageError(f"{what} must be 0 to {LONGEST_S} seconds (got {duration!r:.80})")
    return round(float(seconds) * 1000)
