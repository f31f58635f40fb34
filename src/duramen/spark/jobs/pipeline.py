"""A pipeline in a file: source, steps and sink, run once or for ever.

::

    name = "oak"
    mode = "once"                    # or "stream": the rows that exist, then stop; or "continuous"
    checkpoint = "checkpoints/oak"   # for stream and continuous
    every = "10 seconds"             # for continuous

    [source]
    format = "duramen"               # any Spark source
    path = "logs/orders"
    options = { startingOffsets = "earliest" }

    [[steps]]
    sql = "SELECT key, value, timestamp FROM input WHERE …"     # input: what the step before gave

    [[steps]]
    job = "verify"                   # or a job of this package; runs in its turn, once
    path = "logs/orders"

    [sink]
    format = "duramen"               # any Spark sink
    path = "logs/oak"
    options = { logFormat = "keratin" }

Everything is checked before Spark does anything; what is wrong is said with the key that is wrong. Relative paths are
relative to the working directory.
"""

from __future__ import annotations

import difflib
import posixpath
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from duramen.disk import PosixDisk
from duramen.errors import DuramenError, UsageError
from duramen.sidecar import replace_file
from duramen.spark.jobs.compact import compact
from duramen.spark.jobs.convert import convert
from duramen.spark.jobs.export import export
from duramen.spark.jobs.profile import profile
from duramen.spark.jobs.profile_page import page
from duramen.spark.jobs.replay import Into, absolute, stream, wait, write
from duramen.spark.jobs.task_runner import plain_errors
from duramen.spark.jobs.verify import verify
from duramen.values import DecodeOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MODES = ("once", "stream", "continuous")
TOP = {"name": str, "mode": str, "checkpoint": str, "every": str, "conf": dict, "source": dict, "steps": list,
       "sink": dict}  # fmt: skip
SOURCE = {"format": str, "path": str, "schema": str, "options": dict}
SINK = {"format": str, "path": str, "mode": str, "topic": str, "options": dict}
SQL_STEP = {"sql": str, "name": str}
DECODING = dict.fromkeys(DecodeOptions.__annotations__, str)
JOBS: Mapping[str, Mapping[str, type]] = {
    "verify": {"path": str, "options": dict},
    "profile": {"path": str, "html": str, "duplicates": bool, "options": dict, **DECODING},
    "export": {"path": str, "to": str, "kind": str, "partition_by": str, "incremental": bool, "compression": str,
               "options": dict, **DECODING},
    "compact": {"path": str, "to": str, "key": str, "keyless": str, "tombstone_delay_ms": int},
    "convert": {"path": str, "to": str, "format": str, "allow_loss": list, "options": dict},
}  # fmt: skip
"""What each job takes; ``path`` is needed by all, ``to`` by those that write."""


@dataclass(frozen=True)
class PipelineStep:
    """SQL over what came before, or a job."""

    sql: str | None = None
    name: str | None = None
    job: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pipeline:
    name: str
    mode: str = "once"
    checkpoint: str | None = None
    every: str | None = None
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, Any] | None = None
    steps: tuple[PipelineStep, ...] = ()
    sink: Mapping[str, Any] | None = None

    def conf(self) -> list[str]:
        return [f"{name}={value}" for name, value in self.spark_conf.items()]

    def as_dict(self) -> dict[str, Any]:
        steps = [{"sql": s.sql} if s.sql else {"job": s.job, **s.arguments} for s in self.steps]
        return {"name": self.name, "mode": self.mode, "source": self.source, "steps": steps, "sink": self.sink}

    def described(self) -> list[tuple[str, str]]:
        lines = [("mode", self.mode)]
        if self.source is not None:
            lines.append(("source", f"{self.source['format']} {self.source.get('path', '')}".strip()))
        lines += [("step", step.sql or f"{step.job} {step.arguments['path']}") for step in self.steps]
        if self.sink is not None:
            lines.append(("sink", f"{self.sink['format']} {self.sink.get('path', '')}".strip()))
        return lines


@dataclass
class Done:
    """What a run did, step by step."""

    ok: bool = True
    lines: list[tuple[str, str]] = field(default_factory=list)
    rows: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "rows": self.rows, "steps": [{"step": a, "result": b} for a, b in self.lines]}

    def described(self) -> list[tuple[str, str]]:
        return self.lines


# --- reading the file


def read_pipeline(path: str) -> Pipeline:
    """The pipeline that a file describes; raises `UsageError` with the key that is wrong."""
    try:
        tree = tomllib.loads(bytes(PosixDisk().map(path).data).decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"not valid TOML: {error}", path=path) from error
    try:
        return parse_pipeline(tree)
    except UsageError as error:
        error.path = error.path or path
        raise


