"""The end of a log that is being written: the active segment, how far it is on the disk, and the watermark.

`Appender` gives the records of a batch their offsets, writes them to as many segments as needed, syncs, and moves the
watermark that readers and recovery rely on. One thread at a time uses it.

A failure either leaves everything as it was or poisons the writer: the on-disk state is unknown, the caller must
acknowledge nothing more, and reopening the log runs recovery. This module knows nothing of queues, requests, producers
and maintenance.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from duramen import kernel
from duramen.disk import Disk, File, Kind, RecordWriter, refusal, write_all
from duramen.errors import CorruptionError, StorageError, UsageError, printable
from duramen.formats import (
    PROGRAM,
    Encoded,
    EncodedRecords,
    Format,
    Role,
    Rows,
    ScanPosition,
    Segment,
    SegmentSummary,
    Severity,
    SupportsManifest,
    SupportsMoving,
    SupportsStateFiles,
    Values,
)
from duramen.kernel import (
    APPENDED_ROWS,
    NOT_DONE,
    AppendLimits,
    AppendNotes,
    AppendState,
    Columns,
    RecordKind,
    ScanEnd,
    Stop,
)
from duramen.log.recover import OpenedLog, Recovered
from duramen.log.segments import (
    FILL_AFTER_COMMITS,
    FILL_BYTES,
    ActiveSegment,
    CleanClose,
    Filling,
    SegmentFiles,
    described_by,
    list_log,
    manifest_ends,
    settings_of,
    write_clean_close,
)
from duramen.log.verify import counted
from duramen.log.write.batch import Batch, rows_within
from duramen.metrics import LogCounters
from duramen.record import MAX_OFFSET
from duramen.sidecar import WATERMARK_NAME, Watermark, create_file, replace_file, sidecar_path

logger = logging.getLogger(__package__)

SYNC_STEP_BYTES = 8 << 20
_LAST_US = 2**63 - 1
"""The last time that a record writer can compare with. Kafka's times are milliseconds in 64 bits."""

Announce = Callable[[Encoded, Batch, int, Sequence[int]], Encoded]
"""Called before a piece of a batch is written, with its bytes, its rows, the number of its first row in the batch, and
their offsets. Returns the bytes to write."""


