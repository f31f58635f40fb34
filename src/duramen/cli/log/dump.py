"""`duramen dump`: print every field of every structure of one file, with its byte range, bytes and meaning.

Accepts any file of any format (segment, index, manifest, snapshot, delta, checkpoint) and the files of the sidecar.
Prints while reading, so large files need little memory; ``--from`` finds its position with the index or the checksums.
A damaged place is marked ``!!`` and shown with the bytes around it; the dump continues after it, and ends with exit
code 1.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

from duramen.cli.arguments import FormatName, FormatOptions, Job, Json, Target
from duramen.cli.output import Cell, Output, exact_size, moment, number, safe, size, to_json
from duramen.disk import PosixDisk
from duramen.errors import CorruptionError, DetectionError, DuramenError, UsageError
from duramen.formats import Block, Detected, Field, FileName, Format, Index, Role, SupportsInternalTopics, make
from duramen.log import detect, dump_for, list_log

BYTES_SHOWN = 64
"""Bytes printed of one field."""
BYTES_AROUND = 64
_PER_LINE = 8
_PRINTABLE = bytes(byte if 32 <= byte < 127 else ord(".") for byte in range(256))
_PER_HEXDUMP_LINE = 16


def command(
    path: Annotated[str, typer.Argument(metavar="FILE", help="File of a log: segment, index, manifest, …")],
    start: Annotated[
        int, typer.Option("--from", metavar="POS", min=0, help="Skip structures that end before this byte.")
    ] = 0,
    to: Annotated[int | None, typer.Option("--to", metavar="POS", min=0, help="Stop before this byte.")] = None,
    format: FormatName = None,
    option: FormatOptions = None,
    json: Json = False,
) -> Job:
    """Print every field of a file with its byte range.

    A damaged place is marked !! and shown with the bytes around it; the dump continues, and the exit code is 1.
    --json prints one object per structure.
    """
    return partial(run, Target.of(path, format, option), start=start, to=to, json=json)


def run(target: Target, *, start: int = 0, to: int | None = None, json: bool = False) -> int:
    file = DumpedFile.open(target)
    out = Output()
    show = _JsonLines(file, out) if json else _Annotated(file, out)
    show.start()
    shown, problems = 0, 0
    first: CorruptionError | None = None
    for block in file.blocks(start):
        if to is not None and block.position >= to:
            break
        if _end(block) <= start and block.position < start:
            continue
        show.block(block)
        shown += 1
        if block.problem is not None:
            problems += 1
            first = first or CorruptionError(block.problem, path=file.path, position=block.position)
    show.end(shown)
    if first is not None:
        if problems > 1:
            first.hint = f"and {number(problems - 1, 'more place')}"
        raise first
    return 0


# --- the file


class DumpedFile(NamedTuple):
    """A file, and what is known about it before reading."""

    path: str
    data: memoryview
    what: str
    why: str
    unit: str | None
    """Unit of its timestamps."""
    dump: Callable[[int], Iterator[Block]]

    @classmethod
    def open(cls, target: Target) -> DumpedFile:
        if not target.is_file:
            raise UsageError("dump needs a file, and this is a directory", path=target.path, hint=_a_file_of(target))
        data = PosixDisk().map(target.path).data
        of_sidecar = dump_for(os.path.abspath(target.path)) if target.format is None else None
        if of_sidecar is not None:
            why = "it is in the sidecar of a log"
            return cls(target.path, data, "file of a sidecar", why, "ms", partial(of_sidecar, data))
        found = _detected(target)
        codec = make(found.format, **target.options)
        if isinstance(codec, SupportsInternalTopics):
            codec = codec.in_directory(posixpath.basename(posixpath.dirname(os.path.abspath(target.path))))
        name = _name(codec, target.path, found.role)
        index = _index_of(codec, target.path, name)

        def dump(begin: int) -> Iterator[Block]:
            return codec.dump(name.role, data, name.base, begin, index)

        unit = codec.capabilities.timestamps
        return cls(target.path, data, f"{name.role} of {codec.name}", found.why, unit, dump)

    def blocks(self, begin: int = 0) -> Iterator[Block]:
        try:
            yield from self.dump(begin)
        except DuramenError as error:
            error.path = error.path or self.path
            raise

    def bytes_of(self, field: Field) -> bytes:
        """The bytes of a field, at most `BYTES_SHOWN`."""
        if isinstance(field.value, bytes):
            return field.value[:BYTES_SHOWN]
        return bytes(self.data[field.position : field.position + min(field.length, BYTES_SHOWN)])


def _index_of(codec: Format, path: str, name: FileName) -> Index | None:
    """The readable index of a segment, used to find the start position; None if it is missing or damaged."""
    if name.role != Role.SEGMENT or name.base is None or not codec.capabilities.index:
        return None
    beside = posixpath.join(posixpath.dirname(path), posixpath.basename(codec.path_of(Role.INDEX, name.base)))
    try:
        return codec.open_index(
            Role.INDEX, PosixDisk().within(posixpath.dirname(path) or ".").map(beside).data, name.base
        )
    except DuramenError:
        return None


def _detected(target: Target) -> Detected:
    """Detect the file's format from its bytes, otherwise from the log that contains it."""
    try:
        return target.detected
    except DetectionError:
        root, name = posixpath.split(os.path.abspath(target.path))
        for _ in range(2):
            around = _log_at(root)
            known = make(around.format).classify(name) if around is not None else None
            if around is not None and known is not None:
                return Detected(around.format, f"it is named like a {known.role} and is in a log", known.role)
            root, name = posixpath.dirname(root), f"{posixpath.basename(root)}/{name}"
        raise