def parse_pipeline(tree: Mapping[str, Any]) -> Pipeline:
    _check(tree, TOP, "")
    mode = tree.get("mode", "once")
    if mode not in MODES:
        raise UsageError(f"mode: {mode!r} is not known", hint=f"it is {', '.join(MODES)}")
    steps = tuple(_step(number, step) for number, step in enumerate(tree.get("steps", ())))
    source, sink = tree.get("source"), tree.get("sink")
    if (source is None) != (sink is None):
        missing = "source" if source is None else "sink"
        raise UsageError(f"{missing}: is missing", hint="source and sink go together; jobs alone need neither")
    if source is None and not steps:
        raise UsageError("steps: there is nothing to do")
    if source is None and any(step.sql for step in steps):
        raise UsageError("source: is missing", hint="a step with sql needs one")
    if source is not None:
        _check(source, SOURCE, "source", needed=("format",))
        _check(sink or {}, SINK, "sink", needed=("format", "path"))
    _check_mode(tree, mode, steps, source)
    conf = {name: str(value) for name, value in tree.get("conf", {}).items()}
    return Pipeline(
        tree.get("name", "pipeline"), mode, tree.get("checkpoint"), tree.get("every"), conf, source, steps, sink
    )


def _check_mode(tree: Mapping[str, Any], mode: str, steps: tuple[PipelineStep, ...], source: Any) -> None:
    if mode == "once":
        for name in ("checkpoint", "every"):
            if name in tree:
                raise UsageError(f"{name}: makes no sense with mode = 'once'", hint="mode = 'stream' or 'continuous'")
        return
    if source is None:
        raise UsageError(f"mode: {mode!r} needs a source and a sink")
    if "checkpoint" not in tree:
        raise UsageError("checkpoint: is missing", hint=f"mode = {mode!r} needs a directory for it")
    if mode == "continuous" and "every" not in tree:
        raise UsageError("every: is missing", hint="for example every = '10 seconds'")
    if mode == "stream" and "every" in tree:
        raise UsageError("every: makes no sense with mode = 'stream'", hint="mode = 'continuous'")
    for number, step in enumerate(steps):
        if step.job is not None:
            raise UsageError(f"steps[{number}].job: a stream cannot run a job", hint="a pipeline of its own")


def _step(number: int, tree: Any) -> PipelineStep:
    where = f"steps[{number}]"
    if not isinstance(tree, dict):
        raise UsageError(f"{where}: is not a table")
    if ("sql" in tree) == ("job" in tree):
        raise UsageError(f"{where}: has to have either sql or job")
    if "sql" in tree:
        _check(tree, SQL_STEP, where)
        return PipelineStep(sql=tree["sql"], name=tree.get("name"))
    job = tree["job"]
    if not isinstance(job, str) or job not in JOBS:
        raise UsageError(f"{where}.job: {job!r} is not known", hint=f"jobs: {', '.join(JOBS)}")
    known = JOBS[job]
    needed = ("path", *(("to",) if "to" in known else ()))
    arguments = {name: value for name, value in tree.items() if name != "job"}
    _check(arguments, known, where, needed=needed)
    return PipelineStep(job=job, arguments=arguments)


def _check(tree: Mapping[str, Any], known: Mapping[str, type], where: str, needed: tuple[str, ...] = ()) -> None:
    """Raise for a key that is not known, is missing, or holds something else than it should."""
    prefix = f"{where}." if where else ""
    if not isinstance(tree, Mapping):
        raise UsageError(f"{where}: is not a table")
    for name, value in tree.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are: {', '.join(known)}"
            raise UsageError(f"{prefix}{name}: is not known", hint=hint)
        if not isinstance(value, known[name]) or (known[name] is int and isinstance(value, bool)):
            raise UsageError(f"{prefix}{name}: {value!r} is not {_TYPES[known[name]]}")
    for name in needed:
        if name not in tree:
            raise UsageError(f"{prefix}{name}: is missing")


_TYPES = {str: "text", dict: "a table", list: "a list", bool: "true or false", int: "a whole number"}


# --- running it


def run_pipeline(spark: SparkSession, plan: Pipeline) -> Done:
    """Run a pipeline; in the mode ``continuous`` until ctrl-C."""
    done = Done()
    frame = None if plan.source is None else _load(spark, plan)
    for number, step in enumerate(plan.steps):
        if step.sql is not None:
            assert frame is not None
            frame = _sql(spark, frame, step, number)
            done.lines.append(("sql", ", ".join(frame.columns)))
        else:
            _job(spark, step, done, number)
    if frame is not None:
        _store(frame, plan, done)
    return done


