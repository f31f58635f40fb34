"""Options that several verbs share (the log, its format, its options, ``--json``, ``--dry-run``), and `Target`, the log
that they select."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import typer

from duramen.disk import Disk, Kind, PosixDisk
from duramen.errors import UsageError
from duramen.formats import Detected, Format, Role, make
from duramen.log import Log, detect, format_at, kind_of
from duramen.store import (
    FoundLog,
    TreeTransfer,
    addressed_logs,
    find_logs,
    log_options,
    log_path,
    options_at,
    parse_address,
    topic_address,
    topic_path,
)
from duramen.values import KINDS

Job = Callable[[], int]
"""What a typer command returns: the work, which `main` runs. It returns the exit code."""

LogPath = Annotated[str, typer.Argument(metavar="PATH", help="The log: its directory, or one segment file.")]
LogDirectories = Annotated[
    str,
    typer.Argument(metavar="PATH", help="A log, ROOT#topic, a store or a directory of logs."),
]
LogDirectory = Annotated[str, typer.Argument(metavar="PATH", help="The log's directory.")]
FormatName = Annotated[
    str | None, typer.Option("--format", metavar="F", help="Format of the log (default: detected from its files).")
]
FormatOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="K=V", help="Option of the format, e.g. record_size=16; repeatable."),
]
Decode = Annotated[str | None, typer.Option("--decode", metavar="KIND", help=f"Decode values: {', '.join(KINDS)}.")]
DecodeKey = Annotated[str | None, typer.Option("--decode-key", metavar="KIND", help="Decode keys; same kinds.")]
ValueSchema = Annotated[
    str | None,
    typer.Option("--value-schema", "--schema", metavar="TEXT", help="Schema of values, or @FILE (see docs/values.md)."),
]
KeySchema = Annotated[str | None, typer.Option("--key-schema", metavar="TEXT", help="Schema of keys, or @FILE.")]
Registry = Annotated[
    str | None, typer.Option("--registry", metavar="WHERE", help="For confluent: a directory or URL with schemas.")
]
OnMalformed = Annotated[
    str | None,
    typer.Option("--on-malformed", "--malformed", metavar="HOW", help="For undecodable values: fail, null or raw."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")]


@dataclass(frozen=True)
class Target:
    """The log that a verb works on, as given on the command line."""

    path: str
    format: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    """The log in messages about several logs: its path, or ``ROOT#topic/partition``."""
    start: dict[str, Any] = field(default_factory=dict)
    """Option that readers of a partition add if it was given by its address."""

    @classmethod
    def of(cls, path: str, format: str | None, options: Sequence[str] | None) -> Target:
        return cls(log_path(path), format, dict(_pair(text) for text in options or ()), start=log_options(path))

    @classmethod
    def all_of(cls, paths: Sequence[str], format: str | None, options: Sequence[str] | None) -> Targets:
        """The logs that the paths stand for."""
        pairs = dict(_pair(text) for text in options or ())
        found = [(text, one) for text in paths for one in logs_of(text)]
        is_many = len(found) != 1 or found[0][0] not in found[0][1]
        return Targets([cls(one.path, format, pairs, one.name, _start_of(one)) for _, one in found], is_many)

    @cached_property
    def disk(self) -> Disk:
        """The disk, which does not follow links out of the log's directory."""
        return PosixDisk().within(self.path)

    @cached_property
    def detected(self) -> Detected:
        """The format and the reason; `DetectionError` if it is unknown."""
        if self.format is None:
            return detect(self.disk, self.path)
        codec = make(self.format, **self.options)
        name = codec.classify(posixpath.basename(self.path)) if self.is_file else None
        return Detected(self.format, "given with --format", name.role if name else Role.SEGMENT)

    @cached_property
    def is_file(self) -> bool:
        return kind_of(self.disk, self.path) == Kind.FILE

    @cached_property
    def codec(self) -> Format:
        """The format with its options. `UsageError` for a file that is not a segment."""
        found = self.detected
        if self.is_file and found.role != Role.SEGMENT:
            raise UsageError(
                f"expected a log, and this is a {found.role} of {found.format}", path=self.path,
                hint="give the log's directory; `duramen dump` shows this file",
            )  # fmt: skip
        return format_at(self.disk, self.path, found.format, self.options)

    def open(self) -> Log:
        return Log(self.path, format=self.codec.name, **{**self.start, **self.options})


def _start_of(log: FoundLog) -> dict[str, Any]:
    return {} if log.name == log.path else options_at(PosixDisk(), log.path)


class Targets(NamedTuple):
    """The logs that a verb works on. ``is_many``: a topic, a store or a directory of logs was given, or several paths;
    then JSON is a list."""

    all: list[Target]
    is_many: bool

    @property
    def found(self) -> list[FoundLog]:
        return [FoundLog(target.name, target.path) for target in self.all]


def logs_of(text: str) -> list[FoundLog]:
    """The logs that an argument stands for: a log, ``ROOT#topic``, ``ROOT#topic/partition``, a store, or a directory of
    logs."""
    found = addressed_logs(PosixDisk(), text)
    if found is None:
        found = find_logs(PosixDisk(), text)
    elif not found:
        raise UsageError("the topic has no partitions yet", path=text)
    if not found:
        raise UsageError("the store has no topics", path=text, hint="`duramen topic ROOT create NAME` creates one")
    return found


def transfer_of(src: str, dst: str) -> TreeTransfer:
    """Where the logs of a topic, a store or a directory of logs go. A topic keeps its name, unless ``dst`` has one."""
    disk, topic = PosixDisk(), topic_address(src)
    if topic is None:
        return TreeTransfer(disk, src, dst)
    address = parse_address(dst)
    if address is not None and address[1].partition is not None:
        raise UsageError(f"a topic cannot be copied to a partition (got {dst!r})", hint="give a store or STORE#topic")
    root, name = (dst, topic.topic) if address is None else (address[0], address[1].topic)
    return TreeTransfer(disk, topic_path(topic.root, topic.topic), topic_path(root, name))


def _pair(text: str) -> tuple[str, str]:
    """One ``--option``.

    >>> _pair("record_size=16")
    ('record_size', '16')
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--option must have the form K=V (got {text!r})", hint="for example record_size=16")
    return name.strip().replace("-", "_"), value
