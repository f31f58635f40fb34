"""`duramen info`: format, content and end of a log, and unknown files in its directory. Reads as little as possible.

For a damaged log it prints what it can read, then one line on standard error with the damage, and its exit code.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

from duramen.cli.arguments import FormatName, FormatOptions, Job, Json, LogPath, Target, Targets
from duramen.cli.outcome import Outcome, run_each
from duramen.cli.output import Cell, Column, Output, exact_size, moment, number, safe, size
from duramen.cli.store import topic
from duramen.cli.store.topic import TopicAction
from duramen.errors import CorruptionError, DuramenError, IncompleteHeaderError, OffsetError, StorageError
from duramen.formats import Capabilities, Role
from duramen.log import EndKind, Log, LogFile, SegmentFiles, list_settled, read_producers, refuse_foreign_sidecar
from duramen.store import topic_address

COUNT_BYTES = 64 << 20
"""Logs up to this size are read completely to count their records."""
ATTEMPTS = 10
SEGMENTS_SHOWN = 20
_DESCRIBED = (Role.MANIFEST, Role.CHECKPOINT, Role.LEADER_EPOCHS, Role.METADATA)
"""Segments listed: the oldest and this many of the newest. JSON lists all."""

COLUMNS = (
    Column("log"), Column("format"), Column("first offset", right=True), Column("next", right=True),
    Column("segments", right=True), Column("size", right=True), Column("end"),
)  # fmt: skip
"""Of the table of several logs."""

T = TypeVar("T")


def command(path: LogPath, format: FormatName = None, option: FormatOptions = None, json: Json = False) -> Job:
    """Show what a log contains and how it ends.

    Prints the format, offsets, sizes, segments, the end (clean, torn tail or damage), the fields that the format can
    store, and the content of its manifest or checkpoint. `duramen verify` checks every byte.
    """
    address = topic_address(path)
    if address is not None:
        describe = TopicAction.DESCRIBE
        return partial(topic.run, Target(address.root), describe, address.topic, None, dry_run=True, json=json)
    return partial(run, Target.all_of([path], format, option), json=json)


def run(targets: Targets, *, json: bool = False) -> int:
    rows: list[list[str | Cell]] = []

    def work(target: Target) -> Outcome:
        gathering = _gathered(target)
        info = gathering.info
        if not targets.is_many:
            return Outcome(asdict(info), partial(show, info), 0, gathering.error)
        rows.append(_row(target, info))
        return Outcome(asdict(info), lambda _out: None, 0, gathering.error)

    code = run_each(targets, work, json=json, headings=False)
    if rows and not json:
        Output().table(COLUMNS, rows, indent=0)
    return code


def _row(target: Target, info: Info) -> list[str | Cell]:
    """One of several logs."""
    end = "unknown" if info.end is None else str(info.end.state)
    return [
        target.name,
        info.format,
        "?" if info.first_offset is None else str(info.first_offset),
        "?" if info.next_offset is None else str(info.next_offset),
        f"{len(info.segments):,}",
        size(info.size_bytes),
        Cell(end, "damage" if info.problems else ""),
    ]


def _gathered(target: Target) -> _Gathering:
    """Gather the facts; start again if retention removed a file during that."""
    for _ in range(ATTEMPTS):
        gathering = _Gathering(target)
        gathering.run()
        if not gathering.is_overtaken:
            break
    return gathering


# --- facts


@dataclass
class SegmentLine:
    base_offset: int | None
    path: str
    size_bytes: int
    state: str
    """``sealed``, or ``active`` for the last one."""
    dialect: str | None
    """Variant of the format; None if the file's header is unreadable."""
    indexes: list[str]


@dataclass
class EndLine:
    """How the records of the last segment end."""

    state: str
    path: str
    position: int
    reason: str


