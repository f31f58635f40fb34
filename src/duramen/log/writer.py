"""Appending to a log: offsets, times, group commit, segments that roll, and what a failure leaves.

One writer per log, any number of readers. An append is answered after the write (``durability="write"``) or after the
sync (``"fsync"``, the default) of the group it was in. After a failed sync nothing is known about what reached the
disk, so the writer is poisoned: it answers no later append, and reopening runs recovery.
"""

from __future__ import annotations

import os
import posixpath
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from duramen import kernel
from duramen.disk import Disk, PosixDisk
from duramen.disk.base import Kind
from duramen.errors import CorruptionError, DuramenError, LateTimestampError, PoisonedError, StorageError, UsageError
from duramen.formats import Format
from duramen.formats.base import Encoded, Role, Segment, SegmentSummary
from duramen.formats.values import Values
from duramen.log import change, intake, maintenance, pending
from duramen.log.active import FILL_AFTER_COMMITS, FILL_BYTES, ActiveSegment, Filling
from duramen.log.commit import GroupCommit, GroupLimits, Request
from duramen.log.compaction.compact import Compaction, CompactionReport, Compactor, Progress
from duramen.log.directory import Directory, SegmentFiles, list_log
from duramen.log.maintenance import RETENTION_INTERVAL_S, RetentionTimer
from duramen.log.place import prepare
from duramen.log.published import Published, publish
from duramen.log.reader import FOLLOW_WAIT_S, Log
from duramen.log.recovery import CUTS, Case, Recovered, Recovery, Step
from duramen.log.retention import Retention, RetentionPlan, check_rules
from duramen.log.sequences import Claim, Sequences, is_damaged, is_there
from duramen.log.sidecar import Config, Sidecar, Watermark, read_config, replace_file
from duramen.metrics import LogCounters
from duramen.metrics import process as process_counters
from duramen.model import MAX_OFFSET, from_us

DURABILITIES = ("write", "fsync")
PUBLISH_EVERY_US = 1_000_000
MOST_PREALLOCATED_BYTES = 1 << 30


class Appended(NamedTuple):
    """What an append was given: the first offset, and how many records follow one another from there."""

    base_offset: int
    count: int  # type: ignore[assignment]


class _Work(NamedTuple):
    batch: intake.Batch
    sync: bool
    producer: Claim | None = None


class _Control(NamedTuple):
    """A call that takes its turn among the appends."""

    name: str
    run: Callable[[], None] | None = None


