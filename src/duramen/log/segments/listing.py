"""The files of a log: its segments, their derived files, and everything else in the directory.

Reads names and sizes only, apart from the first bytes that detecting a format needs. A log may also be a single segment
file.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from duramen.disk import Disk, Kind
from duramen.errors import CorruptionError, DetectionError, StorageError, UsageError
from duramen.formats import Detected, FileName, Format, Role, detect_directory, detect_file, make
from duramen.sidecar import DIRECTORY, Config, RepairState, read_config, read_repair_journal

SUBDIRECTORIES = ("segments", "groups", "tmp")


@dataclass(frozen=True)
class LogFile:
    """A file of the log: its path relative to the directory, its role, and its size when it was listed."""

    path: str
    name: FileName
    size_bytes: int


@dataclass
class SegmentFiles:
    """A segment and its derived files. ``base`` comes from the name; None for a single file with another name."""

    base: int | None
    segment: LogFile
    derived: dict[Role, LogFile] = field(default_factory=dict)
    is_growing: bool = False
    """A writer appends after the bytes that are counted here."""
    is_changing: bool = False
    """A committed file swap replaces it. It is complete, old or new, and its derived files may not match."""

    def settled(self, data: memoryview) -> memoryview:
        """The bytes of the segment that do not change any more: a writer that opened the log since it was listed may
        reserve space after them, and cut it when it closes the log, while ``data`` is mapped."""
        return data if self.is_changing else data[: self.segment.size_bytes]


@dataclass
class Directory:
    """The files of a log, sorted by role."""

    root: str
    segments: list[SegmentFiles]
    orphans: list[LogFile]
    """Derived files without their segment."""
    others: list[LogFile]
    """Manifest, checkpoint, group state, locks, stale temporary files."""
    unknown: list[str]

    def full(self, path: str) -> str:
        return posixpath.join(self.root, path)

    def up_to(self, base: int, size_bytes: int) -> Directory:
        """The same files, cut at that byte of that segment."""
        if self.segments and self.segments[-1].base == base:
            *before, last = self.segments
            return replace(
                self, segments=[*before, replace(last, segment=replace(last.segment, size_bytes=size_bytes))]
            )
        kept = [
            files if files.base != base else replace(files, segment=replace(files.segment, size_bytes=size_bytes))
            for files in self.segments
            if files.base is not None and files.base <= base
        ]
        return replace(self, segments=kept)

    def without(self, paths: Collection[str]) -> Directory:
        if not paths:
            return self
        segments = [files for files in self.segments if files.segment.path not in paths]
        return replace(self, segments=segments, orphans=[file for file in self.orphans if file.path not in paths])

    def changing(self, paths: Collection[str]) -> Directory:
        """The directory with the segments marked that are among the replaced files."""
        if not paths:
            return self
        segments = [
            replace(files, derived={}, is_changing=True) if files.segment.path in paths else files
            for files in self.segments
        ]
        return replace(self, segments=segments)


class StampedDirectory(NamedTuple):
    """A listing, and what proves later that the names are still the same."""

    directory: Directory
    stamps: tuple[tuple[int, ...] | None, ...] = (None,)

    @property
    def is_provable(self) -> bool:
        return None not in self.stamps


class Listing:
    """A directory, or one file of it, for `detect`."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        self._names = [name for name, _ in disk.list(root, (*SUBDIRECTORIES, "topics"))]
        if disk.kind(posixpath.join(root, "topics")) == Kind.DIRECTORY:
            self._names.append("topics/")

    def names(self) -> list[str]:
        return self._names

    def read(self, name: str) -> memoryview:
        return self._disk.map(posixpath.join(self._root, name)).data


def kind_of(disk: Disk, path: str) -> Kind:
    """Whether a path is a directory or a file. Raises `StorageError` for anything else: it cannot be a log."""
    kind = disk.kind(path)
    if kind == Kind.MISSING and disk.kind(posixpath.dirname(path)) == Kind.FILE:
        raise StorageError("not a directory", path=path, hint=f"{posixpath.dirname(path)} is a file")
    if kind == Kind.MISSING:
        raise StorageError("no such file or directory", path=path, hint="check the path")
    if kind == Kind.OTHER:
        raise StorageError("neither a directory nor a regular file", path=path)
    return kind


def detect(disk: Disk, path: str) -> Detected:
    """The format of the log at ``path``, and how it was recognised."""
    if kind_of(disk, path) == Kind.DIRECTORY:
        config = read_config(disk, path)
        if config is not None:
            return Detected(config.format, "the sidecar .duramen/log.json says so")
        return told_by_files(disk, path)
    try:
        return detect_file(posixpath.basename(path), disk.map(path).data)
    except DetectionError as error:
        error.path = path
        raise


def told_by_files(disk: Disk, path: str) -> Detected:
    """The format of the files in a directory, without its sidecar."""
    listing = Listing(disk, path)
    if not listing.names() and disk.kind(posixpath.join(path, DIRECTORY)) == Kind.DIRECTORY:
        raise DetectionError(
            "only a log's sidecar is here: the files are missing, or were never created", path=path,
            hint="restore them from a copy, or name the format to go on without them: `--format F`",
        )  # fmt: skip
    try:
        return detect_directory(path, listing)
    except DetectionError:
        with contextlib.suppress(CorruptionError):
            journal = read_repair_journal(disk, path)
            if journal is not None and journal.state == RepairState.ACTING and journal.format:
                return Detected(journal.format, "the journal of an interrupted repair says so")
        raise


