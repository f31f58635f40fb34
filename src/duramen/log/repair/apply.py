"""Execute the plan of a repair: copies first, then changes; every state in between can be rolled back.

1. Copy everything that will change into ``.duramen/quarantine/repair-N/``, and sync.
2. Write the journal. Only now does the first file change.
3. Rename the files that change names to temporary ones, all of them before the first gets its new name, so that a plan
   may permute names. If a name is taken, the repair stops; no file is ever renamed over another.
4. Write new files in the quarantine, then rename them.
5. ``confirm`` compares the result with the plan, and raises if it differs.

After a crash the journal tells the next repair or undo to restore everything first. The caller holds the writer's lock.
``check`` is called between two files and between two pieces of a long one; it may raise. After an error `rollback`
restores everything, and checks that every file is as it was.
"""

from __future__ import annotations

import errno
import posixpath
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from duramen import kernel
from duramen.disk import Buffer, Disk, Kind, pieces, write_all
from duramen.errors import CorruptionError, StorageError
from duramen.formats import Format, Role, SupportsManifest, make
from duramen.log.recover import UNSYNCED_BYTES
from duramen.log.repair.plan import Plan, RepairAction, RepairPiece, RepairStep
from duramen.log.repair.restore import cut_file, put_back, remove_copies, temporary_of
from duramen.log.segments import SUBDIRECTORIES, list_log, manifest_files, readable_config, sealed_indexes
from duramen.log.verify import SidecarEvidence
from duramen.sidecar import (
    CONFIG_NAME,
    DIRECTORY,
    QUARANTINE_NAME,
    SEALED_NAME,
    WATERMARK_NAME,
    Config,
    FileBefore,
    KnownLoss,
    RepairEntry,
    RepairJournal,
    RepairStage,
    RepairState,
    Sealed,
    Sidecar,
    Watermark,
    encode_known_losses,
    read_known_losses,
    read_repair_journal,
    remove_repair_journal,
    write_repair_journal,
)
from duramen.sidecar import LOSSES_PATH as LOSSES

COPY_BYTES = 8 << 20
SIDECAR_FILES = (*(posixpath.join(DIRECTORY, name) for name in (CONFIG_NAME, SEALED_NAME, WATERMARK_NAME)), LOSSES)
_NEW = "new"
_FIRST = (RepairAction.ASIDE, RepairAction.RENAME, RepairAction.CUT, RepairAction.REWRITE, RepairAction.CREATE)


def in_order(steps: Iterable[RepairStep]) -> list[RepairStep]:
    """Return the steps in the order of execution: names are freed before others take them, derived files come last."""
    order = {action: number for number, action in enumerate((*_FIRST, *(a for a in RepairAction if a not in _FIRST)))}
    return sorted(steps, key=lambda step: order[step.action])