@dataclass
class Info:
    path: str
    format: str
    why: str
    first_offset: int | None = None
    next_offset: int | None = None
    records: int | None = None
    """None if the log is too large to count them, or unreadable."""
    size_bytes: int = 0
    segment_bytes: int = 0
    segments: list[SegmentLine] = field(default_factory=list)
    end: EndLine | None = None
    capabilities: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    """Content of the format's own files: manifest, checkpoint, tracking."""
    groups: dict[str, Any] = field(default_factory=dict)
    producers: dict[str, int] = field(default_factory=dict)
    """Last sequence of each producer."""
    orphans: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Damage found, and facts that could not be read."""


class _Gathering:
    """Collects an `Info`. Notes errors and continues."""

    def __init__(self, target: Target) -> None:
        self.error: DuramenError | None = None
        self.is_overtaken = False
        """Whether a file was removed before it was read."""
        self._target = target
        self._codec = target.codec
        self._directory = list_settled(target.disk, target.path, self._codec)
        self.info = Info(target.path, self._codec.name, target.detected.why)

    def run(self) -> Info:
        info, directory = self.info, self._directory
        info.capabilities = _capabilities(self._codec.capabilities)
        self._files()
        if not directory.segments:
            self._try(lambda: refuse_foreign_sidecar(self._target.disk, info.path, self._codec, directory))
            self._note(CorruptionError("the log has no segment", path=info.path))
            return info
        with self._target.open() as log:
            info.first_offset = self._try(lambda: log.first_offset)
            self._end(log)
            info.producers = self._try(lambda: _producers(log)) or {}
            if info.segment_bytes <= COUNT_BYTES:
                info.records = self._try(lambda: _count(log))
        return info

    def _files(self) -> None:
        info, directory = self.info, self._directory
        known = [*directory.orphans, *directory.others]
        for files in directory.segments:
            info.segment_bytes += files.segment.size_bytes
            known += [files.segment, *files.derived.values()]
        info.size_bytes = sum(file.size_bytes for file in known)
        last = len(directory.segments) - 1
        info.segments = [self._segment(files, n == last) for n, files in enumerate(directory.segments)]
        info.orphans = [file.path for file in directory.orphans]
        info.leftovers = [file.path for file in directory.others if file.name.role == Role.LEFTOVER]
        info.strays = list(directory.unknown)
        described = self._try(self._describe) or {}
        info.groups = {name: value for name, value in described.items() if name.startswith("groups/")}
        info.facts = {name: value for name, value in described.items() if name not in info.groups}

    def _segment(self, files: SegmentFiles, is_last: bool) -> SegmentLine:
        line = SegmentLine(
            files.base, files.segment.path, files.segment.size_bytes, "active" if is_last else "sealed", None,
            [str(role) for role in sorted(files.derived)],
        )  # fmt: skip
        path = self._directory.full(files.segment.path)
        try:
            segment = self._codec.open_segment(files.settled(self._map(files.segment)), files.base)
        except IncompleteHeaderError as error:
            if not is_last:
                self._note(error, path)
        except DuramenError as error:
            self._note(error, path)
        else:
            line.base_offset, line.dialect = segment.base_offset, segment.dialect
        return line

    def _describe(self) -> dict[str, Any]:
        """Content of the format's own files, and facts stored in the last segment."""
        roles = (*_DESCRIBED, Role.GROUP_SNAPSHOT, Role.GROUP_DELTA)
        files = [file for file in self._directory.others if file.name.role in roles]
        described = {file.path: self._map(file) for file in files}
        for last in self._directory.segments[-1:]:
            described[last.segment.path] = last.settled(self._map(last.segment))
        return self._codec.describe(described)

    def _map(self, file: LogFile) -> memoryview:
        return self._target.disk.map(self._directory.full(file.path)).data

    def _end(self, log: Log) -> None:
        info, last = self.info, log.segments[-1]
        try:
            end = log.end()
        except IncompleteHeaderError as error:
            info.end = EndLine(EndKind.TORN, info.segments[-1].path, 0, error.message)
            info.next_offset = last.base_offset
        except DuramenError as error:
            self._note(error, last.path)
        else:
            info.end = EndLine(end.ending, info.segments[-1].path, end.position, end.why)
            info.next_offset = end.previous_offset + 1
            if end.ending in (EndKind.DAMAGE, EndKind.UNKNOWN_VERSION):
                self._note(end.error(last.path))

    def _try(self, what: Callable[[], T]) -> T | None:
        try:
            return what()
        except DuramenError as error:
            self._note(error)
            return None

    def _note(self, error: DuramenError, path: str | None = None) -> None:
        self.is_overtaken |= isinstance(error, StorageError) and error.errno == errno.ENOENT
        error.path = error.path or path or self.info.path
        if str(error) not in self.info.problems:
            self.info.problems.append(str(error))
            self.error = self.error or error


def _producers(log: Log) -> dict[str, int]:
    known = read_producers(log)
    return {name.decode("utf-8", "backslashreplace"): last.sequence for name, last in sorted(known.items())}


def _count(log: Log) -> int | None:
    """Count the records, checking their checksums; None if retention removes some during that."""
    count = 0
    try:
        for batch in log.batches(columns=("offset",)):
            count += batch.num_rows
    except IncompleteHeaderError:
        pass  # a torn header ends the log; inside the log it was noted before
    except OffsetError:
        return None
    return count


def _capabilities(able: Capabilities) -> dict[str, Any]:
    plain = {name: getattr(able, name) for name in able.__dataclass_fields__}
    return plain | {"extras": [extra.name for extra in able.extras]}


# --- text


def show(info: Info, out: Output) -> None:
    out.heading(info.path)
    out.pairs([*_summary(info)])
    if info.segments:
        _segments(info, out)
    for title, facts in info.facts.items():
        if isinstance(facts, Mapping):
            out.blank()
            out.heading(title)
            _facts(facts, out)
    if info.producers:
        out.blank()
        out.heading("producers")
        out.pairs([(safe(name), f"last sequence {last:,}") for name, last in info.producers.items()])
    if info.groups:
        out.blank()
        out.heading("consumer groups")
        out.pairs([(name.removeprefix("groups/"), _in_words(state)) for name, state in info.groups.items()])
    _lying_around(info, out)


