"""The state of a group: acknowledged and leased offsets. Pure: no files, no clock, no records.

An offset is in one of these states::

    below acked_until ──── acknowledged, as everything below it is
    acked ──────────────── acknowledged, but something before it is not
    in flight ──────────── delivered; has a deadline and an epoch, which counts its deliveries
       deadline > now        held by one consumer
       deadline <= now       to be delivered again, with the next epoch; until then its last holder may acknowledge it
       deadline == 0         a reset ended the lease: its last holder may not
    absent ─────────────── the log has no such record; in-memory knowledge of this process only
    anything else ──────── fresh: never delivered

Every change is a run of Stroma events (`formats.stroma`), and `apply` is the only way to change the state: a process
applies its own events and the events that it reads from the delta alike. The methods that decide (`take_expired`,
`ack`, `lease`, …) change nothing; they return runs, which the caller writes and applies. Time is an argument.

Applying follows the format's rules: an ack is final; of two marks the higher epoch wins, of equal epochs the later
mark; a reset forgets everything. Replaying an old delta over a newer snapshot therefore changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from duramen.consumers.groups.interval_map import IntervalMap
from duramen.formats import (
    ACK,
    BUMP,
    CLEAR,
    MARK,
    RESET,
    Acked,
    Bumped,
    Cleared,
    Events,
    Marked,
    Run,
    SnapshotColumns,
    WasReset,
)
from duramen.record import MAX_OFFSET

Int64s = npt.NDArray[np.int64]

FOREVER = MAX_OFFSET + 1
MAX_EPOCH = 2**32 - 1
REVOKED_MS = 0
"""Deadline of a lease that a reset ended."""
_MIN_DUE = 1024


class Lease(NamedTuple):
    """The lease of a record in flight."""

    deadline_ms: int
    epoch: int


class LeaseClaim(NamedTuple):
    """Offsets that a consumer claims to hold. Epoch None matches any holder."""

    start: int
    end: int
    epoch: int | None


class Refused(NamedTuple):
    """A part of a claim that is invalid, and why."""

    start: int
    end: int
    why: str


class Decision(NamedTuple):
    """The result of deciding claims: events to apply, the number of offsets they concern, and refused parts."""

    runs: list[Run]
    offsets: int
    refused: list[Refused]


class StateMachine:
    """The state of one group.

    >>> state = StateMachine()
    >>> state.apply(state.deliver([(0, 3)], deadline_ms=30_000))
    >>> state.apply(state.ack([LeaseClaim(1, 2, epoch=1)]).runs)
    >>> state.acked_until, state.in_flight
    (0, 2)
    >>> state.apply(state.ack([LeaseClaim(0, 1, epoch=1)]).runs)
    >>> state.acked_until
    2
    """

    def __init__(self, acked_until: int = 0) -> None:
        self.acked_until = acked_until
        self.acked: IntervalMap[None] = IntervalMap()
        self.leases: IntervalMap[Lease] = IntervalMap()
        self.absent: IntervalMap[None] = IntervalMap()
        self._due: list[tuple[int, int, int, int]] = []
        """Heap of (deadline, start, end, epoch) of every run put in flight; stale entries are skipped."""
        self._fresh_hint = acked_until

    # --- looking

    @property
    def in_flight(self) -> int:
        """Number of offsets delivered and not acknowledged, expired ones included."""
        return len(self.leases)

    def expired(self, now_ms: int) -> int:
        """Number of offsets in flight that wait for redelivery."""
        return sum(run.end - run.start for run in self.leases if run.value.deadline_ms <= now_ms)

    def acked_below(self, next_offset: int) -> int:
        """Number of offsets from ``acked_until`` to before ``next_offset`` that need no delivery."""
        spans = (*self.acked.within(self.acked_until, next_offset), *self.absent.within(self.acked_until, next_offset))
        return sum(span.end - span.start for span in spans)

    def next_deadline_ms(self) -> int | None:
        """The earliest deadline in flight, or None."""
        while self._due and not self._is_current(self._due[0]):
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def is_due(self, now_ms: int) -> bool:
        """Whether a deadline has passed; may be true for an offset acknowledged since."""
        return bool(self._due) and self._due[0][0] <= now_ms

    def _is_current(self, due: tuple[int, int, int, int]) -> bool:
        deadline_ms, start, end, epoch = due
        return any(span.value == (deadline_ms, epoch) for span in self.leases.within(start, end))

    def top(self) -> int:
        """One past the highest offset acknowledged or in flight."""
        return max(self.acked_until, self.acked.end or 0, self.leases.end or 0)

    def fresh(self) -> tuple[int, int]:
        """Start of the first run of offsets never delivered, and an upper bound of its end."""
        offset = max(self._fresh_hint, self.acked_until)
        while True:
            span = self.acked.at(offset) or self.leases.at(offset) or self.absent.at(offset)
            if span is None:
                break
            offset = span.end
        self._fresh_hint = offset
        following = (spans.next_start(offset) for spans in (self.acked, self.leases, self.absent))
        return offset, min((start for start in following if start is not None), default=FOREVER)

    # --- deciding

    def deliver(self, runs: Iterable[tuple[int, int]], deadline_ms: int) -> list[Run]:
        """Events that deliver fresh offsets for the first time."""
        return [Marked(start, end, deadline_ms, 1) for start, end in runs]

    def take_expired(self, most: int, now_ms: int, deadline_ms: int) -> list[Marked]:
        """Up to ``most`` offsets with expired leases, oldest deadline first."""
        if not self.is_due(now_ms):
            return []
        taken: list[Marked] = []
        back: list[tuple[int, int, int, int]] = []
        seen: IntervalMap[None] = IntervalMap()  # an identical run put in flight twice is in the heap twice
        while most > 0 and self._due and self._due[0][0] <= now_ms:
            old_deadline_ms, start, end, epoch = heappop(self._due)
            for span in self.leases.within(start, end):
                if span.value != (old_deadline_ms, epoch):
                    continue
                for free_start, free_end in _uncovered(seen, span.start, span.end):
                    cut = min(free_end, free_start + most)
                    if cut > free_start:
                        taken.append(Marked(free_start, cut, deadline_ms, min(epoch + 1, MAX_EPOCH)))
                        most -= cut - free_start
                    if cut < free_end:
                        back.append((old_deadline_ms, cut, free_end, epoch))
                seen.put(span.start, span.end, None)
        for due in back:
            heappush(self._due, due)
        return taken

    def give_back(self, runs: Iterable[Marked]) -> None:
        """Make runs due again that `take_expired` returned and that were not delivered."""
        for run in runs:
            for span in self.leases.within(run.start, run.end):
                heappush(self._due, (span.value.deadline_ms, span.start, span.end, span.value.epoch))

    def ack(self, claims: Iterable[LeaseClaim]) -> Decision:
        """Acknowledge the valid claims. Offsets acknowledged before are neither counted nor refused."""
        held, refused = self._judge(claims)
        runs: list[Run] = []
        until = self.acked_until
        for start, end, _ in sorted(held):
            if start <= until or self._is_done(until, start):
                until = max(until, end)
            else:
                runs.append(Acked(start, end))
        if until > self.acked_until:
            runs.insert(0, Bumped(until))
        return Decision(runs, _offsets(held), refused)

    def _is_done(self, start: int, end: int) -> bool:
        """Whether no offset from ``start`` to before ``end`` needs a delivery."""
        while start < end:
            span = self.acked.at(start) or self.absent.at(start)
            if span is None:
                return False
            start = span.end
        return True

    def lease(self, claims: Iterable[LeaseClaim], deadline_ms: int) -> Decision:
        """Give valid claims a new deadline: a later one extends the lease, the present time returns the records."""
        held, refused = self._judge(claims)
        marks: list[Run] = [Marked(start, end, deadline_ms, lease.epoch) for start, end, lease in held]
        return Decision(marks, _offsets(held), refused)

    def done(self, claims: Iterable[LeaseClaim]) -> list[Refused]:
        """The acknowledged parts of claims, as refusals of an extension."""
        done: list[Refused] = []
        for start, end, _ in claims:
            spans = [(start, min(end, self.acked_until)), *(span[:2] for span in self.acked.within(start, end))]
            done += [Refused(*span, "it is acknowledged already") for span in spans if span[0] < span[1]]
        return done

    def held(self, claims: Iterable[LeaseClaim]) -> list[Marked]:
        """The runs for which the claims are valid."""
        return [Marked(start, end, *lease) for start, end, lease in self._judge(claims)[0]]

    def reset(self, offset: int) -> list[Run]:
        """Acknowledge every offset before ``offset`` and none from it on. Leases end but keep their epochs, so that a
        former holder cannot be mistaken for the next one."""
        runs: list[Run] = [WasReset()]
        if offset:
            runs.append(Bumped(offset))
        for start, end, lease in self.leases.within(offset, FOREVER):
            runs.append(Marked(start, end, REVOKED_MS, lease.epoch))
        return runs

    def reopen(self, spans: Sequence[tuple[int, int]]) -> list[Run]:
        """Make acknowledged offsets fresh again. Leases stay."""
        done: IntervalMap[None] = IntervalMap()
        for start, end, _ in self.acked:
            done.put(start, end, None)
        until = min(self.acked_until, *(start for start, _ in spans))
        if until < self.acked_until:
            done.put(until, self.acked_until, None)
        for start, end in spans:
            done.cut(start, end)
        runs: list[Run] = [WasReset()]
        if until:
            runs.append(Bumped(until))
        runs += [Acked(start, end) for start, end, _ in done]
        runs += [Marked(start, end, *lease) for start, end, lease in self.leases]
        return runs

    def rewind(self, next_offset: int) -> list[Run]:
        """Forget everything from ``next_offset``, the end of the log, on."""
        runs: list[Run] = [WasReset()]
        if until := min(self.acked_until, next_offset):
            runs.append(Bumped(until))
        runs += [Acked(start, end) for start, end, _ in self.acked.within(0, next_offset)]
        runs += [Marked(start, end, *lease) for start, end, lease in self.leases.within(0, next_offset)]
        return runs

    def _judge(self, claims: Iterable[LeaseClaim]) -> tuple[list[tuple[int, int, Lease]], list[Refused]]:
        held: list[tuple[int, int, Lease]] = []
        refused: list[Refused] = []
        for start, end, epoch in claims:
            offset = max(start, self.acked_until)
            while offset < end:
                span = self.leases.at(offset)
                if span is None:
                    offset = self._judge_unheld(offset, end, refused)
                    continue
                until = min(span.end, end)
                why = _objection(span.value, epoch)
                if why is None:
                    held.append((offset, until, span.value))
                else:
                    refused.append(Refused(offset, until, why))
                offset = until
        return held, refused

    def _judge_unheld(self, offset: int, end: int, refused: list[Refused]) -> int:
        done = self.acked.at(offset)
        if done is not None:
            return min(done.end, end)
        following = [spans.next_start(offset) for spans in (self.acked, self.leases)]
        until = min(end, *(start for start in following if start is not None), end)
        refused.append(Refused(offset, until, "it is not in flight"))
        return until

    # --- changing

    def apply(self, runs: Iterable[Run]) -> None:
        for run in runs:
            if isinstance(run, Marked):
                self._mark(run)
            elif isinstance(run, Acked):
                self._ack(run.start, run.end)
            elif isinstance(run, Bumped):
                self._bump(run.acked_until)
            elif isinstance(run, Cleared):
                self._clear(run.start, run.end)
            else:
                self._forget()

    def skip(self, start: int, end: int) -> None:
        """Note that the log has no record from ``start`` to before ``end``."""
        for free_start, free_end in self._undone(start, end):
            self.leases.cut(free_start, free_end)
            self.absent.put(free_start, free_end, None)
        self._advance()

    def _mark(self, run: Marked) -> None:
        lease = Lease(run.deadline_ms, run.epoch)
        for start, end in self._undone(run.start, run.end):
            newer = [span for span in self.leases.within(start, end) if span.value.epoch > run.epoch]
            for span in newer:
                self._put(start, span.start, lease)
                start = span.end
            self._put(start, end, lease)

    def _put(self, start: int, end: int, lease: Lease) -> None:
        if start < end:
            self.absent.cut(start, end)
            self.leases.put(start, end, lease)
            heappush(self._due, (lease.deadline_ms, start, end, lease.epoch))
            if len(self._due) > 4 * self.leases.runs + _MIN_DUE:  # most entries are stale
                self._due = [(span.value.deadline_ms, span.start, span.end, span.value.epoch) for span in self.leases]
                heapify(self._due)

    def _undone(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts that are not acknowledged."""
        return _uncovered(self.acked, max(start, self.acked_until), end)

    def _ack(self, start: int, end: int) -> None:
        start = max(start, self.acked_until)
        if start < end:
            self.leases.cut(start, end)
            self.absent.cut(start, end)
            self.acked.put(start, end, None)
            self._advance()

    def _clear(self, start: int, end: int) -> None:
        self.leases.cut(start, end)
        self._fresh_hint = min(self._fresh_hint, start)

    def _bump(self, acked_until: int) -> None:
        if acked_until > self.acked_until:
            for spans in (self.leases, self.acked, self.absent):
                spans.cut(self.acked_until, acked_until)
            self.acked_until = acked_until
            self._advance()

    def _forget(self) -> None:
        for spans in (self.leases, self.acked, self.absent):
            spans.clear()
        self._due.clear()
        self.acked_until = self._fresh_hint = 0

    def _advance(self) -> None:
        """Move ``acked_until`` past offsets that need no delivery."""
        until = self.acked_until
        while (span := self.acked.at(until) or self.absent.at(until)) is not None:
            until = span.end
        if until > self.acked_until:
            self.acked.cut(self.acked_until, until)
            self.absent.cut(self.acked_until, until)
            self.acked_until = until

    # --- many events at once

    def load(self, snapshot: SnapshotColumns) -> None:
        self._forget()
        self.acked_until = self._fresh_hint = snapshot.acked_until
        self.apply(_marks(snapshot.offset, snapshot.deadline_ms, snapshot.epoch))

    def replay(self, events: Events) -> None:
        """Apply many events; costs as much as the final number in flight. Acks are final and independent of order, so
        they go first, and only marks of offsets that remain unacknowledged are applied."""
        kind, first = events.kind, 0
        resets = np.flatnonzero(kind == RESET)
        if len(resets):
            self._forget()
            first = int(resets[-1]) + 1
        kind, offset = kind[first:], events.offset[first:]
        deadline_ms, epoch = events.deadline_ms[first:], events.epoch[first:]
        bumps = offset[kind == BUMP]
        if len(bumps):
            self._bump(int(bumps.max()))
        acks = np.unique(offset[kind == ACK])
        for start, end in runs_of(acks[acks >= self.acked_until]):
            self._ack(start, end)
        rest = ((kind == MARK) | (kind == CLEAR)) & (offset >= self.acked_until)
        if len(acks):
            at = np.minimum(np.searchsorted(acks, offset), len(acks) - 1)
            rest &= acks[at] != offset
        for rows in _same_kind(kind, np.flatnonzero(rest)):
            if kind[rows[0]] == MARK:
                self.apply(_marks(offset[rows], deadline_ms[rows], epoch[rows]))
            else:
                self.apply([Cleared(start, end) for start, end in runs_of(offset[rows])])

    def snapshot(self) -> tuple[int, list[Marked]]:
        """``acked_until`` and the leases, for a snapshot file."""
        return self.acked_until, [Marked(start, end, *lease) for start, end, lease in self.leases]

    def leftover(self) -> list[Run]:
        """Events that a snapshot cannot store: acks after an unacknowledged offset."""
        return [Acked(start, end) for start, end, _ in self.acked]

    @property
    def is_new(self) -> bool:
        return not (self.acked_until or self.acked or self.leases)


