"""``python -m duramen.spark.planner``: Python's part of a read that the JVM executes.

A process on the driver plans, one on each executor reads what the JVM leaves to Python. Requests are lines of
JSON on standard input, each answered by a line on standard output; an answer with ``error`` says what was wrong.

- ``schema``: the columns of a read with these options.
- ``plan``: its splits, narrowed to what Spark needs; with ``native``, also what the JVM needs to read them itself.
- ``read``: a line, then one split as an Arrow stream, then a line that says how it ended. ``stop`` ends it early.
  ``done`` and ``after``: what the JVM has read of it.
- ``stream``, then ``call``: the stream reader of one query; its methods.

The decisions are those of `duramen.spark.source`, and so are the errors. Standard output belongs to the protocol: what
anything else prints goes to standard error. The process ends when its standard input does, and keeps nothing.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import gc
import json
import os
import pickle
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from duramen.errors import DuramenError
from duramen.spark.native_splits import NativeSplits, rest_of
from duramen.spark.source.narrowed import Narrowed, NarrowedRead, Seen
from duramen.spark.source.options import MAX_PARTITION_BYTES, NATIVE_PARTITION_BYTES, parse_options
from duramen.spark.source.plan import plan_narrowed
from duramen.spark.source.sampling import bind
from duramen.spark.source.schema import wanted_of
from duramen.spark.source.source import DuramenSource
from duramen.spark.source.splits import Split

PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 16

Request = dict[str, Any]
Answer = dict[str, Any]


class Requests:
    """Lines of standard input, and whether another one is there."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""

    def __iter__(self) -> Iterator[Request]:
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                yield json.loads(line)
                continue
            more = os.read(self._descriptor, _READ_BYTES)
            if not more:
                return
            self._rest += more

    def is_waiting(self) -> bool:
        return bool(self._rest) or bool(select.select([self._descriptor], [], [], 0)[0])