def _summary(info: Info) -> Iterator[tuple[str, str | Cell]]:
    yield "format", f"{info.format}: {info.why}"
    if info.first_offset is not None and info.next_offset is not None:
        held = f"{info.first_offset} to {info.next_offset - 1}, next {info.next_offset}"
        yield "offsets", held if info.next_offset > info.first_offset else f"none yet, next {info.next_offset}"
    if info.records is not None:
        yield "records", f"{info.records:,}"
    elif info.first_offset is not None and info.next_offset is not None and not info.problems:
        most = info.next_offset - info.first_offset
        yield "records", f"at most {most:,}; `duramen verify` checks and counts them"
    yield "size", f"{exact_size(info.size_bytes)} in {number(len(info.segments), 'segment')}"
    for problem in info.problems:
        yield "problem", Cell(problem, "damage")
    yield "end", _end_in_words(info)
    for name, fact in info.facts.items():
        if not isinstance(fact, Mapping):
            yield _words(name), _in_words(fact, name)
    yield "carries", _carries(info.capabilities)
    yield "checksum", Cell(info.capabilities["checksum"], "" if info.capabilities["record_checksum"] else "warning")


def _end_in_words(info: Info) -> Cell:
    if info.end is None:
        return Cell("unknown", "damage")
    place = f"{info.end.path}, byte {info.end.position}"
    if info.end.state == EndKind.CLEAN:
        ahead_bytes = info.segments[-1].size_bytes - info.end.position
        zeros = f", then {size(ahead_bytes)} of preallocated zeros" if ahead_bytes > 0 else ""
        return Cell(f"clean: {place}{zeros}", "good")
    if info.end.state == EndKind.TORN:
        return Cell(f"torn tail: {place}: {info.end.reason}; the last write did not finish, nothing is lost", "note")
    return Cell(f"{info.end.state}: {place}: {info.end.reason}", "damage")


def _carries(able: Mapping[str, Any]) -> str:
    fields = ["offset", "value"]
    fields += [f"time ({able['timestamps']})"] if able["timestamps"] else []
    fields += [name for name in ("key", "headers") if able[name]]
    lacks = [name for name in ("timestamps", "key", "headers") if not able[name]]
    extras = f", and its own {', '.join(able['extras'])}" if able["extras"] else ""
    return ", ".join(fields) + extras + (f"; no {', no '.join(lacks)}" if lacks else "")


def _segments(info: Info, out: Output) -> None:
    columns = [
        Column("base offset", right=True),
        Column("size", right=True),
        *map(Column, ("state", "dialect", "index")),
    ]
    rows: list[list[str | Cell]] = [
        [
            "?" if line.base_offset is None else str(line.base_offset), size(line.size_bytes), line.state,
            Cell("unreadable", "damage") if line.dialect is None else line.dialect, ", ".join(line.indexes) or "none",
        ]
        for line in info.segments
    ]  # fmt: skip
    hidden = len(rows) - SEGMENTS_SHOWN - 1
    if hidden > 0:
        rows[1 : 1 + hidden] = [[Cell(f"… {hidden} more", "label"), "", "", "", ""]]
    out.blank()
    out.heading("segments")
    out.table(columns, rows)


def _facts(facts: Mapping[str, Any], out: Output) -> None:
    tables = {name: value for name, value in facts.items() if _is_table(value)}
    out.pairs([(_words(name), _in_words(value, name)) for name, value in facts.items() if name not in tables])
    for name, rows in tables.items():
        out.line(Cell(f"  {_words(name)}", "label"))
        columns = list(rows[0])
        shown = [[_in_words(row[column], column) for column in columns] for row in rows[-SEGMENTS_SHOWN:]]
        out.table([Column(_words(column), right=True) for column in columns], shown, indent=4)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _words(name: str) -> str:
    """The name of a fact without its unit; the unit is printed with the value."""
    return name.replace("_", " ").removesuffix(" ms").removesuffix(" ts").removesuffix("bytes").strip()


def _in_words(value: Any, name: str = "") -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{_words(key)} {_in_words(part, key)}".lstrip() for key, part in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        if name.endswith("bytes"):
            return exact_size(value)
        return moment(name, value, None) or (f"{value:,} ms" if name.endswith("_ms") else str(value))
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, list | tuple):
        return ", ".join(_in_words(part) for part in value) or "none"
    return str(value)


def _lying_around(info: Info, out: Output) -> None:
    around = [
        ("indexes without their segment", info.orphans),
        ("stale temporary files", info.leftovers),
        ("unknown files, which duramen ignores", info.strays),
    ]
    for title, names in around:
        if names:
            out.blank()
            out.heading(title)
            for name in names[:SEGMENTS_SHOWN]:
                out.line(f"  {name}")
            if len(names) > SEGMENTS_SHOWN:
                out.line(Cell(f"  … and {number(len(names) - SEGMENTS_SHOWN, 'more file', 'more files')}", "label"))
