"""What a group hands out: which records those who fetch are given, from the log or for the second time, and the dead
letters that are given to nobody any more.

Decides and marks under the group's lock (`journal`), and says what goes out as an Arrow batch. Knows nothing of turns,
threads and syncs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from duramen.errors import OffsetError, UsageError
from duramen.formats.base import columns_for, schema_for
from duramen.formats.stroma_bulk import Acked, Bumped, Marked, Run
from duramen.groups.ahead import Int64s, ReadAhead
from duramen.groups.dead_letters import DeadLetters
from duramen.groups.deliveries import DeliveryBatch
from duramen.groups.journal import Journal
from duramen.groups.machine import Claim, runs_of
from duramen.log.reader import Log
from duramen.log.rows import records_of


class Wish(NamedTuple):
    """What somebody fetches."""

    most: int
    lease_ms: int


class Part(NamedTuple):
    """Records that go out together: all for the same time."""

    batch: pa.RecordBatch
    epoch: int
    runs: list[tuple[int, int]]
    """Their offsets."""


class Fetching:
    """Hands out the records of a log for one group."""

    def __init__(
        self,
        log: Log,
        journal: Journal,
        start: str | int,
        window: int,
        max_attempts: int | None,
        dead_letters: DeadLetters | None,
    ) -> None:
        self.ahead = ReadAhead(log)
        self.max_attempts = max_attempts
        self._log = log
        self._journal = journal
        self._start = start
        self._window = window
        self._dead_letters = dead_letters
        self._has_begun = False

    def begin_turn(self) -> None:
        """The log, and who else uses the group, may have gone on since."""
        self._has_begun = False

    def start_offset(self) -> int:
        """Where a new group begins."""
        return offset_in(self._log, self._start)

    def fetch_together(self, wishes: list[Wish], now_ms: int) -> list[Part | None]:
        """Records for several who came together: cut and marked once, and then divided. Fewer, or None, for those for
        whom not enough lies together: they are served on their own. So is everybody where leases have ended."""
        nobody: list[Part | None] = [None] * len(wishes)
        if len({wish.lease_ms for wish in wishes}) > 1 or self._journal.machine.is_due(now_ms):
            return nobody
        try:
            if not self._has_begun:
                self.begin(now_ms)
            found = self._cut_fresh(sum(wish.most for wish in wishes))
        except Exception:  # noqa: BLE001
            return nobody  # each of them is told
        if found is None or len(found.runs) > 1:
            return nobody
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

    def fetch(self, wish: Wish, share: Part | None, now_ms: int) -> tuple[DeliveryBatch, int | None]:
        """The records for one who asks, beginning with the share that `fetch_together` gave; where there are none, also
        when the next lease ends."""
        if not self._has_begun:
            self.begin(now_ms)
        deadline_ms = now_ms + wish.lease_ms
        parts, left = [], wish.most
        if share is not None:
            parts, left = [share], left - share.batch.num_rows
            if not left:
                return self._batch(parts, deadline_ms), None
        try:
            left -= self._fetch_expired(left, deadline_ms, now_ms, parts)
            while left > 0 and (fresh := self._cut_fresh(left)) is not None:
                self._deliver(fresh, deadline_ms, now_ms)
                parts.append(fresh)
                left -= fresh.batch.num_rows
        except Exception:
            if not parts:  # what is marked already goes out; the error comes again with the next fetch
                raise
        return self._batch(parts, deadline_ms), None if parts else self._journal.machine.next_deadline_ms()

    def begin(self, now_ms: int, start: str | int | None = None) -> None:
        """A new group starts there, or where it was told to; one whose records were removed goes on behind them."""
        first = self._log.first_offset
        if not self._journal.exists:
            first = self.start_offset() if start is None else offset_in(self._log, start)
            if first:
                self._journal.write([Bumped(first)], now_ms)
            else:
                self._journal.rewrite(now_ms)
        elif first > self._journal.machine.acked_until:
            self._journal.write([Bumped(first)], now_ms)
        self._has_begun = True

    def _fetch_expired(self, most: int, deadline_ms: int, now_ms: int, parts: list[Part]) -> int:
        """Records that are delivered again, and how many; those that were delivered often enough are moved away."""
        machine = self._journal.machine
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
                self._journal.write(marks, now_ms)
            except BaseException:
                machine.give_back(expired[number:])
                raise
            parts += found
        return sum(part.batch.num_rows for part in parts[before:])

    def rows_of(self, run: Marked) -> list[tuple[pa.RecordBatch, Int64s]]:
        """The records of a run. Those that the log does not hold any more are done with; those that it does not show
        here yet stay due."""
        rows = self.ahead.between(run.start, run.end)
        there = np.concatenate([offsets for _, offsets in rows]) if rows else np.empty(0, np.int64)
        if len(there) < run.end - run.start:
            machine = self._journal.machine
            missing = np.setdiff1d(np.arange(run.start, run.end), there, assume_unique=True)
            for start, end in runs_of(missing):
                following = self.ahead.at(start)
                if following is not None and int(following[1][0]) >= end:
                    machine.skip(start, end)
                else:
                    machine.give_back([Marked(start, end, 0, 0)])
        return rows

    def _cut_fresh(self, most: int) -> Part | None:
        """Records that were never delivered, as many as lie together; None when there are none."""
        machine = self._journal.machine
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
        self._journal.write(self._journal.machine.deliver(fresh.runs, deadline_ms), now_ms)

    def _batch(self, parts: list[Part], deadline_ms: int) -> DeliveryBatch:
        if len(parts) == 1:
            batch = parts[0].batch
        elif parts:
            batch = pa.Table.from_batches([part.batch for part in parts]).combine_chunks().to_batches()[0]
        else:
            schema = schema_for(self._log.codec, columns_for(self._log.codec, None))
            batch = pa.RecordBatch.from_pylist([], schema)
        claims = tuple([Claim(start, end, part.epoch) for part in parts for start, end in part.runs])
        return DeliveryBatch(batch, deadline_ms, claims)

    def move(self, rows: list[tuple[pa.RecordBatch, Int64s]], attempts: int, reason: str, now_ms: int) -> None:
        """To the dead letters; acknowledged once they are there."""
        assert self._dead_letters is not None
        for batch, offsets in rows:
            self._dead_letters.move(list(records_of(batch)), [attempts] * len(offsets), [reason] * len(offsets))
            self._journal.write([Acked(*span) for span in runs_of(offsets)], now_ms)


def offset_in(log: Log, where: str | int) -> int:
    """The offset of a place in the log: itself, "beginning" or "end"."""
    first, following = log.first_offset, log.next_offset
    if where == "beginning":
        return first
    if where == "end":
        return following
    if not isinstance(where, int | np.integer):
        raise UsageError(f"{where!r} is neither an offset nor 'beginning' nor 'end'")
    if not first <= where <= following:
        raise OffsetError(
            "the log does not reach that offset", path=log.path, offset=where,
            hint=f"it goes from {first} to {following}",
        )  # fmt: skip
    return int(where)
