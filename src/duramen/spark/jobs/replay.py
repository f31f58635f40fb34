"""Ingest and replay: rows of any Spark source, or a stretch of a log, into a log or a topic through the sink.

The sink stores all rows of a batch or none, and a stream's batches each once. Nothing is dropped on the way: a column
that the target cannot store is refused by name. Rows without a column ``value`` get one: all columns as JSON.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from duramen.disk import Kind, PosixDisk
from duramen.errors import DuramenError, UsageError
from duramen.log import format_at
from duramen.spark.jobs.scanning import read_options
from duramen.spark.jobs.task_runner import cancelling, no_pandas_warning, plain_errors
from duramen.spark.progress import Tally, follow
from duramen.spark.source import disk_of, find_places, open_log, scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FIELDS = ("key", "value", "headers", "timestamp")
NAMING = ("topic", "partition")
OPTIONS: Mapping[str, Mapping[str, str]] = {"kafka": {"includeHeaders": "true"}}
"""What a source would leave out by default."""
COUNT_EVERY_S = 1
"""How often a stream's reports are counted: Spark keeps a hundred of them, and none is made in less than 50 ms."""


@dataclass(frozen=True)
class Moved:
    """What came of it. ``batches`` is None for what ran as one batch."""

    target: str
    rows: int
    batches: int | None = None
    dry_run: bool = False
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Into:
    """Where rows go: a log, or with ``topic`` (or a column of that name) the topics of a store."""

    path: str
    format: str | None = None
    topic: str | None = None
    mode: str = "append"
    options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("append", "overwrite"):
            raise UsageError(f"mode {self.mode!r} is not known", hint="it is append or overwrite")
        object.__setattr__(self, "path", absolute(self.path))

    def texts(self) -> dict[str, str]:
        told = {"logFormat": self.format, "topic": self.topic}
        given = {name: value for name, value in told.items() if value is not None}
        return {**given, **{name: str(value) for name, value in (self.options or {}).items()}}


def absolute(path: str) -> str:
    """A local path as executors and Spark's own processes understand it, too: they run in other directories."""
    return path if "://" in path or path.startswith("file:") else posixpath.abspath(path)


def ingest(
    spark: SparkSession,
    source: str,
    path: str | None,
    into: Into,
    *,
    options: Mapping[str, str] | None = None,
    schema: str | None = None,
    expressions: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    order_by: str | None = None,
    checkpoint: str | None = None,
    every: str | None = None,
    dry_run: bool = False,
) -> Moved:
    """Read ``source`` (a Spark format) and write it ``into`` a log.

    ``expressions`` are SQL for the columns of a record (``{"key": "id", "value": "to_json(struct(*))"}``); ``columns``
    picks those that are taken over; ``order_by`` is SQL for the order of rows. With ``checkpoint`` it is a stream of
    the rows that exist now or, with ``every`` ("10 seconds"), without an end."""
    if every is not None and checkpoint is None:
        raise UsageError("a stream needs a checkpoint", hint="name a directory for it")
    if order_by is not None and checkpoint is not None:
        raise UsageError("a stream cannot be sorted", hint="rows come in the order of the source's partitions")
    reader: Any = spark.readStream if checkpoint is not None else spark.read
    reader = reader.format(source).options(**{**OPTIONS.get(source, {}), **dict(options or {})})
    if schema is not None:
        reader = reader.schema(schema)
    frame = _read(reader, path)
    if order_by is not None:
        frame = _sorted(frame, order_by)
    shaped = shape(frame, expressions or {}, columns, naming=into.topic is None and "topic" in (columns or ()))
    if dry_run:
        return Moved(into.path, 0, None, dry_run=True, columns=tuple(shaped.columns))
    if checkpoint is not None:
        return stream(shaped, into, checkpoint, every)
    return write(shaped, into)


def _read(reader: Any, path: str | None) -> DataFrame:
    with plain_errors():
        frame = reader.load() if path is None else reader.load(absolute(path))
        frame.columns  # noqa: B018  a wrong source shows itself here, and not in a task
        return frame


def _sorted(frame: DataFrame, order_by: str) -> DataFrame:
    order = order_by.replace("{", "{{").replace("}", "}}")
    with plain_errors():
        return frame.sparkSession.sql(f"SELECT * FROM {{rows}} ORDER BY {order}", rows=frame)


