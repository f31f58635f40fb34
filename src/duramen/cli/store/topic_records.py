"""`append` and `cat` on a whole topic: `append` sends each record to the partition of its key, `cat` reads all."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from duramen.cli.output import Output, number, to_json
from duramen.cli.records import Form, arrow_writer, json_lines, writer
from duramen.errors import CorruptionError, MalformedError, OffsetError, UsageError
from duramen.formats import make
from duramen.log import Log
from duramen.record import KEY, SCHEMA, VALUE
from duramen.store import FOLLOW_POLL_S, PARTITION, Store, Topic, TopicAddress, split
from duramen.values import Decoding

WritePart = Callable[[int, pa.RecordBatch], None]


# --- append


def keyed(lines: list[bytes], first_line: int, separator: bytes) -> pa.RecordBatch:
    """Parse lines of key, separator and value."""
    keys, values = [], []
    for number_, line in enumerate(lines, first_line):
        key, found, value = line.partition(separator)
        if not found:
            shown = separator.decode("utf-8", "backslashreplace")
            raise UsageError(f"line {number_} does not contain the key separator {shown!r}")
        keys.append(key)
        values.append(value)
    return pa.RecordBatch.from_arrays([pa.array(keys, KEY.type), pa.array(values, VALUE.type)], names=["key", "value"])


def with_partitions(
    lines: list[bytes], first_line: int, records: Callable[[list[bytes], int], pa.RecordBatch]
) -> pa.RecordBatch:
    """Parse JSON lines; adds the column ``partition`` if a line has that field, as printed by `cat`."""
    if not any(b'"partition"' in line for line in lines):
        return records(lines, first_line)
    plain, numbers = [], []
    for number_, line in enumerate(lines, first_line):
        try:
            tree = json.loads(line)
            wanted = tree.pop("partition", None)
            numbers.append(None if wanted is None else int(wanted))
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"line {number_} is not a valid record: {error}") from error
        plain.append(json.dumps(tree).encode())
    batch = records(plain, first_line)
    return batch.append_column("partition", pa.array(numbers, pa.int64()))


def append(
    address: TopicAddress,
    batches: Iterator[pa.RecordBatch],
    *,
    routing: bool,
    durability: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Append batches to a topic. ``routing``: keys choose the partition and are not stored."""
    stored: dict[int, int] = {}
    with Store(address.root, durability=durability) as store:
        topic = store.topic(address.topic)
        for batch in batches:
            routing_key = None
            if routing and "key" in batch.schema.names:
                routing_key = batch.column("key")
                batch = batch.drop_columns(["key"])
            for part, count in _store(topic, batch, routing_key, dry_run).items():
                stored[part] = stored.get(part, 0) + count
    count = sum(stored.values())
    if as_json:
        parts = {str(part): rows for part, rows in sorted(stored.items())}
        print(to_json({"path": str(address), "records": count, "partitions": parts, "dry_run": dry_run}))
        return 0
    verb = "would append" if dry_run else "appended"
    over = f", to {number(len(stored), 'partition')}" if count else ""
    Output().line(f"{address}: {verb} {number(count, 'record')}{over}")
    return 0


def _store(topic: Topic, batch: pa.RecordBatch, routing_key: Any, dry_run: bool) -> dict[int, int]:
    if not dry_run:
        return {part: done.count for part, done in topic.append_batch(batch, routing_key=routing_key).items()}
    parts = split(batch, topic._partitions_for(batch, None, routing_key))
    for part, rows in parts.items():
        with topic.log(part) as log:
            log.codec.accept(rows.select([name for name in rows.schema.names if name != "partition"]))
    return {part: rows.num_rows for part, rows in parts.items()}


# --- cat


def cat(
    address: TopicAddress,
    form: Form,
    bounds: Callable[[Log], dict[str, Any]],
    *,
    count: int | None,
    follow: bool,
    base64: bool,
    isolation: str | None = None,
    decoding: Decoding | None = None,
) -> int:
    """Print the records of all partitions, one partition after another; with ``follow``, then new records."""
    sys.stdout.flush()
    out = sys.stdout.buffer
    with Store(address.root, isolation=isolation) as store:
        topic = store.topic(address.topic)
        columns = form.needed(decoding)
        if decoding is not None:
            _bind(decoding, topic, columns, bounds, count)
        with _writing(form, out, topic, base64, decoding) as write:
            _cat(topic, write, columns, bounds, count, follow)
    return 0


def _bind(
    decoding: Decoding,
    topic: Topic,
    columns: Sequence[str] | None,
    bounds: Callable[[Log], dict[str, Any]],
    count: int | None,
) -> None:
    """Fix the types of values by the first of them. The read itself reports damage."""
    for part in topic.existing():
        with topic.log(part) as log, suppress(CorruptionError, OffsetError):
            decoding.bind(log.batches(**bounds(log), max_records=count, columns=columns, verify=False))


def _cat(
    topic: Topic,
    write: WritePart,
    columns: Sequence[str] | None,
    bounds: Callable[[Log], dict[str, Any]],
    count: int | None,
    follow: bool,
) -> None:
    left = 2**63 - 1 if count is None else count
    reached: dict[int, int] = {}
    while left > 0:
        found = False
        for part in topic.existing():
            with topic.log(part) as log:
                window = {"from_offset": reached[part]} if part in reached else bounds(log)
                end = log.next_offset
                for batch in log.batches(**window, max_records=left, columns=columns):
                    found = True
                    try:
                        write(part, batch)
                    except MalformedError as error:
                        error.path = log.path
                        raise
                    left -= batch.num_rows
                    if left <= 0:
                        return
                reached[part] = end
        sys.stdout.buffer.flush()
        if not follow:
            return
        if not found:
            time.sleep(FOLLOW_POLL_S)


@contextmanager
def _writing(form: Form, out: BinaryIO, topic: Topic, base64: bool, decoding: Decoding | None) -> Iterator[WritePart]:
    """Like `records.writer`, with the partition in every record if the form has fields."""
    codec = make(topic.format, **topic.options)
    if form == Form.ARROW and not out.isatty():
        schema = pa.schema([PARTITION, *SCHEMA])
        with arrow_writer(out, schema, decoding) as write_batch:

            def write_arrow(part: int, batch: pa.RecordBatch) -> None:
                column = pa.array(np.full(batch.num_rows, part, np.int32))
                write_batch(pa.RecordBatch.from_arrays([column, *batch.columns], schema=schema))

            yield write_arrow
    elif form == Form.JSONL:
        unit = codec.capabilities.timestamps or "us"

        def write_json(part: int, batch: pa.RecordBatch) -> None:
            lines = json_lines(batch, unit=unit, base64=base64).splitlines()
            out.write(b"".join(b'{"partition":%d,%s\n' % (part, line[1:]) for line in lines))

        def write_decoded(part: int, batch: pa.RecordBatch) -> None:
            assert decoding is not None
            decoding.pass_on(batch, partial(write_json, part))

        yield write_json if decoding is None else write_decoded
    else:
        with writer(form, out, codec, base64=base64, decoding=decoding) as write:
            yield lambda _part, batch: write(batch)
    out.flush()
