"""What tasks of a profile bring home: small summaries of many rows that can be added to each other.

Each has a bound on its size, whatever it is fed, and says whether it is exact. Nothing here knows Spark or a log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from duramen.formats import murmur2

MAX_BUCKETS = 2048
MAX_KEYS = 20_000
PRECISION = 14
"""Bits of a hash that choose a register: 2¹⁴ registers, a standard error of 0.8 %."""


@dataclass
class Sizes:
    """Lengths in bytes: how many, their sum, the extremes, and how many lie between one power of two and the next."""

    count: int = 0
    total_bytes: int = 0
    least: int | None = None
    most: int | None = None
    powers: list[int] = field(default_factory=lambda: [0] * 33)
    """``powers[p]``: lengths of ``p`` bits, so from 2**(p-1) to 2**p - 1; ``powers[0]`` are empty."""

    def add(self, lengths: npt.NDArray[np.int64]) -> None:
        if not len(lengths):
            return
        bits = np.where(lengths > 0, np.floor(np.log2(np.maximum(lengths, 1))).astype(np.int64) + 1, 0)
        for power, count in enumerate(np.bincount(bits, minlength=33).tolist()):
            self.powers[power] += count
        self._extend(int(lengths.min()), int(lengths.max()))
        self.count += len(lengths)
        self.total_bytes += int(lengths.sum())

    def _extend(self, least: int | None, most: int | None) -> None:
        if least is not None and most is not None:
            self.least = least if self.least is None else min(self.least, least)
            self.most = most if self.most is None else max(self.most, most)

    def merge(self, other: Sizes) -> None:
        self.count += other.count
        self.total_bytes += other.total_bytes
        self._extend(other.least, other.most)
        self.powers = [a + b for a, b in zip(self.powers, other.powers, strict=True)]

    def quantile(self, share: float) -> int:
        """At most this many bytes have that share of all; as exact as powers of two are."""
        seen = 0
        for power, count in enumerate(self.powers):
            seen += count
            if seen >= share * self.count and count:
                return min((1 << power) - 1 if power else 0, self.most or 0)
        return self.most or 0


@dataclass
class SketchRates:
    """Records and bytes over time, in buckets of ``width_s`` seconds. The width doubles until there are few enough."""

    width_s: int = 1
    buckets: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, times_us: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> None:
        if not len(times_us):
            return
        numbers, places = np.unique(times_us // (self.width_s * 1_000_000), return_inverse=True)
        counts = np.bincount(places)
        sums = np.bincount(places, weights=sizes)
        for number, count, total in zip(numbers.tolist(), counts.tolist(), sums.tolist(), strict=True):
            self._put(number, count, int(total))
        while len(self.buckets) > MAX_BUCKETS:
            self._widen()

    def _put(self, number: int, count: int, total: int) -> None:
        before = self.buckets.get(number, (0, 0))
        self.buckets[number] = (before[0] + count, before[1] + total)

    def _widen(self) -> None:
        old, self.buckets, self.width_s = self.buckets, {}, self.width_s * 2
        for number, (count, total) in old.items():
            self._put(number // 2, count, total)

    def merge(self, other: SketchRates) -> None:
        while self.width_s < other.width_s:
            self._widen()
        steps = self.width_s // other.width_s
        for number, (count, total) in other.buckets.items():
            self._put(number // steps, count, total)
        while len(self.buckets) > MAX_BUCKETS:
            self._widen()

    def narrowed(self, most: int) -> SketchRates:
        """The same with at most so many buckets between the first and the last."""
        copy = SketchRates(self.width_s, dict(self.buckets))
        while copy.buckets and max(copy.buckets) - min(copy.buckets) + 1 > most:
            copy._widen()
        return copy


@dataclass
class Distinct:
    """HyperLogLog over 32-bit hashes: how many different keys there are, give or take 0.8 %."""

    registers: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(1 << PRECISION, np.uint8))

    def add(self, keys: pa.Array) -> None:
        hashes = _mixed(murmur2(keys))
        places = (hashes >> np.uint32(32 - PRECISION)).astype(np.int64)
        rest = (hashes << np.uint32(PRECISION)).astype(np.uint32)
        bits = np.where(rest > 0, 31 - np.floor(np.log2(np.maximum(rest, 1))).astype(np.int64), 32 - PRECISION)
        ranks = (np.minimum(bits, 32 - PRECISION) + 1).astype(np.uint8)
        np.maximum.at(self.registers, places, ranks)

    def merge(self, other: Distinct) -> None:
        np.maximum(self.registers, other.registers, out=self.registers)

    def estimate(self) -> int:
        count = len(self.registers)
        alpha = 0.7213 / (1 + 1.079 / count)
        raw = alpha * count * count / float(np.sum(np.exp2(-self.registers.astype(np.float64))))
        empty = int(np.count_nonzero(self.registers == 0))
        if raw <= 2.5 * count and empty:
            return round(count * np.log(count / empty))
        if raw > 2**32 / 30:
            raw = -(2.0**32) * np.log(max(1 - raw / 2**32, 1e-9))
        return round(raw)


def _mixed(hashes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Murmur's low bits are better than its high ones for short keys: spread them once more."""
    mixed = hashes.astype(np.uint32)
    mixed ^= mixed >> np.uint32(16)
    mixed *= np.uint32(0x7FEB352D)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0x846CA68B)
    mixed ^= mixed >> np.uint32(16)
    return mixed


