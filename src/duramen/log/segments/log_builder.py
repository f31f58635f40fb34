"""Builds a new log from Arrow batches with offsets: for conversion, copies and compaction.

1. A `SegmentBuilder`, in any process, writes a segment and its derived files.
2. `LogBuilder.finish` adds the manifest and the sidecar, with digests and a closed watermark.
3. `LogBuilder.publish` syncs everything and renames the directory.

Until then all files are in ``PATH.duramen-building``, which is locked while the build runs; the next build empties what
a killed one left. A crash never leaves half a log at the path, and a path that exists is refused. The files depend on
the records alone, not on how they were batched.
"""

from __future__ import annotations

import contextlib
import posixpath
import time
from collections.abc import Mapping
from dataclasses import dataclass
from traceback import clear_frames
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from duramen import kernel
from duramen.disk import Disk, Kind, PosixDisk
from duramen.errors import DuramenError, LockedError, StorageError, UsageError
from duramen.formats import (
    Buffer,
    Encoded,
    Format,
    Role,
    Rows,
    ScanPosition,
    Segment,
    SegmentSummary,
    SupportsManifest,
    SupportsStateFiles,
)
from duramen.kernel import ScanEnd, Stop
from duramen.log.segments.active_segment import ActiveSegment
from duramen.sidecar import DIRECTORY, LOCK_NAME, Config, Sealed, Sidecar, Watermark, create_file

BUILDING = ".duramen-building"
"""Suffix of the directory of a log that is being built."""
_LOCK = posixpath.join(DIRECTORY, LOCK_NAME)


@dataclass(frozen=True)
class BuiltSegment:
    """A finished segment, as the rest of the log needs to know it. Can be pickled.

    ``sealed.last_offset`` is ``base - 1`` for an empty one. ``paths`` are its files, relative to its directory."""

    sealed: Sealed
    records: int
    index_bytes: int
    paths: tuple[str, ...]

    @property
    def base(self) -> int:
        return self.sealed.base

    @property
    def last_offset(self) -> int:
        return self.sealed.last_offset

    @property
    def size_bytes(self) -> int:
        return self.sealed.size_bytes

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def summary(self) -> SegmentSummary:
        return SegmentSummary(self.base, self.last_offset, self.size_bytes, self.index_bytes)