def _log_at(path: str) -> Detected | None:
    try:
        return detect(PosixDisk().within(path), path)
    except DuramenError:
        return None


def _a_file_of(target: Target) -> str:
    """A hint that names a file to dump."""
    try:
        directory = list_log(target.disk, target.path, make(target.detected.format))
    except DuramenError:
        return "give a file in this directory"
    if not directory.segments:
        return "give a file in this directory"
    return f"for example {directory.full(directory.segments[-1].segment.path)}"


def _name(codec: Format, path: str, role: Role) -> FileName:
    """The role and the base offset from the file's name. Keratin's names include a directory."""
    folder, name = posixpath.split(path)
    for candidate in (name, f"{posixpath.basename(folder)}/{name}"):
        known = codec.classify(candidate)
        if known is not None and known.role == role:
            return known
    return FileName(role)


def _end(block: Block) -> int:
    return max((f.position + f.length for f in block.fields), default=block.position)


# --- JSON


class _JsonLines:
    """One object per block: title, position, fields with value and hex, and the problem if any."""

    def __init__(self, file: DumpedFile, out: Output) -> None:
        self._file = file
        self._out = out

    def start(self) -> None:
        pass

    def block(self, block: Block) -> None:
        head = {"title": block.title, "position": block.position, "length": _end(block) - block.position}
        fields = [self._field(field) for field in block.fields]
        self._out.write(to_json(head | {"problem": block.problem, "fields": fields}) + "\n")

    def _field(self, field: Field) -> dict[str, Any]:
        shown: dict[str, Any] = {"name": field.name, "position": field.position, "length": field.length}
        if isinstance(field.value, bytes):
            return shown | {"hex": field.value.hex()} | self._note(field)
        shown["value"] = field.value
        when = moment(field.name, field.value, self._unit) if isinstance(field.value, int) else None
        if when is not None:
            shown["time"] = when
        return shown | {"hex": self._file.bytes_of(field).hex()} | self._note(field)

    @property
    def _unit(self) -> str | None:
        return self._file.unit

    def _note(self, field: Field) -> dict[str, str]:
        return {"note": field.note} if field.note else {}

    def end(self, shown: int) -> None:
        pass


