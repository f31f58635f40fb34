"""Brings a copy up to date: only what is new is copied.

1. Lock the copy, and finish a file swap that an earlier update committed.
2. Compare (`_Comparison`). Each segment of the copy must be one of the source, the beginning of one, or one that
   compaction has replaced at the source since. Anything else is refused before a byte changes.
3. Append as a writer does: the growth of the last segment, then each new segment. Each is durable before the next
   begins, so a crash leaves a log that ends earlier, and the next update continues there.
4. Replace in one `FileSwap`: what compaction changed, the manifest, the state of consumers.

If compaction replaced the last segment of the copy, nothing can be appended to it: the new segments are part of the
swap, too. Segments that retention removed at the source stay in the copy.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from duramen import kernel
from duramen.disk import Disk, Kind, PosixDisk, open_private
from duramen.errors import CorruptionError, UsageError
from duramen.formats import Format, Role, SegmentSummary, SupportsManifest
from duramen.log.segments import (
    ActiveSegment,
    BuiltSegment,
    SegmentBuilder,
    configured_format,
    described_by,
    digested_bytes,
    list_log,
    remove_tree,
    sync_tree,
)
from duramen.log.transfer.copy import (
    Copied,
    Copy,
    Progress,
    Until,
    beginning,
    checked_state,
    copy_part,
    is_lost,
    opened,
    refuse_inside,
)
from duramen.log.transfer.source import STATE_ROLES, Source, SourcePart, files_of, sidecar_state
from duramen.sidecar import (
    CLEAN_CLOSE_NAME,
    COMPACTING_NAME,
    DIRECTORY,
    LOSSES_PATH,
    SEALED_PATH,
    WATERMARK_NAME,
    FileSwap,
    Sealed,
    Sidecar,
    Watermark,
    commit_file_swap,
    encode_known_losses,
    prepare_file_swap,
    read_compaction_state,
    read_config,
    replace_file,
    replay_file_swap,
    sealed_lines,
    sidecar_path,
)

STAGING = posixpath.join(DIRECTORY, COMPACTING_NAME)
NEW_COPY = "copy to a new path; this one stays as it is"
DIFFERS = "`duramen verify` the source: if it is damaged, this copy may hold what it lost; else copy to a new path"


@dataclass
class _Comparison:
    """How the copy differs from the source."""

    mark: Watermark
    sealed: dict[int, Sealed]
    """The sealed segments of the copy that stay."""
    grows: SourcePart | None = None
    """The segment that the last one of the copy is the beginning of."""
    replaced: list[SourcePart] = field(default_factory=list)
    gone: dict[int, Sealed] = field(default_factory=dict)
    """Segments of the copy that compaction replaced or removed."""
    is_swapped: bool = False
    """Whether the last segment of the copy is one of them."""


class Update:
    """One update of the copy at ``dst``: the constructor opens the source, `run` changes the copy."""

    def __init__(
        self, src: str, dst: str, *, format: str | None = None, disk: Disk | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        refuse_inside(src, dst)
        self.path = posixpath.normpath(dst)
        self.source = Source(src, format=format, disk=disk, options=options)
        self._disk = (disk if disk is not None else PosixDisk()).within(self.path)
        self._sidecar = Sidecar(self._disk, self.path)
        self._parts = {opened(self.source, part).base_offset: part for part in self.source.parts}
        self._built: dict[int, BuiltSegment] = {}
        self._is_known = False
        """Whether the sidecars say that both are the same log. A source that had none when it was copied may get one
        later; then only the bytes decide."""

    def run(self, progress: Progress | None = None) -> Copied:
        """Bring the copy up to date. It stays a valid copy at every moment."""
        self._sidecar_exists()
        self._sidecar.lock(make=False)
        try:
            replay_file_swap(self._disk, self.path)
            remove_tree(self._disk, posixpath.join(self.path, STAGING))
            return self._update(progress or (lambda _bytes: None))
        finally:
            self._sidecar.release()

    def plan(self) -> int:
        """How many bytes of segments an update would copy. Raises if the copy cannot be updated; changes nothing."""
        found = self._compare(self._identify())
        return sum(len(part.data) for part in self._new(found)) + self._growth(found)

    def _sidecar_exists(self) -> None:
        if self._disk.kind(sidecar_path(self.path)) != Kind.DIRECTORY:
            raise UsageError(
                "the target is not a copy that Duramen made: it has no .duramen", path=self.path, hint=NEW_COPY
            )

    # --- compare

    def _identify(self) -> Format:
        """The format of the copy. Raises unless it is a copy of this log."""
        self._sidecar_exists()
        config, source = read_config(self._disk, self.path), self.source.config
        if config is None:
            raise UsageError("the target is not a copy of a log: it has no log.json", path=self.path, hint=NEW_COPY)
        self._is_known = source is None or config.is_same_log(source)
        if config.format != self.source.fmt.name:
            self._refuse_other(f"it is {config.format}, the source {self.source.fmt.name}")
        return configured_format(config, self.path, None, {})

    def _refuse_other(self, why: str, hint: str = NEW_COPY) -> NoReturn:
        raise UsageError(f"the target is not a copy of this log: {why}", path=self.path, hint=hint)

    def _compare(self, fmt: Format) -> _Comparison:
        self.source.check_presence()
        mark, entries = self._sidecar.watermark(), self._sidecar.sealed()
        if mark is None:
            raise UsageError("the target is not a copy: it has no watermark", path=self.path, hint=NEW_COPY)
        mark = self._check_files(fmt, mark, entries)
        if not self._is_known and not entries and mark.next_offset == mark.base:
            self._refuse_other("it is the empty copy of a log that was created at another time")
        found = _Comparison(mark, {})
        oldest = min(self._parts)
        for base, entry in sorted(entries.items()):
            part = self._parts.get(base)
            if base >= mark.base:
                continue  # an interrupted update sealed it
            if self._is_retained(entry, oldest) or (part is not None and self._is_same(entry, part)):
                found.sealed[base] = entry
            else:
                self._replace(found, entry, part)
        last, part = self._last_of(mark), self._parts.get(mark.base)
        if part is not None and self._is_beginning(mark, part):
            found.grows = part
        elif not self._is_retained(last, oldest):
            self._replace(found, last, part)
            found.is_swapped = True
        elif mark.next_offset != oldest:
            raise UsageError(
                f"the copy ends at offset {mark.next_offset} and the source begins at {oldest}: retention removed the "
                "records between", path=self.path, hint=NEW_COPY,
            )  # fmt: skip
        return found

    def _is_retained(self, entry: Sealed, oldest: int) -> bool:
        """Whether retention, not compaction, removed a segment at the source: the copy keeps it."""
        state = read_compaction_state(self.source.disk, self.source.path)
        is_compacted = state.retained_until <= entry.last_offset < state.begun_until
        return entry.base < oldest and not is_compacted

    def _check_files(self, fmt: Format, mark: Watermark, entries: dict[int, Sealed]) -> Watermark:
        """Raise if a segment of the copy is missing, has another size than it was sealed with, or is unknown. Returns
        the watermark with the digest of the last segment, which a writer of some formats leaves out."""
        wanted = {base: entry.size_bytes for base, entry in entries.items() if base < mark.base}
        held = {files.base or 0: files.segment.size_bytes for files in list_log(self._disk, self.path, fmt).segments}
        for base, size_bytes in wanted.items():
            if held.get(base) != size_bytes:
                self._damaged(base, f"a sealed segment has {held.get(base, 'no')} bytes instead of {size_bytes}")
        is_longer = held.get(mark.base, -1) > mark.position and mark.is_open
        if held.get(mark.base) != mark.position and not is_longer:
            self._damaged(mark.base, f"the last segment has {held.get(mark.base, 'no')} bytes, not {mark.position}")
        crc32c = kernel.crc32c(self._data(mark))
        if digested_bytes(mark.base, mark, record_checksum=fmt.capabilities.record_checksum) and crc32c != mark.crc32c:
            self._damaged(mark.base, "the last segment is not what was written: its digest differs")
        unknown = [base for base in held if base not in wanted and base != mark.base]
        if any(base < mark.base or not mark.is_open or base not in self._parts for base in unknown):
            self._damaged(unknown[0], "the copy has a segment that it does not list")
        return mark._replace(crc32c=crc32c, durable_crc32c=crc32c, has_digest=True)

    def _damaged(self, base: int, what: str) -> None:
        path = posixpath.join(self.path, self.source.fmt.segment_path(base))
        hint = "`duramen verify` shows what is damaged; copy to a new path"
        raise CorruptionError(f"the copy is damaged: {what}", path=path, offset=base, hint=hint)

    def _data(self, mark: Watermark) -> memoryview:
        return self._disk.map(posixpath.join(self.path, self.source.fmt.segment_path(mark.base))).data[: mark.position]

    def _last_of(self, mark: Watermark) -> Sealed:
        crc32 = kernel.crc32(self._data(mark))
        return Sealed(mark.base, mark.next_offset - 1, mark.position, crc32, mark.crc32c)

    def _is_same(self, entry: Sealed, part: SourcePart) -> bool:
        known, size_bytes = self.source.sealed.get(entry.base), entry.size_bytes
        digest = (entry.crc32c, entry.crc32)
        if known is not None:
            return (known.size_bytes, known.crc32c, known.crc32) == (size_bytes, *digest)
        is_whole = size_bytes <= len(part.data) and kernel.is_zero(part.data, size_bytes, len(part.data))
        return is_whole and kernel.digest(part.data[:size_bytes]) == digest

    @staticmethod
    def _is_beginning(mark: Watermark, part: SourcePart) -> bool:
        return mark.position <= len(part.data) and kernel.crc32c(part.data[: mark.position]) == mark.crc32c

    def _replace(self, found: _Comparison, entry: Sealed, part: SourcePart | None) -> None:
        """Accept that a segment of the copy differs from the source, if compaction can be the reason."""
        compacted_until = read_compaction_state(self.source.disk, self.source.path).begun_until
        is_written = self._disk.kind(sidecar_path(self.path, CLEAN_CLOSE_NAME)) == Kind.FILE or found.mark.is_open
        is_empty = entry.last_offset < entry.base
        if not self._is_known or (
            not is_empty and (entry.last_offset >= compacted_until or (is_written and entry.base == found.mark.base))
        ):
            self._refuse_other(f"offsets {entry.base} to {entry.last_offset} differ", DIFFERS)
        found.gone[entry.base] = entry
        if part is not None:
            found.replaced.append(part)

    # --- copy

    def _new(self, found: _Comparison) -> list[SourcePart]:
        """The segments to copy whole, in order: new ones, and those that compaction wrote in the place of others."""
        known = {*found.sealed, *((found.mark.base,) if found.grows is not None else ())}
        oldest = min([*known, *found.gone], default=0)
        return [part for base, part in sorted(self._parts.items()) if base not in known and base >= oldest]

    @staticmethod
    def _growth(found: _Comparison) -> int:
        return 0 if found.grows is None else len(found.grows.data) - found.mark.position

    def _update(self, progress: Progress) -> Copied:
        fmt = self._identify()
        found = self._compare(fmt)
        old, new = found.mark, self._new(found)
        fmt = self.source.written_as.continuing(self.source.written_as.open_segment(b"", 0))
        mark, replaced = old, [part for part in new if found.is_swapped or self._base(part) < old.base]
        appended = [part for part in new if part not in replaced]
        if self._growth(found) or appended or old.is_open:
            mark = self._append(fmt, found, appended, progress)
        staged = [self._copy(fmt, part, STAGING, progress) for part in replaced]
        if found.is_swapped and staged:
            mark = _mark(staged[-1])
        changed = self._replace_files(fmt, found, mark, staged)
        if not found.is_swapped and mark.is_open:
            self._sidecar.mark(mark._replace(is_open=False), durable=True)
        copied = self._built.values()
        first = min([*found.sealed, *self._parts, mark.base])
        added = len(appended) + len([part for part in replaced if self._base(part) not in found.gone])
        size_bytes = sum(built.size_bytes for built in copied) - (0 if found.is_swapped else self._kept_bytes(old))
        return Copied(
            self.path, fmt.name, sum(built.records for built in copied), size_bytes, added, first, mark.next_offset,
            changed, 0, self.source.torn_bytes, True, len(found.replaced), len(found.gone) - len(found.replaced),
        )  # fmt: skip

    def _kept_bytes(self, old: Watermark) -> int:
        """The bytes of a segment that grew which the copy had before."""
        return old.position if old.base in self._built else 0

    def _base(self, part: SourcePart) -> int:
        return opened(self.source, part).base_offset

    def _append(self, fmt: Format, found: _Comparison, parts: list[SourcePart], progress: Progress) -> Watermark:
        """Append the growth of the last segment, and new segments. Returns the watermark, still open."""
        mark = found.mark._replace(is_open=True)
        self._sidecar.mark(mark, durable=True)
        closed = sidecar_path(self.path, CLEAN_CLOSE_NAME)
        if self._disk.kind(closed) == Kind.FILE:
            self._disk.remove(closed)
        last = self._last_of(mark)
        if found.grows is not None and self._cut_tail(mark, found.grows):
            built = self._grow(fmt, mark, found.grows, progress)
            last, mark = built.sealed, _mark(built)
            self._sidecar.mark(mark, durable=True)
        for part in parts:
            base = self._base(part)
            if is_lost(self.source, mark.next_offset, base):
                raise CorruptionError("offsets are missing before this segment", path=part.path, offset=base)
            if last.base not in self._sidecar.sealed():
                self._sidecar.add_sealed(last)
            found.sealed[last.base] = last
            built = self._copy(fmt, part, "", progress)
            last, mark = built.sealed, _mark(built)
            self._sidecar.check(closely=True)
            self._sidecar.mark(mark, durable=True)
            for path, content in self._lists(fmt, mark, found.sealed, {}).items():
                if path != SEALED_PATH:
                    replace_file(self._disk, posixpath.join(self.path, path), content)
        return mark

    def _cut_tail(self, mark: Watermark, part: SourcePart) -> bool:
        """Cut what an interrupted update left after the watermark. Returns whether the segment grows."""
        path = posixpath.join(self.path, self.source.fmt.segment_path(mark.base))
        tail = self._disk.map(path).data[mark.position :]
        if len(tail):
            if tail != part.data[mark.position : mark.position + len(tail)]:
                self._sidecar.quarantine(posixpath.basename(path), tail)
            file = open_private(self._disk, path)
            try:
                file.truncate(mark.position)
            finally:
                file.close()
        return len(part.data) > mark.position

    def _grow(self, fmt: Format, mark: Watermark, part: SourcePart, progress: Progress) -> BuiltSegment:
        """Append what the source has after the end of the copy's last segment, and rebuild its index."""
        self.source.check_digest(part)
        segment = opened(self.source, part)
        head = fmt.open_segment(part.data[: mark.position], part.base)
        file = open_private(self._disk, posixpath.join(self.path, fmt.segment_path(mark.base)))
        cursor = head.start if mark.position <= head.start.position else None
        index = fmt.index_builder(mark.base, segment.created_ms)
        rows = head.scan(head.start, verify=False) if cursor is None else None
        while rows is not None and len(rows.columns):
            index.add(rows)
            cursor, rows = rows.cursor, head.scan(rows.cursor, verify=False)
        assert cursor is not None
        active = ActiveSegment(self._disk, self.path, fmt, mark.base, file, cursor, index)
        active.start_position, active.crc32c = head.start.position, mark.crc32c
        target = SegmentBuilder(self._disk, self.path, fmt, mark.base, active=active)
        built = self._check(copy_part(target, self.source, part, Until(), progress, cursor)[0])
        return replace(built, sealed=replace(built.sealed, records=None))  # it counted only what it appended

    def _copy(self, fmt: Format, part: SourcePart, directory: str, progress: Progress) -> BuiltSegment:
        """Copy a segment whole, into the log or into the staging directory."""
        self.source.check_digest(part)
        segment = opened(self.source, part)
        root = posixpath.join(self.path, directory) if directory else self.path
        if self._disk.kind(root) == Kind.MISSING:
            self._disk.make_directory(root)
        target = SegmentBuilder(
            self._disk, root, fmt, segment.base_offset, created_ms=segment.created_ms, begun=beginning(fmt, segment)
        )
        return self._check(copy_part(target, self.source, part, Until(), progress)[0])

    def _check(self, built: BuiltSegment) -> BuiltSegment:
        """Compare what was written with the digest of the source."""
        entry = self.source.sealed.get(built.base)
        if entry is not None and (entry.size_bytes, entry.crc32c) != (built.size_bytes, built.sealed.crc32c):
            path = posixpath.join(self.path, self.source.fmt.segment_path(built.base))
            raise CorruptionError("the copied segment differs from the source", path=path, hint="run the update again")
        self._built[built.base] = built
        return built

    # --- replace

    def _replace_files(self, fmt: Format, found: _Comparison, mark: Watermark, staged: list[BuiltSegment]) -> list[str]:
        """Replace segments, manifest and state. Returns the files of consumers that changed.

        Segments that compaction removed go last, in a swap of their own: readers ignore them from its commit on."""
        disk, path = self._disk, self.path
        state = checked_state(self.source)
        held = {**sidecar_state(disk, path), **files_of(disk, path, fmt, *STATE_ROLES)}
        stale = [name for name in held if name not in state]
        changed = sorted([name for name, content in state.items() if not self._holds(name, content)] + stale)
        files = dict(state)
        if self.source.losses:
            files[LOSSES_PATH] = encode_known_losses(self.source.losses)
        moved = [name for built in staged for name in built.paths]
        removed = [name for base in found.gone for name in self._files(fmt, base) if name not in moved]
        moved += [self._stage_mark(mark)] if found.is_swapped else []
        built = {one.base: one for one in staged}
        sealed = {**found.sealed, **found.gone, **{base: one.sealed for base, one in built.items()}}
        self._swap({**files, **self._lists(fmt, mark, sealed, built)}, moved, stale)
        if removed:
            kept = {base: entry for base, entry in sealed.items() if base not in found.gone or base in built}
            self._swap(self._lists(fmt, mark, kept, {}), [], removed)
        return changed

    def _swap(self, files: dict[str, bytes], moved: list[str], removed: list[str]) -> None:
        """Replace ``files``, put ``moved`` from the staging directory in place, and remove files, in one swap."""
        disk, path = self._disk, self.path
        files = {name: content for name, content in files.items() if not self._holds(name, content)}
        if not (files or moved or removed):
            return
        for name in files:
            self._make_directory(posixpath.dirname(posixpath.join(path, name)))
        if moved:
            sync_tree(disk, posixpath.join(path, STAGING))
        renames = tuple((posixpath.join(STAGING, name), name) for name in moved)
        prepared = prepare_file_swap(disk, path, FileSwap("copy", renames, tuple(removed)), files)
        self._sidecar.check(closely=True)
        self._sidecar.forget_sealed()
        commit_file_swap(disk, path, prepared)
        remove_tree(disk, posixpath.join(path, STAGING))

    def _lists(
        self, fmt: Format, mark: Watermark, sealed: dict[int, Sealed], built: dict[int, BuiltSegment]
    ) -> dict[str, bytes]:
        """The sealed list and the manifest of the copy with these segments, of which ``built`` are not in place yet."""
        before = {base: entry for base, entry in sorted(sealed.items()) if base < mark.base}
        lists = {SEALED_PATH: sealed_lines(before.values())} if before else {}
        if not isinstance(fmt, SupportsManifest):
            return lists
        ends = {base: entry.last_offset for base, entry in before.items()} | {mark.base: mark.next_offset - 1}
        summaries = [
            built[base].summary if base in built else self._summary(fmt, base, last) for base, last in ends.items()
        ]
        config = read_config(self._disk, self.path)
        created_ms = 0 if config is None else config.created_ms
        return {**lists, **fmt.log_files(summaries, created_ms, described_by(self._disk, self.path, fmt))}

    def _stage_mark(self, mark: Watermark) -> str:
        """Write the watermark of the closed copy into the staging directory. Returns its path in a log."""
        root = posixpath.join(self.path, STAGING)
        self._make_directory(sidecar_path(root))
        staged = Sidecar(self._disk, root)
        staged.mark(mark._replace(is_open=False), durable=True)
        staged.release()
        return posixpath.join(DIRECTORY, WATERMARK_NAME)

    def _summary(self, fmt: Format, base: int, last_offset: int) -> SegmentSummary:
        sizes = [
            self._disk.size(full) if self._disk.kind(full) == Kind.FILE else 0
            for name in (fmt.segment_path(base), fmt.path_of(Role.INDEX, base))
            for full in (posixpath.join(self.path, name),)
        ]
        return SegmentSummary(base, last_offset, *sizes)

    def _files(self, fmt: Format, base: int) -> list[str]:
        """The files of a segment of the copy."""
        listed = [files for files in list_log(self._disk, self.path, fmt).segments if (files.base or 0) == base]
        return [file.path for files in listed for file in (*files.derived.values(), files.segment)]

    def _holds(self, name: str, content: bytes) -> bool:
        full = posixpath.join(self.path, name)
        return self._disk.kind(full) == Kind.FILE and self._disk.map(full).data == content

    def _make_directory(self, path: str) -> None:
        if self._disk.kind(path) == Kind.MISSING:
            self._disk.make_directory(path)
            self._disk.sync_directory(posixpath.dirname(path))


