"""Appending to a log: what callers hand in, their turn in the group commit, the times of records, and its life.

One writer per log, any number of readers. An append is answered after the write (``durability="write"``) or after the
sync (``"fsync"``, the default) of the group it was in. After a failed sync nothing is known about what reached the
disk, so the writer is poisoned: it answers no later append, and reopening runs recovery.

Decides who is served when, and what they are told. Where the bytes go, and how far they are good, is `Tail`'s.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, ClassVar, NamedTuple

from duramen.disk import Disk, PosixDisk
from duramen.disk.base import Kind
from duramen.errors import CorruptionError, DuramenError, PoisonedError, UsageError
from duramen.formats import Format
from duramen.log import change, intake, maintenance, pending
from duramen.log.commit import GroupCommit, GroupLimits, Request
from duramen.log.compaction.compact import Compaction, CompactionReport, Compactor, Progress
from duramen.log.directory import Directory, list_log
from duramen.log.maintenance import RETENTION_INTERVAL_S, RetentionTimer
from duramen.log.place import prepare
from duramen.log.published import Published, publish
from duramen.log.reader import FOLLOW_WAIT_S, Log
from duramen.log.recovery import CUTS, Case, Recovery, Step
from duramen.log.requests import Appended, Work, answered, one_batch
from duramen.log.retention import Retention, RetentionPlan, check_rules
from duramen.log.sequences import Claim, Sequences, is_damaged, is_there
from duramen.log.sidecar import Config, Sidecar, Watermark, read_config
from duramen.log.tail import Tail
from duramen.metrics import LogCounters
from duramen.metrics import process as process_counters

DURABILITIES = ("write", "fsync")
PUBLISH_EVERY_US = 1_000_000
MOST_PREALLOCATED_BYTES = 1 << 30


class _Control(NamedTuple):
    """A call that takes its turn among the appends."""

    name: str
    run: Callable[[], None] | None = None


class WritableLog(Log):
    """A log opened for append. Made by ``duramen.open(path, "a")``; reads like any other log, up to what is
    acknowledged. Safe to use from several threads."""

    after_opening: ClassVar[list[Callable[[WritableLog], None]]] = []
    """Who stands above the engine and looks at every log before anything is appended to it, whoever opens it."""

    def __init__(
        self,
        path: str,
        *,
        format: str | None = None,
        disk: Disk | None = None,
        durability: str = "fsync",
        max_batch_bytes: int = GroupLimits.max_bytes,
        max_batch_records: int = GroupLimits.max_records,
        linger_ms: float = GroupLimits.linger_ms,
        queue_bytes: int = GroupLimits.queue_bytes,
        preallocate_bytes: int | None = None,
        on_damage: str = "raise",
        create: bool = True,
        clock: Callable[[], int] | None = None,
        retention: Retention | None = None,
        retention_interval_s: float = RETENTION_INTERVAL_S,
        **options: Any,
    ) -> None:
        if on_damage not in ("raise", "truncate"):
            raise UsageError(f"on_damage={on_damage!r} is neither 'raise' nor 'truncate'")
        self._clock = clock
        self._pid = os.getpid()
        self._durability = _checked(durability)
        self._preallocate_bytes = _checked_room(preallocate_bytes)
        self._limits = _limits(max_batch_bytes, max_batch_records, linger_ms, queue_bytes)
        self._closing = threading.Lock()
        self._is_ending = False
        self._shown: Watermark | None = None
        self._grown = threading.Condition()
        self._followers = 0
        """How many wait for the log to grow."""
        self.raises_late_times = False
        """A time that goes back, in a format that has none such, becomes that of the record before it."""
        self._sequences: Sequences | None = None
        self._maintaining = threading.RLock()  # whoever is told of its progress may close the log
        self.counters = LogCounters(path)
        self._opened_us = self._published_us = self._now_us()
        self._retention = retention
        self._timer: RetentionTimer | None = None
        disk = disk if disk is not None else PosixDisk()
        known = read_config(disk, path) if disk.kind(path) == Kind.DIRECTORY else None
        fmt = prepare(disk, path, format, options, create=create)
        check_rules(fmt, retention or Retention(), path)
        self._sidecar = Sidecar(disk, path)
        self._sidecar.lock(make=create)
        try:
            if read_config(disk, path) != known:  # another writer made or changed the log just now
                fmt = prepare(disk, path, format, options, create=create)
            changed = change.finish(disk, path)
            settled = pending.settle(disk, path, fmt, self._sidecar)
            if settled is not None and settled.replaces:
                fmt = prepare(disk, path, format, options, create=create)
            proven = self._sidecar.watermark()
            fmt = self._recover(disk, path, fmt, cut_damage=on_damage == "truncate", settled=settled)
            super().__init__(path, format=fmt.name, disk=disk, **fmt.options)
            if is_there(disk, path):
                self._open_sequences(0 if proven is None else proven.durable_offset)
        except BaseException:
            self._sidecar.release()
            raise
        if changed is not None:
            self.recovery.insert(0, Step(Case.CHANGE, path, changed.why))
        self._commit = GroupCommit(self.commit_group, self._limits)
        if retention is not None and retention.rules:
            self._timer = RetentionTimer(self.retain, retention_interval_s, path)
        try:
            for look in self.after_opening:
                look(self)
        except BaseException:
            self.close()
            raise

    # --- opening

    def _recover(
        self, disk: Disk, path: str, fmt: Format, *, cut_damage: bool, settled: pending.Pending | None
    ) -> Format:
        """The format with the options that it has from here on."""
        began = time.perf_counter()
        recovery = Recovery(
            disk, path, fmt, self._sidecar, now_us=self._now_us(), cut_damage=cut_damage, settled=settled
        )
        recovered = recovery.run()
        cuts = sum(step.case in CUTS for step in recovered.steps)
        process_counters.recovered(time.perf_counter() - began, cuts)
        fmt = recovered.fmt
        config = read_config(disk, path)
        wanted = Config(fmt.name, fmt.options, config.created_ms if config else self._now_us() // 1000)
        if config != wanted:
            self._sidecar.write_config(wanted)
        self.recovery: list[Step] = recovered.steps
        self.tail = Tail(
            disk, path, self._sidecar, recovered, created_ms=wanted.created_ms,
            preallocate_bytes=self._preallocate_bytes, group_bytes=self._limits.max_bytes,
            now_us=self._now_us, counters=self.counters, on_roll=self._wake_timer,
        )  # fmt: skip
        return fmt

    def _wake_timer(self) -> None:
        if self._timer is not None:
            self._timer.wake()

    def _now_us(self) -> int:
        return max((self._clock or time.time_ns)() // 1000, 0)  # no format has a place for a time before 1970

    # --- appending

    def append(
        self,
        value: bytes | bytearray | memoryview,
        *,
        key: bytes | None = None,
        headers: intake.HeadersIn | None = None,
        timestamp: datetime | int | str | None = None,
        durability: str | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Append one record and answer its offset, once it is as durable as asked for."""
        batch = intake.one(self.codec, value, key, headers, timestamp)
        answer: Appended = self.submit(batch, durability, timeout_s)
        return answer.base_offset

    def append_batch(self, data: Any, *, durability: str | None = None, timeout_s: float | None = None) -> Appended:
        """Append many records: a list of bytes, an Arrow array of values, or a RecordBatch or Table with the columns
        ``value``, ``key``, ``headers``, ``timestamp``."""
        batch = intake.many(self.codec, data)
        if not batch.num_rows:
            _checked(durability or self._durability)
            self._check_usable()
            return Appended(self.next_offset, 0)
        answer: Appended = self.submit(batch, durability, timeout_s)
        return answer

    def submit(
        self, batch: intake.Batch, durability: str | None, timeout_s: float | None, producer: Claim | None = None
    ) -> Any:
        """Queue a batch, and answer when it is as durable as asked for; ``producer`` says whose it is."""
        sync = (self._durability if durability is None else _checked(durability)) == "fsync"
        self._check_process()  # before it queues: in a child nobody may be there to answer
        return self._commit.submit(Request(Work(batch, sync, producer), batch.nbytes, batch.num_rows), timeout_s)

    def append_once(self, data: Iterable[Any], *, writer: str, batch: int) -> Appended | None:
        """Append the batches of ``data`` (each as `append_batch` takes it) all at once and exactly once, at ``fsync``:
        readers see all rows or none, whatever happens. ``writer`` names who sends them, and ``batch`` counts up. None
        where that batch, or a later one, is in the log already: then nothing is stored."""
        from duramen.log.transaction import append_once

        return append_once(self, data, writer, batch)

    def exclusively(self, work: Callable[[], None]) -> None:
        """Run ``work`` while no append is under way."""
        self._check_usable()
        self._commit.submit(Request(_Control("exclusively", work), 0, 0, alone=True))

    def sync(self) -> None:
        """Return when everything appended is on the disk."""
        self._control("sync")

    def seal(self) -> None:
        """End the active segment and begin a new one. Nothing happens to an empty segment."""
        if not self.codec.capabilities.segments:
            raise UsageError(f"{self.format} has one file only: it cannot be sealed", path=self.path)
        self._control("seal")

    def _publish(self, now_us: int) -> None:
        """Leave for whoever watches what this writer has measured."""
        self._published_us = now_us
        self.counters.poisoned = int(self.is_poisoned)
        publish(self.disk, self.path, Published.of(self.counters, self._opened_us, now_us))

    # --- its life

    def retain(self, rules: Retention | None = None, *, dry_run: bool = False) -> RetentionPlan:
        """Remove the oldest segments, as far as ``rules`` (or those that the log was opened with) say and nobody needs
        them: no group, no cursor, no job. Answers what was removed and what held the rest back."""
        self._check_usable()
        wanted = rules or self._retention or Retention()
        if dry_run:
            return maintenance.plan_retention(self, wanted)
        with self._maintaining:
            return maintenance.retain(self, wanted)

    def compact(
        self, how: Compaction | None = None, *, dry_run: bool = False, progress: Progress | None = None
    ) -> CompactionReport:
        """Keep only the newest record of every key in the sealed segments. Appends go on meanwhile."""
        self._check_usable()
        with self._maintaining:
            return Compactor(self, how or Compaction(), time.time_ns() // 1000, progress).run(dry_run=dry_run)

    def close(self) -> None:
        """Bring everything to the disk, write the derived files, and let the log go. A compaction that another thread
        runs ends at its next step, and is waited for: who comes next has the directory to itself."""
        if self.is_inherited:
            self._let_go()
            return
        self._is_ending = True
        if self._timer is not None:
            self._timer.close()
        with self._maintaining, self._closing:
            if self._closed:
                return
            try:
                if not self.is_poisoned:
                    self._control("close")
            finally:
                self._let_go()

    def _let_go(self) -> None:
        """Close the files as they are."""
        if self._sequences is not None:
            self._sequences.close()
        self.tail.close()
        self._sidecar.release()
        self.counters.unlist()
        super().close()
        self._wake_followers()

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child of the process that opened the log. The lock is its parent's, and what it
        knows of the log's end is what was true at the fork: it may read, and writes nothing, not even when it closes
        the log."""
        return os.getpid() != self._pid

    @property
    def is_poisoned(self) -> bool:
        """Whether a write or sync failed so that nobody knows what is on the disk: it only remains to close the log."""
        return self.tail.poisoned_by is not None

    def check_going_on(self) -> None:
        super().check_going_on()
        if self._is_ending:
            raise UsageError(
                "the log was closed meanwhile",
                path=self.path,
                hint="nothing is lost: what was not done can be done again",
            )

    def _check_process(self) -> None:
        if self.is_inherited:
            raise UsageError(
                f"the log was opened by process {self._pid}: a child of it cannot write to it",
                path=self.path,
                hint="open it after the fork, in the one process that is to write",
            )

    def _control(self, name: str) -> None:
        self._check_usable()
        self._commit.submit(Request(_Control(name), 0, 0, alone=True))

    def _check_usable(self) -> None:
        self._check_open()
        self._check_process()
        poisoned_by = self.tail.poisoned_by
        if poisoned_by is not None:
            raise PoisonedError(
                f"an earlier write or sync failed: {poisoned_by}",
                path=self.path,
                hint="close the log and open it again: that runs recovery",
            ) from poisoned_by

    # --- one group

    def commit_group(self, group: list[Request]) -> None:
        """What the queue calls, in one thread at a time. Whatever shows readers more than before happens here."""
        self._check_usable()
        first = group[0].work
        try:
            if isinstance(first, _Control):
                (first.run or getattr(self, f"_do_{first.name}"))()
                group[0].result = True
            else:
                self._append_group(group)
        except DuramenError:
            self._count_error()
            raise
        except BaseException as error:
            self.tail.poison(error)
            self._count_error()
            raise
        finally:
            if self._followers:
                self._wake_followers()

    def _count_error(self) -> None:
        self.counters.errors += 1
        if self.is_poisoned:  # nothing will be committed any more that could tell
            self._publish(self._now_us())

    def append_in_turn(self, batch: intake.Batch) -> Appended:
        """Append at ``write``, for whoever has the log to itself: within `exclusively`, or before anybody knows it."""
        request = Request(Work(batch, False), batch.nbytes, batch.num_rows)
        self._append_group([request])
        answer: Appended = request.answer()
        return answer

    def _append_group(self, group: list[Request]) -> None:
        if self._sequences is None:
            self._append_requests(group)
            return
        try:
            fresh = self._sequences.enter(group)
            if fresh:
                self._append_requests(fresh)
            if self._sequences.must_sync and not self.tail.is_synced:
                self._do_sync()
            self._sequences.settle()
        except DuramenError as error:
            if not self.is_poisoned:  # nothing of the group is written
                self._take_back(error)
            raise

    def _take_back(self, error: DuramenError) -> None:
        assert self._sequences is not None
        try:
            self._sequences.take_back()
        except BaseException as second:
            self.tail.poison(second)
            raise error from second

    def _append_requests(self, group: list[Request]) -> None:
        tail = self.tail
        if not tail.cursor.position:
            group = self._without_zeros(group)
        if not group:
            return
        taken, batch, default_us, last_us = one_batch(
            group, self.codec, self.path, self._now_us(), tail.last_us, raises_late_times=self.raises_late_times
        )
        if not taken:
            return
        sync = any(request.work.sync for request in taken)
        announce = None if self._sequences is None else self._sequences.announce
        pieces, size_bytes = tail.write(batch, default_us, is_synced_next=sync, announce=announce)
        answers = answered(taken, pieces)
        if sync:
            tail.sync()
        tail.acknowledge(last_us)
        for request, answer in zip(taken, answers, strict=True):
            request.result = answer
        self.counters.committed(len(taken), batch.num_rows, size_bytes)
        if default_us - self._published_us >= PUBLISH_EVERY_US:
            self._publish(default_us)

    def _without_zeros(self, group: list[Request]) -> list[Request]:
        """Leaves out a first record of nothing but zeros: it would be acknowledged and gone."""
        for number, request in enumerate(group):
            if not self.tail.would_vanish(request.work.batch, self._now_us()):
                return group[number:]
            request.error = UsageError(
                f"the first record of a {self.format} log cannot be empty: its bytes would all be zero", path=self.path
            )
        return []

    # --- control

    def _do_sync(self) -> None:
        self.tail.sync()
        self.tail.mark()

    def _do_seal(self) -> None:
        if not self.tail.active.is_empty:
            self.tail.roll()

    def _do_close(self) -> None:
        try:
            self.tail.finish()
            if self._published_us > self._opened_us:  # who watches wants to see the end, too
                self._publish(self._now_us())
        finally:
            self._closed = True  # for those who queue behind: the lock will be gone

    # --- producers

    def sequences(self) -> Sequences:
        """What is known of producers; see `duramen.groups.producers`."""
        self._check_usable()
        if self._sequences is None:
            self._control("load_sequences")
        assert self._sequences is not None
        return self._sequences

    def _do_load_sequences(self) -> None:
        if self._sequences is None:
            self._sequences = Sequences(self, 0, self._do_sync, self.tail.poison)

    def _open_sequences(self, proven_offset: int) -> None:
        """Settle what was announced before any record can get its offset. A damaged file keeps producers out and
        nobody else: whoever asks for one is told."""
        try:
            self._sequences = Sequences(self, proven_offset, self._do_sync, self.tail.poison)
        except CorruptionError:
            if not is_damaged(self.disk, self.path):
                raise

    # --- reading

    def _is_replaced_since(self) -> bool:
        return False  # nobody replaces a log whose lock is held

    def _first_look(self) -> None:
        """Recovery has looked already; who reads will look again."""
        self._directory, self._bases = Directory(self.path, [], [], [], []), []

    def _list(self) -> Directory:
        visible = self.tail.visible
        return list_log(self.disk, self.path, self.codec).up_to(visible.base, visible.position)

    def _before_read(self) -> None:
        if self._shown is self.tail.visible:
            return
        with self._guard:
            visible = self.tail.visible
            if self._shown is not visible:
                self.refresh()
                self._shown = visible

    def look_again(self) -> None:
        """Have the next one who reads look at the files anew: some that it knows were replaced or removed."""
        self._shown = None

    def wait(self, timeout_s: float = FOLLOW_WAIT_S, seen: object = None) -> object:
        self._check_open()
        if seen is not None:
            with self._grown:
                self._followers += 1  # before the look: whoever acknowledges looks for followers after it
                try:
                    if self.tail.visible is seen:
                        self._grown.wait(timeout_s)
                finally:
                    self._followers -= 1
        self._check_open()
        seen = self.tail.visible
        self._before_read()
        return seen

    def _wake_followers(self) -> None:
        with self._grown:
            self._grown.notify_all()

    @property
    def next_offset(self) -> int:
        """The offset that the next record will get, as far as appends are acknowledged."""
        return self.tail.visible.next_offset

    @property
    def durable_offset(self) -> int:
        """The offset behind the last record that is known to be on the disk."""
        return self.tail.visible.durable_offset


def _limits(max_batch_bytes: int, max_batch_records: int, linger_ms: float, queue_bytes: int) -> GroupLimits:
    counts = {"max_batch_bytes": max_batch_bytes, "max_batch_records": max_batch_records, "queue_bytes": queue_bytes}
    for name, count in counts.items():
        if count < 1:
            raise UsageError(f"{name}={count} is not 1 or more")
    if linger_ms < 0:
        raise UsageError(f"linger_ms={linger_ms} is not 0 or more")
    return GroupLimits(max_batch_bytes, max_batch_records, linger_ms, queue_bytes)


def _checked_room(preallocate_bytes: int | None) -> int | None:
    if preallocate_bytes is not None and not 0 <= preallocate_bytes <= MOST_PREALLOCATED_BYTES:
        raise UsageError(f"preallocate_bytes={preallocate_bytes} is not between 0 and {MOST_PREALLOCATED_BYTES}")
    return preallocate_bytes


def _checked(durability: str) -> str:
    if durability == "quorum":
        raise UsageError("durability 'quorum' is reserved: there is no replication yet", hint="use 'fsync'")
    if durability not in DURABILITIES:
        raise UsageError(f"durability {durability!r} is not known", hint=f"it is one of {', '.join(DURABILITIES)}")
    return durability
