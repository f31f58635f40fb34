"""The end of a log that is being written: the active segment, how far it is on the disk, and the watermark.

Takes batches, gives their records offsets, writes them over as many segments as it takes, syncs, and moves the
watermark that readers and recovery go by. One thread at a time uses it.

A failure leaves everything as it was, or it poisons: then nobody knows what is on the disk, nothing may be acknowledged
any more, and opening the log again runs recovery. To hold to that is up to the caller. Nothing here knows of queues and
requests, of producers, or of what becomes of sealed segments.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from duramen import kernel
from duramen.disk import Disk
from duramen.disk.base import Kind
from duramen.errors import CorruptionError, StorageError, UsageError
from duramen.formats import Format
from duramen.formats.base import Cursor, Encoded, Role, Segment, SegmentSummary
from duramen.formats.values import Values
from duramen.log.active import FILL_AFTER_COMMITS, FILL_BYTES, ActiveSegment, Filling
from duramen.log.directory import SegmentFiles, list_log
from duramen.log.evidence import manifest_ends
from duramen.log.intake import Batch, rows_within
from duramen.log.recovery import Recovered
from duramen.log.report import counted
from duramen.log.sidecar import Sidecar, Watermark, replace_file
from duramen.metrics import LogCounters
from duramen.model import MAX_OFFSET

Announce = Callable[[Encoded, Batch, int, Sequence[int]], Encoded]
"""Told of a piece of a batch before it is written: its bytes, its rows, which row of the batch is its first, and their
offsets. Answers the bytes that are to be written."""


class Tail:
    """Where a log goes on, from what recovery found."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        sidecar: Sidecar,
        recovered: Recovered,
        *,
        created_ms: int,
        preallocate_bytes: int | None,
        group_bytes: int,
        now_us: Callable[[], int],
        counters: LogCounters,
        on_roll: Callable[[], None],
    ) -> None:
        """``created_ms`` is the log's; ``group_bytes`` what one write usually has at most; ``on_roll`` is called
        whenever a segment was sealed."""
        self._disk = disk
        self._path = path
        self._fmt = fmt = recovered.fmt
        self._created_ms = created_ms
        self._preallocate_bytes = preallocate_bytes
        self._now_us = now_us
        self._counters = counters
        self._on_roll = on_roll
        self.sidecar = sidecar
        self.poisoned_by: BaseException | None = None
        """Why nothing is known any more of what is on the disk."""
        self.last_us = recovered.last_us
        """The latest time of a record: where the format has them in order, the next ones are not before it."""
        self.visible: Watermark
        """What is acknowledged, and readers may see."""
        self._is_midway = False
        """Whether a part of a batch is written, and none of it acknowledged."""
        self._held: Watermark | None = None
        """Between `hold` and `show_held`: the watermark that readers will learn of then."""
        self._unread: tuple[list[SegmentFiles], int] | None = (
            recovered.segments,
            recovered.next_offset if recovered.active is None else recovered.active.base,
        )
        self._segment_bytes = min(
            int(fmt.options.get("segment_max_bytes", fmt.default_segment_bytes or 2**62)),
            fmt.capabilities.max_segment_bytes,
        )
        if recovered.active is not None:
            self.active = self._filling(recovered.active)
        else:
            self.active = self._begin(recovered.next_offset, recovered.previous)
        self._set_durable()
        self._unsynced_bytes = 2 * max(group_bytes, preallocate_bytes or FILL_BYTES)
        self.mark(durable=True)
        if not (recovered.is_as_closed and self._manifest_fits(recovered)):
            self._write_manifest()

    def _manifest_fits(self, recovered: Recovered) -> bool:
        names = [file.path for file in recovered.others if file.name.role == Role.MANIFEST]
        files = {name: self._disk.map(posixpath.join(self._path, name)).data for name in names}
        sealed_count = len(recovered.segments) - 1
        return self._fmt.log_files_fit(files, sealed_count, self.active.summary(), self._created_ms)

    def poison(self, error: BaseException) -> None:
        """Nobody knows any more what is on the disk. The first reason stays."""
        self.poisoned_by = self.poisoned_by or error

    # --- writing

    @property
    def cursor(self) -> Cursor:
        """Where the next record goes."""
        return self.active.cursor

    def write(
        self, batch: Batch, default_us: int, *, is_synced_next: bool, announce: Announce | None = None
    ) -> tuple[list[tuple[int, int]], int]:
        """Write the batch, over as many segments as it takes; ``default_us`` is the time of rows that have none.
        Answers the first row that went into each segment, with its offset (those of the rows behind it follow one
        another), and how many bytes were written. Nobody sees them before `acknowledge`."""
        left = MAX_OFFSET - 1 - self.cursor.previous_offset
        if batch.num_rows > left:  # the offset that comes next has to be a number of 63 bits, too
            raise UsageError(
                f"no offset is left for {counted(batch.num_rows, 'record')}: the log can take {left} more",
                path=self._path, hint="begin a new log",
            )  # fmt: skip
        pieces: list[tuple[int, int]] = []
        size_bytes = done = 0
        try:
            self._roll_if_old()
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
            if self._is_midway:  # what is written already cannot be taken back
                self.poison(error)
            raise
        return pieces, size_bytes

    def put(self, encoded: Encoded, *, is_synced_next: bool = False, can_undo: bool = True) -> None:
        """Write what was encoded for `cursor`. If that fails it was not tried, or it poisons."""
        active, cursor = self.active, self.active.cursor
        self._expect_unsynced(len(encoded.data))
        try:
            active.write(encoded, is_synced_next=is_synced_next)
        except BaseException as error:
            # Behind another segment, or with its index alone missing: this cannot be taken back.
            self._undo(error, is_written=not can_undo or active.cursor != cursor)
            raise
        if active.first_us is None:
            active.first_us = self._now_us()

    def would_vanish(self, batch: Batch, default_us: int) -> bool:
        """Whether the bytes of the first row would all be zero (RustLog: offset 0, no value, no time). At the start of
        a log that reads as space that was never written, in every program."""
        first = self._encode(batch.slice(0, 1), default_us)
        return kernel.is_zero(first.data, 0, len(first.data))

    def _near(self, batch: Batch) -> Batch:
        """The rows that the active segment may have room for. Of a batch that goes over many segments each would else
        encode all the rest in vain."""
        limits, room_bytes = self._fmt.capabilities, self._segment_bytes - self.active.cursor.position
        if not limits.segments or limits.rolls_when_full or batch.nbytes <= room_bytes:
            return batch
        return batch.slice(0, rows_within(batch, room_bytes) + 1)

    def _encode(self, batch: Batch, default_us: int) -> Encoded:
        if isinstance(batch, Values):
            return self._fmt.encode_values(batch, self.active.cursor, default_us)
        return self._fmt.encode(batch, self.active.cursor, default_us)

    def _fitting(self, encoded: Encoded, batch: Batch, default_us: int) -> tuple[Encoded, int]:
        """The part of the rows that goes into the active segment: all, some, or none."""
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
        count = max(count, 1)
        return self._encode(batch.slice(0, count), default_us), count

    @property
    def is_full(self) -> bool:
        """Whether the active segment has what a segment may have, for a format that then begins another. One without a
        record is not, whatever it begins with: the next would have its name."""
        active, limits = self.active, self._fmt.capabilities
        reached = active.cursor.position >= self._segment_bytes or active.rows >= limits.max_segment_rows
        return reached and not active.is_empty

    def _expect_unsynced(self, size_bytes: int) -> None:
        """Recovery must know, whatever happens, how much one unfinished write can span."""
        unsynced = self.active.cursor.position - self._durable.position
        if self._durable.position > self.active.cursor.position:
            unsynced = 0
        unsynced += size_bytes + (self._preallocate_bytes or FILL_BYTES)
        if unsynced > self._unsynced_bytes:
            self._unsynced_bytes = 2 * unsynced
            self.mark(durable=True)

    def _undo(self, error: BaseException, *, is_written: bool) -> None:
        """After a write that failed: as if it had not been tried, or poisoned if even that fails."""
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
        """Bring everything written to the disk; `mark` says so."""
        began = time.perf_counter()
        try:
            self.active.sync()
        except BaseException as error:
            self.poison(error)
            raise
        self._counters.sync_seconds.observe(time.perf_counter() - began)
        self._set_durable()

    def _set_durable(self) -> None:
        self._durable, self._durable_crc32c = self.active.cursor, self.active.crc32c

    def acknowledge(self, last_us: int) -> None:
        """Show readers what was written, and recovery how much of it is synced. ``last_us``: its latest time."""
        self._is_midway = False
        self.last_us = max(self.last_us, last_us)
        self.mark()

    def mark(self, *, durable: bool = False, is_open: bool = True) -> None:
        """Move the watermark to where the log is now. It is on the disk when this returns if ``durable``, or if the
        bytes need it as their proof."""
        active = self.active
        mark = Watermark(
            active.base, active.cursor.position, active.cursor.previous_offset + 1,
            self._durable.position, self._durable.previous_offset + 1, self._unsynced_bytes,
            active.crc32c, self._durable_crc32c, is_open,
        )  # fmt: skip
        if self._is_midway:
            # A batch goes on in another segment. Recovery must know of it; readers must not see half of the batch.
            mark = mark._replace(next_offset=self.visible.next_offset)
        if self._held is not None:
            self._held = mark
            return
        try:
            self.sidecar.mark(mark, durable=durable or self._must_prove())
        except BaseException as error:
            self.poison(error)
            raise
        if not self._is_midway:
            self.visible = mark

    def _must_prove(self) -> bool:
        """Whether the watermark itself has to be on the disk before an answer: the bytes do not prove themselves."""
        return self.is_synced and (self.active.ends_in_doubt or not self._fmt.capabilities.record_checksum)

    # --- in a transaction

    def hold(self) -> None:
        """Leave the watermark where it is, whatever is acknowledged from here on."""
        self._held = self.visible

    def sync_held(self) -> Watermark:
        """Bring what came since `hold` to the disk, and answer where the watermark would be."""
        self.sync()
        self._unsynced_bytes = self.visible.unsynced_bytes  # all is synced: no more is needed than before
        self.mark()
        assert self._held is not None
        return self._held

    def show_held(self) -> None:
        """Move the watermark there."""
        self._held = None
        self.mark(durable=True)

    # --- segments

    @property
    def earlier(self) -> list[SegmentSummary]:
        """The segments before the active one. Most openings do without."""
        if self._unread is not None:
            self.earlier = _summaries(*self._unread, self._known_ends(*self._unread))
        return self._summaries

    @earlier.setter
    def earlier(self, summaries: list[SegmentSummary]) -> None:
        self._unread, self._summaries = None, summaries

    def _known_ends(self, segments: list[SegmentFiles], active: int) -> Mapping[tuple[int, int], int]:
        """Where segments end, by base and size: only a manifest has to say it. The sidecar's list may be long: it is
        read where the manifest that is there does not know them all."""
        if not self._fmt.capabilities.manifest:
            return {}
        known = manifest_ends(self._disk, self._path, self._fmt)
        earlier = {(files.base, files.segment.size_bytes) for files in segments if (files.base or 0) < active}
        if earlier <= known.keys():
            return known
        return known | {(entry.base, entry.size_bytes): entry.last_offset for entry in self.sidecar.sealed().values()}

    def _begin(self, base: int, previous: Segment | None) -> ActiveSegment:
        if base >= MAX_OFFSET:
            raise UsageError("no offset is left", path=self._path, hint="begin a new log")
        created_ms = self._now_us() // 1000
        begun = self._fmt.begin_segment(base, created_ms, previous, _first_segment(self._disk, self._path, self._fmt))
        return self._filling(ActiveSegment.create(self._disk, self._path, self._fmt, begun, base, created_ms))

    def _filling(self, active: ActiveSegment) -> ActiveSegment:
        """The segment, which gets zeros behind its records if that is wanted."""
        wanted = self._preallocate_bytes
        if wanted:
            active.filling = Filling(wanted, self._segment_bytes)
        elif wanted is None and active.fmt.capabilities.cuts_zeros:
            active.filling = Filling(FILL_BYTES, self._segment_bytes, FILL_AFTER_COMMITS)
        return active

    def _roll_if_old(self) -> None:
        age_ms = self._fmt.options.get("segment_max_age_ms", self._fmt.default_segment_age_ms)
        first = self.active.first_us
        if not age_ms or first is None or self.active.is_empty or not self._fmt.capabilities.segments:
            return
        if self._now_us() - first >= int(age_ms) * 1000:
            self.roll()

    def roll(self) -> None:
        """Seal the active segment, then begin the next: at no moment is there more than one that is not sealed."""
        try:
            old = self.active
            sealed = old.seal()
            self.earlier.append(old.summary())
            self.sidecar.add_sealed(sealed)
            base = old.cursor.previous_offset + 1
            previous = self._fmt.open_segment(self._disk.map(old.path).data, old.base)
            self.active = self._begin(base, previous)
            old.close()
            self._set_durable()
            self.mark(durable=True)
            self._write_manifest()
        except BaseException as error:
            self.poison(error)
            raise
        self._counters.rolls += 1
        self._on_roll()

    def log_files(self, earlier: Sequence[SegmentSummary]) -> dict[str, bytes]:
        """The files that describe the whole log, with these segments before the active one."""
        return self._fmt.log_files([*earlier, self.active.summary()], self._created_ms)

    def _write_manifest(self) -> None:
        if not self._fmt.capabilities.manifest:
            return
        disk, path = self._disk, self._path
        for name, content in self.log_files(self.earlier).items():
            target = posixpath.join(path, name)
            if disk.kind(target) == Kind.FILE and bytes(disk.map(target).data) == content:
                continue
            temporary = posixpath.join(path, self._fmt.temporary_path(name))
            if disk.kind(posixpath.dirname(temporary)) == Kind.MISSING:
                disk.make_directory(posixpath.dirname(temporary))
            replace_file(disk, target, content, temporary=temporary)

    # --- the end

    def finish(self) -> None:
        """Bring everything to the disk, write the derived files, and say that the log was closed."""
        self.active.release()
        self.sync()
        self.active.flush_index()
        self._write_manifest()
        self.mark(durable=True, is_open=False)

    def close(self) -> None:
        """Close the files as they are."""
        self.active.close()


def _first_segment(disk: Disk, path: str, fmt: Format) -> Segment | None:
    """The log's first segment, for a format that forgets what lies before it."""
    if not fmt.capabilities.tracking:
        return None
    listed = list_log(disk, path, fmt)
    try:
        return fmt.open_segment(disk.map(listed.full(listed.segments[0].segment.path)).data, listed.segments[0].base)
    except (IndexError, CorruptionError):
        return None


def _summaries(segments: list[SegmentFiles], active: int, known: Mapping[tuple[int, int], int]) -> list[SegmentSummary]:
    """What is known of the segments before the active one, from their names and sizes. Offsets may be missing before
    the next one: where a segment of that base and size is ``known`` to end, it does."""
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