def _load(spark: SparkSession, plan: Pipeline) -> DataFrame:
    assert plan.source is not None
    source = plan.source
    reader: Any = spark.read if plan.mode == "once" else spark.readStream
    reader = reader.format(source["format"]).options(**_texts(source.get("options", {})))
    if "schema" in source:
        reader = reader.schema(source["schema"])
    with _naming("source"), plain_errors():
        frame: DataFrame = reader.load(absolute(source["path"])) if "path" in source else reader.load()
        frame.columns  # noqa: B018  a wrong source shows itself here
        return frame


def _sql(spark: SparkSession, frame: DataFrame, step: PipelineStep, number: int) -> DataFrame:
    frame.createOrReplaceTempView("input")
    assert step.sql is not None
    with _naming(f"steps[{number}].sql"), plain_errors():
        result = spark.sql(step.sql)
        if step.name:
            result.createOrReplaceTempView(step.name)
        return result


def _store(frame: DataFrame, plan: Pipeline, done: Done) -> None:
    assert plan.sink is not None
    sink, is_log = plan.sink, plan.sink["format"] == "duramen"
    into = Into(sink["path"], None, sink.get("topic"), sink.get("mode", "append"), sink.get("options"))
    with _naming("sink"), plain_errors():
        if plan.mode != "once":
            assert plan.checkpoint is not None
            if not is_log:
                _stream_elsewhere(frame, plan)
                done.lines.append(("sink", f"{sink['format']} {sink['path']}"))
                return
            moved = stream(frame, into, absolute(plan.checkpoint), plan.every)
        elif is_log:
            moved = write(frame, into)
        else:
            writer = frame.write.format(sink["format"]).mode(sink.get("mode", "append"))
            writer.options(**_texts(sink.get("options", {}))).save(absolute(sink["path"]))
            done.lines.append(("sink", f"{sink['format']} {sink['path']}"))
            return
    done.rows = moved.rows
    done.lines.append(("sink", f"{_count(moved.rows, 'row')} into {moved.target}"))


def _stream_elsewhere(frame: DataFrame, plan: Pipeline) -> None:
    assert plan.sink is not None
    writer = frame.writeStream.format(plan.sink["format"]).options(**_texts(plan.sink.get("options", {})))
    writer = writer.option("checkpointLocation", absolute(plan.checkpoint or "")).outputMode(
        plan.sink.get("mode", "append")
    )
    writer = writer.trigger(processingTime=plan.every) if plan.every else writer.trigger(availableNow=True)
    wait(writer.start(absolute(plan.sink["path"])))


def _job(spark: SparkSession, step: PipelineStep, done: Done, number: int) -> None:
    given = dict(step.arguments)
    options = given.pop("options", {})
    path = given.pop("path")
    with _naming(f"steps[{number}]"):
        if step.job == "verify":
            report = verify(spark, path, **options)
            done.ok = done.ok and report.ok
            verdict = "sound" if report.ok else "DAMAGED"
            done.lines.append(("verify", f"{path}: {verdict}, {_count(report.records, 'record')}"))
        elif step.job == "profile":
            html = given.pop("html", None)
            found = profile(spark, path, **given, **options)
            if html is not None:
                replace_file(PosixDisk(), posixpath.abspath(html), page(found).encode("utf-8", "backslashreplace"))
            done.lines.append(
                ("profile", f"{path}: {_count(found.records, 'record')}, {_count(found.distinct_keys, 'key')}")
            )
        elif step.job == "export":
            exported = export(spark, path, given.pop("to"), **given, **options)
            done.lines.append(
                ("export", f"{exported.target}: {_count(exported.rows, 'row')} in {_count(exported.files, 'file')}")
            )
        elif step.job == "compact":
            compacted = compact(spark, path, given.pop("to"), **given)
            kept = f"{compacted.records_after:,} of {_count(compacted.records_before, 'record')}"
            done.lines.append(("compact", f"{path}: {kept} kept"))
        else:
            given["to"], dst = given.pop("format", "keratin"), given.pop("to")
            converted = convert(spark, path, dst, **given, **options)
            done.lines.append(("convert", f"{dst}: {_count(converted.records, 'record')} as {converted.format}"))


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun if count == 1 else noun + 's'}"


class _naming:  # noqa: N801
    """Says in which part of the file it is that something went wrong."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DuramenError) and not error.message.startswith(self._where):
            error.message = f"{self._where}: {error.message}"


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