class Appender:
    """The end of a log, starting from what recovery found."""

    poisoned_by: BaseException | None = None
    """The failure after which the on-disk state is unknown."""
    _visible: Watermark
    """What the last ordinary append acknowledged."""
    writer: RecordWriter | None = None
    """The record writer of the segment `_written_segment`, whether it is armed or not."""
    _written_segment: ActiveSegment | None = None
    _record_rows: Columns
    """What the record writer fills."""
    _shown: Watermark | None = None
    """The last watermark of the record writer that a reader asked for."""
    _is_midway = False
    """Whether a part of a batch is written, and none of it acknowledged."""
    _is_open_durable = False
    """Whether a crash leaves a watermark that says that the log is open. Only then may records be written."""
    _proven: ScanPosition | None = None
    """Up to where a durable watermark proves the bytes."""
    _hidden: Watermark | None = None
    """Between `begin_hidden` and `publish`: the watermark that `publish` will show to readers."""

    def __init__(
        self,
        opened: OpenedLog,
        path: str,
        *,
        preallocate_bytes: int | None,
        group_bytes: int,
        now_us: Callable[[], int],
        counters: LogCounters,
        on_roll: Callable[[], None],
    ) -> None:
        """Create a segment if recovery asks for one, and publish the watermark. ``group_bytes`` is what one write
        usually has at most; ``on_roll`` is called whenever a segment was sealed."""
        recovered = opened.recovered
        self._disk = opened.disk
        self._path = path
        self._fmt = fmt = recovered.fmt
        self._created_ms = opened.created_ms
        self._preallocate_bytes = preallocate_bytes
        self._now_us = now_us
        self._counters = counters
        self._on_roll = on_roll
        self.sidecar = opened.sidecar
        self.last_us = recovered.last_us
        """The latest time of a record. Where the format orders times, later records may not go back before it."""
        first = recovered.next_offset if recovered.active is None else recovered.active.base
        self._unread: tuple[list[SegmentFiles], int] | None = (recovered.segments, first)
        self._segment_bytes = _segment_bytes(fmt)
        self.max_age_us = _max_age_us(fmt)
        if recovered.active is not None:
            self.active = self._filling(recovered.active)
        else:
            self.active = self._begin(recovered.next_offset, recovered.previous)
        self._has_digest = not fmt.capabilities.covers_all
        """Whether the active segment's digest is known: the watermark then carries it."""
        self._sealed_before = self._find_sealed_before(recovered)
        """The base of the segment before the active one, if the sealed list has a line for it."""
        self._set_durable()
        self._unsynced_bytes = 2 * max(group_bytes, preallocate_bytes or FILL_BYTES)
        self._publish_start(recovered)

    def _publish_start(self, recovered: Recovered) -> None:
        """Publish the watermark of the recovered log, and its manifest if that is outdated."""
        self._proven = self.active.cursor if recovered.is_as_closed else None
        self.mark(durable=not recovered.is_as_closed)
        if not (recovered.is_as_closed and self._manifest_fits(recovered)):
            self._write_manifest()

    def _find_sealed_before(self, recovered: Recovered) -> int | None:
        bases = [files.base or 0 for files in recovered.segments]
        before = max((base for base in bases if base < self.active.base), default=None)
        if before is None or before in recovered.sealed:
            return before
        mark = self.sidecar.watermark()
        is_known = mark is not None and mark.base == self.active.base and mark.is_previous_sealed
        return before if is_known and self.sidecar.miss_sealed() else None

    def _manifest_fits(self, recovered: Recovered) -> bool:
        if not isinstance(self._fmt, SupportsManifest):
            return True
        names = [file.path for file in recovered.others if file.name.role == Role.MANIFEST]
        files = {name: self._disk.map(posixpath.join(self._path, name)).data for name in names}
        sealed_count = len(recovered.segments) - 1
        return self._fmt.log_files_fit(files, sealed_count, self.active.summary(), self._created_ms)

    def poison(self, error: BaseException) -> None:
        """Poison the writer: the on-disk state is unknown. The first failure is kept."""
        if self.poisoned_by is None:
            self.poisoned_by = error
            self.disarm_for_good()
            extra = {"path": self._path, "error": type(error).__name__, "offset": self._durable.previous_offset + 1}
            logger.error("the writer of %s stops: %s", printable(self._path), printable(error), extra=extra)

    # --- one record at a time

    @property
    def visible(self) -> Watermark:
        """What is acknowledged: readers may see it. It is the same object until more is."""
        seen = None if self.writer is None else self.writer.seen()
        if seen is None:
            return self._visible
        shown = self._shown
        if shown is None or (shown.next_offset, shown.durable_offset) != (seen.next_offset, seen.durable_offset):
            shown = self._shown = seen.mark._replace(
                position=seen.position, next_offset=seen.next_offset, durable_position=seen.durable_position,
                durable_offset=seen.durable_offset, crc32c=seen.crc32c, durable_crc32c=seen.durable_crc32c,
            )  # fmt: skip
        return shown

    def arm(self, until_us: int, timed_records: int, timed_bytes: int) -> RecordWriter | None:
        """The record writer, armed until the next thing that is more than one record after the other; None if that
        comes first. ``until_us`` is when the caller wants an ordinary append; the other limits are those of
        `AppendLimits`. `absorb` comes before everything else that this class does."""
        if self.writer is not None and not self.writer.is_idle:
            return None
        active, mark, limits = self.active, self._visible, self._fmt.capabilities
        cursor, first_us = active.cursor, active.first_us
        is_ready = self._is_open_durable and self._hidden is None and self.poisoned_by is None
        is_marked = (mark.base, mark.position, mark.next_offset - 1) == (active.base, *cursor)
        if not (is_ready and is_marked) or first_us is None or active.is_empty or self.last_us > _LAST_US:
            return None
        indexed = self._open_index
        writer = self._record_writer(indexed)
        if writer is None or indexed is None:
            return None
        bound = self._durable.position + self._unsynced_bytes - (self._preallocate_bytes or FILL_BYTES)
        most = self._segment_bytes if limits.segments else bound
        offset = min(active.base + limits.max_relative_offset, MAX_OFFSET - 1) + 1
        rows_left = limits.max_segment_rows - active.rows
        until = AppendLimits(
            min(bound, most, active.plain_until),
            min(offset, cursor.previous_offset + 1 + rows_left),
            min(until_us, first_us + self.max_age_us) if self.max_age_us else until_us,
            timed_records,
            timed_bytes,
            min(bound, most, active.plain_until, active.filled_until),
        )
        number, slot = self.sidecar.slot(mark)
        state = AppendState(
            cursor.position, cursor.previous_offset + 1, self.last_us, number, active.crc32c, indexed[1],
            self._durable.position, self._durable.previous_offset + 1, self._durable_crc32c,
        )  # fmt: skip
        writer.arm(state, until, slot, mark)
        if self.poisoned_by is not None:  # by another thread, meanwhile
            writer.retire()
        return writer

    @property
    def _open_index(self) -> tuple[File | None, int] | None:
        """The index that a record writer extends, and its size; None if an entry waits."""
        return self.active.open_index if self._fmt.capabilities.index_at_once else (None, 0)

    def _record_writer(self, indexed: tuple[File | None, int] | None) -> RecordWriter | None:
        """The record writer of the active segment; None if there is none for this format and this disk, or its index is
        not ready."""
        active, shape = self.active, self._fmt.record_shape
        if indexed is None:
            return None
        if self._written_segment is not active:
            self.disarm_for_good()
            self._written_segment, self.writer = active, None
            if shape is not None and self.sidecar.is_exclusive:
                self._record_rows = type(self._fmt.no_columns()).empty(APPENDED_ROWS)
                noted = self._counters
                notes = AppendNotes(noted.noted_seconds, noted.noted_bytes, noted.noted_records, noted.noted_syncs)
                with contextlib.suppress(StorageError):  # no descriptor is left
                    self.writer = self.sidecar.record_writer(active.file, indexed[0], shape, self._record_rows, notes)
        return self.writer

    @property
    def shares_syncs(self) -> bool:
        """Whether threads share syncs in the record writer. A group of chunks or batches would be one of each."""
        shape = self._fmt.record_shape
        return shape is not None and shape.kind in (RecordKind.FRAME, RecordKind.SLOT)

    def disarm_for_good(self) -> None:
        """Retire the record writer: the writer is poisoned, or the segment or the log ends."""
        if self.writer is not None:
            self.writer.retire()

    def absorb(self) -> tuple[int, int]:
        """Take over what the record writer wrote, and disarm it, before an ordinary append or control call. Returns
        the records and bytes at ``interval`` among it."""
        writer, active = self.writer, self.active
        if writer is None or writer.is_idle:
            return 0, 0
        writer.stop()
        self._visible = self.visible
        written = writer.disarm()
        if written.sync_errno:
            error = refusal(written.sync_errno, active.path)
            self.poison(error)
            raise error
        if written.rows:
            columns = type(self._record_rows).concat([self._record_rows.head(written.rows)])
            end = ScanEnd(written.rows, written.position, int(Stop.END), written.next_offset - 1)
            active.take_over(Rows(columns, written.rows, end), written.crc32c, written.index_bytes)
            self.last_us = written.last_us
            self._durable = ScanPosition(written.durable_position, written.durable_offset - 1)
            self._durable_crc32c = written.durable_crc32c
            self.sidecar.adopt(self._visible, written.number)
        if written.is_torn:
            try:
                active.cut_back()
            except StorageError as error:
                self.poison(error)
                raise
        if written.unmarked_bytes:
            self.mark()
            self._counters.committed(written.unmarked_records, written.unmarked_bytes)
        return written.timed_records, written.timed_bytes

    # --- writing

    @property
    def cursor(self) -> ScanPosition:
        """Where the next record goes."""
        return self.active.cursor

    def write(
        self, batch: Batch, default_us: int, *, is_synced_next: bool, announce: Announce | None = None
    ) -> tuple[list[tuple[int, int]], int]:
        """Write the batch to as many segments as needed; ``default_us`` is the time of rows without one.

        Returns the first row that each segment got with its offset (the offsets of the rows after it are consecutive),
        and the number of bytes written. Readers see nothing of it before `acknowledge`."""
        left = MAX_OFFSET - 1 - self.active.cursor.previous_offset
        if batch.num_rows > left:  # the offset after the last record must fit into 63 bits, too
            raise UsageError(
                f"no offset is left for {counted(batch.num_rows, 'record')}: the log can take {left} more",
                path=self._path, hint="create a new log",
            )  # fmt: skip
        pieces: list[tuple[int, int]] = []
        size_bytes = done = 0
        try:
            if self.max_age_us:
                self.roll_if_old()
            start = self.active
            while done < batch.num_rows:
                rest = self._near(batch.slice(done) if done else batch)
                encoded, records = self._fitting(self._encode(rest, default_us), rest, default_us)
                if not records:
                    self.roll()
                    continue
                first = encoded.rows.end.last_offset - records + 1
                if announce is not None:
                    encoded = announce(encoded, rest, done, range(first, first + records))
                self.put(encoded, is_synced_next=is_synced_next, can_undo=self.active is start)
                pieces.append((done, first))
                size_bytes += len(encoded.data)
                done += records
                self._is_midway = True
        except BaseException as error:
            if self._is_midway:  # the part that is written cannot be undone
                self.poison(error)
            raise
        return pieces, size_bytes

    def put(self, encoded: Encoded, *, is_synced_next: bool = False, can_undo: bool = True) -> None:
        """Write what was encoded for `cursor`. A failure leaves the segment as it was, or poisons the writer."""
        active, cursor = self.active, self.active.cursor
        self._expect_unsynced(len(encoded.data))
        try:
            active.write(encoded, is_synced_next=is_synced_next)
        except BaseException as error:
            # Once another segment precedes it, or only its index is missing, the write cannot be undone.
            self._undo(error, is_written=not can_undo or active.cursor != cursor)
            raise
        if self._hidden is not None:
            self._begin_sync(cursor.position)
        if active.first_us is None:
            active.first_us = self._now_us()

    def _begin_sync(self, position: int) -> None:
        """Have the device write what follows ``position``, in large steps. A transaction syncs once, at its end, for
        which the device need not wait."""
        start, end = position - position % SYNC_STEP_BYTES, self.active.cursor.position
        if end - start >= SYNC_STEP_BYTES:
            self.active.file.begin_sync(start, end - start)

    def would_vanish(self, batch: Batch, default_us: int) -> bool:
        """Whether the bytes of the first row would all be zero (RustLog: offset 0, no value, no time). At the start of
        a log, every program takes them for unwritten space."""
        first = self._encode(batch.slice(0, 1), default_us)
        return kernel.is_zero(first.data, 0, len(first.data))

    def _near(self, batch: Batch) -> Batch:
        """The rows that may fit into the active segment, so that a batch for many segments is not encoded whole for
        each of them."""
        limits, room_bytes = self._fmt.capabilities, self._segment_bytes - self.active.cursor.position
        if not limits.segments or limits.rolls_when_full or batch.nbytes <= room_bytes:
            return batch
        return batch.slice(0, rows_within(batch, room_bytes) + 1)

    def _encode(self, batch: Batch, default_us: int) -> Encoded:
        if isinstance(batch, Values):
            return self._fmt.encode_values(batch, self.active.cursor, default_us)
        if isinstance(batch, EncodedRecords):
            assert isinstance(self._fmt, SupportsMoving)
            return self._fmt.move(batch, self.active.cursor, default_us)
        return self._fmt.encode(batch, self.active.cursor, default_us)

    def _fitting(self, encoded: Encoded, batch: Batch, default_us: int) -> tuple[Encoded, int]:
        """The encoded rows that fit into the active segment, and how many they are: all, some, or none."""
        limits, active, end = self._fmt.capabilities, self.active, encoded.rows.end
        most = self._segment_bytes
        fits = end.position <= most and end.last_offset - active.base <= limits.max_relative_offset
        if not limits.segments or (fits and active.rows < limits.max_segment_rows):
            return encoded, batch.num_rows
        if limits.rolls_when_full:
            return encoded, 0 if self.is_full else batch.num_rows
        positions = encoded.rows.columns.position
        ends = np.append(positions[1:], encoded.rows.end.position)
        count = int(np.searchsorted(ends, most, side="right"))
        relative = encoded.rows.columns.last_offsets - active.base
        count = min(count, int(np.searchsorted(relative, limits.max_relative_offset, side="right")))
        if count == len(ends):
            return encoded, batch.num_rows
        if count == 0 and not active.is_empty:
            return encoded, 0
        records = int(encoded.rows.columns.user_records[: max(count, 1)].sum())
        return self._encode(batch.slice(0, records), default_us), records

    @property
    def is_full(self) -> bool:
        """Whether the active segment has reached a limit of the format. An empty one has not, whatever it starts with:
        the next segment would have its name."""
        active, limits = self.active, self._fmt.capabilities
        reached = active.cursor.position >= self._segment_bytes or active.rows >= limits.max_segment_rows
        return reached and not active.is_empty

    def _expect_unsynced(self, size_bytes: int) -> None:
        """Before a write: store durably that the log is open, and a bound on what one unfinished write can span."""
        unsynced = self.active.cursor.position - self._durable.position
        if self._durable.position > self.active.cursor.position:
            unsynced = 0
        unsynced += size_bytes + (self._preallocate_bytes or FILL_BYTES)
        if unsynced > self._unsynced_bytes:
            self._unsynced_bytes = 2 * unsynced
            self._is_open_durable = False
        self._mark_open()

    def _mark_open(self) -> None:
        if not self._is_open_durable:
            self.mark(durable=True)

    def _undo(self, error: BaseException, *, is_written: bool) -> None:
        """Cut what a failed write left, or poison the writer if that is not possible."""
        if is_written or not isinstance(error, StorageError):
            self.poison(error)
            return
        try:
            self.active.cut_back()
        except StorageError as second:
            self.poison(second)

    # --- how far it is good

    @property
    def is_synced(self) -> bool:
        """Whether everything written is on the disk."""
        return self._durable == self.active.cursor

    def sync(self) -> None:
        """Sync everything written. `mark` publishes it."""
        began = time.perf_counter()
        try:
            is_proof_due = self._begin_proof()
            self.active.sync()
            if is_proof_due:
                self.sidecar.sync_proof()
        except BaseException as error:
            self.poison(error)
            raise
        self._counters.noted_syncs.append(time.perf_counter() - began)
        self._set_durable()
        if is_proof_due:
            self._proven = self._durable

    def _begin_proof(self) -> bool:
        """Store the digest of records without a checksum, for the device to write it together with them. Until both are
        synced, it proves what a crash kept, and nothing is acknowledged."""
        if self._fmt.capabilities.record_checksum or self._hidden is not None or self._proven == self.active.cursor:
            return False
        self.sidecar.begin_proof(self._mark(is_proof=True))
        return True

    def _set_durable(self) -> None:
        self._durable, self._durable_crc32c = self.active.cursor, self.active.crc32c

    def acknowledge(self, last_us: int) -> None:
        """Publish what was written, and how much of it is synced. ``last_us`` is its latest time."""
        self._is_midway = False
        self.last_us = max(self.last_us, last_us)
        self.mark()

    def commit(self, last_us: int, *, syncs: bool) -> bool:
        """Do what `sync` (if ``syncs``), a look at the places and `acknowledge` do, in one call of the record writer.
        False if that is left to the caller."""
        active, writer = self.active, self._record_writer(self._open_index)
        if writer is None or not writer.can_publish or self._hidden is not None or active.ends_in_doubt:
            return False
        try:
            is_proof_due = syncs and self._begin_proof()
            mark = self._mark(is_synced=syncs)
            failed = writer.publish(self.sidecar.offer(mark), syncs + is_proof_due)
            if failed == NOT_DONE and is_proof_due:
                self.sidecar.sync_proof()  # before the next one is stored
            if failed not in (0, NOT_DONE):
                is_proof = failed < 0
                path = sidecar_path(self._path, WATERMARK_NAME) if is_proof else active.path
                raise refusal(NOT_DONE - failed if is_proof else failed, path)
        except BaseException as error:
            self.poison(error)
            raise
        if failed == NOT_DONE:
            return False
        self.sidecar.accept()
        self._is_midway = False
        self.last_us = max(self.last_us, last_us)
        self._visible = mark
        if syncs:
            self._set_durable()
            self._proven = self._durable if is_proof_due else self._proven
        return True

    def mark(self, *, durable: bool = False, is_open: bool = True) -> None:
        """Move the watermark to the end of the log. It is synced if ``durable``, or if the bytes need it as their
        proof."""
        mark = self._mark(is_open=is_open)
        if self._is_midway:
            # The batch continues in another segment, which recovery must know; readers must not see half of it.
            mark = mark._replace(next_offset=self.visible.next_offset)
        if self._hidden is not None:
            self._hidden = mark
            return
        durable = durable or self._must_prove()
        try:
            self.sidecar.mark(mark, durable=durable)
        except BaseException as error:
            self.poison(error)
            raise
        if durable:
            self._is_open_durable, self._proven = is_open, self._durable
        if not self._is_midway:
            self._visible = mark

    def _mark(self, *, is_open: bool = True, is_proof: bool = False, is_synced: bool = False) -> Watermark:
        """The watermark at the end of the log; ``is_synced``: as if all of it were durable."""
        active = self.active
        position, previous_offset = active.cursor
        durable, crc32c = (active.cursor, active.crc32c) if is_synced else (self._durable, self._durable_crc32c)
        return Watermark(
            active.base, position, previous_offset + 1, durable.position, durable.previous_offset + 1,
            self._unsynced_bytes, active.crc32c, crc32c, is_open, self._has_digest, self._sealed_before is not None,
            is_proof,
        )  # fmt: skip

    def _must_prove(self) -> bool:
        """Whether the watermark must be synced before the append is acknowledged: the bytes do not prove themselves."""
        if not self.is_synced or self._proven == self._durable:
            return False
        return self.active.ends_in_doubt or not self._fmt.capabilities.record_checksum

    def patch(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        """Overwrite bytes of the active segment, by position, before anything is appended to it, and sync them. The
        watermark has no digest until that is done: a crash may leave the old bytes or the new ones."""
        active = self.active
        try:
            self._has_digest = False
            self.mark(durable=True)
            for position, piece in pieces:
                write_all(active.file, position, piece)
            active.sync()
            active.crc32c = kernel.crc32c(self._disk.map(active.path).data[: active.cursor.position])
            self._set_durable()
            self._has_digest = not self._fmt.capabilities.covers_all
            self.mark(durable=True)
        except BaseException as error:
            self.poison(error)
            raise

    # --- in a transaction

    def begin_hidden(self) -> None:
        """Hide from readers whatever is acknowledged from here on: the watermark stays where it is."""
        self._hidden = self.visible

    def sync_hidden(self) -> Watermark:
        """Sync the hidden records, and return the watermark that `publish` will store."""
        self.active.release()
        self.sync()
        self._unsynced_bytes = self.visible.unsynced_bytes  # all is synced: the earlier bound is enough again
        self.mark()
        assert self._hidden is not None
        return self._hidden

    def publish(self, *, is_open: bool) -> None:
        """Show the hidden records to readers. They are durable, so the watermark need not be, unless it names another
        segment than before."""
        self._hidden = None
        self.mark(durable=self.active.base != self.visible.base, is_open=is_open)

    # --- segments

    @property
    def earlier(self) -> list[SegmentSummary]:
        """The segments before the active one. Read on first use: most writers never need them."""
        if self._unread is not None:
            self.earlier = _summaries(*self._unread, self._known_ends(*self._unread))
        return self._summaries

    @earlier.setter
    def earlier(self, summaries: list[SegmentSummary]) -> None:
        self._unread, self._summaries = None, summaries
        is_same = bool(summaries) and summaries[-1].base_offset == self._sealed_before
        if self._sealed_before is not None and not is_same:  # it was removed
            self._sealed_before = None
            self.mark()

    def _known_ends(self, segments: list[SegmentFiles], active: int) -> Mapping[tuple[int, int], int]:
        """The last offset of segments by base and size, which only a manifest stores. The sealed list may be long: it
        is read only if the manifest does not list all segments."""
        if not self._fmt.capabilities.manifest:
            return {}
        known = manifest_ends(self._disk, self._path, self._fmt)
        earlier = {(files.base, files.segment.size_bytes) for files in segments if (files.base or 0) < active}
        if earlier <= known.keys():
            return known
        known = known | {(entry.base, entry.size_bytes): entry.last_offset for entry in self.sidecar.sealed().values()}
        if self._fmt.dialect == PROGRAM:  # its manifest lists no segments
            return known
        bases = {base for base, _ in known}  # one of another size is damaged: the manifest must go on to tell
        unknown = [files for files in segments if (files.base or 0) < active and files.base not in bases]
        return known | {(files.base or 0, files.segment.size_bytes): self._last_offset(files) for files in unknown}

    def _last_offset(self, files: SegmentFiles) -> int:
        """The last offset of a segment that no file lists: compaction may have removed the end of it. For a damaged one
        the largest offset."""
        data = self._disk.map(posixpath.join(self._path, files.segment.path)).data
        try:
            rows = self._fmt.open_segment(data, files.base).last_step()
        except CorruptionError:
            return MAX_OFFSET
        return rows.end.last_offset if rows.stop in (Stop.END, Stop.ZEROS) else MAX_OFFSET

    def _begin(self, base: int, previous: Segment | None) -> ActiveSegment:
        if base >= MAX_OFFSET:
            raise UsageError("no offset is left", path=self._path, hint="create a new log")
        created_ms = self._now_us() // 1000
        begun = self._fmt.begin_segment(base, created_ms, previous, _first_segment(self._disk, self._path, self._fmt))
        return self._filling(ActiveSegment.create(self._disk, self._path, self._fmt, begun, base, created_ms))

    def _filling(self, active: ActiveSegment) -> ActiveSegment:
        """The segment, set up to be filled with zeros after its records if configured."""
        wanted = self._preallocate_bytes
        if wanted:
            active.filling = Filling(wanted, self._segment_bytes)
        elif wanted is None and active.fmt.capabilities.cuts_zeros:
            active.filling = Filling(FILL_BYTES, self._segment_bytes, FILL_AFTER_COMMITS)
        return active

    @property
    def age_left_us(self) -> int | None:
        """How long until the active segment is too old; None if it is empty, or its age does not matter."""
        first = self.active.first_us
        if not self.max_age_us or first is None or self.active.is_empty:
            return None
        return first + self.max_age_us - self._now_us()

    def roll_if_old(self) -> None:
        left_us = self.age_left_us
        if left_us is not None and left_us <= 0:
            self.roll()

    def roll(self) -> None:
        """Seal the active segment, then create the next: at most one segment is unsealed at any time."""
        try:
            self.sidecar.check(closely=True)
            self._mark_open()
            old = self.active
            sealed = old.seal(self._now_us() // 1000)
            self.earlier.append(old.summary())
            self.sidecar.add_sealed(sealed)
            self._sealed_before = sealed.base
            base = old.cursor.previous_offset + 1
            previous = self._fmt.open_segment(self._disk.map(old.path).data, old.base)
            self.active = self._begin(base, previous)
            self._write_state(previous, base)
            old.close()
            self._set_durable()
            self.mark(durable=True)
            self._write_manifest()
        except BaseException as error:
            self.poison(error)
            raise
        self._counters.rolls += 1
        self._on_roll()

    def _write_state(self, previous: Segment, base: int) -> None:
        """Write the derived state of the log up to the segment that starts at ``base``."""
        if not isinstance(self._fmt, SupportsStateFiles):
            return
        is_first = len(self.earlier) == 1
        for name, content in self._fmt.state_after(previous, base, self._file, is_first=is_first).items():
            target = posixpath.join(self._path, name)
            replace_file(self._disk, target, content, temporary=self._fmt.temporary_path(target))

    def _file(self, name: str) -> memoryview | None:
        path = posixpath.join(self._path, name)
        return self._disk.map(path).data if self._disk.kind(path) == Kind.FILE else None

    def log_files(self, earlier: Sequence[SegmentSummary]) -> dict[str, bytes]:
        """The files that describe the whole log (a manifest), with these segments before the active one."""
        if not isinstance(self._fmt, SupportsManifest):
            return {}
        existing = described_by(self._disk, self._path, self._fmt)
        return self._fmt.log_files([*earlier, self.active.summary()], self._created_ms, existing)

    def _write_manifest(self, *, durable: bool = True) -> None:
        """Write the files that describe the log, where they differ; without ``durable``, a power loss may leave the
        old ones."""
        disk, path = self._disk, self._path
        for name, content in self.log_files(self.earlier).items():
            target = posixpath.join(path, name)
            held = disk.map(target).data if disk.kind(target) == Kind.FILE else memoryview(b"")
            if held == content:
                continue
            if self._is_contradicted(name, held):
                self.sidecar.quarantine(name, held)
            temporary = posixpath.join(path, self._fmt.temporary_path(name))
            if disk.kind(posixpath.dirname(temporary)) == Kind.MISSING:
                disk.make_directory(posixpath.dirname(temporary))
            if durable:
                replace_file(disk, target, content, temporary=temporary)
            else:
                create_file(disk, temporary, content)
                disk.replace(temporary, target)

    def _is_contradicted(self, name: str, held: memoryview) -> bool:
        """Whether a file that describes the log is damaged, or contradicts the segments. An outdated one does not."""
        known = self._fmt.classify(name)
        if not held or known is None:
            return False
        problems = list(self._fmt.check_file(known.role, held, known))
        if isinstance(self._fmt, SupportsManifest):
            summaries = [*self.earlier, self.active.summary()]
            problems += [found for _, found in self._fmt.check_log({name: held}, summaries)]
        return any(problem.severity != Severity.NOTE for problem in problems)

    # --- the end

    def finish(self) -> None:
        """Sync everything, write the derived files, and mark the log as closed."""
        is_cut = self.active.release()
        if is_cut or not self.is_synced:
            self.sync()
        self.active.complete_index()
        self._write_manifest(durable=False)
        if self.visible.is_open:
            self.mark(durable=self._is_open_durable, is_open=False)
        active = self.active
        closing = CleanClose(
            self.visible,
            active.rows,
            active.records,
            active.index.progress,
            active.first_us,
            self.last_us,
            settings_of(self._fmt),
            {},
        )
        write_clean_close(
            self._disk, self._path, closing, [*active.names, *described_by(self._disk, self._path, self._fmt)]
        )

    def close(self) -> None:
        """Close the files as they are, once no thread writes to them."""
        if self.writer is not None:
            self.writer.stop()
        self.disarm_for_good()
        self.active.close()


def _segment_bytes(fmt: Format) -> int:
    """The size at which a segment is sealed."""
    wanted = int(fmt.options.get("segment_max_bytes", fmt.default_segment_bytes or 2**62))
    return min(wanted, fmt.capabilities.max_segment_bytes)


def _max_age_us(fmt: Format) -> int:
    """How long after its first record a segment is sealed; 0 for never."""
    age_ms = fmt.options.get("segment_max_age_ms", fmt.default_segment_age_ms) if fmt.capabilities.segments else 0
    return int(age_ms or 0) * 1000


def _first_segment(disk: Disk, path: str, fmt: Format) -> Segment | None:
    """The log's first segment, for a format whose tracking forgets what lies before it."""
    if not fmt.capabilities.tracking:
        return None
    listed = list_log(disk, path, fmt)
    try:
        return fmt.open_segment(disk.map(listed.full(listed.segments[0].segment.path)).data, listed.segments[0].base)
    except (IndexError, CorruptionError):
        return None


def _summaries(segments: list[SegmentFiles], active: int, known: Mapping[tuple[int, int], int]) -> list[SegmentSummary]:
    """The segments before the active one, from their names and sizes. A segment ends where the next one starts, unless
    ``known`` (by base and size) says that it ends earlier."""
    earlier = [files for files in segments if files.base is not None and files.base < active]
    bases = [files.base or 0 for files in earlier] + [active]
    return [
        SegmentSummary(
            bases[number],
            min(known.get((bases[number], files.segment.size_bytes), MAX_OFFSET), bases[number + 1] - 1),
            files.segment.size_bytes,
            sum(file.size_bytes for role, file in files.derived.items() if role == "index"),
        )
        for number, files in enumerate(earlier)
    ]  # fmt: skip
