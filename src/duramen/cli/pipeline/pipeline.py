"""`duramen pipeline VERB …`: jobs on Spark. With `demo`, the only verbs that start a JVM.

Each verb is one function: it checks paths and options, starts a session, runs the job and prints the result as text or
JSON. Spark is imported when a verb runs.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duramen.cli.arguments import DryRun, FormatName, FormatOptions, Json, LogPath, Target
from duramen.cli.dialect import dialect_line
from duramen.cli.log import verify as in_process
from duramen.cli.output import Column, Output, duration, number, rate, size, to_json
from duramen.cli.pipeline.options import DecodeArguments, LogOptions, RangeOptions, SparkOptions, verb
from duramen.disk import PosixDisk
from duramen.errors import StorageError, UsageError
from duramen.formats import make
from duramen.log import list_log, refuse_taken

if TYPE_CHECKING:
    from duramen.log import Converted
    from duramen.spark import SparkSession
    from duramen.spark.jobs import Exported

app = typer.Typer(
    name="pipeline",
    add_completion=False,
    help="Jobs on Spark: verify, convert, compact, export, ingest, replay, profile, run.",
    no_args_is_help=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)
Src = Annotated[str, typer.Argument(metavar="SRC", help="The log to read: its directory, or one segment file.")]
Dst = Annotated[str, typer.Argument(metavar="DST", help="Directory of the new log; must not exist.")]
ToOptions = Annotated[
    list[str] | None,
    typer.Option("--to-option", metavar="K=V", help="Option of the log or the sink; repeatable."),
]


@contextmanager
def running(label: str, spark: SparkOptions, total_bytes: int = 0, conf: Sequence[str] = ()) -> Iterator[SparkSession]:
    """Start a session, and show its progress while the block runs."""
    from duramen.cli.pipeline.progress import progress, starting
    from duramen.spark import pairs, session

    with ExitStack() as stack:
        with starting(label, spark.master):
            options = pairs([*conf, *(spark.conf or [])])
            started = stack.enter_context(session(spark.master, options, verbose=spark.verbose))
        with progress(started, label, total_bytes):
            yield started


def _size_of(target: Target) -> int:
    return sum(files.segment.size_bytes for files in list_log(target.disk, target.path, target.codec).segments)


def _check_new(path: str, format: str, options: Mapping[str, Any], *, dry_run: bool) -> None:
    """Raise, before Spark starts, for a format that does not exist and for a path that does."""
    make(format, **options)
    if not dry_run:
        refuse_taken(PosixDisk(), posixpath.abspath(path))


def show_result(document: Mapping[str, Any], lines: Sequence[tuple[str, str]], title: str, *, json: bool) -> None:
    out = Output()
    if json:
        out.write(to_json(document, indent=2) + "\n")
        return
    out.line(title)
    out.pairs(lines)


@verb(app, "verify")
def verify(path: LogPath, log: LogOptions, spark: SparkOptions, json: Json = False) -> int:
    """Check every byte of a log. Exit code 0: sound; 1: damage; 3: cannot be read."""
    from duramen.spark import jobs

    target = log.target(path)
    with running(f"verify {target.path}", spark, _size_of(target)) as started:
        start = perf_counter()
        report = jobs.verify(started, target.path, format=target.codec.name, publish=True, **target.options)
        seconds = perf_counter() - start
    out = Output()
    if json:
        out.write(to_json(report.as_dict(), indent=2) + "\n")
    else:
        in_process.show(report, seconds, out)
    return 0 if report.ok else 1


@verb(app, "profile")
def profile(
    path: LogPath,
    log: LogOptions,
    spark: SparkOptions,
    values: DecodeArguments,
    subscribe: Annotated[
        str | None, typer.Option("--subscribe", metavar="TOPICS", help="Topics of a store, separated by commas.")
    ] = None,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write an HTML page with charts.")] = None,
    duplicates: Annotated[bool, typer.Option(help="Count duplicate records; reads the log again.")] = True,
    json: Json = False,
) -> int:
    """Profile a log: sizes, rates, gaps, duplicates, keys, times; with --decode the fields of values."""
    from duramen.spark import jobs

    decoding = values.options()
    target = log.target(path, topics=subscribe is not None)
    reading: dict[str, Any] = {"subscribe": _names(subscribe)} if subscribe else {}
    format = target.codec.name if subscribe is None else target.format
    with running(f"profile {target.path}", spark, 0 if subscribe else _size_of(target)) as started:
        found = jobs.profile(
            started, target.path, duplicates=duplicates, format=format, **reading, **decoding, **target.options
        )
    if html is not None:
        _write(html, jobs.profile_page(found))
    if json:
        Output().write(to_json(found.as_dict(), indent=2) + "\n")
    else:
        show_profile(found.as_dict(), Output(), html)
    return 0


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        raise StorageError(error.strerror or str(error), path=path) from error


def show_profile(found: Mapping[str, Any], out: Output, html: str | None) -> None:
    values, keys = found["values"], found["keys"]
    out.line(f"{found['path']}: {', '.join(found['formats'])}, {number(len(found['segments']), 'segment')}")
    about = "" if keys["distinct_is_exact"] else "about "
    lines = [
        ("records", f"{found['records']:,}"),
        ("values", f"{size(values['bytes'])}, {size(values['min_bytes'] or 0)} to {size(values['max_bytes'] or 0)}"),
        ("keys", f"{about}{keys['distinct']:,} different; {number(keys['missing'], 'record')} without"),
        ("duplicates", "not counted" if found["duplicates"] is None else f"{found['duplicates']:,}"),
    ]
    for log in found["logs"]:
        is_empty = log["first_offset"] is None
        lines.append(("offsets", "none" if is_empty else f"{log['first_offset']} to {log['last_offset']}"))
        gaps = f"{log['gaps']:,}, {number(log['missing_offsets'], 'offset')} missing" if log["gaps"] else "none"
        lines.append(("gaps", gaps))
        if log["first_time"] is not None:
            back = f"; goes back {number(log['times_backwards'], 'time')}" if log["times_backwards"] else ""
            lines.append(("time", f"{log['first_time']} to {log['last_time']}{back}"))
    if html is not None:
        lines.append(("page", html))
    out.pairs(lines)
    if keys["top"]:
        out.blank()
        rows = [
            (str(row["key"].decode("utf-8", "backslashreplace")), f"{row['records']:,}") for row in keys["top"][:10]
        ]
        out.table([Column("key"), Column("records", right=True)], rows)
    if found["decoded"] is not None:
        show_fields(found["decoded"], out)


def show_fields(decoded: Mapping[str, Any], out: Output) -> None:
    """The fields of decoded values that some value has, and how many values did not decode."""
    out.blank()
    rows = []
    for path, one in decoded["fields"].items():
        if one["nulls"] == one["rows"]:
            continue
        unit = " bytes" if one["type"] == "binary" else " items" if one["is_size"] else ""
        ends = "" if one["min"] is None else f"{one['min']} to {one['max']}{unit}"
        rows.append((path, one["type"], f"{100 * one['null_rate']:.1f} %", ends))
    out.table([Column("field"), Column("type"), Column("null", right=True), Column("range")], rows)
    out.line(f"{number(decoded['malformed'], 'value')} did not decode")


@dataclass(frozen=True)
class TableOptions:
    """What to write."""

    kind: Annotated[str, typer.Option("--as", metavar="KIND", help="parquet, delta or iceberg.")] = "parquet"
    compression: Annotated[str, typer.Option("--compression", help="snappy, zstd, gzip, lz4 or none.")] = "snappy"
    table: Annotated[str | None, typer.Option("--table", help="For iceberg: NAMESPACE.NAME of the table.")] = None
    catalog: Annotated[
        list[str] | None, typer.Option("--catalog", metavar="K=V", help="For iceberg: catalog option; repeatable.")
    ] = None

    def options(self) -> dict[str, Any]:
        from duramen.spark import pairs

        options: dict[str, Any] = {"table": self.table} if self.table is not None else {}
        if self.catalog:
            options["catalog"] = pairs(self.catalog, "--catalog")
        return options


@verb(app, "export")
def export(
    path: LogPath,
    into: Annotated[str, typer.Argument(metavar="TARGET", help="Directory of the files or the table.")],
    log: LogOptions,
    spark: SparkOptions,
    between: RangeOptions,
    values: DecodeArguments,
    files: TableOptions,
    partition_by: Annotated[
        str | None, typer.Option("--partition-by", metavar="UNIT", help="date or hour of the record's time, in UTC.")
    ] = None,
    incremental: Annotated[bool, typer.Option("--incremental", help="Continue where the last run ended.")] = False,
    columns: Annotated[str | None, typer.Option("--columns", help="Columns, separated by commas.")] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Export a log to Parquet files, a Delta table or an Iceberg table, each row exactly once."""
    from duramen.spark import jobs, parse_options

    decoding = values.options()
    target = log.target(path, topics=between.subscribe is not None)
    parsed = parse_options({"path": target.path, **between.reading()}, streaming=False)
    given = {name: getattr(parsed, name) for name in ("starting", "ending", "starting_us", "ending_us", "subscribe")}
    format = target.codec.name if parsed.subscribe is None else target.format
    total = _size_of(target) if parsed.subscribe is None else 0
    with running(f"export {target.path}", spark, total) as started:
        start = perf_counter()
        done = jobs.export(
            started, target.path, into, kind=files.kind, partition_by=partition_by, incremental=incremental,
            columns=_names(columns), compression=files.compression, dry_run=dry_run,
            target_options=files.options(), format=format, **given, **decoding,
            **target.options,
        )  # fmt: skip
        seconds = perf_counter() - start
    ranges = [(path, f"offsets {a} to {b - 1}" if b > a else "nothing new") for path, (a, b) in done.ranges.items()]
    show_result({**asdict(done), "seconds": round(seconds, 3)}, ranges, _exported(done, seconds), json=json)
    return 0


