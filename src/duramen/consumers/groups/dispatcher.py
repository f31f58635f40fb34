"""The dispatcher: chooses the records that a fetch delivers (expired leases first, then fresh ones) and moves records
that failed too often to the dead letters.

It runs under the group's lock, marks deliveries in the group's store and returns an Arrow batch. Threads, locks and
syncs are the group's task.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from duramen.consumers.groups.dead_letters import DeadLetters
from duramen.consumers.groups.deliveries import DeliveryBatch
from duramen.consumers.groups.read_ahead import Int64s, ReadAhead
from duramen.consumers.groups.state_machine import LeaseClaim, runs_of
from duramen.consumers.groups.store import GroupStore
from duramen.errors import OffsetError, UsageError
from duramen.formats import Acked, Bumped, Marked, Run, columns_for, schema_for
from duramen.log import Log, records_of

_POSITIONS = {"beginning": "beginning", "earliest": "beginning", "end": "end", "latest": "end"}


class FetchRequest(NamedTuple):
    most: int
    lease_ms: int
    consumer: str


class Part(NamedTuple):
    """Records delivered together, all with the same epoch."""

    batch: pa.RecordBatch
    epoch: int
    runs: list[tuple[int, int]]
    """Their offsets."""


class Dispatcher:
    """Delivers the records of a log for one group."""

    def __init__(
        self,
        log: Log,
        store: GroupStore,
        start: str | int,
        window: int,
        dead_letters: DeadLetters | None,
    ) -> None:
        self.ahead = ReadAhead(log)
        self.max_attempts: int | None = None
        """Deliveries after which a record moves to the dead letters."""
        self._log = log
        self._store = store
        self._start = start
        self._window = window
        self._dead_letters = dead_letters
        self._has_begun = False

    def begin_turn(self) -> None:
        """Start a turn: the log and the group may have changed since the last one."""
        self._has_begun = False

    def start_offset(self) -> int:
        """Where a new group begins."""
        return offset_in(self._log, self._start)

    def fetch_together(self, wishes: list[FetchRequest], now_ms: int) -> list[Part | None]:
        """Serve concurrent fetches from one run of fresh records: cut and marked once, then divided. A fetch that gets
        too few records, or None, is completed by `fetch`. If a lease has expired, every fetch gets None."""
        none: list[Part | None] = [None] * len(wishes)
        if len({wish.lease_ms for wish in wishes}) > 1 or self._store.machine.is_due(now_ms):
            return none
        try:
            if not self._has_begun:
                self.begin(now_ms)
            found = self._cut_fresh(sum(wish.most for wish in wishes))
        except Exception:  # noqa: BLE001
            return none  # `fetch` raises the error to each caller
        if found is None or len(found.runs) > 1:
            return none
        ((start, end),) = found.runs
        self._deliver(found, now_ms + wishes[0].lease_ms, now_ms)
        shares: list[Part | None] = []
        first = start
        for wish in wishes:
            until = min(start + wish.most, end)
            rows = found.batch.slice(start - first, until - start)
            shares.append(Part(rows, 1, [(start, until)]) if start < until else None)
            start = until
        return shares

    def fetch(self, wish: FetchRequest, share: Part | None, now_ms: int) -> tuple[DeliveryBatch, int | None]:
        """The records of one fetch, starting with its share from `fetch_together`. If the batch is empty, also return
        the next deadline."""
        if not self._has_begun:
            self.begin(now_ms)
        deadline_ms = now_ms + wish.lease_ms
        parts, left = [], wish.most
        if share is not None:
            parts, left = [share], left - share.batch.num_rows
            if not left:
                return self._batch(parts, deadline_ms, wish.consumer, now_ms), None
        try:
            left -= self._fetch_expired(left, deadline_ms, now_ms, parts)
            while left > 0 and (fresh := self._cut_fresh(left)) is not None:
                self._deliver(fresh, deadline_ms, now_ms)
                parts.append(fresh)
                left -= fresh.batch.num_rows
        except Exception:
            if not parts:  # deliver what is already marked; the next fetch raises the error again
                raise
        batch = self._batch(parts, deadline_ms, wish.consumer, now_ms)
        return batch, None if parts else self._store.machine.next_deadline_ms()

    def begin(self, now_ms: int, start: str | int | None = None) -> None:
        """Start a new group at ``start`` or its configured start; move an existing one past removed records."""
        first = self._log.first_offset
        if not self._store.exists:
            first = offset_in(self._log, self._start if start is None else start)
            if first:
                self._store.write([Bumped(first)], now_ms)
            else:
                self._store.rewrite(now_ms)
        elif first > self._store.machine.acked_until:
            self._store.write([Bumped(first)], now_ms)
        self._has_begun = True

    def _fetch_expired(self, most: int, deadline_ms: int, now_ms: int, parts: list[Part]) -> int:
        """Add redelivered records to ``parts`` and return their number; move records that reached ``max_attempts``."""
        machine = self._store.machine
        before = len(parts)
        expired = machine.take_expired(most, now_ms, deadline_ms)
        for number, run in enumerate(expired):
            try:
                rows = self.rows_of(run)
                if self.max_attempts is not None and run.epoch > self.max_attempts:
                    self.move(rows, run.epoch - 1, f"not acknowledged in {run.epoch - 1} deliveries", now_ms)
                    continue
                found = [Part(batch, run.epoch, runs_of(offsets)) for batch, offsets in rows]
                marks: list[Run] = [Marked(*span, deadline_ms, run.epoch) for part in found for span in part.runs]
                self._store.write(marks, now_ms)
            except BaseException:
                machine.give_back(expired[number:])
                raise
            parts += found
        return sum(part.batch.num_rows for part in parts[before:])

    def rows_of(self, run: Marked) -> list[tuple[pa.RecordBatch, Int64s]]:
        """The records of a run. Skip offsets that the log no longer holds; keep offsets due that this reader does not
        see yet."""
        rows = self.ahead.between(run.start, run.end)
        found = np.concatenate([offsets for _, offsets in rows]) if rows else np.empty(0, np.int64)
        if len(found) < run.end - run.start:
            machine = self._store.machine
            missing = np.setdiff1d(np.arange(run.start, run.end), found, assume_unique=True)
            for start, end in runs_of(missing):
                following = self.ahead.at(start)
                if following is not None and int(following[1][0]) >= end:
                    machine.skip(start, end)
                else:
                    machine.give_back([Marked(start, end, 0, 0)])
        return rows

    def _cut_fresh(self, most: int) -> Part | None:
        """Adjacent records that were never delivered; None if none remain."""
        machine = self._store.machine
        while True:
            start, end = machine.fresh()
            end = min(end, machine.acked_until + self._window)
            if start >= end:
                return None
            found = self.ahead.cut(start, end, most)
            if found is None:
                return None
            batch, runs = found
            if runs:
                break
            machine.skip(start, end)
        for run_start, run_end in runs:
            if start < run_start:
                machine.skip(start, run_start)
            start = run_end
        return Part(batch, 1, runs)

    def _deliver(self, fresh: Part, deadline_ms: int, now_ms: int) -> None:
        self._store.write(self._store.machine.deliver(fresh.runs, deadline_ms), now_ms)

    def _batch(self, parts: list[Part], deadline_ms: int, consumer: str, now_ms: int) -> DeliveryBatch:
        if len(parts) == 1:
            batch = parts[0].batch
        elif parts:
            batch = pa.Table.from_batches([part.batch for part in parts]).combine_chunks().to_batches()[0]
        else:
            schema = schema_for(self._log.codec, columns_for(self._log.codec, None))
            batch = pa.RecordBatch.from_pylist([], schema)
        claims = tuple([LeaseClaim(start, end, part.epoch) for part in parts for start, end in part.runs])
        if claims:
            self._store.members.note(consumer, claims, now_ms)
        return DeliveryBatch(batch, deadline_ms, claims)

    def move(self, rows: list[tuple[pa.RecordBatch, Int64s]], attempts: int, reason: str, now_ms: int) -> None:
        """Move records to the dead letters, then acknowledge them."""
        assert self._dead_letters is not None
        for batch, offsets in rows:
            self._dead_letters.move(list(records_of(batch)), [attempts] * len(offsets), [reason] * len(offsets))
            self._store.write([Acked(*span) for span in runs_of(offsets)], now_ms)


def checked_position(where: object, what: str = "start") -> str | int:
    """An offset, ``"beginning"`` or ``"end"``; accepts Kafka's names, too. `UsageError` for anything else.

    >>> checked_position("earliest"), checked_position("end"), checked_position(7)
    ('beginning', 'end', 7)
    """
    if isinstance(where, str) and where in _POSITIONS:
        return _POSITIONS[where]
    if not isinstance(where, int | np.integer) or isinstance(where, bool):
        known = ", ".join(map(repr, _POSITIONS))
        raise UsageError(f"{what} must be an offset or one of {known} (got {where!r})")
    return int(where)


def offset_in(log: Log, where: str | int) -> int:
    """Resolve a checked position."""
    first, following = log.first_offset, log.next_offset
    if isinstance(where, str):
        return first if where == "beginning" else following
    if not first <= where <= following:
        raise OffsetError(
            "the log does not contain this offset", path=log.path, offset=where,
            hint=f"choose an offset from {first} to {following}",
        )  # fmt: skip
    return where