class WritableLog(Log):
    """A log opened for append. Made by ``duramen.open(path, "a")``; reads like any other log, up to what is
    acknowledged. Safe to use from several threads."""

    _visible: Watermark
    """What is acknowledged."""

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
        self._poison: BaseException | None = None
        self._is_midway = False
        self._closing = threading.Lock()
        self._shown: Watermark | None = None
        self._grown = threading.Condition()
        self._followers = 0
        """How many wait for the log to grow."""
        self._held: Watermark | None = None
        """In a transaction: the watermark that readers will learn of when it is committed."""
        self._raises_late_times = False
        self._sequences: Sequences | None = None
        self._maintaining = threading.Lock()
        self.counters = LogCounters(path)
        self._opened_us = self._published_us = self._now_us()
        self._written_bytes = 0
        self._retention = retention
        self._timer: RetentionTimer | None = None
        disk = disk if disk is not None else PosixDisk()
        known = read_config(disk, path) if disk.kind(path) == Kind.DIRECTORY else None
        fmt = prepare(disk, path, format, options)
        check_rules(fmt, retention or Retention(), path)
        self._sidecar = Sidecar(disk, path)
        self._sidecar.lock()
        try:
            if read_config(disk, path) != known:  # another writer made or changed the log just now
                fmt = prepare(disk, path, format, options)
            changed = change.finish(disk, path)
            settled = pending.settle(disk, path, fmt, self._sidecar)
            if settled is not None and settled.replaces:
                fmt = prepare(disk, path, format, options)
            proven = self._sidecar.watermark()
            recovered = self._recover(disk, path, fmt, cut_damage=on_damage == "truncate", settled=settled)
            super().__init__(path, format=recovered.fmt.name, disk=disk, **recovered.fmt.options)
            if is_there(disk, path):
                self._open_sequences(0 if proven is None else proven.durable_offset)
        except BaseException:
            self._sidecar.release()
            raise
        if changed is not None:
            self.recovery.insert(0, Step(Case.CHANGE, path, changed.why))
        self._commit = GroupCommit(self._commit_group, self._limits)
        if retention is not None and retention.rules:
            self._timer = RetentionTimer(self.retain, retention_interval_s, path)

    # --- opening

    def _recover(
        self, disk: Disk, path: str, fmt: Format, *, cut_damage: bool, settled: pending.Pending | None
    ) -> Recovered:
        began = time.perf_counter()
        recovered = Recovery(disk, path, fmt, self._sidecar, cut_damage=cut_damage, settled=settled).run()
        cuts = sum(step.case in CUTS for step in recovered.steps)
        process_counters.recovered(time.perf_counter() - began, cuts)
        fmt = recovered.fmt
        config = read_config(disk, path)
        wanted = Config(fmt.name, fmt.options, config.created_ms if config else self._now_us() // 1000)
        if config != wanted:
            self._sidecar.write_config(wanted)
        self.recovery: list[Step] = recovered.steps
        self._created_ms = wanted.created_ms
        self._last_us = recovered.last_us
        self._unread: tuple[list[SegmentFiles], int] | None = (
            recovered.segments,
            recovered.next_offset if recovered.active is None else recovered.active.base,
        )
        self.codec = fmt
        self._segment_bytes = min(
            int(fmt.options.get("segment_max_bytes", fmt.default_segment_bytes or 2**62)),
            fmt.capabilities.max_segment_bytes,
        )
        if recovered.active is not None:
            self._active = self._filling(recovered.active)
        else:
            self._active = self._begin(disk, path, fmt, recovered.next_offset, recovered.previous)
        self._durable = self._active.cursor
        self._durable_crc32c = self._active.crc32c
        self._unsynced_bytes = 2 * max(self._limits.max_bytes, self._preallocate_bytes or FILL_BYTES)
        self._mark(durable=True)
        if not (recovered.is_as_closed and self._manifest_fits(disk, path, recovered)):
            self._write_manifest(disk, path)
        return recovered

    def _manifest_fits(self, disk: Disk, path: str, recovered: Recovered) -> bool:
        names = [file.path for file in recovered.others if file.name.role == Role.MANIFEST]
        files = {name: disk.map(posixpath.join(path, name)).data for name in names}
        sealed_count = len(recovered.segments) - 1
        return self.codec.log_files_fit(files, sealed_count, self._active.summary(), self._created_ms)

    @property
    def _earlier(self) -> list[SegmentSummary]:
        """The segments before the active one. Most openings do without."""
        if self._unread is not None:
            self._earlier = _summaries(*self._unread)
        return self._summaries

    @_earlier.setter
    def _earlier(self, summaries: list[SegmentSummary]) -> None:
        self._unread, self._summaries = None, summaries

    def _now_us(self) -> int:
        return (self._clock or time.time_ns)() // 1000

    def _begin(self, disk: Disk, path: str, fmt: Format, base: int, previous: Any) -> ActiveSegment:
        if base > MAX_OFFSET:
            raise UsageError("no offset is left", path=path)
        created_ms = self._now_us() // 1000
        begun = fmt.begin_segment(base, created_ms, previous, _first_segment(disk, path, fmt))
        return self._filling(ActiveSegment.create(disk, path, fmt, begun, base, created_ms))

    def _filling(self, active: ActiveSegment) -> ActiveSegment:
        """The segment, which gets zeros behind its records if that is wanted."""
        wanted = self._preallocate_bytes
        if wanted:
            active.filling = Filling(wanted, self._segment_bytes)
        elif wanted is None and active.fmt.capabilities.cuts_zeros:
            active.filling = Filling(FILL_BYTES, self._segment_bytes, FILL_AFTER_COMMITS)
        return active

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
        answer: Appended = self._submit(batch, durability, timeout_s)
        return answer.base_offset

    def append_batch(self, data: Any, *, durability: str | None = None, timeout_s: float | None = None) -> Appended:
        """Append many records: a list of bytes, an Arrow array of values, or a RecordBatch or Table with the columns
        ``value``, ``key``, ``headers``, ``timestamp``."""
        batch = intake.many(self.codec, data)
        if not batch.num_rows:
            _checked(durability or self._durability)
            self._check_usable()
            return Appended(self.next_offset, 0)
        answer: Appended = self._submit(batch, durability, timeout_s)
        return answer

    def _submit(
        self, batch: intake.Batch, durability: str | None, timeout_s: float | None, producer: Claim | None = None
    ) -> Any:
        sync = (self._durability if durability is None else _checked(durability)) == "fsync"
        self._check_process()  # before it queues: in a child nobody may be there to answer
        return self._commit.submit(Request(_Work(batch, sync, producer), batch.nbytes, batch.num_rows), timeout_s)

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
        self.counters.poisoned = int(self._poison is not None)
        publish(self._disk, self.path, Published.of(self.counters, self._opened_us, now_us))

    # --- its life

    def retain(self, rules: Retention | None = None, *, dry_run: bool = False) -> RetentionPlan:
        """Remove the oldest segments, as far as ``rules`` (or those that the log was opened with) say and nobody needs
        them: no group, no cursor, no job. Answers what was removed and what held the rest back."""
        self._check_usable()
        wanted = rules or self._retention or Retention()
        return maintenance.plan_retention(self, wanted) if dry_run else maintenance.retain(self, wanted)

    def compact(
        self, how: Compaction | None = None, *, dry_run: bool = False, progress: Progress | None = None
    ) -> CompactionReport:
        """Keep only the newest record of every key in the sealed segments. Appends go on meanwhile."""
        self._check_usable()
        with self._maintaining:
            return Compactor(self, how or Compaction(), time.time_ns() // 1000, progress).run(dry_run=dry_run)

    def close(self) -> None:
        """Bring everything to the disk, write the derived files, and let the log go."""
        if self.is_inherited:
            self._let_go()
            return
        if self._timer is not None:
            self._timer.close()
        with self._closing:
            if self._closed:
                return
            try:
                if self._poison is None:
                    self._control("close")
            finally:
                self._let_go()

    def _let_go(self) -> None:
        """Close the files as they are."""
        if self._sequences is not None:
            self._sequences.close()
        self._active.close()
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
        if self._poison is not None:
            raise PoisonedError(
                f"an earlier write or sync failed: {self._poison}",
                path=self.path,
                hint="close the log and open it again: that runs recovery",
            ) from self._poison

    # --- one group

    def _commit_group(self, group: list[Request]) -> None:
        """Runs in one thread at a time."""
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
            self._poison = self._poison or error
            self._count_error()
            raise

    def _count_error(self) -> None:
        self.counters.errors += 1
        if self._poison is not None:  # nothing will be committed any more that could tell
            self._publish(self._now_us())

    def _append_group(self, group: list[Request]) -> None:
        if self._sequences is None:
            self._append_requests(group)
            return
        try:
            fresh = self._sequences.enter(group)
            if fresh:
                self._append_requests(fresh)
            if self._sequences.must_sync and self._durable != self._active.cursor:
                self._do_sync()
            self._sequences.settle()
        except DuramenError as error:
            if self._poison is None and not self._is_midway:
                self._take_back(error)
            raise

    def _take_back(self, error: DuramenError) -> None:
        assert self._sequences is not None
        try:
            self._sequences.take_back()
        except BaseException as second:
            self._poison = self._poison or second
            raise error from second

    def _append_requests(self, group: list[Request]) -> None:
        if not self._active.cursor.position:
            group = self._without_zeros(group)
        if not group:
            return
        taken, batch, default_us, last_us = self._stamped(group)
        if not taken:
            return
        sync = any(request.work.sync for request in taken)
        try:
            pieces = self._write(batch, default_us, is_synced_next=sync)
        except BaseException as error:
            if self._is_midway:  # what is written already cannot be taken back
                self._poison = self._poison or error
            raise
        answers = _answers(taken, pieces)
        if sync:
            self._sync()
        self._is_midway = False
        self._last_us = max(self._last_us, last_us)
        self._mark(durable=self._must_prove())
        for request, answer in zip(taken, answers, strict=True):
            request.result = answer
        self.counters.committed(len(taken), batch.num_rows, self._written_bytes)
        if default_us - self._published_us >= PUBLISH_EVERY_US:
            self._publish(default_us)

    def _stamped(self, group: list[Request]) -> tuple[list[Request], intake.Batch, int, int]:
        """The requests whose times are in order, their records as one batch, the time for rows that have none, and
        the last time of all. A time that the caller gave may not go back; one of ours never does."""
        limits = self.codec.capabilities
        now_us = max(self._now_us(), self._last_us if limits.ordered_timestamps else 0)
        batches = [request.work.batch for request in group]
        if not any(map(intake.has_times, batches)):
            return group, intake.merge(batches), now_us, now_us
        taken, stamped, last_us = [], [], self._last_us
        for request, batch in zip(group, batches, strict=True):
            batch, latest_us = intake.stamp(batch, now_us, last_us if limits.ordered_timestamps else 0)
            if limits.ordered_timestamps and self._raises_late_times:
                batch = intake.raise_late(batch, last_us)
            back = intake.goes_back(batch, last_us) if limits.ordered_timestamps else None
            if back is not None:
                given, before = (from_us(us) or f"{us} µs" for us in back)
                request.error = LateTimestampError(
                    f"a timestamp goes back, from {before} to {given}, which {self.format} forbids", path=self.path,
                    hint="append records in the order of their times, or without times",
                )  # fmt: skip
                continue
            last_us = latest_us
            taken.append(request)
            stamped.append(batch)
        merged = intake.merge(stamped) if stamped else batches[0]
        return taken, merged, now_us, last_us

    def _write(self, batch: intake.Batch, default_us: int, *, is_synced_next: bool) -> list[tuple[int, int]]:
        """Write the batch, over as many segments as it takes; answers the first row that went into each, with its
        offset. Those of the rows behind it follow one another."""
        pieces: list[tuple[int, int]] = []
        self._written_bytes = 0
        self._roll_if_old()
        done = 0
        start = self._active
        while done < batch.num_rows:
            rest = self._near(batch.slice(done) if done else batch)
            encoded, records = self._fitting(self._encode(rest, default_us), rest, default_us)
            if not records:
                self._roll()
                continue
            cursor = self._active.cursor
            first = encoded.rows.end.last_offset - records + 1
            if self._sequences is not None:
                encoded = self._sequences.announce(encoded, rest, done, range(first, first + records))
            self._expect_unsynced(len(encoded.data))
            try:
                self._active.write(encoded, is_synced_next=is_synced_next)
            except BaseException as error:
                # Behind another segment, or with its index alone missing: this cannot be taken back.
                self._undo(error, is_written=self._active is not start or self._active.cursor != cursor)
                raise
            pieces.append((done, first))
            self._written_bytes += len(encoded.data)
            if self._active.first_us is None:
                self._active.first_us = self._now_us()
            done += records
            self._is_midway = True
        return pieces

    def _near(self, batch: intake.Batch) -> intake.Batch:
        """The rows that the active segment may have room for. Of a batch that goes over many segments each would else
        encode all the rest in vain."""
        limits, room_bytes = self.codec.capabilities, self._segment_bytes - self._active.cursor.position
        if not limits.segments or limits.rolls_when_full or batch.nbytes <= room_bytes:
            return batch
        return batch.slice(0, intake.rows_within(batch, room_bytes) + 1)

    def _without_zeros(self, group: list[Request]) -> list[Request]:
        """Leaves out a first record of nothing but zeros (RustLog: offset 0, no value, no time): it reads as space that
        was never written, in every program, and would be acknowledged and gone."""
        for number, request in enumerate(group):
            first = self._encode(request.work.batch.slice(0, 1), self._now_us())
            if not kernel.is_zero(first.data, 0, len(first.data)):
                return group[number:]
            request.error = UsageError(
                f"the first record of a {self.format} log cannot be empty: its bytes would all be zero", path=self.path
            )
        return []

    def _encode(self, batch: intake.Batch, default_us: int) -> Encoded:
        if isinstance(batch, Values):
            return self.codec.encode_values(batch, self._active.cursor, default_us)
        return self.codec.encode(batch, self._active.cursor, default_us)

    def _fitting(self, encoded: Encoded, batch: intake.Batch, default_us: int) -> tuple[Encoded, int]:
        """The part of the rows that goes into the active segment: all, some, or none."""
        limits, active, end = self.codec.capabilities, self._active, encoded.rows.end
        most = self._segment_bytes
        fits = end.position <= most and end.last_offset - active.base <= limits.max_relative_offset
        if not limits.segments or (fits and active.rows < limits.max_segment_rows):
            return encoded, batch.num_rows
        if limits.rolls_when_full:
            full = active.cursor.position >= most or active.rows >= limits.max_segment_rows
            return encoded, 0 if full and not active.is_empty else batch.num_rows
        positions = encoded.rows.columns.position
        ends = np.append(positions[1:], encoded.rows.end.position)
        count = int(np.searchsorted(ends, most, side="right"))
        relative = encoded.rows.columns.last_offsets - active.base
        count = min(count, int(np.searchsorted(relative, limits.max_relative_offset, side="right")))
        if count == len(ends):
            return encoded, batch.num_rows
        if count == 0 and not active.is_empty:
            return encoded, 0
        count = max(count, 1)
        return self._encode(batch.slice(0, count), default_us), count

    def _expect_unsynced(self, size_bytes: int) -> None:
        """Recovery must know, whatever happens, how much one unfinished write can span."""
        unsynced = self._active.cursor.position - self._durable.position
        if self._durable.position > self._active.cursor.position:
            unsynced = 0
        unsynced += size_bytes + (self._preallocate_bytes or FILL_BYTES)
        if unsynced > self._unsynced_bytes:
            self._unsynced_bytes = 2 * unsynced
            self._mark(durable=True)

    def _undo(self, error: BaseException, *, is_written: bool) -> None:
        """After a write that failed: as if it had not been tried, or poisoned if even that fails."""
        if is_written or not isinstance(error, StorageError):
            self._poison = error
            return
        try:
            self._active.cut_back()
        except StorageError as second:
            self._poison = second

    def _sync(self) -> None:
        began = time.perf_counter()
        try:
            self._active.sync()
        except BaseException as error:
            self._poison = error
            raise
        self.counters.sync_seconds.observe(time.perf_counter() - began)
        self._durable = self._active.cursor
        self._durable_crc32c = self._active.crc32c

    def _must_prove(self) -> bool:
        """Whether the watermark itself has to be on the disk before an answer: the bytes do not prove themselves."""
        synced = self._durable == self._active.cursor
        return synced and (self._active.ends_in_doubt or not self.codec.capabilities.record_checksum)

    def _mark(self, *, durable: bool = False, is_open: bool = True) -> None:
        active = self._active
        mark = Watermark(
            active.base, active.cursor.position, active.cursor.previous_offset + 1,
            self._durable.position, self._durable.previous_offset + 1, self._unsynced_bytes,
            active.crc32c, self._durable_crc32c, is_open,
        )  # fmt: skip
        if self._is_midway:
            # A batch goes on in another segment. Recovery must know of it; readers must not see half of the batch.
            mark = mark._replace(next_offset=self._visible.next_offset)
        if self._held is not None:
            self._held = mark
            return
        try:
            self._sidecar.mark(mark, durable=durable)
        except BaseException as error:
            self._poison = error
            raise
        if not self._is_midway:
            self._visible = mark
            if self._followers:
                self._wake_followers()

    # --- segments

    def _roll_if_old(self) -> None:
        age_ms = self.codec.options.get("segment_max_age_ms", self.codec.default_segment_age_ms)
        first = self._active.first_us
        if not age_ms or first is None or self._active.is_empty or not self.codec.capabilities.segments:
            return
        if self._now_us() - first >= int(age_ms) * 1000:
            self._roll()

    def _roll(self) -> None:
        """Seal the active segment, then begin the next: at no moment is there more than one that is not sealed."""
        try:
            old = self._active
            sealed = old.seal()
            self._earlier.append(old.summary())
            self._sidecar.add_sealed(sealed)
            base = old.cursor.previous_offset + 1
            previous = self.codec.open_segment(self._disk.map(old.path).data, old.base)
            self._active = self._begin(self._disk, self.path, self.codec, base, previous)
            old.close()
            self._durable = self._active.cursor
            self._durable_crc32c = self._active.crc32c
            self._mark(durable=True)
            self._write_manifest(self._disk, self.path)
        except BaseException as error:
            self._poison = error
            raise
        self.counters.rolls += 1
        if self._timer is not None:
            self._timer.wake()

    def _write_manifest(self, disk: Disk, path: str) -> None:
        if not self.codec.capabilities.manifest:
            return
        summaries = [*self._earlier, self._active.summary()]
        for name, content in self.codec.log_files(summaries, self._created_ms).items():
            target = posixpath.join(path, name)
            if disk.kind(target) == Kind.FILE and bytes(disk.map(target).data) == content:
                continue
            temporary = posixpath.join(path, self.codec.temporary_path(name))
            if disk.kind(posixpath.dirname(temporary)) == Kind.MISSING:
                disk.make_directory(posixpath.dirname(temporary))
            replace_file(disk, target, content, temporary=temporary)

    # --- control

    def _do_sync(self) -> None:
        self._sync()
        self._mark(durable=self._must_prove())

    def _do_seal(self) -> None:
        if not self._active.is_empty:
            self._roll()

    def _do_close(self) -> None:
        try:
            self._active.release()
            self._sync()
            self._active.flush_index()
            self._write_manifest(self._disk, self.path)
            self._mark(durable=True, is_open=False)
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
            self._sequences = Sequences(self, 0, self._do_sync, self._poisoned_by)

    def _open_sequences(self, proven_offset: int) -> None:
        """Settle what was announced before any record can get its offset. A damaged file keeps producers out and
        nobody else: whoever asks for one is told."""
        try:
            self._sequences = Sequences(self, proven_offset, self._do_sync, self._poisoned_by)
        except CorruptionError:
            if not is_damaged(self._disk, self.path):
                raise

    def _poisoned_by(self, error: BaseException) -> None:
        self._poison = self._poison or error

    # --- reading

    def _first_look(self) -> None:
        """Recovery has looked already; who reads will look again."""
        self._directory, self._bases = Directory(self.path, [], [], [], []), []

    def _list(self) -> Directory:
        visible = self._visible
        return list_log(self._disk, self.path, self.codec).up_to(visible.base, visible.position)

    def _before_read(self) -> None:
        if self._shown is self._visible:
            return
        with self._guard:
            visible = self._visible
            if self._shown is not visible:
                self.refresh()
                self._shown = visible

    def wait(self, timeout_s: float = FOLLOW_WAIT_S, seen: object = None) -> object:
        self._check_open()
        if seen is not None:
            with self._grown:
                self._followers += 1  # before the look: whoever acknowledges looks for followers after it
                try:
                    if self._visible is seen:
                        self._grown.wait(timeout_s)
                finally:
                    self._followers -= 1
        self._check_open()
        seen = self._visible
        self._before_read()
        return seen

    def _wake_followers(self) -> None:
        with self._grown:
            self._grown.notify_all()

    @property
    def next_offset(self) -> int:
        """The offset that the next record will get, as far as appends are acknowledged."""
        return self._visible.next_offset

    @property
    def durable_offset(self) -> int:
        """The offset behind the last record that is known to be on the disk."""
        return self._visible.durable_offset


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


def _first_segment(disk: Disk, path: str, fmt: Format) -> Segment | None:
    """The log's first segment, for a format that forgets what lies before it."""
    if not fmt.capabilities.tracking:
        return None
    listed = list_log(disk, path, fmt)
    try:
        return fmt.open_segment(disk.map(listed.full(listed.segments[0].segment.path)).data, listed.segments[0].base)
    except (IndexError, CorruptionError):
        return None


def _answers(group: list[Request], pieces: list[tuple[int, int]]) -> list[Appended]:
    """What each request is told, by what `WritableLog._write` answered."""
    answers, row = [], 0
    start, offset = pieces[0]
    following = iter(pieces[1:])
    after = next(following, None)
    for request in group:
        while after is not None and after[0] <= row:
            (start, offset), after = after, next(following, None)
        count = request.work.batch.num_rows
        answers.append(Appended(offset + row - start, count))
        row += count
    return answers


def _summaries(segments: list[SegmentFiles], active: int) -> list[SegmentSummary]:
    """What is known of the segments before the active one, from their names and sizes."""
    earlier = [files for files in segments if files.base is not None and files.base < active]
    bases = [files.base or 0 for files in earlier] + [active]
    return [
        SegmentSummary(
            bases[number], bases[number + 1] - 1, files.segment.size_bytes,
            sum(file.size_bytes for role, file in files.derived.items() if role == "index"),
        )
        for number, files in enumerate(earlier)
    ]  # fmt: skip
