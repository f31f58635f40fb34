"""Carrying out a plan: copies first, then changes, and a way back from every point in between.

Everything that will change is copied into ``.duramen/quarantine/repair-N/`` and synced, then the journal is written:
only now does the first file change. A new file is written there, too, and takes the place of the old one by its name,
so each file of the log is the old one or the new one at every moment. If the process dies on the way, the journal says
so; the next repair or undo puts everything back first. Whoever calls holds the writer's lock.

Between two files, and between two pieces of a long one, ``check`` is called. It may raise to have everything taken
back, which `take_back` does: it leaves the log and the journal as they were before.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from duramen import kernel
from duramen.disk import Disk
from duramen.disk.base import Buffer, Kind, write_all
from duramen.errors import CorruptionError
from duramen.formats import Format, make
from duramen.formats.base import Cursor, Role, SegmentSummary
from duramen.kernel.layout import Stop
from duramen.log.directory import list_log
from duramen.log.evidence import Evidence, as_described
from duramen.log.journal import Entry, Journal, State, Was, read_journal, remove_journal, write_journal
from duramen.log.losses import NAME as LOSSES
from duramen.log.losses import KnownLoss, encode_losses, read_losses
from duramen.log.recovery import UNSYNCED_BYTES
from duramen.log.repair.plan import Action, Piece, Plan, Step
from duramen.log.repair.restore import put_back, remove_copies
from duramen.log.sidecar import DIRECTORY, Config, Sealed, Sidecar, Watermark, read_config

COPY_BYTES = 8 << 20
SIDECAR_FILES = (*(posixpath.join(DIRECTORY, name) for name in ("log.json", "sealed.jsonl", "watermark")), LOSSES)
_NEW = "new"
_FIRST = (Action.ASIDE, Action.RENAME, Action.CUT, Action.REWRITE, Action.CREATE)


def in_order(steps: Iterable[Step]) -> list[Step]:
    """Files go before others take their names; what is derived comes last."""
    order = {action: number for number, action in enumerate((*_FIRST, *(a for a in Action if a not in _FIRST)))}
    return sorted(steps, key=lambda step: order[step.action])


class Application:
    """A plan that is being carried out. Where `run` raises, `take_back` is due."""

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
    ) -> None:
        self._check = check
        self._disk = disk
        self._root = root
        self._fmt = fmt
        self._sidecar = sidecar
        self._plan = plan
        self._evidence = Evidence(disk, root, fmt)
        self._before = before = read_journal(disk, root)
        number = before.number + 1 if before is not None else 1
        directory = posixpath.join(DIRECTORY, "quarantine", f"repair-{number}")
        self._journal = Journal(State.ACTING, number, directory, int(time.time() * 1000), made=made)
        self._saved: dict[str, str] = {}
        """Where the copy of each whole file is."""

    def run(self) -> Journal:
        self._save()
        write_journal(self._disk, self._root, self._journal)
        for step in in_order(self._plan.steps):
            self._check()
            self._act(step)
        self._journal.after = dict(self._look())
        self._journal.state = State.DONE
        write_journal(self._disk, self._root, self._journal)
        return self._journal

    def take_back(self) -> bool:
        """As if it had never begun: the log's files, and the journal of the repair before this one. False where there
        was nothing to take back, as nothing had changed yet or all is done."""
        journal = read_journal(self._disk, self._root)
        is_own = journal is not None and journal.number == self._journal.number
        if journal is not None and is_own:
            if journal.state == State.DONE:
                return False
            put_back(self._disk, self._root, journal)
            if self._before is not None:
                write_journal(self._disk, self._root, self._before)
            else:
                remove_journal(self._disk, self._root)
        remove_copies(self._disk, self._full(self._journal.directory))
        return is_own

    def _act(self, step: Step) -> None:
        match step.action:
            case Action.ASIDE:
                self._set_aside(step)
            case Action.RENAME:
                self._rename(step)
            case Action.CUT:
                self._cut(step)
            case Action.REWRITE | Action.CREATE:
                self._put(step.path, (self._bytes_of(piece) for piece in step.pieces))
            case Action.INDEX:
                self._rebuild_index(step)
            case Action.MANIFEST:
                self._rebuild_manifest()
            case Action.SIDECAR:
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
        for step in self._plan.steps:
            for path in self._touched(step):
                if path not in {entry.path for entry in self._journal.entries}:
                    self._check()
                    self._journal.entries.append(self._entry(step, path))
        self._disk.sync_directory(directory)

    def _touched(self, step: Step) -> list[str]:
        if step.action == Action.INDEX:
            assert step.base is not None
            return [self._fmt.path_of(role, step.base) for role in self._fmt.index_builder(step.base, 0).headers()]
        return list(SIDECAR_FILES) if step.action == Action.SIDECAR else [step.path]

    def _entry(self, step: Step, path: str) -> Entry:
        full = self._full(path)
        if self._disk.kind(full) != Kind.FILE:
            return Entry(path, Was.ABSENT)
        size = self._disk.size(full)
        if step.action == Action.RENAME:
            return Entry(path, Was.NAMED, size, target=step.target or "")
        position = step.position if step.action == Action.CUT and step.position is not None else 0
        saved = self._copy_name(path)
        data = self._disk.map(full).data[position:]
        self._write_new(saved, [data])
        if step.action == Action.CUT:
            return Entry(path, Was.TAIL, size, saved, position, crc32c=kernel.crc32c(data))
        self._saved[path] = saved
        return Entry(path, Was.FILE, size, saved, crc32c=kernel.crc32c(data))

    def _copy_name(self, path: str) -> str:
        name, number = path.replace("/", "_"), 0
        taken = {entry.saved for entry in self._journal.entries}
        while (found := posixpath.join(self._journal.directory, f"{name}.{number}" if number else name)) in taken:
            number += 1
        return found

    def _write_new(self, path: str, parts: Iterable[Buffer]) -> None:
        """A new file, synced; what a repair that died before it changed anything may have left there goes."""
        full = self._full(path)
        if self._disk.kind(full) != Kind.MISSING:
            self._disk.remove(full)
        file = self._disk.create(full)
        try:
            position = 0
            for part in parts:
                view = memoryview(part).cast("B") if len(part) else memoryview(b"")
                for start in range(0, len(view), COPY_BYTES):
                    self._check()
                    write_all(file, position, view[start : start + COPY_BYTES])
                    position += len(view[start : start + COPY_BYTES])
            file.sync()
        finally:
            file.close()

    # --- changes

    def _put(self, path: str, parts: Iterable[Buffer]) -> None:
        """Give a file new contents, in one moment."""
        new, full = posixpath.join(self._journal.directory, _NEW), self._full(path)
        self._write_new(new, parts)
        directory = posixpath.dirname(full)
        if self._disk.kind(directory) == Kind.MISSING:
            self._disk.make_directory(directory)
            self._disk.sync_directory(posixpath.dirname(directory))
        self._disk.replace(self._full(new), full)
        self._disk.sync_directory(directory)

    def _bytes_of(self, piece: Piece) -> Buffer:
        if not piece.path:
            return piece.data
        source = self._saved.get(piece.path, piece.path)
        return self._disk.map(self._full(source)).data[piece.start : piece.end]

    def _set_aside(self, step: Step) -> None:
        self._disk.remove(self._full(step.path))
        self._disk.sync_directory(posixpath.dirname(self._full(step.path)))

    def _rename(self, step: Step) -> None:
        assert step.target is not None
        self._disk.replace(self._full(step.path), self._full(step.target))
        for path in {posixpath.dirname(self._full(step.path)), posixpath.dirname(self._full(step.target))}:
            self._disk.sync_directory(path)

    def _cut(self, step: Step) -> None:
        assert step.position is not None
        file = self._disk.open(self._full(step.path))
        try:
            file.truncate(step.position)
            file.sync()
        finally:
            file.close()

    # --- what is derived

    def _rebuild_index(self, step: Step) -> None:
        assert step.base is not None
        data = self._disk.map(self._full(self._fmt.segment_path(step.base))).data
        fmt = self._evidence.described
        for role, content in build_indexes(fmt, data, step.base).items():
            self._put(self._fmt.path_of(role, step.base), [content])

    def _rebuild_manifest(self) -> None:
        for name, content in manifest_files(self._disk, self._root, self._fmt, self._plan.segments).items():
            self._put(name, [content])

    def _rebuild_sidecar(self) -> None:
        config = self._config()
        self._sidecar.write_config(config)
        fmt = make(config.format, **config.options)
        entries = list(self._digests(fmt))
        if entries or self._disk.kind(self._full(SIDECAR_FILES[1])) == Kind.FILE:
            self._sidecar.replace_sealed(entries)
        mark = self._watermark(fmt)
        if mark is not None:
            self._sidecar.mark(mark, durable=True)
        known = read_losses(self._disk, self._root)
        known += [KnownLoss(loss.first, loss.last, loss.why, self._journal.directory) for loss in self._plan.losses]
        if known:
            self._put(LOSSES, [encode_losses(known)])

    def _config(self) -> Config:
        options: dict[str, Any] = dict(self._fmt.options)
        if self._plan.lost_slots:
            options["lost_slots"] = self._plan.lost_slots
        held = _readable_config(self._disk, self._root)
        return Config(self._fmt.name, options, held.created_ms if held is not None else self._journal.when_ms)

    def _digests(self, fmt: Format) -> Iterable[Sealed]:
        """Of every segment but the last; what is known of those that did not change stays as it is."""
        changed = {step.target or step.path for step in self._plan.steps}
        doubted = {
            finding.path for finding in self._plan.findings if finding.code in ("digest-mismatch", "sealed-size")
        }
        segments = self._plan.segments
        for number, (base, last) in enumerate(segments):
            path = self._fmt.segment_path(base)
            known = self._evidence.sealed.get(base)
            if known is not None and path not in changed and self._full(path) not in doubted:
                yield known
            elif number < len(segments) - 1:
                self._check()
                data = self._disk.map(self._full(path)).data
                yield Sealed(base, last, len(data), kernel.crc32(data), kernel.crc32c(data))

    def _watermark(self, fmt: Format) -> Watermark | None:
        """The end of the last segment, as it is now."""
        if not self._plan.segments:
            return None
        base = self._plan.segments[-1][0]
        data = self._disk.map(self._full(fmt.segment_path(base))).data
        try:
            segment = fmt.open_segment(data, base)
        except CorruptionError:
            return None  # it was refused, and is as it was
        cursor = segment.start
        while True:
            self._check()
            rows = segment.scan(cursor)
            cursor = rows.cursor
            if rows.stop != Stop.LIMIT:
                break
        following = max(cursor.previous_offset + 1, base)
        crc = 0 if segment.record_checksum else kernel.crc32c(data[: cursor.position])
        return Watermark(
            base, cursor.position, following, cursor.position, following, UNSYNCED_BYTES, crc, crc, is_open=False
        )

    def _look(self) -> Iterable[tuple[str, list[int]]]:
        return log_files(self._disk, self._root, self._fmt, {entry.path for entry in self._journal.entries})


def _readable_config(disk: Disk, root: str) -> Config | None:
    """What the sidecar says about the log; None where it cannot be read, and is made anew."""
    try:
        return read_config(disk, root)
    except CorruptionError:
        return None


def build_indexes(fmt: Format, data: memoryview, base: int) -> dict[Role, bytes]:
    """The derived files of a segment, made from its records."""
    segment = fmt.open_segment(data, base)
    builder = fmt.index_builder(base, segment.created_ms)
    cursor: Cursor = segment.start
    while True:
        rows = segment.scan(cursor)
        builder.add(rows)
        cursor = rows.cursor
        if rows.stop != Stop.LIMIT:
            return builder.build()


def manifest_files(disk: Disk, root: str, fmt: Format, segments: Iterable[tuple[int, int]]) -> Mapping[str, bytes]:
    """The files that describe the whole log, as it is now, with the settings of the ones that are there."""
    facts = Evidence(disk, root, fmt).manifest
    config = _readable_config(disk, root)
    created_ms = int(facts.get("created_ts_ms", config.created_ms if config is not None else 0))
    summaries = []
    for base, last in segments:
        index = posixpath.join(root, fmt.path_of(Role.INDEX, base))
        index_bytes = disk.size(index) if disk.kind(index) == Kind.FILE else 0
        size = disk.size(posixpath.join(root, fmt.segment_path(base)))
        summaries.append(SegmentSummary(base, last, size, index_bytes))
    return as_described(fmt, facts).log_files(summaries, created_ms)


def log_files(disk: Disk, root: str, fmt: Format, exactly: Iterable[str]) -> Iterable[tuple[str, list[int]]]:
    """The files of a log with their sizes, and of some of them the CRC-32C."""
    exact = set(exactly)
    listed = list_log(disk, root, fmt)
    files = [file for files in listed.segments for file in (files.segment, *files.derived.values())]
    for file in (*files, *listed.orphans, *listed.others):
        crc = kernel.crc32c(disk.map(posixpath.join(root, file.path)).data) if file.path in exact else 0
        yield file.path, [file.size_bytes, crc]
