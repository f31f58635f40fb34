"""`duramen pipeline VERB …`: heavy work on Spark. The only verbs, with `demo`, that start a JVM.

Here are the words of the command line; `pipeline_jobs` does the work and prints. Nothing of Spark is imported before a
verb runs, and a path or an option that is wrong is said before a JVM is started.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from duramen.cli.arguments import FormatName, FormatOptions, Job, Json, LogPath, Target
from duramen.cli.usage import Command
from duramen.errors import UsageError

app = typer.Typer(
    name="pipeline",
    help="The same and more, on Spark: verify, convert, compact, export, ingest, replay, profile, run.",
    no_args_is_help=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)

Master = Annotated[str, typer.Option("--master", metavar="URL", help="Spark's master; local[N] for N cores here.")]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="K=V", help="Configuration that is passed on to Spark; repeatable."),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Leave Spark's own log on standard error.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
From = Annotated[str | None, typer.Option("--from", metavar="OFFSET", help="The first offset, or -N for the last N.")]
To = Annotated[str | None, typer.Option("--to", metavar="OFFSET", help="The offset to stop before.")]
FromTime = Annotated[str | None, typer.Option("--from-time", metavar="TIME", help="ISO 8601, or epoch milliseconds.")]
ToTime = Annotated[str | None, typer.Option("--to-time", metavar="TIME", help="The time to stop before.")]
Subscribe = Annotated[
    str | None, typer.Option("--subscribe", metavar="TOPICS", help="Topics of a store, with commas between them.")
]
LOCAL = "local[*]"


def _spark(master: str, conf: list[str] | None, verbose: bool) -> dict[str, Any]:
    return {"master": master, "conf": conf or [], "verbose": verbose}


def _checked(path: str, format: str | None, option: list[str] | None, subscribe: str | None = None) -> Target:
    """The log, once it is known that there is one: before a JVM is started."""
    target = Target.of(path, format, option)
    if subscribe is None:
        _ = target.codec
    return target


@app.command("verify", cls=Command)
def verify_command(
    path: LogPath, format: FormatName = None, option: FormatOptions = None, json: Json = False, master: Master = LOCAL,
    conf: Conf = None, verbose: Verbose = False,
) -> Job:  # fmt: skip
    """Check every byte of a log. Exit code 0: sound; 1: damage; 3: it cannot be read."""

    def run() -> int:
        from duramen.cli import pipeline_jobs

        target = _checked(path, format, option)
        return pipeline_jobs.verify(target, json=json, spark=_spark(master, conf, verbose))

    return run


@app.command("profile", cls=Command)
def profile_command(
    path: LogPath,
    format: FormatName = None, option: FormatOptions = None, subscribe: Subscribe = None,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a page with pictures.")] = None,
    duplicates: Annotated[bool, typer.Option(help="Count records that are there twice; reads the log again.")] = True,
    json: Json = False, master: Master = LOCAL, conf: Conf = None, verbose: Verbose = False,
) -> Job:  # fmt: skip
    """Sizes, rates, gaps, duplicates, keys, times: what a log looks like."""

    def run() -> int:
        from duramen.cli import pipeline_jobs

        target = _checked(path, format, option, subscribe)
        return pipeline_jobs.profile(
            target, subscribe=subscribe, html=html, duplicates=duplicates, json=json,
            spark=_spark(master, conf, verbose),
        )  # fmt: skip

    return run


@app.command("export", cls=Command)
def export_command(
    path: LogPath,
    into: Annotated[str, typer.Argument(metavar="TARGET", help="The directory of the files or the table.")],
    kind: Annotated[str, typer.Option("--as", metavar="KIND", help="parquet, delta or iceberg.")] = "parquet",
    partition_by: Annotated[
        str | None, typer.Option("--partition-by", metavar="UNIT", help="date or hour of the record's time, in UTC.")
    ] = None,
    incremental: Annotated[bool, typer.Option("--incremental", help="Go on where the last run ended.")] = False,
    columns: Annotated[str | None, typer.Option("--columns", help="Columns, with commas between them.")] = None,
    decode: Annotated[str | None, typer.Option("--decode", metavar="KIND", help="Decode values: json or avro.")] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", help="For --decode: DDL for json, a schema for avro; @FILE reads it.")
    ] = None,
    malformed: Annotated[str, typer.Option("--malformed", help="Values that do not fit: fail, or null.")] = "fail",
    compression: Annotated[str, typer.Option("--compression", help="snappy, zstd, gzip, lz4 or none.")] = "snappy",
    table: Annotated[str | None, typer.Option("--table", help="Iceberg: NAMESPACE.NAME of the table.")] = None,
    catalog: Annotated[
        list[str] | None, typer.Option("--catalog", metavar="K=V", help="Iceberg: an existing catalog; repeatable.")
    ] = None,
    start: From = None, end: To = None, from_time: FromTime = None, to_time: ToTime = None,
    subscribe: Subscribe = None, format: FormatName = None, option: FormatOptions = None,
    dry_run: DryRun = False, json: Json = False, master: Master = LOCAL, conf: Conf = None, verbose: Verbose = False,
) -> Job:  # fmt: skip
    """Export a log to Parquet files, a Delta table or an Iceberg table, each row once."""

    def run() -> int:
        from duramen.cli import pipeline_jobs

        return pipeline_jobs.export(
            _checked(path, format, option, subscribe), into, kind=kind, partition_by=partition_by,
            incremental=incremental, columns=columns, decode=(decode, schema, malformed), compression=compression,
            table=table, catalog=catalog, reading=_reading(start, end, from_time, to_time, subscribe),
            dry_run=dry_run, json=json, spark=_spark(master, conf, verbose),
        )  # fmt: skip

    return run


@app.command("convert", cls=Command)
def convert_command(
    src: Annotated[str, typer.Argument(metavar="SRC")], dst: Annotated[str, typer.Argument(metavar="DST")],
    to: Annotated[str, typer.Option("--to", metavar="F", help="The format of the new log.")],
    allow_loss: Annotated[
        list[str] | None, typer.Option("--allow-loss", metavar="FIELD", help="What may be lost; repeatable.")
    ] = None,
    on_damage: Annotated[str, typer.Option("--on-damage", help="raise, or skip what is damaged.")] = "raise",
    format: FormatName = None,
    from_option: Annotated[
        list[str] | None, typer.Option("--from-option", metavar="K=V", help="An option of the source's format.")
    ] = None,
    option: FormatOptions = None, dry_run: DryRun = False, json: Json = False, master: Master = LOCAL,
    conf: Conf = None, verbose: Verbose = False,
) -> Job:  # fmt: skip
    """Convert a log to another format: segments side by side, offsets kept, the result checked, then published."""

    def run() -> int:
        from duramen.cli import pipeline_jobs

        source = _checked(src, format, from_option)
        return pipeline_jobs.convert(
            source, dst, to, allow_loss=allow_loss or [], on_damage=on_damage,
            options=Target.of(dst, None, option).options, dry_run=dry_run, json=json,
            spark=_spark(master, conf, verbose),
        )  # fmt: skip

    return run


@app.command("compact", cls=Command)
def compact_command(
    src: Annotated[str, typer.Argument(metavar="SRC")], dst: Annotated[str, typer.Argument(metavar="DST")],
    key: Annotated[str, typer.Option("--key", help="key, prefix:N, delimiter:TEXT or json:PATH.")] = "key",
    drop_keyless: Annotated[bool, typer.Option("--drop-keyless", help="Leave out records without a key.")] = False,
    tombstone_delay_ms: Annotated[
        int, typer.Option("--tombstone-delay-ms", min=0, help="How long an empty value, which deletes, stays.")
    ] = 86_400_000,
    format: FormatName = None, option: FormatOptions = None, dry_run: DryRun = False, json: Json = False,
    master: Master = LOCAL, conf: Conf = None, verbose: Verbose = False,
) -> Job:  # fmt: skip
    """Keep the newest record of every key, in a new log."""

    def run() -> int:
        from duramen.cli import pipeline_jobs

        return pipeline_jobs.compact(
            _checked(src, format, option), dst, key=key, keyless="drop" if drop_keyless else "keep",
            tombstone_delay_ms=tombstone_delay_ms, dry_run=dry_run, json=json, spark=_spark(master, conf, verbose),
        )  # fmt: skip

    return run


_SOURCES = "A Spark source: parquet, csv, json, text, kafka, jdbc, duramen, …"


@app.command("ingest", cls=Command)
def ingest_command(
    into: Annotated[str, typer.Argument(metavar="LOG", help="The log; it is made if there is none.")],
    path: Annotated[str | None, typer.Argument(metavar="PATH", help="Where the source reads.")] = None,
    source: Annotated[str, typer.Option("--from", metavar="FORMAT", help=_SOURCES)] = "",
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="K=V", help="An option of the source; repeatable.")
    ] = None,
    schema: Annotated[str | None, typer.Option("--schema", help="The source's schema, as DDL.")] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="SQL", help="What becomes the key.")] = None,
    value: Annotated[str | None, typer.Option("--value", metavar="SQL", help="What becomes the value.")] = None,
    timestamp: Annotated[str | None, typer.Option("--timestamp", metavar="SQL", help="What becomes the time.")] = None,
    columns: Annotated[str | None, typer.Option("--columns", help="Columns to take over, with commas.")] = None,
    order_by: Annotated[
        str | None, typer.Option("--order-by", metavar="SQL", help="What rows are sorted by; not for streams.")
    ] = None,
    format: FormatName = None,
    to_option: Annotated[
        list[str] | None, typer.Option("--to-option", metavar="K=V", help="An option of the log or the sink.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="LOG is a store: into this topic of it.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what the log holds.")] = False,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="DIR", help="As a stream, each row once over all runs.")
    ] = None,
    every: Annotated[
        str | None, typer.Option("--every", metavar="TIME", help="A stream that goes on, e.g. '10 seconds'.")
    ] = None,
    dry_run: DryRun = False, json: Json = False, master: Master = LOCAL, conf: Conf = None, verbose: Verbose = False,
) -> Job:  # fmt: skip
    """Write the rows of any Spark source into a log: all of them or none; as a stream, each once."""

    def run() -> int:
        from duramen.cli import pipeline_jobs

        if not source:
            raise UsageError("--from is missing", hint=_SOURCES)
        made = {"key": key, "value": value, "timestamp": timestamp}
        return pipeline_jobs.ingest(
            source, path, into, options=option or [], schema=schema,
            expressions={name: text for name, text in made.items() if text is not None}, columns=columns,
            format=format, to_options=to_option or [], topic=topic, overwrite=overwrite, order_by=order_by,
            checkpoint=checkpoint, every=every, dry_run=dry_run, json=json, spark=_spark(master, conf, verbose),
        )  # fmt: skip

    return run


@app.command("replay", cls=Command)
def replay_command(
    src: Annotated[str, typer.Argument(metavar="SRC")],
    dst: Annotated[str, typer.Argument(metavar="DST", help="Another log, or with --topic a store.")],
    start: From = None, end: To = None, from_time: FromTime = None, to_time: ToTime = None,
    subscribe: Subscribe = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Into this topic of the store DST.")] = None,
    to_format: Annotated[str | None, typer.Option("--to-format", metavar="F", help="The format of a new log.")] = None,
    to_option: Annotated[
        list[str] | None, typer.Option("--to-option", metavar="K=V", help="An option of the log or the sink.")
    ] = None,
    format: FormatName = None, option: FormatOptions = None, dry_run: DryRun = False, json: Json = False,
    master: Master = LOCAL, conf: Conf = None, verbose: Verbose = False,
) -> Job:  # fmt: skip
    """Write a range of offsets or time of a log into another log or topic."""

    def run() -> int:
        from duramen.cli import pipeline_jobs

        source = _checked(src, format, option, subscribe)
        return pipeline_jobs.replay(
            source, dst, reading=_reading(start, end, from_time, to_time, subscribe), topic=topic,
            to_format=to_format, to_options=to_option or [], dry_run=dry_run, json=json,
            spark=_spark(master, conf, verbose),
        )  # fmt: skip

    return run


@app.command("run", cls=Command)
def run_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A pipeline, as TOML.")],
    dry_run: DryRun = False, json: Json = False, master: Master = LOCAL, conf: Conf = None, verbose: Verbose = False,
) -> Job:  # fmt: skip
    """Run a pipeline that a TOML file describes: source, steps, sink."""
    from duramen.cli import pipeline_jobs

    return partial(pipeline_jobs.run_file, file, dry_run=dry_run, json=json, spark=_spark(master, conf, verbose))


def _reading(
    start: str | None, end: str | None, from_time: str | None, to_time: str | None, subscribe: str | None
) -> dict[str, str]:
    """A range in the data source's words."""
    told = {
        "startingOffsets": start, "endingOffsets": end, "startingTimestamp": from_time, "endingTimestamp": to_time,
        "subscribe": subscribe,
    }  # fmt: skip
    return {name: text for name, text in told.items() if text is not None}
