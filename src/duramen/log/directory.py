"""The files of a log: which segments there are, which derived files belong to them, and what else lies around.

Reads names and sizes only. A log may also be a single segment file that somebody points at.
"""

from __future__ import annotations

import errno
import posixpath
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from duramen.disk import Disk
from duramen.disk.base import Kind
from duramen.errors import CorruptionError, DetectionError, StorageError, UsageError
from duramen.formats import Format, make
from duramen.formats.base import FileName, Role
from duramen.formats.detect import Detected, detect_directory, detect_file
from duramen.log.sidecar import DIRECTORY, read_config

SUBDIRECTORIES = ("segments", "groups", "tmp")
ATTEMPTS, ATTEMPTS_S = 20, 0.01
T = TypeVar("T")


@dataclass(frozen=True)
class LogFile:
    """A file of the log: its path relative to the directory, what it is, and its size when it was listed."""

    path: str
    name: FileName
    size_bytes: int


@dataclass
class SegmentFiles:
    """A segment and its derived files. ``base`` is what the name says; None for a single file of another name."""

    base: int | None
    segment: LogFile
    derived: dict[Role, LogFile] = field(default_factory=dict)
    is_growing: bool = False
    """A writer goes on behind the bytes that are counted here."""
    is_changing: bool = False
    """A change of it was decided and is not finished: it is whole, old or new, and its derived files may not fit."""

    def settled(self, data: memoryview) -> memoryview:
        """Of the segment's bytes those that will not change any more."""
        return data[: self.segment.size_bytes] if self.is_growing else data


@dataclass
class Directory:
    """What a listing found."""

    root: str
    segments: list[SegmentFiles]
    orphans: list[LogFile]
    """Derived files without their segment."""
    others: list[LogFile]
    """Manifest, checkpoint, group state, locks, leftovers."""
    strays: list[str]

    def full(self, path: str) -> str:
        return posixpath.join(self.root, path)

    def up_to(self, base: int, size_bytes: int) -> Directory:
        """The same without what lies behind that byte of that segment."""
        kept = [
            files if files.base != base else replace(files, segment=replace(files.segment, size_bytes=size_bytes))
            for files in self.segments
            if files.base is not None and files.base <= base
        ]
        return replace(self, segments=kept)

    def without(self, paths: Collection[str]) -> Directory:
        """The directory as if these files were gone."""
        if not paths:
            return self
        segments = [files for files in self.segments if files.segment.path not in paths]
        return replace(self, segments=segments, orphans=[file for file in self.orphans if file.path not in paths])

    def changing(self, paths: Collection[str]) -> Directory:
        """The directory with the segments marked whose files are among those that are being replaced."""
        if not paths:
            return self
        segments = [
            replace(files, derived={}, is_changing=True) if files.segment.path in paths else files
            for files in self.segments
        ]
        return replace(self, segments=segments)


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
    """Whether a path is a directory or a file; anything else cannot be a log."""
    kind = disk.kind(path)
    if kind == Kind.MISSING and disk.kind(posixpath.dirname(path)) == Kind.FILE:
        raise StorageError("not a directory", path=path, hint=f"{posixpath.dirname(path)} is a file")
    if kind == Kind.MISSING:
        raise StorageError("no such file or directory", path=path, hint="check the path")
    if kind == Kind.OTHER:
        raise StorageError("neither a directory nor a regular file", path=path)
    return kind


def detect(disk: Disk, path: str) -> Detected:
    """Which format lies at ``path``, and why."""
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
    """Which format the files of a directory are, whatever a sidecar says."""
    listing = Listing(disk, path)
    if not listing.names() and disk.kind(posixpath.join(path, DIRECTORY)) == Kind.DIRECTORY:
        raise DetectionError(
            "only a log's sidecar is here: its files are gone, or were never made", path=path,
            hint="bring them back from a copy; for what is left to do without, name the format: `--format F`",
        )  # fmt: skip
    return detect_directory(path, listing)


def format_at(disk: Disk, path: str, name: str | None, options: dict[str, Any]) -> Format:
    """The format of a log: as told, as the sidecar remembers, or as detected. The sidecar's options hold unless
    others are given; those that the bytes depend on may not change."""
    config = read_config(disk, path) if kind_of(disk, path) == Kind.DIRECTORY else None
    if config is None:
        return make(name or detect(disk, path).format, **options)
    if name is not None and name != config.format:
        raise UsageError(f"the log is {config.format}, not {name}", path=path)
    fmt = make(config.format, **{**config.options, **options})
    for option in fmt.fixed_options:
        if option in config.options and fmt.options[option] != config.options[option]:
            raise UsageError(
                f"{option} is {config.options[option]} in this log and cannot become {fmt.options[option]}", path=path
            )
    return fmt


def while_files_go(disk: Disk, path: str, look: Callable[[], T]) -> T:
    """What ``look`` makes of a log whose files others may remove meanwhile, as retention does: where a file is gone
    that was there, it looks again."""
    for _ in range(ATTEMPTS - 1):
        try:
            return look()
        except StorageError as error:
            if error.errno != errno.ENOENT or disk.kind(path) != Kind.DIRECTORY:
                raise
            time.sleep(ATTEMPTS_S)  # an index may go a moment before its segment
    return look()


def list_log(disk: Disk, path: str, fmt: Format) -> Directory:
    """The files at ``path``, sorted into segments with their derived files and the rest."""
    if kind_of(disk, path) == Kind.FILE:
        root, name = posixpath.split(path)
        known = fmt.classify(name)
        base = known.base if known is not None else None
        segment = LogFile(name, FileName(Role.SEGMENT, base), disk.size(path))
        return Directory(root, [SegmentFiles(base, segment)], [], [], [])
    return sort_files(path, fmt, [(name, name, size) for name, size in disk.list(path, SUBDIRECTORIES)])


def refuse_foreign_sidecar(disk: Disk, path: str, fmt: Format, directory: Directory) -> None:
    """Raise where the files are those of another format than the sidecar says: it is another log's. To be asked before
    a log without a segment is taken for an empty one, or for one that has lost them all."""
    if directory.segments or disk.kind(path) != Kind.DIRECTORY:
        return
    try:
        if read_config(disk, path) is None:
            return
    except CorruptionError:
        return  # it does not say of which format it is; whoever needs to know is told that it cannot be read
    try:
        found = detect_directory(path, Listing(disk, path))
    except DetectionError:
        return
    if found.format != fmt.name:
        raise CorruptionError(
            f"the sidecar is that of a {fmt.name} log, and the files are {found.format}: {found.why}",
            path=posixpath.join(path, DIRECTORY),
            hint="move it away: the records can be read without it; bring back this log's own, if there is a copy",
        )


def sort_files(root: str, fmt: Format, found: Iterable[tuple[str, str, int]]) -> Directory:
    """Files, each as its name in a log, the path where it lies and its size: sorted by what their names say."""
    segments: dict[int, SegmentFiles] = {}
    derived: list[LogFile] = []
    others: list[LogFile] = []
    strays: list[str] = []
    for name, path, size in found:
        known = fmt.classify(name)
        if known is None and fmt.classify(name.removesuffix(".new")) is not None:
            known = FileName(Role.LEFTOVER)
        if known is None:
            strays.append(path)
            continue
        file = LogFile(path, known, size)
        if known.role == Role.SEGMENT and known.base is not None:
            if known.base in segments:
                strays.append(path)  # another spelling of a base that is there already
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
    return Directory(root, [segments[base] for base in sorted(segments)], orphans, others, strays)
