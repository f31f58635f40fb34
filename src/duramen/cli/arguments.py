"""What the verbs have in common on the command line: the log, its format, its options, and how they become a `Target`.

Only turns words into values and refuses the wrong ones; a verb does the work.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import typer

from duramen.cli.address import path_of
from duramen.disk import PosixDisk
from duramen.disk.base import Kind
from duramen.errors import UsageError
from duramen.formats import Format, make
from duramen.formats.base import Role
from duramen.formats.detect import Detected
from duramen.log.directory import detect, format_at, kind_of
from duramen.log.reader import Log

Job = Callable[[], int]
"""What a command of typer answers: the work, which `main` runs and whose exit code it passes on."""

LogPath = Annotated[str, typer.Argument(metavar="PATH", help="A log: its directory, or one segment file.")]
LogDirectory = Annotated[str, typer.Argument(metavar="PATH", help="The log's directory.")]
FormatName = Annotated[
    str | None, typer.Option("--format", metavar="F", help="The log's format, instead of finding it out.")
]
FormatOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="K=V", help="An option of the format, e.g. record_size=16; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="JSON for programs instead of text for people.")]


@dataclass(frozen=True)
class Target:
    """The log that a verb works on, as the user named it."""

    path: str
    format: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, path: str, format: str | None, options: Sequence[str] | None) -> Target:
        return cls(path_of(path), format, dict(_pair(text) for text in options or ()))

    @cached_property
    def detected(self) -> Detected:
        """The format and why; raises where it cannot be told."""
        if self.format is None:
            return detect(PosixDisk(), self.path)
        codec = make(self.format, **self.options)
        name = codec.classify(posixpath.basename(self.path)) if self.is_file else None
        return Detected(self.format, "--format says so", name.role if name else Role.SEGMENT)

    @cached_property
    def is_file(self) -> bool:
        return kind_of(PosixDisk(), self.path) == Kind.FILE

    @cached_property
    def codec(self) -> Format:
        """The format with its options, once it is sure that the path is a log: a file that is no segment is refused."""
        found = self.detected
        if self.is_file and found.role != Role.SEGMENT:
            raise UsageError(
                f"this is a {found.role} of {found.format}, not a log", path=self.path,
                hint="`duramen dump` shows it; point at its directory for the whole log",
            )  # fmt: skip
        return format_at(PosixDisk(), self.path, found.format, self.options)

    def open(self) -> Log:
        return Log(self.path, format=self.codec.name, **self.options)


def _pair(text: str) -> tuple[str, str]:
    """One ``--option``.

    >>> _pair("record_size=16")
    ('record_size', '16')
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--option {text!r} is not of the form K=V", hint="for example record_size=16")
    return name.strip().replace("-", "_"), value
