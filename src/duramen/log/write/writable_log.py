"""`WritableLog`: a log opened for append.

One writer per log, any number of readers. The writer acknowledges an append after the write (``durability="write"``, or
``"interval"``: a sync follows soon) or after the sync (``"fsync"``, the default) of its group. After a failed sync the
on-disk state is unknown, so the writer is poisoned: it acknowledges nothing more, and reopening the log runs recovery.

This module decides when each caller is served and what it gets back. `Appender` decides where the bytes go and how far
they are good.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, TypedDict, Unpack

from duramen.arguments import LONGEST_S, check_choice, check_int, check_kind, check_number, check_timeout
from duramen.disk import Disk, disk_or_real, fenced
from duramen.errors import CorruptionError, DuramenError, FencedError, PoisonedError, StorageError, UsageError
from duramen.formats import Format, FormatOptions
from duramen.kernel import NOT_DONE
from duramen.log.maintain import (
    RETENTION_INTERVAL_S,
    Compaction,
    CompactionReport,
    Compactor,
    Progress,
    Retention,
    RetentionPlan,
    RetentionTimer,
    check_rules,
    plan_compaction,
    plan_retention,
    retain_segments,
)
from duramen.log.read import FOLLOW_WAIT_S, Log, ReaderOptions
from duramen.log.recover import CUTS, RecoveryCase, RecoveryStep, open_for_append, rebuild_sealed_indexes
from duramen.log.segments import Snapshot, list_log
from duramen.log.write.appender import Appender
from duramen.log.write.batch import (
    Appended,
    Batch,
    Content,
    GroupBatch,
    HeadersIn,
    SequenceClaim,
    appended_by_request,
    batch_of,
    batch_of_one,
    one_batch,
    parts_of,
)
from duramen.log.write.group_commit import GroupCommit, GroupLimits, Request
from duramen.log.write.hidden_rows import append_once
from duramen.log.write.producer_state import ProducerTable, has_producers, producers_path
from duramen.log.write.single_appends import SingleAppends
from duramen.log.write.timer import SYNC_INTERVAL_BYTES, SYNC_INTERVAL_MS, Alarm, IntervalSync
from duramen.metrics import LogCounters
from duramen.sidecar import Config, Watermark, WriterMetrics, read_writer_metrics, write_writer_metrics
from duramen.values import Encoder, encoded

DURABILITIES = ("write", "interval", "fsync")
AGE_CHECK_S = 60.0
"""How long a segment that is too old when the log is opened may stay active: most logs are opened for a moment."""
PUBLISH_EVERY_US = 1_000_000
MOST_PREALLOCATED_BYTES = 1 << 30

_process = os.getpid()


def _forked() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_forked)


class WriterOptions(TypedDict, total=False):
    """The keyword arguments of `WritableLog` that belong to no format, as a type."""

    durability: str
    max_batch_bytes: int
    max_batch_records: int
    linger_ms: float
    queue_bytes: int
    sync_interval_ms: float
    sync_interval_records: int | None
    sync_interval_bytes: int | None
    preallocate_bytes: int | None
    on_damage: str
    create: bool
    clock: Callable[[], int] | None
    timer: bool
    retention: Retention | None
    retention_interval_s: float


class AppendOptions(WriterOptions, ReaderOptions, total=False):
    """All keyword arguments of `WritableLog`, as a type: shared by every call that opens a log for append."""


class _Control(NamedTuple):
    """A call that takes its turn among the appends."""

    name: str
    run: Callable[[], None] | None = None


class WritableLog(Log):
    """A log opened for append. Made by ``duramen.open(path, "a")``; reads like any other log, up to what is
    acknowledged. Safe to use from several threads. ``clock`` returns nanoseconds since 1970."""

    after_opening: ClassVar[list[Callable[[WritableLog], None]]] = []
    """Called with every log that is opened for append, before anything is appended: for packages above the engine."""
    _timer: RetentionTimer | None = None

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
        sync_interval_ms: float = SYNC_INTERVAL_MS,
        sync_interval_records: int | None = None,
        sync_interval_bytes: int | None = SYNC_INTERVAL_BYTES,
        preallocate_bytes: int | None = None,
        on_damage: str = "raise",
        create: bool = True,
        clock: Callable[[], int] | None = None,
        timer: bool = True,
        retention: Retention | None = None,
        retention_interval_s: float = RETENTION_INTERVAL_S,
        **options: Unpack[FormatOptions],
    ) -> None:
        self._durability = _checked(durability)
        self._preallocate_bytes = _checked_room(preallocate_bytes)
        limits = _limits(max_batch_bytes, max_batch_records, linger_ms, queue_bytes)
        self._interval = IntervalSync(sync_interval_ms, sync_interval_records, sync_interval_bytes, clock)
        self._alarm = Alarm(self.run_due) if timer else None
        self._retention = _checked_rules(retention, retention_interval_s)
        self._clock = _checked_clock(clock)
        self._set_up(path)
        self._commit = GroupCommit(self.commit_group, limits, observe=self.counters.noted_seconds.append)
        self._opened = open_for_append(
            disk_or_real(disk), path, format, options, create=create,
            cut_damage=_cuts_damage(on_damage), now_us=self._now_us(),
            refuse=lambda fmt: check_rules(fmt, retention or Retention(), path),
        )  # fmt: skip
        self._start(path, limits)
        self._start_timers(retention_interval_s)

    def _set_up(self, path: str) -> None:
        """The state of a writer that has not opened anything yet."""
        self._pid = os.getpid()
        self._closing = threading.Lock()
        self._leading = threading.RLock()
        """Held while a group is committed, which may close the log."""
        self._is_ending = False
        self._shown: Watermark | None = None
        """The watermark of the last look at the files, by a reader of this log."""
        self._grown = threading.Condition()
        self._followers = 0
        """How many readers wait for the log to grow."""
        self.raises_late_times = False
        """In a format with ordered times, raise a time that goes back to that of the record before it."""
        self._sequences: ProducerTable | None = None
        self._wrong_indexes: set[int] = set()
        """Sealed segments with an index that is to be rebuilt."""
        self._judged_indexes: set[int] = set()
        """Sealed segments whose index was found to be wrong before."""
        self._maintaining = threading.RLock()  # reentrant: a progress callback may close the log
        self.counters = LogCounters(path)
        self._opened_us = self._published_us = self._now_us()

    def _start_timers(self, retention_interval_s: float) -> None:
        """Start them, then call `after_opening`."""
        self._set_alarm(min(AGE_CHECK_S, self.tail.max_age_us / 1e6))
        if self._retention is not None and self._retention.rules:
            self._timer = RetentionTimer(self.retain, retention_interval_s, self.path)
        try:
            for look in self.after_opening:
                look(self)
        except BaseException:
            self.close()
            raise

    def _start(self, path: str, limits: GroupLimits) -> None:
        """Start writing where recovery says; release the log if that fails."""
        opened = self._opened
        self._sidecar = opened.sidecar
        self._is_exclusive = self._sidecar.is_exclusive
        self.recovery: list[RecoveryStep] = opened.recovered.steps
        try:
            self.tail = Appender(
                opened, path, preallocate_bytes=self._preallocate_bytes, group_bytes=limits.max_bytes,
                now_us=self._now_us, counters=self.counters, on_roll=self._wake_timer,
            )  # fmt: skip
            super().__init__(path, disk=opened.disk)
            self._singles = SingleAppends(
                self.codec, self.tail, self._commit, self._interval, limits,
                due_us=lambda: self._published_us + PUBLISH_EVERY_US,
            )  # fmt: skip
            if has_producers(opened.disk, path):
                self._open_sequences(opened.proven_offset)
            self._earlier = read_writer_metrics(opened.disk, path)
            self._count_recovery()
            if self.counters.recovery_cuts or self.counters.index_rebuilds:
                self._publish(self._opened_us)  # now: processes that crash again and again should show
        except BaseException:
            self._sidecar.release()
            opened.disk.unroot()
            raise

    # --- opening

    def _resolve(self, format: str | None, options: Mapping[str, Any]) -> tuple[Format, Config | None]:
        """What `open_for_append` found: the sidecar is not read again."""
        fmt = self._opened.recovered.fmt
        return fmt, Config(fmt.name, fmt.stored_options, self._opened.created_ms)

    def _wake_timer(self) -> None:
        if self._timer is not None:
            self._timer.wake()

    def _now_us(self) -> int:
        now_ns = (self._clock or time.time_ns)()
        if not isinstance(now_ns, int):
            raise UsageError(f"clock must return whole nanoseconds since 1970 (got {now_ns!r:.80})")
        return max(now_ns // 1000, 0)  # no format can store a time before 1970

    # --- appending

    def append(
        self,
        value: Content | None,
        *,
        key: Content | None = None,
        headers: HeadersIn | None = None,
        timestamp: datetime | int | str | None = None,
        durability: str | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Append one record and return its offset, once it is as durable as requested. Text is stored as UTF-8. A value
        of None is a tombstone, which deletes its key; only some formats can store it."""
        level = self._durability if durability is None else durability
        # In a forked child, no thread would release the locks.
        if timeout_s is None and self._singles.is_open and level in DURABILITIES and self._pid == _process:
            began_s = time.monotonic()
            parts = parts_of(self.codec, value, key, headers, timestamp)
            if parts is not None:
                offset = self._singles.append(parts, level, -1 if self._clock is None else self._now_us(), began_s)
                if offset != NOT_DONE:
                    return self._acknowledged(offset, began_s)
        batch = batch_of_one(self.codec, value, key, headers, timestamp)
        appended: Appended = self.submit(batch, durability, timeout_s)
        return appended.base_offset

    def _acknowledged(self, offset: int, began_s: float) -> int:
        """What a single append returns, after everything that belongs to it."""
        if offset < NOT_DONE:
            self._control("mark")  # which absorbs
            self.counters.noted_seconds.append(time.monotonic() - began_s)
            offset = -2 - offset
        if self._followers:
            self._wake_followers()
        return offset

    def append_batch(
        self,
        data: Any,
        *,
        durability: str | None = None,
        timeout_s: float | None = None,
        encode: str | Encoder | None = None,
        value_schema: Any = None,
    ) -> Appended:
        """Append many records: a list of values, a list of pairs of key and value, an Arrow array of values, or a
        RecordBatch or Table with the columns ``value``, ``key``, ``headers``, ``timestamp``.

        ``encode`` (``"json"`` and the other kinds of `duramen.encoder`) takes a RecordBatch or Table whose column
        ``value`` is typed; without that column, the columns that no record has are the fields of the values."""
        batch = batch_of(self.codec, encoded(data, encode, value_schema))
        if not batch.num_rows:
            _checked(durability or self._durability)
            self._check_usable()
            return Appended(self.next_offset, 0)
        appended: Appended = self.submit(batch, durability, timeout_s)
        return appended

    def submit(
        self,
        batch: Batch,
        durability: str | None,
        timeout_s: float | None,
        producer: SequenceClaim | None = None,
    ) -> Any:
        """Queue a batch, and return when it is as durable as requested. ``producer`` names its sender."""
        level = self._durability if durability is None else _checked(durability)
        if os.getpid() != self._pid:  # in a forked child, no thread would commit the queue
            raise self._inherited()
        return self._commit.submit(Request(GroupBatch(batch, level, producer), batch.nbytes, batch.num_rows), timeout_s)

    def append_once(self, data: Iterable[Any], *, writer: str, batch: int) -> Appended | None:
        """Append the batches of ``data`` (each as `append_batch` takes it) in one transaction, exactly once, at
        ``fsync``: readers see all rows or none. ``writer`` names the sender, and ``batch`` counts up. Returns None, and
        stores nothing, where the log holds that batch or a later one already."""
        return append_once(self, data, writer, batch)

    def exclusively(self, work: Callable[[], None]) -> None:
        """Run ``work`` while no append is in progress."""
        self._check_usable()
        self._commit.submit(Request(_Control("exclusively", work), 0, 0, alone=True))

    def sync(self) -> None:
        """Return when everything appended is on the disk."""
        self._control("sync")

    def seal(self) -> None:
        """Seal the active segment and create a new one. An empty segment stays as it is."""
        if not self.codec.capabilities.segments:
            raise UsageError(f"{self.format} has one file only: it cannot be sealed", path=self.path)
        self._control("seal")

    def _publish(self, now_us: int) -> None:
        """Write this writer's metrics to the sidecar, for `duramen top` and `duramen serve`."""
        self._published_us = now_us
        self.counters.poisoned = int(self.is_poisoned)
        self._count_recovery()
        published = WriterMetrics.of(self.counters, self._opened_us, now_us, self._earlier)
        write_writer_metrics(self.disk, self.path, published)

    def _count_recovery(self) -> None:
        self.counters.recoveries = 1
        self.counters.recovery_cuts = sum(step.case in CUTS for step in self.recovery)
        self.counters.index_rebuilds = sum(step.case == RecoveryCase.INDEX for step in self.recovery)

    # --- its life

    def retain(self, rules: Retention | None = None, *, dry_run: bool = False) -> RetentionPlan:
        """Remove the oldest segments that ``rules`` (by default those that the log was opened with) allow and no group,
        cursor or job needs. Returns what was removed and what held the rest back."""
        self._check_usable()
        wanted = _checked_rules(rules) or self._retention or Retention()
        if dry_run:
            return plan_retention(self, wanted)
        self.check_place(closely=True)
        with self._maintaining:
            return retain_segments(self, wanted)

    def compact(
        self, how: Compaction | None = None, *, dry_run: bool = False, progress: Progress | None = None
    ) -> CompactionReport:
        """Keep only the newest record of every key in the sealed segments. Appends may continue."""
        self._check_usable()
        check_kind("how", how if how is not None else Compaction(), Compaction, "such as duramen.Compaction(key=...)")
        if progress is not None and not callable(progress):
            raise UsageError(f"progress must be a function (got {progress!r:.80})")
        if not dry_run:
            self.check_place(closely=True)
        with self._maintaining:
            if dry_run:
                return plan_compaction(self, how or Compaction(), progress)
            return Compactor(self, how or Compaction(), time.time_ns() // 1000, progress, writer=self).run()

    def close(self) -> None:
        """Sync everything, write the derived files, and release the log. A compaction in another thread ends at its
        next step; this call waits for that."""
        if self.is_inherited:
            self._release()
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
                self._release()

    def _release(self) -> None:
        """Close the files as they are, and release the lock."""
        if not self.is_inherited:
            with self._leading:  # if the close failed, another group may be under way
                self._singles.stop()
                self._closed = True
        if self._sequences is not None:
            self._sequences.close()
        self.tail.close()
        self._sidecar.release()
        self.disk.unroot()
        self.counters.unlist()
        super().close()
        self._wake_followers()

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child of the process that opened the log. The parent holds the lock, and goes on
        writing: the child may read, and writes nothing, not even when it closes the log."""
        return os.getpid() != self._pid

    @property
    def is_poisoned(self) -> bool:
        """Whether a write or sync failed so that the on-disk state is unknown. Close the log and open it again."""
        return self.tail.poisoned_by is not None

    def check_going_on(self) -> None:
        super().check_going_on()
        if self._is_ending:
            raise UsageError(
                "the log was closed while this call ran",
                path=self.path,
                hint="nothing is lost: repeat the call on a log that is open",
            )

    def _inherited(self) -> UsageError:
        return UsageError(
            f"the log was opened by process {self._pid}: a forked child cannot write to it",
            path=self.path,
            hint="open it after the fork, in the process that writes",
        )

    def _control(self, name: str) -> None:
        self._check_usable()
        self._commit.submit(Request(_Control(name), 0, 0, alone=True))

    def _check_usable(self) -> None:
        self._check_open()
        if os.getpid() != self._pid:
            raise self._inherited()
        poisoned_by = self.tail.poisoned_by
        if isinstance(poisoned_by, FencedError):
            raise FencedError(poisoned_by.message, path=poisoned_by.path, hint=poisoned_by.hint) from poisoned_by
        if poisoned_by is not None:
            raise PoisonedError(
                f"an earlier write or sync failed: {poisoned_by}",
                path=self.path,
                hint="close the log and open it again: that runs recovery",
            ) from poisoned_by

    # --- one group

    def commit_group(self, group: list[Request]) -> None:
        """Commit the requests of one group. The queue calls it in one thread at a time."""
        committed = 0
        with self._leading:
            try:
                self._singles.group_begins()
                self._commit_requests(group)
                committed = len(group)
            finally:
                self._singles.group_ends(committed)

    def _commit_requests(self, group: list[Request]) -> None:
        self._check_usable()
        first = group[0].work
        try:
            if isinstance(first, _Control):
                self.check_place(closely=True)
            self._interval.count(*self.tail.absorb())
            if isinstance(first, _Control):
                (first.run or getattr(self, f"_do_{first.name}"))()
                self.check_place(closely=True)
                group[0].result = True
            else:
                if not self._sidecar.is_in_place():
                    self.check_place()
                self._append_group(group)
        except DuramenError as error:
            fenced = self._fenced_by(error)
            self._count_error()
            if fenced is not None:
                raise fenced from error
            raise
        except BaseException as error:
            self.tail.poison(error)
            self._count_error()
            raise
        finally:
            if self._followers:
                self._wake_followers()

    @property
    def state_disk(self) -> Disk:
        return self.disk

    def check_place(self, *, closely: bool = False) -> None:
        """Raise `FencedError`, and poison the writer, if the log's directory or its sidecar was deleted or replaced;
        ``closely``: or the active segment. Called before every write, so that nothing of it is stored, and closely
        after every sync, and if the active segment has no name any more."""
        try:
            self._sidecar.check(closely=closely)
            if closely and not self.tail.active.file.is_in_place():
                raise fenced("the active segment was deleted or replaced", self.tail.active.path)
        except FencedError as error:
            self.tail.poison(error)
            raise

    def _fenced_by(self, error: DuramenError) -> FencedError | None:
        """The `FencedError` that explains an error of the disk; None if the directory is still in its place."""
        if isinstance(error, StorageError):
            try:
                self.check_place(closely=True)
            except FencedError as fenced:
                return fenced
            except StorageError:
                pass  # the disk fails
        return None

    def _count_error(self) -> None:
        self.counters.errors += 1
        # The last chance to publish: nothing more will be committed. A fenced writer no longer owns the sidecar.
        if self.is_poisoned and not isinstance(self.tail.poisoned_by, FencedError):
            self._publish(self._now_us())

    def append_in_turn(self, batch: Batch) -> Appended:
        """Append at ``write`` without queueing. The caller runs inside `exclusively`, or is the log's only user."""
        request = Request(GroupBatch(batch, "write"), batch.nbytes, batch.num_rows)
        self._append_group([request])
        self.counters.noted_seconds.append(time.monotonic() - request.began_s)
        appended: Appended = request.outcome()
        return appended

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
                self._roll_back_sequences(error)
            raise

    def _roll_back_sequences(self, error: DuramenError) -> None:
        assert self._sequences is not None
        try:
            self._sequences.rollback()
        except BaseException as second:
            self.tail.poison(second)
            raise error from second

    def _append_requests(self, group: list[Request]) -> None:
        tail = self.tail
        if not tail.active.cursor.position:
            group = self._without_zeros(group)
        taken, batch, default_us, last_us = self._one_batch(group)
        if not taken:
            return
        levels = [request.work.durability for request in taken]
        timed = [request for request in taken if request.work.durability == "interval"] if "interval" in levels else []
        sync = "fsync" in levels or (bool(timed) and self._interval.is_completed_by(timed))
        announce = None
        if self._sequences is not None:
            batch, announce = self._sequences.with_columns(batch), self._sequences.announce
        pieces, size_bytes = tail.write(batch, default_us, is_synced_next=sync, announce=announce)
        results = appended_by_request(taken, pieces)
        if not tail.commit(last_us, syncs=sync):
            self._acknowledge(last_us, sync=sync)
        for request, appended in zip(taken, results, strict=True):
            request.result = appended
        if sync:
            self._interval.synced()
        elif timed:
            self._interval.wrote(timed)
        if timed or (self.tail.max_age_us and self._alarm is not None and not self._alarm.is_set):
            self._set_alarm()
        self.counters.committed(batch.num_rows, size_bytes)
        if default_us - self._published_us >= PUBLISH_EVERY_US:
            self._publish(default_us)

    def _acknowledge(self, last_us: int, *, sync: bool) -> None:
        tail = self.tail
        if sync:
            tail.sync()
        is_gone = not (sync or tail.active.file.is_linked())
        if sync or is_gone or not self._is_exclusive:  # after a sync, or where another writer is possible
            self._check_written(closely=sync or is_gone)
        tail.acknowledge(last_us)

    def _one_batch(self, group: list[Request]) -> tuple[list[Request], Batch, int, int]:
        """As the function of that name, without requests that repeat refused ones."""
        while True:
            found = one_batch(
                group, self.codec, self.path, self._now_us(), self.tail.last_us,
                raises_late_times=self.raises_late_times,
            )  # fmt: skip
            if self._sequences is not None:
                self._sequences.refuse_dependents()
            group = [request for request in found[0] if request.error is None]
            if len(group) == len(found[0]):
                return found

    def _check_written(self, *, closely: bool) -> None:
        """Check the place of the log between writing and acknowledging. Any failure poisons the writer."""
        try:
            self.check_place(closely=closely)
        except BaseException as error:
            self.tail.poison(error)
            raise

    def _without_zeros(self, group: list[Request]) -> list[Request]:
        """Refuse a first record whose bytes are all zero: readers would take it for unwritten space."""
        for number, request in enumerate(group):
            if not self.tail.would_vanish(request.work.batch, self._now_us()):
                return group[number:]
            request.error = UsageError(
                f"the first record of a {self.format} log cannot be empty: its bytes would all be zero", path=self.path
            )
        return []

    # --- control

    def _do_mark(self) -> None:
        """Absorbing is all that it takes."""

    def _do_sync(self) -> None:
        self.tail.sync()
        self.tail.mark()
        self._interval.synced()

    def _do_due(self) -> None:
        if self._wrong_indexes:
            self._rebuild_indexes()
        left_us = self._interval.left_us
        if left_us is not None and left_us <= 0:
            self._do_sync()
        self.tail.roll_if_old()

    def _do_seal(self) -> None:
        if not self.tail.active.is_empty:
            self.tail.roll()

    def _do_close(self) -> None:
        try:
            self.tail.finish()
            self._publish(self._now_us())
        finally:
            self._singles.stop()
            self._closed = True  # requests that are still queued must fail: the lock will be released

    # --- on time

    def run_due(self) -> None:
        """Sync records that were acknowledged at ``interval``, and seal the active segment if it is too old, if that is
        due by now. The timer calls this; a failure is raised by the next append."""
        if self._alarm is not None:
            self._alarm.clear()
        left_s, wait_s = self._seconds_left(), 0.0
        try:
            if left_s is not None and left_s <= 0:
                self._control("due")
        except DuramenError:
            wait_s = SYNC_INTERVAL_MS / 1000  # unless it is poisoned, the disk fails, and nothing is lost yet
        if not (self._closed or self.is_poisoned):
            self._set_alarm(wait_s)

    def _seconds_left(self) -> float | None:
        """How long until something is due; None if nothing will be."""
        due_us = 0 if self._wrong_indexes else None
        left_us = [left for left in (due_us, self._interval.left_us, self.tail.age_left_us) if left is not None]
        return min(left_us) / 1e6 if left_us else None

    def _set_alarm(self, at_least_s: float = 0.0) -> None:
        left_s = self._seconds_left()
        if self._alarm is not None and left_s is not None:
            self._alarm.set(max(left_s, at_least_s))

    def _found_wrong_index(self, base: int) -> None:
        if base not in self._judged_indexes:
            self._judged_indexes.add(base)
            self._wrong_indexes.add(base)
            self._set_alarm()

    def _rebuild_indexes(self) -> None:
        """Rebuild the indexes that readers of this log found to be wrong, once for each segment."""
        bases, self._wrong_indexes = self._wrong_indexes, set()
        wrong = [files for files in list_log(self.disk, self.path, self.codec).segments if files.base in bases]
        self.recovery += rebuild_sealed_indexes(self.disk, self.path, self.codec, self._sidecar, wrong)
        with self._guard:
            for base in bases & self._open.keys():
                self._open.pop(base).close()
        self.look_again()
        self._publish(self._now_us())

    # --- producers

    def sequences(self) -> ProducerTable:
        """The sequences of producers; see `duramen.consumers.producers`."""
        self._check_usable()
        if self._sequences is None or not self._sequences.is_loaded:
            self._control("load_sequences")
        assert self._sequences is not None
        return self._sequences

    def _do_load_sequences(self) -> None:
        if self._sequences is None:
            self._sequences = ProducerTable(self, 0, self._do_sync, self.tail.poison, self.tail.patch)
            self._singles.stop()
        if not self._sequences.is_loaded:
            self._sequences.load()

    def _open_sequences(self, proven_offset: int) -> None:
        """Settle announced sequences before other records get their offsets. If the file is damaged, only producers
        are refused."""
        try:
            self._sequences = ProducerTable(self, proven_offset, self._do_sync, self.tail.poison, self.tail.patch)
            self._singles.stop()
        except CorruptionError as error:
            if error.path != producers_path(self.path):
                raise

    # --- reading

    def _is_being_written(self) -> bool:
        return True

    def _is_replaced_since(self) -> bool:
        return False  # no other process replaces a log whose lock is held

    def _first_look(self) -> None:
        """Recovery has listed the files; the first reader takes a snapshot."""

    def _take_snapshot(self) -> Snapshot:
        visible = self.tail.visible
        directory = list_log(self.disk, self.path, self.codec).up_to(visible.base, visible.position)
        return replace(self._snapshot, directory=directory)

    def _before_read(self) -> None:
        if self._shown is self.tail.visible:
            return
        with self._guard:
            visible = self.tail.visible
            if self._shown is not visible:
                self.refresh()
                self._shown = visible

    def look_again(self) -> None:
        """Have the next read list the files again: some were replaced or removed."""
        self._shown = None

    def wait(self, timeout_s: float = FOLLOW_WAIT_S, seen: object = None) -> object:
        self._check_open()
        timeout_s = check_timeout(timeout_s)
        if seen is not None:
            with self._grown:
                self._followers += 1  # before the check: the committing thread looks for followers after it publishes
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
        """The offset after the last acknowledged record."""
        return self.tail.visible.next_offset

    @property
    def durable_offset(self) -> int:
        """The offset after the last record that is known to be on the disk."""
        return self.tail.visible.durable_offset


def _limits(max_batch_bytes: int, max_batch_records: int, linger_ms: float, queue_bytes: int) -> GroupLimits:
    return GroupLimits(
        check_int("max_batch_bytes", max_batch_bytes, least=1),
        check_int("max_batch_records", max_batch_records, least=1),
        check_number("linger_ms", linger_ms, most=LONGEST_S * 1000),
        check_int("queue_bytes", queue_bytes, least=1),
    )


def _checked_room(preallocate_bytes: int | None) -> int | None:
    if preallocate_bytes is None:
        return None
    return check_int("preallocate_bytes", preallocate_bytes, most=MOST_PREALLOCATED_BYTES)


def _checked_clock(clock: Callable[[], int] | None) -> Callable[[], int] | None:
    if clock is not None and not callable(clock):
        raise UsageError(f"clock must be a function that returns nanoseconds since 1970 (got {clock!r:.80})")
    return clock


def _checked_rules(rules: Retention | None, interval_s: float = RETENTION_INTERVAL_S) -> Retention | None:
    check_number("retention_interval_s", interval_s, most=LONGEST_S)
    if rules is not None:
        check_kind("retention", rules, Retention, "such as duramen.Retention(max_age_ms=3_600_000)")
    return rules


def _cuts_damage(on_damage: str) -> bool:
    return check_choice("on_damage", on_damage, ("raise", "truncate")) == "truncate"


def _checked(durability: str) -> str:
    if durability == "quorum":
        raise UsageError("durability 'quorum' is reserved: logs are not replicated yet", hint="use 'fsync'")
    if durability not in DURABILITIES:
        raise UsageError(f"durability must be one of {', '.join(DURABILITIES)} (got {durability!r})")
    return durability