@dataclass
class Heavy:
    """The most frequent keys. Exact for few distinct keys; beyond that the rarest are dropped, and no count is too low
    by more than ``error``. Keys stay in Arrow until `top` is called."""

    table: pa.Table = field(default_factory=lambda: _counted([], []))
    waiting: list[pa.Table] = field(default_factory=list)
    error: int = 0

    @property
    def is_exact(self) -> bool:
        self.settle()
        return self.error == 0

    @property
    def kept(self) -> int:
        """How many keys are still known: all different ones, if this is exact."""
        self.settle()
        return int(self.table.num_rows)

    def add(self, keys: pa.Array) -> None:
        counted = pc.value_counts(keys)
        self._put(_counted(counted.field(0), counted.field(1)))

    def merge(self, other: Heavy) -> None:
        other.settle()
        self.error += other.error
        self._put(other.table)

    def _put(self, table: pa.Table) -> None:
        self.waiting.append(table)
        if sum(part.num_rows for part in self.waiting) > 4 * MAX_KEYS:
            self.settle()

    def settle(self) -> None:
        """Add up what waits. What is taken from the rarest is taken from all, so the error is known (Misra, Gries)."""
        if not self.waiting:
            return
        grouped = pa.concat_tables([self.table, *self.waiting]).group_by("key").aggregate([("count", "sum")])
        self.waiting = []
        table = _counted(grouped.column("key"), grouped.column("count_sum"))
        if table.num_rows > MAX_KEYS:
            counts = np.sort(table.column("count").to_numpy())
            cut = int(counts[-(MAX_KEYS // 2)])
            self.error += cut
            table = table.filter(pc.greater(table.column("count"), cut))
            table = _counted(table.column("key"), pc.subtract(table.column("count"), cut))
        self.table = table.combine_chunks()

    def top(self, most: int) -> list[tuple[bytes, int]]:
        self.settle()
        first = self.table.sort_by([("count", "descending"), ("key", "ascending")]).slice(0, most)
        return list(zip(first.column("key").to_pylist(), first.column("count").to_pylist(), strict=True))


def _counted(keys: Any, counts: Any) -> pa.Table:
    schema = pa.schema([("key", pa.binary()), ("count", pa.int64())])
    columns = [item if isinstance(item, pa.Array | pa.ChunkedArray) else pa.array(item, kind)
               for item, kind in ((keys, pa.binary()), (counts, pa.int64()))]  # fmt: skip
    return pa.table(columns, schema=schema)


@dataclass
class Order:
    """How offsets and times follow each other within one stretch of a log; stretches are joined in order."""

    first_offset: int | None = None
    last_offset: int | None = None
    gaps: int = 0
    missing: int = 0
    largest: list[tuple[int, int]] = field(default_factory=list)
    """The largest gaps, as first and last missing offset."""
    repeated: int = 0
    """Offsets that are not above the one before."""
    first_us: int | None = None
    last_us: int | None = None
    least_us: int | None = None
    most_us: int | None = None
    timeless: int = 0
    backwards: int = 0
    """Records whose time is before that of the record before them."""
    largest_step_us: int = 0

    MOST_GAPS: int = 10

    def add(self, offsets: npt.NDArray[np.int64], times: pa.Array) -> None:
        if not len(offsets):
            return
        part = Order(first_offset=int(offsets[0]), last_offset=int(offsets[-1]))
        steps = np.diff(offsets)
        for row in np.flatnonzero(steps > 1).tolist():
            part._gap(int(offsets[row]) + 1, int(offsets[row + 1]) - 1)
        part.repeated = int((steps <= 0).sum())
        part.timeless = times.null_count
        known = times.drop_null().view(pa.int64()).to_numpy()
        if len(known):
            part.first_us, part.last_us = int(known[0]), int(known[-1])
            part.least_us, part.most_us = int(known.min()), int(known.max())
            back = np.diff(known)
            part.backwards = int((back < 0).sum())
            part.largest_step_us = int(-back.min()) if part.backwards else 0
        self.join(part)

    def _gap(self, first: int, last: int) -> None:
        self.gaps += 1
        self.missing += last - first + 1
        self.largest = sorted([*self.largest, (first, last)], key=lambda gap: gap[0] - gap[1])[: self.MOST_GAPS]

    def join(self, after: Order) -> None:
        """Take in what follows."""
        if after.first_offset is None:
            return
        if self.last_offset is not None:
            if after.first_offset > self.last_offset + 1:
                self._gap(self.last_offset + 1, after.first_offset - 1)
            self.repeated += after.first_offset <= self.last_offset
        if self.last_us is not None and after.first_us is not None and after.first_us < self.last_us:
            self.backwards += 1
            self.largest_step_us = max(self.largest_step_us, self.last_us - after.first_us)
        self.first_offset = after.first_offset if self.first_offset is None else self.first_offset
        self.last_offset = after.last_offset
        self.gaps += after.gaps
        self.missing += after.missing
        self.largest = sorted([*self.largest, *after.largest], key=lambda gap: gap[0] - gap[1])[: self.MOST_GAPS]
        self.repeated += after.repeated
        self.timeless += after.timeless
        self.backwards += after.backwards
        self.largest_step_us = max(self.largest_step_us, after.largest_step_us)
        self.first_us = after.first_us if self.first_us is None else self.first_us
        self.last_us = after.last_us if after.last_us is not None else self.last_us
        self.least_us = _of(min, self.least_us, after.least_us)
        self.most_us = _of(max, self.most_us, after.most_us)


def _of(choose: Any, a: int | None, b: int | None) -> int | None:
    return choose(a, b) if a is not None and b is not None else (a if b is None else b)