class SegmentBuilder:
    """Writes one segment: `add` the batches, then `finish`, or `close` after an error.

    The batches have an increasing column ``offset``, with gaps if the format can store them; rows without a time get
    ``default_us``. ``begun`` replaces the header that the format would write. Files of an earlier attempt are
    replaced. ``active`` is an existing segment to continue."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        fmt: Format,
        base: int,
        *,
        created_ms: int = 0,
        max_bytes: int | None = None,
        begun: Encoded | None = None,
        default_us: int = 0,
        active: ActiveSegment | None = None,
    ) -> None:
        self._disk = disk
        self._root = root
        self._fmt = fmt
        limits = fmt.capabilities
        self._max_bytes = min(limits.max_segment_bytes, 2**62 if max_bytes is None else max_bytes)
        self._default_us = default_us
        self._held: pa.RecordBatch | None = None
        """The rows of the last chunk, which the next batch may continue."""
        if active is None:
            path = posixpath.join(root, fmt.segment_path(base))
            if disk.kind(path) == Kind.FILE:
                disk.remove(path)
            if begun is None:
                begun = fmt.begin_segment(base, created_ms, None)
            active = ActiveSegment.create(disk, root, fmt, begun, base, created_ms)
        self._active = active

    @property
    def base(self) -> int:
        return self._active.base

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add the rows that fit, and return the others, which belong to the next segment."""
        if not batch.num_rows:
            return batch
        rows = batch if self._held is None else _joined(self._held, batch)
        self._held = None
        encoded = self._fmt.encode(rows, self._active.cursor, self._default_us)
        fitting = self._fitting(encoded)
        is_full = fitting < len(encoded.rows.columns)
        if self._fmt.capabilities.chunks and not is_full:
            fitting -= 1
        head, count = _head(encoded, fitting, self._active.cursor, rows.num_rows)
        self._write(head)
        rest = rows.slice(count)
        if is_full:
            return rest
        self._held = rest if rest.num_rows else None
        return rest.slice(rest.num_rows)

    def put(self, encoded: Encoded) -> None:
        """Append bytes that were encoded for the end of this segment."""
        self._flush()
        self._write(encoded)

    @property
    def cursor(self) -> ScanPosition:
        """The end of the segment, with all rows that were added."""
        self._flush()
        return self._active.cursor

    def finish(self) -> BuiltSegment:
        """Sync the segment and its derived files, and describe them."""
        self._flush()
        active = self._active
        sealed, summary = active.seal(time.time_ns() // 1_000_000), active.summary()
        active.close()
        paths = [self._fmt.segment_path(active.base)]
        paths += [self._fmt.path_of(role, active.base) for role in (Role.INDEX, Role.TIME_INDEX) if self._has(role)]
        return BuiltSegment(sealed, active.records, summary.index_bytes, tuple(paths))

    def close(self) -> None:
        self._active.close()

    def _has(self, role: Role) -> bool:
        return role in self._fmt.index_builder(self.base, 0).headers()

    def _flush(self) -> None:
        """Write the last chunk, which is complete now."""
        if self._held is not None:
            held, self._held = self._held, None
            self._write(self._fmt.encode(held, self._active.cursor, self._default_us))

    def _write(self, encoded: Encoded) -> None:
        if not len(encoded.data):
            return
        if not self._active.cursor.position:
            refuse_zeros(self._fmt, encoded)
        self._active.write(encoded)

    def _fitting(self, encoded: Encoded) -> int:
        """How many of the encoded rows (records or chunks) fit into this segment; at least one if it is empty."""
        limits, active, columns = self._fmt.capabilities, self._active, encoded.rows.columns
        if not limits.segments:
            return len(columns)
        if limits.rolls_when_full:
            over = columns.position >= self._max_bytes
            over |= np.arange(active.rows, active.rows + len(columns)) >= limits.max_segment_rows
            over &= ~columns.fillers  # otherwise the next segment would start after a gap, as if one had been lost
        else:
            over = np.append(columns.position[1:], encoded.rows.end.position) > self._max_bytes
            over |= columns.last_offsets - active.base > limits.max_relative_offset
        if active.is_empty:
            over[:1] = False
        return int(over.argmax()) if over.any() else len(columns)


class LogBuilder:
    """A log that is being built. A context manager: it removes a log that was not published.

    >>> import tempfile, pyarrow as pa
    >>> from duramen.formats import make
    >>> path = tempfile.mkdtemp() + "/new"
    >>> with LogBuilder(path, make("durable-log")) as log:
    ...     batch = pa.RecordBatch.from_pydict({"offset": [5, 7], "value": [b"a", b"b"]})
    ...     segment = SegmentBuilder(log.disk, log.root, log.fmt, 5)
    ...     rest = segment.add(batch)  # what does not fit into the segment
    ...     log.add(segment.finish())
    ...     log.finish()
    ...     log.publish()
    >>> import duramen
    >>> duramen.open(path).read(7).value
    b'b'
    """

    def __init__(self, path: str, fmt: Format, *, disk: Disk | None = None, created_ms: int = 0) -> None:
        fmt.check_creation()
        self.path = posixpath.normpath(path)
        self.root = self.path + BUILDING
        """The directory of the files until the log is published."""
        # The dialect is stated, not guessed from the bytes.
        self.fmt = fmt.continuing(fmt.open_segment(b"", 0))
        self.disk: Disk = disk if disk is not None else PosixDisk()
        self.segments: list[BuiltSegment] = []
        self._created_ms = created_ms
        self.described_by: Mapping[str, Buffer] = {}
        """The manifest of the log that this one is a copy of; the new one keeps its layout."""
        self._sidecar = Sidecar(self.disk, self.root)
        self._published = False
        refuse_taken(self.disk, self.path)

    def __enter__(self) -> Self:
        try:
            self._sidecar.lock()
            empty(self.disk, self.root, but=_LOCK)
        except LockedError as error:
            if error.is_foreign:
                raise
            raise LockedError(
                "another process is building a log here", note=error.note, path=self.path, hint="wait until it is done"
            ) from None
        except BaseException as error:
            clear_frames(error.__traceback__)  # an interrupted call may hold a lock that it took and did not return
            self._give_up()
            raise
        return self

    def _give_up(self) -> None:
        """Remove the directory of a build that failed to start, if no other process has locked it."""
        with contextlib.suppress(DuramenError):
            self._sidecar.release()
            self._sidecar.lock()
            self.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock, and remove a log that was not published."""
        try:
            if not self._published and self.disk.kind(self.root) == Kind.DIRECTORY:
                empty(self.disk, self.root, but=_LOCK)
        finally:
            self._sidecar.release()
        if not self._published:
            remove_tree(self.disk, self.root)

    # --- content

    def segment(self, base: int, **options: Any) -> SegmentBuilder:
        """Start a segment in this log. The caller passes the result of its `finish` to `add`."""
        return SegmentBuilder(self.disk, self.root, self.fmt, base, **options)

    def add(self, built: BuiltSegment) -> None:
        """Add a segment whose files are in ``root``. Segments must be added in the order of their offsets."""
        if self.segments and built.base < self.segments[-1].next_offset:
            raise UsageError("segments must come in the order of their offsets", path=self.path, offset=built.base)
        self.segments.append(built)

    def adopt(self, built: BuiltSegment, directory: str) -> None:
        """Add a segment that was built in another directory of the same file system: moves its files."""
        for path in built.paths:
            target = posixpath.join(self.root, path)
            self._make_directory(posixpath.dirname(target))
            self.disk.replace(posixpath.join(directory, path), target)
        self.add(built)

    def put_file(self, path: str, content: bytes | memoryview) -> None:
        """Write and sync a file that is not a segment."""
        target = posixpath.join(self.root, path)
        self._make_directory(posixpath.dirname(target))
        create_file(self.disk, target, content)

    def _make_directory(self, path: str) -> None:
        if self.disk.kind(path) == Kind.MISSING:
            self.disk.make_directory(path)

    # --- the end

    def finish(self) -> None:
        """Write the manifest and the sidecar. The last segment becomes the active one."""
        if not self.segments:
            builder = self.segment(0, created_ms=self._created_ms)
            self.segments.append(builder.finish())
        last = self.segments[-1]
        summaries = [built.summary for built in self.segments]
        if isinstance(self.fmt, SupportsManifest):
            self._put_files(self.fmt.log_files(summaries, self._created_ms, self.described_by))
        if isinstance(self.fmt, SupportsStateFiles):
            self._put_files(self.fmt.build_state([self._opened(built.base) for built in self.segments], self._state()))
        self._sidecar.write_config(Config(self.fmt.name, self.fmt.stored_options, self._created_ms))
        for built in self.segments[:-1]:
            self._sidecar.add_sealed(built.sealed)
        end = (last.size_bytes, last.next_offset)
        digests = (last.sealed.crc32c, last.sealed.crc32c)
        self._sidecar.mark(Watermark(last.base, *end, *end, 0, *digests, is_open=False, has_digest=True), durable=True)

    def _put_files(self, files: Mapping[str, bytes]) -> None:
        for path, content in files.items():
            target = posixpath.join(self.root, path)
            if self.disk.kind(target) == Kind.FILE:
                self.disk.remove(target)
            self.put_file(path, content)

    def _state(self) -> dict[str, memoryview]:
        """The files in ``root`` that describe the state of the whole log."""
        assert isinstance(self.fmt, SupportsStateFiles)
        names = ((path, self.fmt.classify(path)) for path, _ in self.disk.list(self.root))
        paths = [path for path, name in names if name is not None and name.role in self.fmt.state_roles]
        return {path: self.disk.map(posixpath.join(self.root, path)).data for path in paths}

    def _opened(self, base: int) -> Segment:
        path = posixpath.join(self.root, self.fmt.segment_path(base))
        return self.fmt.open_segment(self.disk.map(path).data, base)

    def publish(self) -> None:
        """Sync the finished log and rename it to its path, durably."""
        sync_tree(self.disk, self.root)
        self._sidecar.check(closely=True)
        refuse_taken(self.disk, self.path)
        self.disk.replace(self.root, self.path)
        self._published = True
        self.disk.sync_directory(parent_of(self.path))


# --- directories


def parent_of(path: str) -> str:
    return posixpath.dirname(posixpath.normpath(path)) or "."


def refuse_taken(disk: Disk, path: str, *, nested: bool = False) -> None:
    """Raise unless a new log can be created at ``path``. ``nested``: its parent may be missing still."""
    if disk.kind(path) != Kind.MISSING:
        raise UsageError(
            "this exists already", path=path, hint="choose a path that does not exist; nothing is overwritten"
        )
    if not nested and disk.kind(parent_of(path)) != Kind.DIRECTORY:
        raise StorageError("no such directory", path=parent_of(path), hint="create it first")


def sync_tree(disk: Disk, root: str) -> None:
    """Sync every directory below ``root``, and ``root`` itself."""
    for name in disk.directories(root):
        sync_tree(disk, posixpath.join(root, name))
    disk.sync_directory(root)


def empty(disk: Disk, root: str, *, but: str) -> None:
    """Remove everything below ``root`` except one file."""
    for name, _ in disk.list(root):
        if name != but:
            disk.remove(posixpath.join(root, name))
    for name in disk.directories(root):
        inside = posixpath.join(root, name)
        if but.startswith(name + "/"):
            empty(disk, inside, but=but.removeprefix(name + "/"))
        else:
            remove_tree(disk, inside)


def remove_tree(disk: Disk, root: str) -> None:
    """Remove a directory and everything in it. Does nothing if it does not exist."""
    if disk.kind(root) != Kind.DIRECTORY:
        return
    for name in disk.directories(root):
        remove_tree(disk, posixpath.join(root, name))
    for name, _ in disk.list(root):
        disk.remove(posixpath.join(root, name))
    disk.remove_directory(root)


# --- encoded rows


def refuse_zeros(fmt: Format, encoded: Encoded) -> None:
    """Raise `UsageError` for a first record of nothing but zeros (RustLog: offset 0, no value, time 0): every program
    reads it as unwritten space."""
    positions = encoded.rows.columns.position
    end = int(positions[1]) if len(positions) > 1 else len(encoded.data)
    if len(positions) and kernel.is_zero(encoded.data, 0, end):
        raise UsageError(f"the first record of a {fmt.name} log cannot be empty: its bytes would all be zero")


def _head(encoded: Encoded, kept: int, cursor: ScanPosition, records: int) -> tuple[Encoded, int]:
    """The first ``kept`` rows of what was encoded for ``cursor``, and how many of the ``records`` they hold."""
    rows = encoded.rows
    if kept == len(rows.columns):
        return encoded, records
    columns = rows.columns.head(kept)
    position = int(rows.columns.position[kept])
    last = int(columns.last_offsets[-1]) if kept else cursor.previous_offset
    count = int(columns.user_records.sum())
    end = ScanEnd(kept, position, int(Stop.END), last)
    return Encoded(encoded.data[: position - cursor.position], Rows(columns, count, end)), count


def _joined(first: pa.RecordBatch, second: pa.RecordBatch) -> pa.RecordBatch:
    table = pa.Table.from_batches([first, second.select(first.schema.names).cast(first.schema)])
    return table.combine_chunks().to_batches()[0]