def _uncovered(spans: IntervalMap[None], start: int, end: int) -> list[tuple[int, int]]:
    """The parts of ``start`` to before ``end`` outside the runs."""
    free = []
    for span in spans.within(start, end):
        if start < span.start:
            free.append((start, span.start))
        start = span.end
    if start < end:
        free.append((start, end))
    return free


def _offsets(held: Iterable[tuple[int, int, Lease]]) -> int:
    return sum(end - start for start, end, _ in held)


def _objection(lease: Lease, epoch: int | None) -> str | None:
    if epoch is not None and epoch < lease.epoch:
        return f"the lease of delivery {epoch} is old: the record was delivered again (delivery {lease.epoch})"
    if epoch is not None and epoch > lease.epoch:
        return f"delivery {epoch} does not exist: the last one is {lease.epoch}"
    if epoch is not None and lease.deadline_ms == REVOKED_MS:
        return "a reset of the group ended the lease"
    return None


def runs_of(offsets: Int64s) -> list[tuple[int, int]]:
    """Runs of consecutive offsets as (start, end), in the given order."""
    if not len(offsets):
        return []
    breaks = np.flatnonzero(offsets[1:] - offsets[:-1] != 1)
    if not len(breaks):
        return [(int(offsets[0]), int(offsets[-1]) + 1)]
    starts = offsets[np.append(0, breaks + 1)]
    ends = offsets[np.append(breaks, len(offsets) - 1)] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def _marks(offset: Int64s, deadline_ms: Int64s, epoch: Int64s) -> list[Marked]:
    """Join consecutive offsets with equal leases to marks, in order."""
    if not len(offset):
        return []
    same = (np.diff(offset) == 1) & (np.diff(deadline_ms) == 0) & (np.diff(epoch) == 0)
    breaks = np.flatnonzero(~same)
    starts, ends = np.append(0, breaks + 1), np.append(breaks, len(offset) - 1)
    columns = (offset[starts], offset[ends] + 1, deadline_ms[starts], epoch[starts])
    return list(map(Marked._make, zip(*(column.tolist() for column in columns), strict=True)))


def _same_kind(kind: npt.NDArray[np.uint8], rows: Int64s) -> Sequence[Int64s]:
    if not len(rows):
        return []
    return np.split(rows, np.flatnonzero(np.diff(kind[rows].astype(np.int64)) != 0) + 1)
