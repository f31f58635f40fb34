"""The process that plans and reads for the JVM: its protocol, without a JVM."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import duramen
from tests.spark.source_logs import expected, write_log
from tests.values import amqp_messages as amqp
from tests.warm import spark_worker


class Process:
    def __init__(self) -> None:
        command = [*spark_worker(), "-m", "duramen.spark.planner"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def tell(self, **request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, **request: Any) -> Any:
        self.tell(**request)
        return self.answer()

    def read(self, plan: Any, number: int = 0) -> pa.Table:
        assert self.ask(do="read", wanted=plan["wanted"], split=plan["splits"][number]) == {}
        table = pa.ipc.open_stream(self.process.stdout).read_all()
        assert self.answer() == {}
        return table

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


@pytest.fixture
def process() -> Iterator[Process]:
    one = Process()
    yield one
    one.end()


def plan(process: Process, path: Path, **request: Any) -> Any:
    options = {"path": str(path), **request.pop("options", {})}
    schema = process.ask(do="schema", options=options)["schema"]
    return process.ask(do="plan", options=options, schema=schema, **request)


def test_a_plan_is_read_split_by_split(process: Process, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 200)
    made = plan(process, log, options={"minPartitions": "4"})
    assert len(made["splits"]) > 2
    assert made["bytes"] > 200 * 40
    tables = [process.read(made, number) for number in range(len(made["splits"]))]
    names = ("offset", "timestamp", "key", "value")
    assert pa.concat_tables(tables).to_pylist() == expected(log, names).to_pylist()


def test_what_is_handed_over_is_narrowed(process: Process, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 200)
    few = plan(process, log, columns=["value"], conditions=[["offset", ">=", "195"], ["offset", "in", "3", "198"]])
    assert process.read(few).to_pylist() == [{"value": b"value %d" % n + b"." * (40 - 9)} for n in range(195, 199)]
    none = plan(process, log, columns=[])
    assert sum(process.read(none).column("duramen.rows").to_pylist()) == 200
    ends = plan(process, log, aggregates=["max", "count"], conditions=[["offset", "<", "10"]])
    assert process.read(ends).to_pylist() == [{"max0": 9, "count1": 10}]


def test_no_split_still_counts(process: Process, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 10)
    none = plan(process, log, aggregates=["count", "min"], conditions=[["offset", "<", "0"]])
    assert process.read(none).to_pylist() == [{"count0": 0, "min1": None}]


def test_an_error_ends_a_stream_and_not_the_process(process: Process, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 100)
    segment = min((log / "segments").glob("*.log"))
    made = plan(process, log, columns=["offset"])  # no payload is delivered, and checksums are compared all the same
    segment.write_bytes(segment.read_bytes().replace(b"value 5.", b"value 6."))
    assert process.ask(do="read", wanted=made["wanted"], split=made["splits"][0]) == {}
    pa.ipc.open_stream(process.process.stdout).read_all()
    assert "duramen.errors.CorruptionError: " in process.answer()["error"]
    assert process.ask(do="schema", options={"path": "/no/such"})["error"].startswith("duramen.errors.StorageError: ")
    assert "'do'" not in str(plan(process, log))


def test_a_stream_can_be_stopped(process: Process, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "durable-log", 20_000, step=5000, segment_bytes=1 << 30)
    made = plan(process, log)
    process.tell(do="read", wanted=made["wanted"], split=made["splits"][0])
    process.tell(do="stop")
    assert process.answer() == {}
    assert pa.ipc.open_stream(process.process.stdout).read_all().num_rows <= 20_000
    assert process.answer() == {}
    assert process.read(plan(process, log, columns=[])).num_rows


def test_it_ends_with_its_input() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "duramen.spark.planner"], input=b"", capture_output=True, check=True
    )
    assert process.stdout == b""


def test_fields_that_are_not_needed_are_not_handed_over(process: Process, tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        log.append(amqp.section(0x73, amqp.list_of([amqp.text("id"), b"\x40", amqp.text("to")])) + amqp.data(b"body"))
    options = {"decode": "amqp"}
    few = plan(process, tmp_path / "log", columns=["value"], fields={"value": ["body", "to"]}, options=options)
    found = process.read(few).to_pylist()
    assert found == [{"value": {"body": {"data": b"body", "sequence": None, "value": None}, "to": "to"}}]
