"""A map from runs of offsets to values: sorted, without overlaps, adjacent runs of equal value joined.

Acknowledged and leased offsets mostly form long runs, so a million offsets cost as much as a handful. No I/O.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V")


class Span(NamedTuple, Generic[V]):
    """The offsets from ``start`` to before ``end``."""

    start: int
    end: int
    value: V


class IntervalMap(Generic[V]):
    """A map from offsets to values, stored as runs.

    >>> spans = IntervalMap()
    >>> spans.put(0, 10, "a"); spans.put(10, 12, "a"); spans.put(4, 6, "b")
    >>> [tuple(span) for span in spans]
    [(0, 4, 'a'), (4, 6, 'b'), (6, 12, 'a')]
    >>> len(spans), spans.runs
    (12, 3)
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._values: list[V] = []
        self._covered = 0

    def __len__(self) -> int:
        """Number of offsets that have a value."""
        return self._covered

    @property
    def runs(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Span[V]]:
        return map(Span, self._starts, self._ends, self._values)

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()
        self._values.clear()
        self._covered = 0

    def put(self, start: int, end: int, value: V) -> None:
        """Set the value of every offset from ``start`` to before ``end``."""
        if start >= end:
            return
        self.cut(start, end)
        at = bisect_left(self._starts, start)
        if at and self._ends[at - 1] == start and self._values[at - 1] == value:
            at -= 1
            start = self._starts[at]
            self._drop(at)
        if at < len(self._starts) and self._starts[at] == end and self._values[at] == value:
            end = self._ends[at]
            self._drop(at)
        self._insert(at, start, end, value)

    def cut(self, start: int, end: int) -> None:
        """Remove the values from ``start`` to before ``end``."""
        if start >= end or not self._starts or end <= self._starts[0] or start >= self._ends[-1]:
            return
        low = bisect_right(self._ends, start)
        high = bisect_left(self._starts, end)
        if low >= high:
            return
        kept = []
        if self._starts[low] < start:
            kept.append(Span(self._starts[low], start, self._values[low]))
        if self._ends[high - 1] > end:
            kept.append(Span(end, self._ends[high - 1], self._values[high - 1]))
        self._covered -= sum(self._ends[at] - self._starts[at] for at in range(low, high))
        self._covered += sum(span.end - span.start for span in kept)
        self._starts[low:high] = [span.start for span in kept]
        self._ends[low:high] = [span.end for span in kept]
        self._values[low:high] = [span.value for span in kept]

    def within(self, start: int, end: int) -> Iterator[Span[V]]:
        """The runs between ``start`` and ``end``, clipped. Do not change the map while iterating."""
        for at in range(bisect_right(self._ends, start), bisect_left(self._starts, end)):
            yield Span(max(self._starts[at], start), min(self._ends[at], end), self._values[at])

    def at(self, offset: int) -> Span[V] | None:
        """The run that contains an offset."""
        at = bisect_right(self._starts, offset) - 1
        if at < 0 or self._ends[at] <= offset:
            return None
        return Span(self._starts[at], self._ends[at], self._values[at])

    def next_start(self, offset: int) -> int | None:
        """Start of the first run after ``offset``."""
        at = bisect_right(self._starts, offset)
        return self._starts[at] if at < len(self._starts) else None

    @property
    def end(self) -> int | None:
        return self._ends[-1] if self._ends else None

    def _insert(self, at: int, start: int, end: int, value: V) -> None:
        self._starts.insert(at, start)
        self._ends.insert(at, end)
        self._values.insert(at, value)
        self._covered += end - start

    def _drop(self, at: int) -> None:
        self._covered -= self._ends[at] - self._starts[at]
        del self._starts[at], self._ends[at], self._values[at]
