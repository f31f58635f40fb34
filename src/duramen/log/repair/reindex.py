"""`reindex`: every derived file of a log (index, time index, manifest) made anew from its records.

Each file is replaced in one moment, and only if it differs; an interrupt leaves some of them new, the others old. No
record is touched, and nothing is judged: a segment that is damaged is indexed up to there, and says so.
"""

from __future__ import annotations

import posixpath
import time
from dataclasses import dataclass, field
from typing import Any

from duramen.disk import Disk, PosixDisk
from duramen.disk.base import Kind
from duramen.errors import CorruptionError, UsageError
from duramen.formats import Format
from duramen.formats.base import Cursor
from duramen.kernel.layout import Stop
from duramen.log.directory import (
    Directory,
    SegmentFiles,
    format_at,
    kind_of,
    list_log,
    refuse_foreign_sidecar,
    while_files_go,
)
from duramen.log.evidence import Evidence
from duramen.log.journal import refuse_unfinished
from duramen.log.repair import Hold, not_held
from duramen.log.repair.apply import manifest_files
from duramen.log.sidecar import Sidecar, replace_file
from duramen.metrics import process as process_counters


@dataclass(frozen=True)
class Derived:
    """One derived file: what becomes of it."""

    path: str
    change: str
    """``same``, ``made`` or ``replaced``."""
    size_bytes: int
    before_bytes: int | None


@dataclass
class Reindexed:
    path: str
    format: str
    files: list[Derived] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    applied: bool = False

    @property
    def changed(self) -> int:
        return sum(file.change != "same" for file in self.files)


def reindex(
    path: str,
    *,
    dry_run: bool = False,
    format: str | None = None,
    disk: Disk | None = None,
    hold: Hold = not_held,
    **options: Any,
) -> Reindexed:
    """Make the derived files of the log at ``path`` anew; ``dry_run`` only says what would change. ``hold`` is entered
    while a file is replaced, so that an interrupt leaves no half of one beside it."""
    disk = disk if disk is not None else PosixDisk()
    if kind_of(disk, path) != Kind.DIRECTORY:
        raise UsageError("a single file has no index of its own", path=path, hint="name the log's directory")
    refuse_unfinished(disk, path)
    fmt = format_at(disk, path, format, options)
    if dry_run:
        return while_files_go(disk, path, lambda: _Reindexing(disk, path, fmt, hold, dry_run=True).run())
    sidecar = Sidecar(disk, path)
    sidecar.lock()
    try:
        return _Reindexing(disk, path, fmt, hold, dry_run=False).run()
    finally:
        sidecar.release()


class _Reindexing:
    def __init__(self, disk: Disk, path: str, fmt: Format, hold: Hold, *, dry_run: bool) -> None:
        self._hold = hold
        self._disk = disk
        self._root = path
        self._fmt = Evidence(disk, path, fmt).described
        self._dry_run = dry_run
        self._directory: Directory = list_log(disk, path, fmt)
        refuse_foreign_sidecar(disk, path, fmt, self._directory)
        self.result = Reindexed(path, fmt.name, applied=not dry_run)

    def run(self) -> Reindexed:
        ends = [(files.base or 0, self._segment(files)) for files in self._directory.segments]
        if not self._fmt.capabilities.index:
            self.result.notes.append(f"{self._fmt.name} has no index: a record is found by arithmetic")
        for name, content in manifest_files(self._disk, self._root, self._fmt, ends).items():
            self._put(name, content)
        for orphan in self._directory.orphans:
            self.result.notes.append(
                f"{orphan.path}: {orphan.name.role} without a segment, left alone: `duramen repair` sets it aside"
            )
        return self.result

    def _segment(self, files: SegmentFiles) -> int:
        """Index one segment; answers its last offset."""
        base, path = files.base or 0, files.segment.path
        began = time.perf_counter()
        try:
            segment = self._fmt.open_segment(self._disk.map(self._directory.full(path)).data, files.base)
        except CorruptionError as error:
            self.result.notes.append(f"{path}: not indexed: {error.message}")
            return base - 1
        builder = self._fmt.index_builder(base, segment.created_ms)
        cursor: Cursor = segment.start
        while True:
            rows = segment.scan(cursor)
            builder.add(rows)
            cursor = rows.cursor
            if rows.stop != Stop.LIMIT:
                break
        if not rows.stop.clean:
            self.result.notes.append(f"{path}: indexed up to byte {cursor.position} only: {rows.stop.meaning}")
        for role, content in builder.build().items():
            if self._put(self._fmt.path_of(role, base), content):
                process_counters.rebuilt_index(time.perf_counter() - began)
                began = time.perf_counter()  # the walk over the records counts once for all that is made from it
        return cursor.previous_offset

    def _put(self, name: str, content: bytes) -> bool:
        """Replace a file, if it differs; answers whether it was."""
        path = posixpath.join(self._root, name)
        held = bytes(self._disk.map(path).data) if self._disk.kind(path) == Kind.FILE else None
        change = "made" if held is None else "same" if held == content else "replaced"
        self.result.files.append(Derived(name, change, len(content), None if held is None else len(held)))
        if change == "same" or self._dry_run:
            return False
        temporary = posixpath.join(self._root, self._fmt.temporary_path(name))
        with self._hold():
            if self._disk.kind(posixpath.dirname(temporary)) == Kind.MISSING:
                self._disk.make_directory(posixpath.dirname(temporary))
            replace_file(self._disk, path, content, temporary=temporary)
        return True