class Application:
    """The execution of a plan. If `run` raises, call `rollback`."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        fmt: Format,
        sidecar: Sidecar,
        plan: Plan,
        *,
        made: bool,
        check: Callable[[], None],
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        self._check = check
        self._confirm = confirm
        self._disk = disk
        self._root = root
        self._fmt = fmt
        self._sidecar = sidecar
        self._plan = plan
        self._evidence = SidecarEvidence(disk, root, fmt)
        self._before = before = read_repair_journal(disk, root)
        number = before.number + 1 if before is not None else 1
        directory = posixpath.join(DIRECTORY, QUARANTINE_NAME, f"repair-{number}")
        self._journal = RepairJournal(
            RepairState.ACTING,
            number,
            directory,
            int(time.time() * 1000),
            made=made,
            stage=RepairStage.OUT,
            format=fmt.name,
        )
        self._saved: dict[str, str] = {}
        """The copy of each whole file, by path."""
        self._made: set[str] = set()
        """Paths at which a file was created, or may have been."""
        self._inventory: dict[str, tuple[int, int]] = {}
        """Size and CRC-32C of the files before the repair."""

    def run(self) -> RepairJournal:
        self._refuse_taken_names()
        self._save()
        self._inventory = self._look_around()
        write_repair_journal(self._disk, self._root, self._journal)
        self._move_out()
        for step in in_order(self._plan.steps):
            self._check()
            self._act(step)
        self._confirm()
        self._journal.after = dict(self._look())
        self._journal.state = RepairState.DONE
        write_repair_journal(self._disk, self._root, self._journal)
        return self._journal

    def rollback(self) -> bool:
        """Restore the log's files and the journal of the repair before this one. Returns False if there was nothing to
        restore: nothing had changed yet, or the repair is done. Raises if a file is not as it was."""
        journal = read_repair_journal(self._disk, self._root)
        is_own = journal is not None and journal.number == self._journal.number
        if journal is not None and is_own:
            if journal.state == RepairState.DONE:
                return False
            put_back(self._disk, self._root, journal, self._made)
            self._refuse_differences(journal)
            if self._before is not None:
                write_repair_journal(self._disk, self._root, self._before)
            else:
                remove_repair_journal(self._disk, self._root)
        remove_copies(self._disk, self._full(self._journal.directory))
        return is_own

    def _refuse_differences(self, journal: RepairJournal) -> None:
        """Raise if a file is not as it was; the journal and the copies then stay."""
        now = self._look_around()
        differing = sorted(path for path in {**now, **self._inventory} if now.get(path) != self._inventory.get(path))
        if differing:
            journal.state = RepairState.ACTING
            write_repair_journal(self._disk, self._root, journal)
            raise CorruptionError(
                f"these files differ from before the repair: {', '.join(differing[:5])}", path=self._root
            )

    def _look_around(self) -> dict[str, tuple[int, int]]:
        """Return every file of the log with its size, and the CRC-32C of those that the repair changes."""
        touched = {path for entry in self._journal.entries for path in (entry.path, entry.target)}
        listed = [(name, size) for name, size in self._disk.list(self._root, SUBDIRECTORIES)]
        listed += [(name, 0) for name in SIDECAR_FILES if self._disk.kind(self._full(name)) == Kind.FILE]
        return {
            name: (size, kernel.crc32c(self._disk.map(self._full(name)).data) if name in touched else 0)
            for name, size in listed
        }

    # --- names

    def _refuse_taken_names(self) -> None:
        """Raise, before anything changes, if a new name belongs to a file that stays."""
        leaving = {step.path for step in self._plan.steps if step.action in (RepairAction.RENAME, RepairAction.ASIDE)}
        for step in self._plan.steps:
            target = step.target if step.action == RepairAction.RENAME else None
            if target is not None and target not in leaving and self._disk.kind(self._full(target)) != Kind.MISSING:
                raise _taken(self._full(target), step.path)

    def _move_out(self) -> None:
        """Rename every file that changes its name to a temporary one."""
        moved = [entry for entry in self._journal.entries if entry.was == FileBefore.NAMED]
        for entry in moved:
            self._check()
            self._disk.rename_new(self._full(entry.path), self._full(entry.temporary))
        for directory in sorted({posixpath.dirname(self._full(entry.path)) for entry in moved}):
            self._disk.sync_directory(directory)
        self._journal.stage = RepairStage.IN
        write_repair_journal(self._disk, self._root, self._journal)

    def _act(self, step: RepairStep) -> None:
        match step.action:
            case RepairAction.ASIDE:
                self._set_aside(step)
            case RepairAction.RENAME:
                self._rename(step)
            case RepairAction.CUT:
                assert step.position is not None
                cut_file(self._disk, self._full(step.path), step.position)
            case RepairAction.REWRITE | RepairAction.CREATE:
                self._put(step.path, (self._bytes_of(piece) for piece in step.pieces))
            case RepairAction.INDEX:
                self._rebuild_index(step)
            case RepairAction.MANIFEST:
                self._rebuild_manifest()
            case RepairAction.SIDECAR:
                self._rebuild_sidecar()

    def _full(self, path: str) -> str:
        return posixpath.join(self._root, path)

    # --- copies

    def _save(self) -> None:
        directory = self._full(self._journal.directory)
        quarantine = posixpath.dirname(directory)
        for path in (quarantine, directory):
            if self._disk.kind(path) == Kind.MISSING:
                self._disk.make_directory(path)
            self._disk.sync_directory(posixpath.dirname(path))
        for step in in_order(self._plan.steps):
            for path in self._touched(step):
                if path not in {entry.path for entry in self._journal.entries}:
                    self._check()
                    self._journal.entries.append(self._entry(step, path))
        for step in self._replaced_by_appends():
            self._journal.entries.append(self._entry(step, step.path))
        self._journal.entries += self._made_in_place_of_moved()
        self._disk.sync_directory(directory)

    def _replaced_by_appends(self) -> list[RepairStep]:
        """Return steps for the copies of files that the repair does not change, and that an append does not only
        extend: the manifest, zeros after the last record, and the last indexes if they end with an entry for the
        end."""
        touched = {path for entry in self._journal.entries for path in (entry.path, entry.target)}
        names = set(self._fmt.log_files([], 0)) if isinstance(self._fmt, SupportsManifest) else set()
        if self._fmt.capabilities.cuts_indexes and self._plan.segments:
            base = self._plan.segments[-1][0]
            names |= {self._fmt.path_of(role, base) for role in self._fmt.index_builder(base, 0).headers()}
        steps = [RepairStep(RepairAction.REWRITE, name, "") for name in names]
        zeros = [one for one in self._plan.findings if one.code == "zero-tail"]
        steps += [
            RepairStep(RepairAction.CUT, posixpath.relpath(one.path, self._root), "", position=one.position)
            for one in zeros
        ]
        kept = [step for step in steps if step.path not in touched]
        return sorted(
            (step for step in kept if self._disk.kind(self._full(step.path)) == Kind.FILE), key=lambda step: step.path
        )

    def _made_in_place_of_moved(self) -> list[RepairEntry]:
        """Return entries for new files under names that other files leave."""
        moved = {entry.path for entry in self._journal.entries if entry.was == FileBefore.NAMED}
        made = {step.path for step in self._plan.steps if step.action in (RepairAction.REWRITE, RepairAction.CREATE)}
        return [RepairEntry(path, FileBefore.ABSENT) for path in sorted(moved & made)]

    def _touched(self, step: RepairStep) -> list[str]:
        if step.action == RepairAction.INDEX:
            assert step.base is not None
            return [self._fmt.path_of(role, step.base) for role in self._fmt.index_builder(step.base, 0).headers()]
        return list(SIDECAR_FILES) if step.action == RepairAction.SIDECAR else [step.path]

    def _entry(self, step: RepairStep, path: str) -> RepairEntry:
        full = self._full(path)
        if self._disk.kind(full) != Kind.FILE:
            return RepairEntry(path, FileBefore.ABSENT)
        size = self._disk.size(full)
        if step.action == RepairAction.RENAME:
            crc = kernel.crc32c(self._disk.map(full).data)
            temporary = f"{path}.repair-{self._journal.number}"
            return RepairEntry(path, FileBefore.NAMED, size, target=step.target or "", crc32c=crc, temporary=temporary)
        position = step.position if step.action == RepairAction.CUT and step.position is not None else 0
        saved = self._copy_name(path)
        data = self._disk.map(full).data[position:]
        self._write_new(saved, [data])
        if step.action == RepairAction.CUT:
            return RepairEntry(path, FileBefore.TAIL, size, saved, position, crc32c=kernel.crc32c(data))
        self._saved[path] = saved
        return RepairEntry(path, FileBefore.FILE, size, saved, crc32c=kernel.crc32c(data))

    def _copy_name(self, path: str) -> str:
        name, number = path.replace("/", "_"), 0
        taken = {entry.saved for entry in self._journal.entries}
        while (found := posixpath.join(self._journal.directory, f"{name}.{number}" if number else name)) in taken:
            number += 1
        return found

    def _write_new(self, path: str, parts: Iterable[Buffer]) -> None:
        """Create and sync a new file, in place of a stale one of a repair that died before it changed anything."""
        full = self._full(path)
        if self._disk.kind(full) != Kind.MISSING:
            self._disk.remove(full)
        file = self._disk.create(full)
        try:
            position = 0
            for part in parts:
                view = memoryview(part).cast("B") if len(part) else memoryview(b"")
                for piece in pieces(view, COPY_BYTES):
                    self._check()
                    if np.frombuffer(
                        piece, np.uint8
                    ).any():  # a hole stays one: a sparse file may be larger than the disk
                        write_all(file, position, piece)
                    position += len(piece)
            if file.size() < position:
                file.truncate(position)
            file.sync()
        finally:
            file.close()

    # --- changes

    def _put(self, path: str, parts: Iterable[Buffer]) -> None:
        """Replace the contents of a file atomically."""
        new, full = posixpath.join(self._journal.directory, _NEW), self._full(path)
        self._write_new(new, parts)
        directory = posixpath.dirname(full)
        if self._disk.kind(directory) == Kind.MISSING:
            self._disk.make_directory(directory)
            self._disk.sync_directory(posixpath.dirname(directory))
        if (path in self._saved or path in self._made) and self._disk.kind(full) == Kind.FILE:
            self._disk.replace(self._full(new), full)  # the original is in the quarantine
        else:
            self._name(new, path)
        self._disk.sync_directory(directory)

    def _name(self, path: str, target: str) -> None:
        """Rename a file to a name that no other file has."""
        self._made.add(target)
        try:
            self._disk.rename_new(self._full(path), self._full(target))
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
            self._made.discard(target)
            raise _taken(self._full(target), path) from error

    def _bytes_of(self, piece: RepairPiece) -> Buffer:
        if not piece.path:
            return piece.data
        source = self._saved.get(piece.path, piece.path)
        return self._disk.map(self._full(source)).data[piece.start : piece.end]

    def _set_aside(self, step: RepairStep) -> None:
        self._disk.remove(self._full(step.path))
        self._disk.sync_directory(posixpath.dirname(self._full(step.path)))

    def _rename(self, step: RepairStep) -> None:
        assert step.target is not None
        (entry,) = (e for e in self._journal.entries if e.path == step.path and e.was == FileBefore.NAMED)
        self._name(temporary_of(entry), step.target)
        for path in {posixpath.dirname(self._full(step.path)), posixpath.dirname(self._full(step.target))}:
            self._disk.sync_directory(path)

    # --- derived files

    def _rebuild_index(self, step: RepairStep) -> None:
        assert step.base is not None
        data = self._disk.map(self._full(self._fmt.segment_path(step.base))).data
        fmt = self._evidence.described
        for role, content in build_indexes(fmt, data, step.base).items():
            self._put(self._fmt.path_of(role, step.base), [content])

    def _rebuild_manifest(self) -> None:
        for name, content in manifest_files(self._disk, self._root, self._fmt, self._plan.segments).items():
            self._put(name, [content])

    def _rebuild_sidecar(self) -> None:
        self._made.update(name for name in SIDECAR_FILES if self._disk.kind(self._full(name)) == Kind.MISSING)
        config = self._config()
        self._sidecar.write_config(config)
        fmt = make(config.format, **config.options)
        entries = list(self._digests(fmt))
        if entries or self._disk.kind(self._full(SIDECAR_FILES[1])) == Kind.FILE:
            self._sidecar.replace_sealed(entries)
        mark = self._watermark(fmt)
        if mark is not None:
            self._sidecar.mark(mark, durable=True)
        known = read_known_losses(self._disk, self._root)
        known += [KnownLoss(loss.first, loss.last, loss.why, self._journal.directory) for loss in self._plan.losses]
        if known:
            self._put(LOSSES, [encode_known_losses(known)])

    def _config(self) -> Config:
        options: dict[str, Any] = {**self._fmt.options, **self._plan.options}
        held = readable_config(self._disk, self._root)
        return Config(self._fmt.name, options, held.created_ms if held is not None else self._journal.when_ms)

    def _digests(self, fmt: Format) -> Iterable[Sealed]:
        """Yield the entries of every segment but the last; those of unchanged segments stay."""
        changed = {step.target or step.path for step in self._plan.steps}
        doubted = {
            finding.path for finding in self._plan.findings if finding.code in ("digest-mismatch", "sealed-size")
        }
        segments = self._plan.segments
        for number, (base, last) in enumerate(segments):
            path = self._fmt.segment_path(base)
            known = self._evidence.sealed.get(base)
            if known is not None and path not in changed and self._full(path) not in doubted:
                yield self._with_indexes(known, changed)
            elif number < len(segments) - 1:
                self._check()
                data = self._disk.map(self._full(path)).data
                indexes = sealed_indexes(self._disk, self._root, self._fmt, base)
                sealed_ms = None if known is None else known.sealed_ms
                yield Sealed(base, last, len(data), kernel.crc32(data), kernel.crc32c(data), sealed_ms, indexes)

    def _with_indexes(self, known: Sealed, changed: Collection[str]) -> Sealed:
        """The entry of a segment that stays, with the indexes that it has now."""
        paths = {self._fmt.path_of(role, known.base) for role in (Role.INDEX, Role.TIME_INDEX)}
        if known.indexes is None or not paths & set(changed):
            return known
        return replace(known, indexes=sealed_indexes(self._disk, self._root, self._fmt, known.base))

    def _watermark(self, fmt: Format) -> Watermark | None:
        """Return the watermark at the end of the last segment."""
        if not self._plan.segments:
            return None
        base = self._plan.segments[-1][0]
        data = self._disk.map(self._full(fmt.segment_path(base))).data
        try:
            segment = fmt.open_segment(data, base)
        except CorruptionError:
            return None  # the plan refused to change it
        for rows in segment.steps():
            self._check()
            cursor = rows.cursor
        following = max(cursor.previous_offset + 1, base)
        crc = kernel.crc32c(data[: cursor.position])
        return Watermark(
            base, cursor.position, following, cursor.position, following, UNSYNCED_BYTES, crc, crc,
            is_open=False, has_digest=True,
        )  # fmt: skip

    def _look(self) -> Iterable[tuple[str, list[int]]]:
        touched = {path for entry in self._journal.entries for path in (entry.path, entry.target)}
        return log_files(self._disk, self._root, self._fmt, touched)


def _taken(path: str, source: str) -> StorageError:
    error = StorageError(
        f"another file has the new name of {posixpath.basename(source)}", path=path,
        hint="move that file away, then plan again",
    )  # fmt: skip
    error.errno = errno.EEXIST
    return error


def build_indexes(fmt: Format, data: memoryview, base: int) -> dict[Role, bytes]:
    """Build the derived files of a segment from its records."""
    segment = fmt.open_segment(data, base)
    builder = fmt.index_builder(base, segment.created_ms)
    for rows in segment.steps():
        builder.add(rows)
    return builder.build_complete()


def log_files(disk: Disk, root: str, fmt: Format, exactly: Iterable[str]) -> Iterable[tuple[str, list[int]]]:
    """Yield the files of a log with their sizes, and the CRC-32C of those in ``exactly``."""
    exact = set(exactly)
    listed = list_log(disk, root, fmt)
    files = [file for files in listed.segments for file in (files.segment, *files.derived.values())]
    for file in (*files, *listed.orphans, *listed.others):
        crc = kernel.crc32c(disk.map(posixpath.join(root, file.path)).data) if file.path in exact else 0
        yield file.path, [file.size_bytes, crc]
