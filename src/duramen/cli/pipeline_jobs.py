"""What the verbs of `duramen pipeline` do: a session, the job, and its answer as text or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Any

from duramen.cli import verify as in_process
from duramen.cli.arguments import Target
from duramen.cli.output import Column, Output, duration, number, rate, size, to_json
from duramen.cli.pipeline_progress import progress, starting
from duramen.disk import PosixDisk
from duramen.errors import StorageError, UsageError
from duramen.log.directory import list_log
from duramen.spark.session import pairs, session

if TYPE_CHECKING:
    from duramen.spark.session import SparkSession


@contextmanager
def running(label: str, spark: Mapping[str, Any], total_bytes: int = 0) -> Iterator[SparkSession]:
    """A session, and a bar while it works."""
    with ExitStack() as stack:
        with starting(label, spark["master"]):
            started = stack.enter_context(session(spark["master"], pairs(spark["conf"]), verbose=spark["verbose"]))
        with progress(started, label, total_bytes):
            yield started


def _size_of(target: Target) -> int:
    return sum(files.segment.size_bytes for files in list_log(PosixDisk(), target.path, target.codec).segments)


def answer(document: Mapping[str, Any], lines: Sequence[tuple[str, str]], title: str, *, json: bool) -> None:
    out = Output()
    if json:
        out.write(to_json(document, indent=2) + "\n")
        return
    out.line(title)
    out.pairs(lines)


def verify(target: Target, *, json: bool, spark: Mapping[str, Any]) -> int:
    from duramen.spark import jobs

    with running(f"verify {target.path}", spark, _size_of(target)) as started:
        start = perf_counter()
        report = jobs.verify(started, target.path, format=target.codec.name, **target.options)
        seconds = perf_counter() - start
    out = Output()
    if json:
        out.write(to_json(report.as_dict(), indent=2) + "\n")
    else:
        in_process.show(report, seconds, out)
    return 0 if report.ok else 1


def profile(
    target: Target, *, subscribe: str | None, html: str | None, duplicates: bool, json: bool, spark: Mapping[str, Any]
) -> int:
    from duramen.spark import jobs

    reading: dict[str, Any] = {"subscribe": _names(subscribe)} if subscribe else {}
    format = target.codec.name if subscribe is None else target.format
    with running(f"profile {target.path}", spark, 0 if subscribe else _size_of(target)) as started:
        found = jobs.profile(started, target.path, duplicates=duplicates, format=format, **reading, **target.options)
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
        lines.append(("offsets", f"{log['first_offset']} to {log['last_offset']}"))
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


def export(
    target: Target, into: str, *, kind: str, partition_by: str | None, incremental: bool, columns: str | None,
    decode: tuple[str | None, str | None, str], compression: str, table: str | None, catalog: list[str] | None,
    reading: Mapping[str, str], dry_run: bool, json: bool, spark: Mapping[str, Any],
) -> int:  # fmt: skip
    from duramen.spark import jobs
    from duramen.spark.options import parse

    how, schema, malformed = decode
    if (how is None) != (schema is None):
        raise UsageError("--decode and --schema go together")
    parsed = parse({"path": target.path, **reading}, streaming=False)
    given = {name: getattr(parsed, name) for name in ("starting", "ending", "starting_us", "ending_us", "subscribe")}
    options: dict[str, Any] = {"table": table} if table is not None else {}
    if catalog:
        options["catalog"] = pairs(catalog, "--catalog")
    text = None if schema is None else _text(schema)
    format = target.codec.name if parsed.subscribe is None else target.format
    total = _size_of(target) if parsed.subscribe is None else 0
    with running(f"export {target.path}", spark, total) as started:
        # Spark reads a schema only where there is a session.
        decoder = None if how is None or text is None else jobs.decoder(how, text, malformed)
        start = perf_counter()
        done = jobs.export(
            started, target.path, into, kind=kind, partition_by=partition_by, incremental=incremental,
            columns=_names(columns), decoder=decoder, compression=compression, dry_run=dry_run,
            target_options=options, format=format, **given, **target.options,
        )  # fmt: skip
        seconds = perf_counter() - start
    ranges = [(path, f"offsets {a} to {b - 1}" if b > a else "nothing new") for path, (a, b) in done.ranges.items()]
    title = (
        f"{into}: would export" if dry_run else f"{into}: {number(done.rows, 'row')} in {number(done.files, 'file')}"
    )
    if not dry_run and done.rows:
        title += f", {size(done.bytes)} in {duration(seconds)}"
    answer({**asdict(done), "seconds": round(seconds, 3)}, ranges, title, json=json)
    return 0


def _text(text: str) -> str:
    """What was given, or what the file holds that ``@`` names."""
    if not text.startswith("@"):
        return text
    try:
        with open(text[1:], encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise StorageError(error.strerror or str(error), path=text[1:]) from error


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def convert(
    source: Target, dst: str, to: str, *, allow_loss: Sequence[str], on_damage: str, options: Mapping[str, Any],
    dry_run: bool, json: bool, spark: Mapping[str, Any],
) -> int:  # fmt: skip
    from duramen.spark import jobs

    with running(f"convert {source.path}", spark, _size_of(source)) as started:
        start = perf_counter()
        done = jobs.convert(
            started, source.path, dst, to, allow_loss=allow_loss, on_damage=on_damage, dry_run=dry_run,
            format=source.codec.name, source_options=source.options, **options,
        )  # fmt: skip
        seconds = perf_counter() - start
    verb = "would hold" if dry_run else "holds"
    title = f"{dst}: {verb} {number(done.records, 'record')} as {done.format}, {number(done.segments, 'segment')}"
    lines = [("lost", f"{loss.field}: {loss.meaning} ({number(loss.count, loss.unit)})") for loss in done.losses]
    if not dry_run:
        speed = f" ({rate(done.size_bytes, seconds)})" if done.size_bytes >= in_process.RATE_FROM_BYTES else ""
        lines.append(("took", f"{duration(seconds)}{speed}"))
    document = {**asdict(done), "losses": [loss._asdict() for loss in done.losses]}
    answer({**document, "dry_run": dry_run}, lines, title, json=json)
    return 0


def compact(
    source: Target, dst: str, *, key: str, keyless: str, tombstone_delay_ms: int, dry_run: bool, json: bool,
    spark: Mapping[str, Any],
) -> int:  # fmt: skip
    from duramen.spark import jobs

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
    answer({**asdict(report), "dry_run": dry_run}, lines, title, json=json)
    return 0


def ingest(
    source: str, path: str | None, into: str, *, options: list[str], schema: str | None,
    expressions: Mapping[str, str], columns: str | None, format: str | None, to_options: list[str],
    topic: str | None, overwrite: bool, order_by: str | None, checkpoint: str | None, every: str | None,
    dry_run: bool, json: bool, spark: Mapping[str, Any],
) -> int:  # fmt: skip
    from duramen.spark import jobs

    target = jobs.Into(into, format, topic, "overwrite" if overwrite else "append", pairs(to_options, "--to-option"))
    with running(f"ingest into {into}", spark) as started:
        done = jobs.ingest(
            started, source, path, target, options=pairs(options, "--option"), schema=schema,
            expressions=expressions, columns=_names(columns), order_by=order_by, checkpoint=checkpoint, every=every,
            dry_run=dry_run,
        )  # fmt: skip
    return _moved(done, json=json)


def replay(
    source: Target, dst: str, *, reading: Mapping[str, str], topic: str | None, to_format: str | None,
    to_options: list[str], dry_run: bool, json: bool, spark: Mapping[str, Any],
) -> int:  # fmt: skip
    from duramen.spark import jobs

    target = jobs.Into(dst, to_format, topic, "append", pairs(to_options, "--to-option"))
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
    answer(asdict(done), lines, f"{done.target}: {rows}{verb}", json=json)
    return 0


def run_file(path: str, *, dry_run: bool, json: bool, spark: Mapping[str, Any]) -> int:
    from duramen.spark.jobs import pipeline

    plan = pipeline.read(path)
    if dry_run:
        answer(plan.as_dict(), plan.described(), f"{plan.name}: would run", json=json)
        return 0
    with running(plan.name, {**spark, "conf": [*plan.conf(), *spark["conf"]]}) as started:
        done = pipeline.run(started, plan)
    answer(done.as_dict(), done.described(), f"{plan.name}: done", json=json)
    return 0 if done.ok else 1
