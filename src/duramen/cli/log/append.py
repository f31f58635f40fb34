"""`duramen create`, `append` and `seal`: the verbs that write. With ``--dry-run`` each shows what it would do."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import typer

import duramen
from duramen.cli.arguments import DryRun, FormatName, FormatOptions, Job, Json, LogDirectories, Target
from duramen.cli.dialect import show_dialect
from duramen.cli.outcome import Outcome, run_each
from duramen.cli.output import Output, number, offsets, to_json
from duramen.cli.signals import held
from duramen.cli.store import topic_records
from duramen.disk import Kind, PosixDisk
from duramen.errors import StorageError, UsageError
from duramen.formats import Format, make
from duramen.log import DEFAULT_FORMAT, RecoveryCase
from duramen.record import HEADERS, KEY, TIMESTAMP, VALUE, to_us
from duramen.store import TopicAddress, topic_address

READ_BYTES = 1 << 20


def create_command(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Directory of the new log.")],
    format: Annotated[
        str | None, typer.Option("--format", metavar="F", help=f"Format of the log (default: {DEFAULT_FORMAT}).")
    ] = None,
    option: FormatOptions = None,
    dry_run: DryRun = False,
) -> Job:
    """Create an empty log."""
    return partial(_create, Target.of(path, format, option), dry_run)


def _create(target: Target, dry_run: bool) -> int:
    disk = PosixDisk()
    if disk.kind(target.path) == Kind.FILE or (disk.kind(target.path) == Kind.DIRECTORY and disk.list(target.path)):
        raise UsageError("the path already exists", path=target.path, hint="choose a new path; `duramen info` shows it")
    name = target.format or DEFAULT_FORMAT
    codec = make(name, **target.options)
    codec.check_creation()
    if not dry_run:
        duramen.open(target.path, "a", format=name, **target.options).close()
    Output().line(f"{target.path}: {'would create' if dry_run else 'created'} an empty {name} log")
    show_dialect(Output(), name, codec.dialect)
    return 0


def append_command(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The log's directory; created if missing.")],
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="File with one record per line (default: standard input).")
    ] = None,
    format: FormatName = None,
    option: FormatOptions = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Lines are JSON: value, key, headers, timestamp.")] = False,
    key_separator: Annotated[str | None, typer.Option(metavar="TEXT", help="Lines are key, this text, value.")] = None,
    routing: Annotated[
        bool, typer.Option("--routing", help="For topics: use keys to choose the partition only; do not store them.")
    ] = False,
    durability: Annotated[
        str, typer.Option(metavar="LEVEL", help="When an append is acknowledged: after write, interval or fsync.")
    ] = "fsync",
    dry_run: DryRun = False,
    json: Json = False,
) -> Job:
    """Append one record per line of FILE or standard input.

    With PATH#TOPIC, each record goes to the partition of its key; records without a key go to any partition.
    """
    if jsonl and key_separator is not None:
        raise UsageError("--jsonl and --key-separator cannot be used together")
    if key_separator == "":
        raise UsageError("--key-separator must not be empty")
    lines = Lines(jsonl, None if key_separator is None else key_separator.encode())
    address = topic_address(path)
    if address is not None:
        return partial(_append_to_topic, address, file, lines, routing, durability, dry_run, json)
    if routing:
        raise UsageError("--routing works with topics only", hint="give PATH#TOPIC")
    return partial(_append, Target.of(path, format, option), file, lines, durability, dry_run, json)


class Lines(NamedTuple):
    """How to parse a line: as a value, as JSON, or as a key and a value."""

    jsonl: bool
    key_separator: bytes | None

    def batch(self, lines: list[bytes], first_line: int) -> Any:
        if self.jsonl:
            return _records(lines, first_line)
        return lines if self.key_separator is None else topic_records.keyed(lines, first_line, self.key_separator)

    def record_batch(self, lines: list[bytes], first_line: int) -> pa.RecordBatch:
        batch = self.batch(lines, first_line)
        if isinstance(batch, list):
            return pa.RecordBatch.from_pydict({"value": pa.array(batch, VALUE.type)})
        return batch


def _append_to_topic(
    address: TopicAddress,
    file: str | None,
    lines: Lines,
    routing: bool,
    durability: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    make_batch = partial(topic_records.with_partitions, records=_records) if lines.jsonl else lines.record_batch
    with _source(file) as source:
        batches = (make_batch(group, first) for first, group in _line_groups(source))
        return topic_records.append(
            address, batches, routing=routing, durability=durability, dry_run=dry_run, as_json=as_json
        )


def _append(target: Target, file: str | None, lines: Lines, durability: str, dry_run: bool, as_json: bool) -> int:
    with _source(file) as source:
        done = _count(target, source, lines) if dry_run else _store(target, source, lines, durability)
    first, count = done.first, done.records
    if as_json:
        made = {"created": done.is_new, "format": done.codec.name, "dialect": done.codec.dialect}
        print(to_json({"path": target.path, "first_offset": first, "records": count, "dry_run": dry_run, **made}))
        return 0
    where = f", {offsets(first, first + count - 1)}" if count and first is not None else ""
    Output().line(f"{target.path}: {'would append' if dry_run else 'appended'} {number(count, 'record')}{where}")
    if done.is_new:
        show_dialect(Output(), done.codec.name, done.codec.dialect)
    return 0


class AppendedRows(NamedTuple):
    """Result of an append or its dry run."""

    first: int | None
    records: int
    codec: Format
    is_new: bool
    """Whether the append creates the log."""


def _store(target: Target, source: InputSource, how: Lines, durability: str) -> AppendedRows:
    first, count = None, 0
    with duramen.open(target.path, "a", format=target.format, durability=durability, **target.options) as log:
        for number_, lines in _line_groups(source):
            appended = log.append_batch(how.batch(lines, number_))
            first = appended.base_offset if first is None else first
            count += appended.count
        is_new = any(step.case == RecoveryCase.FRESH for step in log.recovery)
    return AppendedRows(first, count, log.codec, is_new)


def _count(target: Target, source: InputSource, how: Lines) -> AppendedRows:
    """Dry run: read and check every line, write nothing."""
    codec, first = make(target.format or DEFAULT_FORMAT, **target.options), 0
    disk, is_new = PosixDisk(), True
    if disk.kind(target.path) == Kind.DIRECTORY and disk.list(target.path, ("segments",)):
        is_new = False
        with duramen.open(target.path, format=target.format, **target.options) as log:
            codec, first = log.codec, log.next_offset
    count = 0
    for number_, lines in _line_groups(source):
        codec.accept(how.record_batch(lines, number_))
        count += len(lines)
    return AppendedRows(first, count, codec, is_new)


class InputSource(NamedTuple):
    descriptor: int
    name: str


@contextmanager
def _source(file: str | None) -> Iterator[InputSource]:
    if file is None or file == "-":
        if sys.stdin is None:
            raise StorageError("the stream is closed", path="standard input", hint="give a FILE or pipe records in")
        yield InputSource(sys.stdin.fileno(), "standard input")
        return
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError as error:
        raise StorageError((error.strerror or str(error)).lower(), path=file) from error
    try:
        yield InputSource(descriptor, file)
    finally:
        os.close(descriptor)


def _line_groups(source: InputSource) -> Iterator[tuple[int, list[bytes]]]:
    """The complete lines of each read, with the number of the first line. Slow input is thus appended as it arrives."""
    rest, seen = b"", 1
    while True:
        try:
            data = os.read(source.descriptor, READ_BYTES)
        except OSError as error:
            raise StorageError((error.strerror or str(error)).lower(), path=source.name) from error
        *lines, rest = (rest + data).split(b"\n") if data else ([rest] if rest else []) + [b""]
        if lines:
            yield seen, lines
            seen += len(lines)
        if not data:
            return


def _records(lines: list[bytes], first_line: int) -> pa.RecordBatch:
    rows = []
    for number_, line in enumerate(lines, first_line):
        try:
            rows.append(_record(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"line {number_} is not a valid record: {error}") from error
    types = {"value": VALUE.type, "key": KEY.type, "headers": HEADERS.type, "timestamp": pa.int64()}
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}
    columns["timestamp"] = columns["timestamp"].view(TIMESTAMP.type)
    kept = {name: column for name, column in columns.items() if name == "value" or column.null_count < len(column)}
    return pa.RecordBatch.from_arrays(list(kept.values()), names=list(kept))


def _record(tree: Mapping[str, Any]) -> dict[str, Any]:
    unknown = tree.keys() - {"offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers"}
    if unknown:
        raise ValueError(f"unknown field {', '.join(sorted(unknown))}")
    if "value" not in tree and "value_base64" not in tree:
        raise ValueError("the field 'value' is missing (null makes a tombstone)")
    headers = tree.get("headers")
    when = tree.get("timestamp")
    return {
        "value": _bytes(tree, "value"),
        "key": _bytes(tree, "key"),
        "headers": None if headers is None else [{"key": h["key"], "value": _bytes(h, "value")} for h in headers],
        "timestamp": None if when is None else to_us(when),
    }


def _bytes(tree: Mapping[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in tree:
        return base64.b64decode(tree[f"{name}_base64"], validate=True)
    text = tree.get(name)
    if not isinstance(text, str | None):
        raise TypeError(f"the field {name!r} must be text (got {text!r})")
    return None if text is None else text.encode()


def seal_command(
    path: LogDirectories,
    format: FormatName = None,
    option: FormatOptions = None,
    dry_run: DryRun = False,
) -> Job:
    """Seal the active segment and start a new one."""
    targets = Target.all_of([path], format, option)
    return partial(run_each, targets, partial(_seal, dry_run=dry_run), json=False, headings=False)


def _seal(target: Target, *, dry_run: bool) -> Outcome:
    with target.open() as log:  # raises if the log is missing: a mistyped path must not create one
        segments, next_offset = log.segments, log.next_offset
    last = segments[-1] if segments else None
    if last is None or last.base_offset == next_offset:
        place = last.path if last is not None else target.path
        return _said(f"{place}: the active segment is empty: nothing to seal")
    if dry_run:
        return _said(f"{last.path}: would be sealed; a new segment would start at offset {next_offset}")
    with duramen.open(target.path, "a", format=target.format, **target.options) as log:
        before = log.segments[-1].path
        with held():
            log.seal()
        log.refresh()
        return _said(f"{before}: sealed; the new active segment is {log.segments[-1].path}")


def _said(text: str) -> Outcome:
    return Outcome(None, lambda out: out.line(text))