def _exported(done: Exported, seconds: float) -> str:
    if done.dry_run:
        return f"{done.target}: would export"
    took = f", {size(done.bytes)} in {duration(seconds)}" if done.rows else ""
    return f"{done.target}: {number(done.rows, 'row')} in {number(done.files, 'file')}{took}"


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


@verb(app, "convert")
def convert(
    src: Src,
    dst: Dst,
    spark: SparkOptions,
    to: Annotated[str, typer.Option("--to", metavar="F", help="Format of the new log.")],
    allow_loss: Annotated[
        list[str] | None, typer.Option("--allow-loss", metavar="FIELD", help="Field that may be lost; repeatable.")
    ] = None,
    on_damage: Annotated[str, typer.Option("--on-damage", help="raise, or skip the damaged part.")] = "raise",
    format: FormatName = None,
    from_option: Annotated[
        list[str] | None, typer.Option("--from-option", metavar="K=V", help="Option of the format of SRC; repeatable.")
    ] = None,
    option: FormatOptions = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Convert a log to another format, segments in parallel; offsets are kept, and the result is checked."""
    from duramen.spark import jobs

    source = LogOptions(format, from_option).target(src)
    options = Target.of(dst, None, option).options
    _check_new(dst, to, options, dry_run=dry_run)
    with running(f"convert {source.path}", spark, _size_of(source)) as started:
        start = perf_counter()
        done = jobs.convert(
            started, source.path, dst, to, allow_loss=allow_loss or [], on_damage=on_damage, dry_run=dry_run,
            format=source.codec.name, source_options=source.options, **options,
        )  # fmt: skip
        seconds = perf_counter() - start
    verb = "would hold" if dry_run else "holds"
    title = f"{dst}: {verb} {number(done.records, 'record')} as {done.format}, {number(done.segments, 'segment')}"
    lines = _converted(done)
    if not dry_run:
        speed = f" ({rate(done.size_bytes, seconds)})" if done.size_bytes >= in_process.RATE_FROM_BYTES else ""
        lines.append(("took", f"{duration(seconds)}{speed}"))
    document = {**asdict(done), "losses": [loss._asdict() for loss in done.losses]}
    show_result({**document, "dry_run": dry_run}, lines, title, json=json)
    return 0


def _converted(done: Converted) -> list[tuple[str, str]]:
    lines = [("lost", f"{loss.field}: {loss.meaning} ({number(loss.count, loss.unit)})") for loss in done.losses]
    lines += [
        ("skipped", f"{skipped.path}: byte {skipped.position}: {size(skipped.length)}: {skipped.why}")
        for skipped in done.skipped
    ]
    label, meaning = dialect_line(done.format, done.dialect).split(": ", 1)
    return [*lines, (label, meaning)]


@verb(app, "compact")
def compact(
    src: Src,
    dst: Dst,
    log: LogOptions,
    spark: SparkOptions,
    key: Annotated[str, typer.Option("--key", help="key, prefix:N, delimiter:TEXT or json:PATH.")] = "key",
    drop_keyless: Annotated[bool, typer.Option("--drop-keyless", help="Drop records without a key.")] = False,
    tombstone_delay_ms: Annotated[
        int, typer.Option("--tombstone-delay-ms", min=0, help="How long to keep keys with a null or empty value.")
    ] = 86_400_000,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Write the newest record of every key to a new log."""
    from duramen.spark import jobs

    source, keyless = log.target(src), "drop" if drop_keyless else "keep"
    _check_new(dst, source.codec.name, {}, dry_run=dry_run)
    with running(f"compact {source.path}", spark, _size_of(source)) as started:
        report = jobs.compact(
            started, source.path, dst, key=key, keyless=keyless, tombstone_delay_ms=tombstone_delay_ms,
            dry_run=dry_run, format=source.codec.name, **source.options,
        )  # fmt: skip
    verb = "would keep" if dry_run else "keeps"
    title = f"{dst}: {verb} {report.records_after:,} of {number(report.records_before, 'record')}"
    lines = [
        ("keys", f"{report.keys:,}"),
        ("bytes", f"{size(report.bytes_before)} → {size(report.bytes_after)}"),
        ("segments", f"{report.rewritten:,} rewritten, {report.removed:,} left out"),
        ("tombstones", f"{report.tombstones_removed:,} removed"),
    ]
    if report.note:
        lines.append(("note", report.note))
    show_result({**asdict(report), "dry_run": dry_run}, lines, title, json=json)
    return 0


_SOURCES = "A Spark source: parquet, csv, json, text, kafka, jdbc, duramen, …"


@dataclass(frozen=True)
class SourceOptions:
    """What to read, and what becomes a record."""

    source: Annotated[str, typer.Option("--from", metavar="FORMAT", help=_SOURCES)] = ""
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="K=V", help="Option of the source; repeatable.")
    ] = None
    schema: Annotated[str | None, typer.Option("--schema", help="Schema of the source, as DDL.")] = None
    key: Annotated[str | None, typer.Option("--key", metavar="SQL", help="Expression for the key.")] = None
    value: Annotated[str | None, typer.Option("--value", metavar="SQL", help="Expression for the value.")] = None
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", metavar="SQL", help="Expression for the timestamp.")
    ] = None
    columns: Annotated[str | None, typer.Option("--columns", help="Columns to copy, separated by commas.")] = None
    order_by: Annotated[
        str | None, typer.Option("--order-by", metavar="SQL", help="Expression to sort rows by; not for streams.")
    ] = None

    def expressions(self) -> dict[str, str]:
        """The expressions given for fields of the record."""
        given = {"key": self.key, "value": self.value, "timestamp": self.timestamp}
        return {name: text for name, text in given.items() if text is not None}


