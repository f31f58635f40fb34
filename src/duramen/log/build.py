"""Building a whole new log from Arrow batches that carry their offsets: for conversion, copies and compaction.

Three steps. A `SegmentBuilder` (or `build_segment`, which any process can call for one segment) writes a segment and
its derived files through the disk. `LogBuilder.finish` adds what describes the whole log: the manifest and the sidecar,
with digests and a closed watermark. `LogBuilder.publish` gives the directory its name.

Until then everything lies in ``PATH.duramen-building``, beside the log that is to be: locked while a build is alive,
so that what a killed one left is known for it, and emptied by the next. All of it is synced before one rename makes
the log; there is never half a log at its path. Refuses a path that is taken.

What is written depends on the records alone, never on how they were batched.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from duramen import kernel
from duramen.disk import Disk, PosixDisk
from duramen.disk.base import Kind, write_all
from duramen.errors import DuramenError, LockedError, StorageError, UsageError
from duramen.formats import Format
from duramen.formats.base import Cursor, Encoded, Role, Rows, SegmentSummary
from duramen.kernel.layout import ScanEnd, Stop
from duramen.log.active import ActiveSegment
from duramen.log.sidecar import DIRECTORY, Config, Sealed, Sidecar, Watermark

BUILDING = ".duramen-building"
"""Behind the path of a log that is being built."""
_LOCK = posixpath.join(DIRECTORY, "lock")


@dataclass(frozen=True)
class BuiltSegment:
    """A finished segment: what the rest of the log has to know about it. Can be pickled.

    ``last_offset`` is ``base - 1`` for an empty one. ``paths`` are its files, relative to the directory it lies in."""

    base: int
    last_offset: int
    records: int
    size_bytes: int
    index_bytes: int
    crc32: int
    crc32c: int
    paths: tuple[str, ...]

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def summary(self) -> SegmentSummary:
        return SegmentSummary(self.base, self.last_offset, self.size_bytes, self.index_bytes)

    @property
    def sealed(self) -> Sealed:
        return Sealed(self.base, self.last_offset, self.size_bytes, self.crc32, self.crc32c)


class SegmentBuilder:
    """Writes one segment. `add` the batches, then `finish`; leave it with `close` if something goes wrong.

    The batches have a column ``offset``, which rises and may leave gaps where the format can; rows without a time get
    ``default_us``. ``begun`` is what the segment begins with, if not what the format would write. What lies at the
    names of the segment's files is replaced: it is what an earlier attempt left."""

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
    ) -> None:
        self._disk = disk
        self._root = root
        self._fmt = fmt
        limits = fmt.capabilities
        self._max_bytes = min(limits.max_segment_bytes, 2**62 if max_bytes is None else max_bytes)
        self._default_us = default_us
        self._held: pa.RecordBatch | None = None
        """The rows of the last chunk, which the next batch may go on with."""
        path = posixpath.join(root, fmt.segment_path(base))
        if disk.kind(path) == Kind.FILE:
            disk.remove(path)
        if begun is None:
            begun = fmt.begin_segment(base, created_ms, None)
        self._active = ActiveSegment.create(disk, root, fmt, begun, base, created_ms)

    @property
    def base(self) -> int:
        return self._active.base

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Take the next rows as far as they fit; answers the rest, which belongs into another segment."""
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
        """Append bytes that are encoded already, for exactly where the segment ends."""
        self._flush()
        self._write(encoded)

    @property
    def cursor(self) -> Cursor:
        """Where the segment ends, with everything that was added."""
        self._flush()
        return self._active.cursor

    def finish(self) -> BuiltSegment:
        """Bring the segment and its derived files to the disk, and say what they are."""
        self._flush()
        active = self._active
        sealed, summary = active.seal(), active.summary()
        active.close()
        paths = [self._fmt.segment_path(active.base)]
        paths += [self._fmt.path_of(role, active.base) for role in (Role.INDEX, Role.TIME_INDEX) if self._has(role)]
        return BuiltSegment(
            active.base, sealed.last_offset, active.records, sealed.size_bytes, summary.index_bytes,
            sealed.crc32, sealed.crc32c, tuple(paths),
        )  # fmt: skip

    def close(self) -> None:
        self._active.close()

    def _has(self, role: Role) -> bool:
        return role in self._fmt.index_builder(self.base, 0).headers()

    def _flush(self) -> None:
        """Write the last chunk: nothing will be added to it."""
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
        """How many of the encoded rows (records, or chunks) go into this segment; one at the least if it is empty."""
        limits, active, columns = self._fmt.capabilities, self._active, encoded.rows.columns
        if not limits.segments:
            return len(columns)
        if limits.rolls_when_full:
            over = columns.position >= self._max_bytes
            over |= np.arange(active.rows, active.rows + len(columns)) >= limits.max_segment_rows
            # A segment that starts behind a gap looks like one whose forerunner is lost.
            previous = np.concatenate(([active.cursor.previous_offset], columns.last_offsets[:-1]))
            over &= columns.first_offsets == previous + 1
        else:
            over = np.append(columns.position[1:], encoded.rows.end.position) > self._max_bytes
            over |= columns.last_offsets - active.base > limits.max_relative_offset
        if active.is_empty:
            over[:1] = False
        return int(over.argmax()) if over.any() else len(columns)


def build_segment(
    root: str,
    fmt: Format,
    base: int,
    batches: Iterable[pa.RecordBatch],
    *,
    disk: Disk | None = None,
    created_ms: int = 0,
    default_us: int = 0,
) -> BuiltSegment:
    """Write one whole segment with its derived files into the directory ``root``.

    For a process that builds one part of a log: everything it takes but the batches can be pickled, and so can what it
    answers, for `LogBuilder.add` or `LogBuilder.adopt`. Raises `UsageError` where the records do not fit into one
    segment of the format."""
    disk = disk if disk is not None else PosixDisk()
    builder = SegmentBuilder(disk, root, fmt, base, created_ms=created_ms, default_us=default_us)
    try:
        for batch in batches:
            rest = builder.add(batch)
            if rest.num_rows:
                offset = rest.column("offset")[0].as_py()
                raise UsageError(f"the records do not fit into one segment of {fmt.name}", path=root, offset=offset)
        return builder.finish()
    finally:
        builder.close()


class LogBuilder:
    """A new log in the making. Only as a context: what was not published is gone when it ends.

    >>> import tempfile, pyarrow as pa
    >>> from duramen.formats import make
    >>> path = tempfile.mkdtemp() + "/new"
    >>> with LogBuilder(path, make("durable-log")) as log:
    ...     batch = pa.RecordBatch.from_pydict({"offset": [5, 7], "value": [b"a", b"b"]})
    ...     log.add(build_segment(log.root, log.fmt, 5, [batch]))
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
        """Where the files lie until the log is published."""
        # The dialect that is written is stated, not guessed from the bytes.
        self.fmt = fmt.continuing(fmt.open_segment(b"", 0))
        self.disk: Disk = disk if disk is not None else PosixDisk()
        self.segments: list[BuiltSegment] = []
        self._created_ms = created_ms
        self._sidecar = Sidecar(self.disk, self.root)
        self._published = False
        refuse_taken(self.disk, self.path)

    def __enter__(self) -> Self:
        try:
            self._sidecar.lock()
            empty(self.disk, self.root, but=_LOCK)
        except LockedError as error:
            raise LockedError(
                "a log is being built here by another process", note=error.note, path=self.path, hint="wait for it"
            ) from None
        except BaseException:
            self._give_up()
            raise
        return self

    def _give_up(self) -> None:
        """Stopped between making the directory and locking it, or later: what is there may go if it is ours."""
        with contextlib.suppress(DuramenError):
            self._sidecar.release()
            self._sidecar.lock()
            self.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go; a log that was not published leaves nothing behind."""
        try:
            if not self._published and self.disk.kind(self.root) == Kind.DIRECTORY:
                empty(self.disk, self.root, but=_LOCK)
        finally:
            self._sidecar.release()
        if not self._published:
            remove_tree(self.disk, self.root)

    # --- what it consists of

    def segment(self, base: int, **options: Any) -> SegmentBuilder:
        """Begin a segment here; what its `finish` answers has to be added."""
        return SegmentBuilder(self.disk, self.root, self.fmt, base, **options)

    def add(self, built: BuiltSegment) -> None:
        """Take in a segment whose files lie in ``root`` already. Segments come in the order of their offsets."""
        if self.segments and built.base < self.segments[-1].next_offset:
            raise UsageError("segments must come in the order of their offsets", path=self.path, offset=built.base)
        self.segments.append(built)

    def adopt(self, built: BuiltSegment, directory: str) -> None:
        """Take in a segment that was built in another directory of the same file system: its files are moved."""
        for path in built.paths:
            target = posixpath.join(self.root, path)
            self._make_directory(posixpath.dirname(target))
            self.disk.replace(posixpath.join(directory, path), target)
        self.add(built)

    def put_file(self, path: str, content: bytes | memoryview) -> None:
        """A file that is no segment, as it is; on the disk when this returns."""
        target = posixpath.join(self.root, path)
        self._make_directory(posixpath.dirname(target))
        put_file(self.disk, target, content)

    def _make_directory(self, path: str) -> None:
        if self.disk.kind(path) == Kind.MISSING:
            self.disk.make_directory(path)

    # --- the end

    def finish(self) -> None:
        """Write what describes the whole log: its manifest, its sidecar. The last segment is the active one."""
        if not self.segments:
            builder = self.segment(0, created_ms=self._created_ms)
            self.segments.append(builder.finish())
        last = self.segments[-1]
        summaries = [built.summary for built in self.segments]
        for path, content in self.fmt.log_files(summaries, self._created_ms).items():
            self.put_file(path, content)
        self._sidecar.write_config(Config(self.fmt.name, self.fmt.options, self._created_ms))
        for built in self.segments[:-1]:
            self._sidecar.add_sealed(built.sealed)
        crc32c = 0 if self.fmt.capabilities.record_checksum else last.crc32c
        end = (last.size_bytes, last.next_offset)
        self._sidecar.mark(Watermark(last.base, *end, *end, 0, crc32c, crc32c, is_open=False), durable=True)

    def publish(self) -> None:
        """Give the finished log its name: on the disk, and whole, when this returns."""
        sync_tree(self.disk, self.root)
        refuse_taken(self.disk, self.path)
        self.disk.replace(self.root, self.path)
        self._published = True
        self.disk.sync_directory(parent_of(self.path))


# --- directories


def parent_of(path: str) -> str:
    return posixpath.dirname(posixpath.normpath(path)) or "."


def refuse_taken(disk: Disk, path: str) -> None:
    """Raise unless a new log can come to be at ``path``."""
    if disk.kind(path) != Kind.MISSING:
        raise UsageError("this exists already", path=path, hint="name a path that is free; nothing is overwritten")
    if disk.kind(parent_of(path)) != Kind.DIRECTORY:
        raise StorageError("no such directory", path=parent_of(path), hint="make it first")


def put_file(disk: Disk, path: str, content: bytes | memoryview) -> None:
    """A new file with this content, synced; its name is not."""
    file = disk.create(path)
    try:
        write_all(file, 0, content)
        file.sync()
    finally:
        file.close()


def sync_tree(disk: Disk, root: str) -> None:
    """Have every name below a directory on the disk."""
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
    """Remove a directory and everything in it; nothing happens if it is not there."""
    if disk.kind(root) != Kind.DIRECTORY:
        return
    for name in disk.directories(root):
        remove_tree(disk, posixpath.join(root, name))
    for name, _ in disk.list(root):
        disk.remove(posixpath.join(root, name))
    disk.remove_directory(root)


# --- encoded rows


def refuse_zeros(fmt: Format, encoded: Encoded) -> None:
    """A first record of nothing but zeros (RustLog: offset 0, no value, time 0) reads as space that was never written,
    in every program: it would be gone."""
    positions = encoded.rows.columns.position
    end = int(positions[1]) if len(positions) > 1 else len(encoded.data)
    if len(positions) and kernel.is_zero(encoded.data, 0, end):
        raise UsageError(f"the first record of a {fmt.name} log cannot be empty: its bytes would all be zero")


def _head(encoded: Encoded, kept: int, cursor: Cursor, records: int) -> tuple[Encoded, int]:
    """The first rows of what was encoded for ``cursor``, and how many of its ``records`` they are."""
    rows = encoded.rows
    if kept == len(rows.columns):
        return encoded, records
    columns = rows.columns.head(kept)
    position = int(rows.columns.position[kept])
    last = int(columns.last_offsets[-1]) if kept else cursor.previous_offset
    count = int((columns.last_offsets - columns.first_offsets + 1).sum())
    end = ScanEnd(kept, position, int(Stop.END), last)
    return Encoded(encoded.data[: position - cursor.position], Rows(columns, count, end)), count


def _joined(first: pa.RecordBatch, second: pa.RecordBatch) -> pa.RecordBatch:
    table = pa.Table.from_batches([first, second.select(first.schema.names).cast(first.schema)])
    return table.combine_chunks().to_batches()[0]