# --- text


class _Annotated:
    """Byte range, bytes, name and value of every field, in columns."""

    def __init__(self, file: DumpedFile, out: Output) -> None:
        self._file = file
        self._out = out
        self._digits = len(str(len(file.data)))
        self._unit = file.unit

    def start(self) -> None:
        file = self._file
        self._out.heading(file.path)
        self._out.line(f"  {file.what}, {exact_size(len(file.data))}")
        self._out.paragraph(file.why, indent="  ", style="label")
        if not len(file.data):
            self._out.line("  the file is empty")

    def block(self, block: Block) -> None:
        length = _end(block) - block.position
        mark = Cell("!! ", "damage") if block.problem is not None else ""
        place = f"byte {block.position}" + (f", {size(length)}" if length else "")
        self._out.blank()
        self._out.line(mark, Cell(block.title, "name"), "  ", Cell(place, "position"))
        if block.problem is not None:
            self._out.line(Cell(f"!! {block.problem}", "damage"))
        names = max((len(field.name) for field in block.fields), default=0)
        for field in block.fields:
            self._field(field, names)
        if block.problem is not None:
            self._around(block.position)

    def _field(self, field: Field, names: int) -> None:
        raw = self._file.bytes_of(field)
        last = field.position + field.length - 1
        place = f"{field.position}–{last}" if field.length > 1 else f"{field.position}" if field.length else "–"
        when = moment(field.name, field.value, self._unit) if isinstance(field.value, int) else None
        value = safe(self._value(field, when))
        name = self._out.paint(f"{field.name:<{names}}", "label")
        right = f"{name}  {value}"
        margin = 2 * self._digits + 5
        for at in range(0, max(len(raw), 1), _PER_LINE):
            part = raw[at : at + _PER_LINE]
            text = f"  {printable(part)}" if isinstance(field.value, bytes) else ""
            left = f"  {place:>{margin - 4}}  {part.hex(' '):<{3 * _PER_LINE - 1}}  "
            self._out.write(f"{left}{right}{text}".rstrip() + "\n")
            place, right = "", " " * (names + 2 + len(value))
        if when is not None:
            self._out.line(f"{'':{margin + 3 * _PER_LINE + 1 + names + 2}}{when}")
        rest = field.length - len(raw)
        if rest > 0 and isinstance(field.value, bytes):
            self._out.line(Cell(f"{'':{margin}}… {number(rest, 'byte')} more", "label"))

    def _value(self, field: Field, when: str | None) -> str:
        note = f"  ({field.note})" if field.note else ""
        if isinstance(field.value, bytes):
            return f"{size(field.length)}{note}"
        if isinstance(field.value, str):
            return f"{field.value}{note}"
        hexadecimal = f" = 0x{field.value:x}" if field.value > 9 and when is None else ""
        return f"{field.value}{hexadecimal}{note}"

    def _around(self, position: int) -> None:
        """The bytes before and after a damaged place; the place itself starts a line."""
        self._out.line(Cell(f"   the bytes around byte {position}:", "label"))
        for begin in range(position - BYTES_AROUND, position + BYTES_AROUND, _PER_HEXDUMP_LINE):
            start = max(begin, 0)
            part = bytes(self._file.data[start : max(begin + _PER_HEXDUMP_LINE, 0)])
            if part:
                mark, style = ("!!", "damage") if begin == position else ("  ", "")
                hexadecimal = f"{part.hex(' '):<{3 * _PER_HEXDUMP_LINE - 1}}"
                text = f"{mark} {start:>{self._digits}}  {hexadecimal}  {printable(part)}"
                self._out.line(Cell(text, style))

    def end(self, shown: int) -> None:
        if not shown and len(self._file.data):
            self._out.line("  the range contains no structure")


def printable(data: bytes) -> str:
    """
    >>> printable(b"a\\x00\\xff~")
    'a..~'
    """
    return data.translate(_PRINTABLE).decode("ascii")