@verb(app, "ingest")
def ingest(
    into: Annotated[str, typer.Argument(metavar="LOG", help="The log; created if missing.")],
    rows: SourceOptions,
    spark: SparkOptions,
    path: Annotated[str | None, typer.Argument(metavar="PATH", help="Path that the source reads.")] = None,
    format: FormatName = None,
    to_option: ToOptions = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Topic to write to; LOG is then a store.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the content of the log.")] = False,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="DIR", help="Stream; each row exactly once over all runs.")
    ] = None,
    every: Annotated[
        str | None, typer.Option("--every", metavar="TIME", help="Keep the stream running, e.g. '10 seconds'.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Write the rows of any Spark source to a log: all or none; as a stream, each exactly once."""
    from duramen.spark import jobs, pairs

    if not rows.source:
        raise UsageError("--from is required", hint=_SOURCES)
    mode = "overwrite" if overwrite else "append"
    target = jobs.Into(into, format, topic, mode, pairs(to_option or [], "--to-option"))
    with running(f"ingest into {into}", spark) as started:
        done = jobs.ingest(
            started, rows.source, path, target, options=pairs(rows.option or [], "--option"), schema=rows.schema,
            expressions=rows.expressions(), columns=_names(rows.columns), order_by=rows.order_by,
            checkpoint=checkpoint, every=every,
            dry_run=dry_run,
        )  # fmt: skip
    return _moved(done, json=json)


@verb(app, "replay")
def replay(
    src: Src,
    dst: Annotated[str, typer.Argument(metavar="DST", help="The target log, or with --topic a store.")],
    log: LogOptions,
    spark: SparkOptions,
    between: RangeOptions,
    topic: Annotated[str | None, typer.Option("--topic", help="Topic of the store DST to write to.")] = None,
    to_format: Annotated[str | None, typer.Option("--to-format", metavar="F", help="Format of a new log.")] = None,
    to_option: ToOptions = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Write a range of a log, by offset or time, to another log or topic."""
    from duramen.spark import jobs, pairs

    source, reading = log.target(src, topics=between.subscribe is not None), between.reading()
    target = jobs.Into(dst, to_format, topic, "append", pairs(to_option or [], "--to-option"))
    format = source.codec.name if "subscribe" not in reading else source.format
    with running(f"replay {source.path}", spark) as started:
        done = jobs.replay(started, source.path, target, format=format, dry_run=dry_run, **reading, **source.options)
    return _moved(done, json=json)


def _moved(done: Any, *, json: bool) -> int:
    verb = "would be written" if done.dry_run else "written"
    rows = f"{number(done.rows, 'row')} " if done.rows or not done.dry_run else ""
    lines = [("columns", ", ".join(done.columns))] if done.columns else []
    if done.batches is not None:
        lines.append(("batches", f"{done.batches:,}"))
    show_result(asdict(done), lines, f"{done.target}: {rows}{verb}", json=json)
    return 0


@verb(app, "run")
def run_file(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Pipeline as a TOML file.")],
    spark: SparkOptions,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Run a pipeline described by a TOML file: source, steps, sink."""
    from duramen.spark import jobs

    plan = jobs.read_pipeline(file)
    if dry_run:
        show_result(plan.as_dict(), plan.described(), f"{plan.name}: would run", json=json)
        return 0
    with running(plan.name, spark, conf=plan.conf()) as started:
        done = jobs.run_pipeline(started, plan)
    show_result(done.as_dict(), done.described(), f"{plan.name}: done", json=json)
    return 0 if done.ok else 1