class Planner:
    """The answers. Holds the stream reader of one query, if it serves one."""

    def __init__(self, requests: Requests, output: int) -> None:
        self._requests = requests
        self._output = output
        self._reader: Any = None
        self._fields: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def run(self) -> None:
        for request in self._requests:
            if request["do"] == "read":
                self._read(request)
            elif request["do"] != "stop":  # one that came after the end of its stream is answered by that
                self._answer(request)

    def _tell(self, answer: Answer) -> None:
        data = memoryview(json.dumps(answer).encode() + b"\n")
        while data:
            data = data[os.write(self._output, data) :]

    def _answer(self, request: Request) -> None:
        phase: Answer = {}
        try:
            answer: Answer = getattr(self, f"_do_{request['do']}")(request, phase)
        except Exception as error:  # noqa: BLE001 - each becomes an error of the query that asked
            answer = {**phase, "error": error_text(error)}
        self._tell(answer)

    # --- batches

    def _do_schema(self, request: Request, phase: Answer) -> Answer:
        phase.update(action="create", of="instance")
        return {"schema": DuramenSource(request["options"]).schema().json()}

    def _do_plan(self, request: Request, phase: Answer) -> Answer:
        phase.update(action="initialize", of="reader")
        options = bind(parse_options(request["options"], streaming=False))
        wanted = wanted_of(StructType.fromJson(json.loads(request["schema"])), options)
        phase.update(action="generate", of="read partitions")
        narrowed, seen = Narrowed.of(request), Seen(request.get("snapshot"))
        read = NarrowedRead(options.path, wanted.with_fields(dict(narrowed.fields)), narrowed)
        splits = plan_narrowed(
            options, narrowed, seen, payload=wanted.payload, counts_unread=read.counts_unread,
            most_bytes=NATIVE_PARTITION_BYTES if request.get("native") else MAX_PARTITION_BYTES,
        )  # fmt: skip
        parts: list[Split | None] = [*splits]
        if narrowed.aggregates and not parts:
            parts.append(None)  # the count of no records is a row, too
        return {
            "wanted": packed(read), "splits": [packed(one) for one in parts], "native": _native(request, read, parts),
            "bytes": sum(split.size_bytes for split in splits), "snapshot": str(seen),
        }  # fmt: skip

    # --- one split

    def _read(self, request: Request) -> None:
        try:
            narrowed: NarrowedRead = unpacked(request["wanted"])
            split: Split | None = unpacked(request["split"])
            if split is not None and "done" in request:
                split = rest_of(split, request["done"], request["after"])
            batches = narrowed.batches(split)
            schema = narrowed.schema
        except Exception as error:  # noqa: BLE001 - becomes the error of the task
            self._tell({"error": error_text(error)})
            return
        self._tell({})
        with open(self._output, "wb", closefd=False) as sink:
            failed = self._send(batches, pa.ipc.new_stream(sink, schema))
        self._tell({} if failed is None else {"error": failed})

    def _send(self, batches: Iterator[pa.RecordBatch], writer: Any) -> str | None:
        """Write until the end, an error, which is returned, or the next request."""
        with writer:
            try:
                for batch in batches:
                    writer.write_batch(batch)
                    if self._requests.is_waiting():
                        break
            except BrokenPipeError:
                raise  # the JVM has gone
            except Exception as error:  # noqa: BLE001 - becomes the error of the task
                return error_text(error)
        return None

    # --- streams

    def _do_stream(self, request: Request, phase: Answer) -> Answer:
        phase["call"] = "getDefaultReadLimit"
        schema = StructType.fromJson(json.loads(request["schema"]))
        self._reader = DuramenSource(request["options"]).streamReader(schema)
        self._fields = Narrowed.of(request).fields
        self._reader.getDefaultReadLimit()  # raises the error of invalid options
        return {}

    def _do_call(self, request: Request, phase: Answer) -> Answer:
        name = phase["call"] = request["call"]
        offsets = [json.loads(text) for text in request.get("offsets", ())]
        if name == "wanted":
            return {"wanted": packed(self._streamed)}
        if name == "partitions":
            return self._partitions(request, *offsets)
        if name == "getDefaultReadLimit":
            return {"limit": _limit_as_json(self._reader.getDefaultReadLimit())}
        if name == "latestOffset":
            found = self._reader.latestOffset(offsets[0], _limit_of(request["limit"]))
        else:
            found = getattr(self._reader, name)(*offsets)
        return {} if found is None else {"offset": json.dumps(found)}

    @property
    def _streamed(self) -> NarrowedRead:
        wanted = self._reader._wanted.with_fields(dict(self._fields))
        return NarrowedRead(self._reader._options.path, wanted, Narrowed())

    def _partitions(self, request: Request, start: Any, end: Any) -> Answer:
        splits = [one.value for one in self._reader.partitions(start, end)]
        native = _native(request, self._streamed, splits)
        return {"splits": [packed(split) for split in splits], "native": native, "wanted": ""}


def _native(request: Request, read: NarrowedRead, splits: Sequence[Split | None]) -> list[str | None]:
    """For each split what the JVM needs to read it itself, as JSON; null where Python must."""
    if not request.get("native"):
        return [None] * len(splits)
    native = NativeSplits(read)
    found = [native.describe(split) for split in splits]
    return [None if one is None else json.dumps(one) for one in found]


def packed(what: Any) -> str:
    return base64.b64encode(pickle.dumps(what)).decode()


def unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))


def error_text(error: Exception) -> str:
    """As Spark shows an error of a Python data source: one of ours by its line, any other with its traceback."""
    if isinstance(error, DuramenError):
        kind = type(error)
        return f"{kind.__module__}.{kind.__qualname__}: {error}"
    return "".join(traceback.format_exception(error)).rstrip("\n")


def _limit_as_json(limit: ReadLimit) -> Answer:
    if isinstance(limit, ReadMaxRows):
        return {"rows": limit.max_rows}
    if isinstance(limit, ReadMaxBytes):
        return {"bytes": limit.max_bytes}
    return {"least": limit.min_rows} if isinstance(limit, ReadMinRows) else {}


def _limit_of(given: Answer) -> ReadLimit:
    makes: dict[str, Callable[[int], ReadLimit]] = {"rows": ReadMaxRows, "bytes": ReadMaxBytes, "least": ReadMinRows}
    for name, make in makes.items():
        if name in given:
            return make(given[name])
    return ReadAllAvailable()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's; it ends this process by its input
    output = os.dup(1)
    os.dup2(2, 1)
    with contextlib.suppress(OSError):
        fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    gc.collect()
    gc.freeze()
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        Planner(Requests(0), output).run()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