def _mark(built: BuiltSegment) -> Watermark:
    end, digests = (built.size_bytes, built.next_offset), (built.sealed.crc32c, built.sealed.crc32c)
    return Watermark(built.base, *end, *end, 0, *digests, is_open=True, has_digest=True)


def copy_or_update(
    src: str,
    dst: str,
    *,
    update: bool = False,
    until_offset: int | None = None,
    until_time: Any = None,
    format: str | None = None,
    disk: Disk | None = None,
    nested: bool = False,
    options: dict[str, Any] | None = None,
) -> Copy | Update:
    """The update of an existing copy, or else a new copy."""
    if update and (until_offset is not None or until_time is not None):
        raise UsageError("an update copies everything: give update, or until_offset or until_time")
    if update and (disk if disk is not None else PosixDisk()).kind(dst) != Kind.MISSING:
        return Update(src, dst, format=format, disk=disk, options=options)
    return Copy(
        src, dst, until_offset=until_offset, until_time=until_time, format=format, disk=disk, options=options,
        nested=nested,
    )  # fmt: skip


def copy(src: str, dst: str, *, disk: Disk | None = None, format: str | None = None, **how: Any) -> Copied:
    """Copy the log at ``src`` to ``dst``; see `copy_or_update`. Other arguments are options of the format."""
    own = {name: how.pop(name) for name in ("update", "until_offset", "until_time") if name in how}
    return copy_or_update(src, dst, disk=disk, format=format, options=how, **own).run()