def shape(
    frame: DataFrame, expressions: Mapping[str, str], columns: Sequence[str] | None, *, naming: bool = False
) -> DataFrame:
    """The frame with a record's columns: those that were described, and those that are called so."""
    from pyspark.sql import functions as fn

    known = (*FIELDS, *NAMING)
    for name in (*expressions, *(columns or ())):
        if name not in known:
            raise UsageError(f"a record has no column {name!r}", hint=f"its columns: {', '.join(known)}")
    wanted = columns or [name for name in known if name in expressions or name in frame.columns]
    if not columns and not naming:
        wanted = [name for name in wanted if name in expressions or name not in NAMING]
    made = []
    for name in wanted:
        if name in expressions:
            made.append(fn.expr(expressions[name]).alias(name))
        elif name in frame.columns:
            made.append(fn.col(name))
        elif name != "value":
            raise UsageError(f"the source has no column {name!r}", hint=f"its columns: {', '.join(frame.columns)}")
    if "value" not in wanted or ("value" not in expressions and "value" not in frame.columns):
        made.append(fn.to_json(fn.struct(*frame.columns)).alias("value"))
    with plain_errors():
        return frame.select(*made)


def write(frame: DataFrame, into: Into) -> Moved:
    """One batch: all rows or none."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as fn

    seen = Observation()
    with plain_errors(), cancelling(frame.sparkSession):
        counted = frame.observe(seen, fn.count(fn.lit(1)).alias("rows"))
        counted.write.format("duramen").mode(into.mode).options(**into.texts()).save(into.path)
    return Moved(into.path, int(seen.get["rows"]))


def start(frame: DataFrame, into: Into, checkpoint: str, every: str | None) -> StreamingQuery:
    """A streaming query into a log: with ``every`` without an end, otherwise until all rows that exist are stored."""
    writer = frame.writeStream.format("duramen").options(**into.texts()).outputMode("append")
    writer = writer.option("checkpointLocation", absolute(checkpoint))
    writer = writer.trigger(processingTime=every) if every is not None else writer.trigger(availableNow=True)
    with plain_errors():
        return writer.start(into.path)


def stream(frame: DataFrame, into: Into, checkpoint: str, every: str | None) -> Moved:
    """The same, and wait for its end; ctrl-C stops it between two batches."""
    tally = wait(start(frame, into, checkpoint, every))
    return Moved(into.path, tally.rows, tally.batches)


def wait(query: StreamingQuery) -> Tally:
    """Until the query ends, or ctrl-C ends it; how much it has read."""
    tally = Tally()
    follow(tally)
    with plain_errors():
        try:
            while not query.awaitTermination(COUNT_EVERY_S):
                tally.add(query.recentProgress)
        except KeyboardInterrupt:
            query.stop()
            query.awaitTermination()
        tally.add(query.recentProgress)
    return tally


def replay(
    spark: SparkSession, path: str, into: Into, *, format: str | None = None, dry_run: bool = False, **options: Any
) -> Moved:
    """A stretch of a log, or of topics, once more: into another log or topic, with new offsets and its own times.

    ``options`` are the data source's, by their names there: ``startingOffsets``, ``endingTimestamp``, ``subscribe``."""
    path = absolute(path)
    _refuse_itself(path, into)
    capable = _capable(path, format, options)
    columns = [name for name in FIELDS if name in capable]
    if into.topic is None and "subscribe" in options:
        columns += NAMING
    texts = {name: value for name, value in options.items() if value is not None}
    with no_pandas_warning():
        frame = scan(spark, path, columns=columns, logFormat=format, **texts)
    if dry_run:
        return Moved(into.path, frame.count(), None, dry_run=True, columns=tuple(columns))
    if into.format is None and not _is_there(into.path):
        into = Into(into.path, _format_of(path, format, options), into.topic, into.mode, into.options)
    return write(frame, into)


def _refuse_itself(path: str, into: Into) -> None:
    if into.topic is None and disk_of(path)[1] == disk_of(into.path)[1]:
        raise UsageError("a log cannot be replayed into itself", path=path)


def _opened(path: str, format: str | None, options: Mapping[str, Any]) -> list[Any]:
    of_format = {name: value for name, value in options.items() if name == "record_size"}
    naming = {"subscribe": tuple(str(options["subscribe"]).split(","))} if "subscribe" in options else {}
    reading = read_options(path, format, **of_format, **naming)
    disk, root = disk_of(path)
    return [open_log(reading, disk, place) for place in find_places(reading, disk, root)]


def _capable(path: str, format: str | None, options: Mapping[str, Any]) -> set[str]:
    """The columns that the source's formats have."""
    found: set[str] = set()
    for log in _opened(path, format, options):
        found |= log.codec.capabilities.columns
    return found or {"value"}


def _format_of(path: str, format: str | None, options: Mapping[str, Any]) -> str | None:
    formats = {log.format for log in _opened(path, format, options)}
    return formats.pop() if len(formats) == 1 else None


def _is_there(path: str) -> bool:
    disk = PosixDisk()
    if disk.kind(path) != Kind.DIRECTORY:
        return False
    try:
        format_at(disk, path, None, {})
    except DuramenError:
        return False
    return True