def format_at(disk: Disk, path: str, name: str | None, options: dict[str, Any]) -> Format:
    """The format of a log: the one in its sidecar, or ``name``, or the one that its files show. ``options`` override
    those of the sidecar; an option that the bytes depend on cannot change."""
    config = read_config(disk, path) if kind_of(disk, path) == Kind.DIRECTORY else None
    if config is None:
        return make(name or detect(disk, path).format, **options)
    return configured_format(config, path, name, options)


def configured_format(config: Config, path: str, name: str | None, options: Mapping[str, Any]) -> Format:
    """The format that the sidecar names, with its options and those of the caller. Raises `UsageError` where the caller
    names another format, or changes an option that the bytes depend on."""
    if name is not None and name != config.format:
        raise UsageError(f"the log is {config.format}, not {name}", path=path)
    held = make(config.format, **config.options)
    if options.get("dialect", held.dialect) != held.dialect:
        raise UsageError(
            f"this log is written in the dialect {held.dialect!r}, and cannot become {options['dialect']!r}", path=path,
            hint="`duramen convert` writes a new log in the other dialect",
        )  # fmt: skip
    for option in held.fixed_options:
        if option not in options or option not in config.options:
            continue
        wanted = make(config.format, **{option: options[option]}).options[option]
        if wanted != config.options[option]:
            raise UsageError(f"{option} is {config.options[option]} in this log and cannot become {wanted}", path=path)
    return make(config.format, **{**config.options, **options}) if options else held


def list_log(disk: Disk, path: str, fmt: Format) -> Directory:
    """List the files at ``path``: segments with their derived files, and the rest."""
    if kind_of(disk, path) == Kind.FILE:
        root, name = posixpath.split(path)
        known = fmt.classify(name)
        base = known.base if known is not None else None
        segment = LogFile(name, FileName(Role.SEGMENT, base), disk.size(path))
        return Directory(root, [SegmentFiles(base, segment)], [], [], [])
    return sort_files(path, fmt, [(name, name, size) for name, size in disk.list(path, SUBDIRECTORIES)])


def list_log_again(disk: Disk, path: str, fmt: Format, known: StampedDirectory) -> StampedDirectory:
    """The files at ``path``, of which ``known`` is an earlier listing in the same format.

    If the names are provably the same, only the size of the last segment is asked for: a segment that another follows
    does not grow, and one that is replaced gets a new file. (A file that something cut since has the size that it had;
    a reader of it finds fewer bytes than that and raises.)"""
    stamps = names_stamps(disk, path)
    if known.stamps != stamps or not known.is_provable:
        return StampedDirectory(list_log(disk, path, fmt), stamps)
    directory = known.directory
    if not directory.segments:
        return known
    *before, last = directory.segments
    size_bytes = disk.size(directory.full(last.segment.path))
    if size_bytes == last.segment.size_bytes:
        return known
    last = replace(last, segment=replace(last.segment, size_bytes=size_bytes))
    return known._replace(directory=replace(directory, segments=[*before, last]))


def names_stamps(disk: Disk, path: str) -> tuple[tuple[int, ...] | None, ...]:
    """Evidence of all names that `list_log` looks at. Taken before a listing, so that a change during it shows."""
    return tuple(disk.names_stamp(posixpath.join(path, name)) for name in ("", *SUBDIRECTORIES))


def refuse_foreign_sidecar(disk: Disk, path: str, fmt: Format, directory: Directory) -> None:
    """Raise `CorruptionError` if the sidecar belongs to a log of another format than the files. Called before a log
    without segments counts as empty, or as one that has lost all of them."""
    if directory.segments or disk.kind(path) != Kind.DIRECTORY:
        return
    try:
        found = detect_directory(path, Listing(disk, path))
        if found.format == fmt.name or read_config(disk, path) is None:
            return
    except (DetectionError, CorruptionError):
        return  # nothing says that the formats differ; a caller that needs the configuration gets the error
    raise CorruptionError(
        f"the sidecar belongs to a {fmt.name} log, and the files are {found.format}: {found.why}",
        path=posixpath.join(path, DIRECTORY),
        hint="move it away: the records can be read without it; restore this log's own sidecar if a copy exists",
    )


def sort_files(root: str, fmt: Format, found: Iterable[tuple[str, str, int]]) -> Directory:
    """Sort files by role. Each is given as its name in a log, its path and its size."""
    segments: dict[int, SegmentFiles] = {}
    derived: list[LogFile] = []
    others: list[LogFile] = []
    unknown: list[str] = []
    for name, path, size in found:
        known = fmt.classify(name)
        if known is None and fmt.classify(name.removesuffix(".new")) is not None:
            known = FileName(Role.LEFTOVER)
        if known is None:
            unknown.append(path)
            continue
        file = LogFile(path, known, size)
        if known.role == Role.SEGMENT and known.base is not None:
            if known.base in segments:
                unknown.append(path)  # another spelling of the same base
            else:
                segments[known.base] = SegmentFiles(known.base, file)
        elif known.role in (Role.INDEX, Role.TIME_INDEX):
            derived.append(file)
        else:
            others.append(file)
    orphans = []
    for file in derived:
        owner = segments.get(file.name.base) if file.name.base is not None else None
        if owner is None:
            orphans.append(file)
        else:
            owner.derived.setdefault(file.name.role, file)
    return Directory(root, [segments[base] for base in sorted(segments)], orphans, others, unknown)
