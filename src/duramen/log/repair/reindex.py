"""`reindex`: rebuild every derived file of a log (index, time index, manifest) from its records.

Each file is replaced atomically, and only if it differs; an interrupt leaves some new and the others old. Records are
not changed. A damaged segment is indexed up to the damage, with a note.
"""

from __future__ import annotations

import posixpath
import time
from dataclasses import dataclass, field, replace
from typing import Any

from duramen.disk import Disk, Kind, PosixDisk, rooted
from duramen.errors import CorruptionError, UsageError
from duramen.formats import Format, Role, SupportsStateFiles
from duramen.log.repair.repair import Hold, not_held
from duramen.log.segments import (
    Directory,
    SegmentFiles,
    format_at,
    kind_of,
    list_log,
    manifest_files,
    refuse_foreign_sidecar,
    refuse_special_files,
    sealed_indexes,
    while_files_go,
)
from duramen.log.verify import SidecarEvidence
from duramen.metrics import process as process_counters
from duramen.sidecar import Sidecar, refuse_unfinished_repair, replace_file


@dataclass(frozen=True)
class Derived:
    """What happens to one derived file."""

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
    """Rebuild the derived files of the log at ``path``; ``dry_run`` only reports what would change. ``hold`` is entered
    while a file is replaced, so that an interrupt leaves no temporary file."""
    disk = (disk if disk is not None else PosixDisk()).within(path)
    if kind_of(disk, path) != Kind.DIRECTORY:
        raise UsageError("cannot reindex a single file", path=path, hint="give the log's directory")
    refuse_unfinished_repair(disk, path)
    fmt = format_at(disk, path, format, options)
    fmt.refuse_writing(path)
    if dry_run:
        return while_files_go(disk, path, lambda: _Reindexer(disk, path, fmt, hold, dry_run=True).run())
    refuse_special_files(disk, path, fmt)
    with rooted(disk, path) as inside:
        sidecar = Sidecar(inside, path)
        sidecar.lock()
        try:
            done = _Reindexer(inside, path, fmt, hold, dry_run=False).run()
            sidecar.check(closely=True)
            return done
        finally:
            sidecar.release()


def _is_beginning(held: memoryview, content: bytes) -> bool:
    return len(held) <= len(content) and held == content[: len(held)]


class _Reindexer:
    def __init__(self, disk: Disk, path: str, fmt: Format, hold: Hold, *, dry_run: bool) -> None:
        self._hold = hold
        self._disk = disk
        self._root = path
        self._fmt = SidecarEvidence(disk, path, fmt).described
        self._dry_run = dry_run
        self._directory: Directory = list_log(disk, path, fmt)
        refuse_foreign_sidecar(disk, path, fmt, self._directory)
        self.result = Reindexed(path, fmt.name, applied=not dry_run)

    def run(self) -> Reindexed:
        ends = [(files.base or 0, self._segment(files)) for files in self._directory.segments]
        if not self._fmt.capabilities.index:
            self.result.notes.append(f"{self._fmt.name} has no index: positions are arithmetic")
        for name, content in {**manifest_files(self._disk, self._root, self._fmt, ends), **self._state()}.items():
            self._put(name, content)
        if not self._dry_run:
            self._update_list()
            self._sweep()
        for orphan in self._directory.orphans:
            self.result.notes.append(
                f"{orphan.path}: {orphan.name.role} without a segment, not changed: `duramen repair` sets it aside"
            )
        return self.result

    def _state(self) -> dict[str, bytes]:
        """The derived files about the whole log that are missing or wrong."""
        fmt, listed = self._fmt, self._directory
        if not isinstance(fmt, SupportsStateFiles):
            return {}
        data = {files.base: self._disk.map(listed.full(files.segment.path)).data for files in listed.segments}
        others = [file for file in listed.others if file.name.role in fmt.state_roles]
        held = {file.path: self._disk.map(listed.full(file.path)).data for file in others}
        return fmt.build_state([fmt.open_segment(content, base) for base, content in data.items()], held)

    def _update_list(self) -> None:
        """Store the new indexes of sealed segments in the sealed list."""
        sidecar = Sidecar(self._disk, self._root)
        if any(file.change != "same" for file in self.result.files):
            sealed = sidecar.sealed()
            known = [base for base, entry in sealed.items() if entry.indexes is not None]
            now = {base: sealed_indexes(self._disk, self._root, self._fmt, base) for base in known}
            if any(sealed[base].indexes != indexes for base, indexes in now.items()):
                with self._hold():
                    sealed = sidecar.sealed_to_replace()
                    new = [replace(entry, indexes=now.get(base)) for base, entry in sealed.items()]
                    sidecar.replace_sealed(new)

    def _sweep(self) -> None:
        """Remove stale temporary files."""
        for file in self._directory.others:
            path = self._directory.full(file.path)
            if file.name.role == Role.LEFTOVER and self._disk.kind(path) == Kind.FILE:
                self._disk.remove(path)
                self._disk.sync_directory(posixpath.dirname(path))

    def _segment(self, files: SegmentFiles) -> int:
        """Index one segment. Returns its last offset."""
        base, path = files.base or 0, files.segment.path
        began = time.perf_counter()
        try:
            segment = self._fmt.open_segment(self._disk.map(self._directory.full(path)).data, files.base)
        except CorruptionError as error:
            self.result.notes.append(f"{path}: not indexed: {error.message}")
            return base - 1
        builder = self._fmt.index_builder(base, segment.created_ms)
        for rows in segment.steps():
            builder.add(rows)
        cursor = rows.cursor
        if not rows.stop.clean:
            self.result.notes.append(f"{path}: indexed up to byte {cursor.position} only: {rows.stop.meaning}")
        for role, content in builder.build_complete().items():
            if self._put(self._fmt.path_of(role, base), content):
                process_counters.rebuilt_index(time.perf_counter() - began)
                began = time.perf_counter()  # count the scan of the records only once
        return cursor.previous_offset

    def _put(self, name: str, content: bytes) -> bool:
        """Replace a file if it differs. Returns whether it was replaced."""
        path = posixpath.join(self._root, name)
        held = self._disk.map(path).data if self._disk.kind(path) == Kind.FILE else None
        change = "made" if held is None else "same" if held == content else "replaced"
        self.result.files.append(Derived(name, change, len(content), None if held is None else len(held)))
        if change == "same" or self._dry_run:
            return False
        temporary = posixpath.join(self._root, self._fmt.temporary_path(name))
        if held is not None and len(held) and not _is_beginning(held, content):
            Sidecar(self._disk, self._root).quarantine(name, held)  # it contradicts the records: keep it as evidence
        with self._hold():
            if self._disk.kind(posixpath.dirname(temporary)) == Kind.MISSING:
                self._disk.make_directory(posixpath.dirname(temporary))
            replace_file(self._disk, path, content, temporary=temporary)
        return True
