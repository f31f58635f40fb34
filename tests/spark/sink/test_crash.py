"""The sink's commit on a simulated disk, crashed after every operation; then Spark runs the batch again.

No Spark session: `Batch.send` does what the tasks and the driver of a streaming query do, with the sink's own
functions. A crash is a killed driver (``None``) or a power loss (a `CrashPattern`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from duramen.disk import Kind
from duramen.errors import StorageError, UsageError
from duramen.formats import Severity
from duramen.log import Log, new_attempt, verify_log
from duramen.sidecar import BatchKey
from duramen.spark.sink.options import parse_write_options
from duramen.spark.sink.router import Router, plan_target
from duramen.spark.sink.sink import StoredBatch, StreamWriter, publish
from duramen.spark.sink.staging import Staging
from duramen.testing import CrashPattern, SimulatedDisk, patterns
from tests.sampling import every

ROOT = "/lake/data"
"""Two directories that do not exist before the first batch."""
QUERY = "3f2a"
TASKS = 2
Rows = tuple[bytes, ...]


@dataclass(frozen=True)
class Shape:
    """What the query writes to: the options of its sink, and the logs that get its rows."""

    options: dict[str, str]
    logs: tuple[str, ...]

    def rows(self, batch: int) -> dict[str, Rows]:
        """By log: the values of a batch, in the order in which they are stored."""
        return {log: tuple(_value(batch, task, log) for task in range(TASKS)) for log in self.logs}

    def task(self, batch: int, task: int) -> pa.RecordBatch:
        """What Spark hands to one task."""
        columns = {"value": [_value(batch, task, log) for log in self.logs]}
        if len(self.logs) > 1:
            columns["topic"] = [log.split("/")[1] for log in self.logs]
        return pa.RecordBatch.from_pydict(columns)


def _value(batch: int, task: int, log: str) -> bytes:
    return f"batch {batch}, task {task}, {log or 'the log'}".encode().ljust(40)[:40]


ONE_LOG = Shape({"logFormat": "keratin"}, ("",))
ONE_UNCHECKED = Shape({"logFormat": "rustlog"}, ("",))
ONE_ENCODED = Shape({"logFormat": "kafka", "compression": "gzip"}, ("",))
TWO_TOPICS = Shape({"logFormat": "keratin"}, ("topics/a/partitions/0", "topics/b/partitions/0"))


def send(disk: SimulatedDisk, shape: Shape, batch: int, attempt: int) -> None:
    """Run one micro-batch: plan, stage in every task, commit."""
    options = parse_write_options({"path": ROOT, **shape.options})
    columns = ["value"] if len(shape.logs) == 1 else ["value", "topic"]
    target = plan_target(options, columns, overwrite=False, disk=disk)
    staging = Staging(ROOT, QUERY, batch, disk)
    messages = []
    for task in range(TASKS):
        router = Router(target, staging, task, f"{task:05d}-{attempt}")
        router.write(shape.task(batch, task))
        messages.append(StoredBatch(QUERY, task, router.close()))
    publish(options, target, staging, BatchKey(f"query {QUERY}", batch, new_attempt()), messages)


def held(disk: SimulatedDisk, shape: Shape) -> dict[str, Rows]:
    """What a reader sees, by log."""
    found = {}
    for log in shape.logs:
        path = posixpath.join(ROOT, log) if log else ROOT
        found[log] = ()
        if disk.kind(path) == Kind.DIRECTORY and disk.kind(posixpath.join(path, ".duramen/log.json")) == Kind.FILE:
            with Log(path, disk=disk) as opened:
                found[log] = tuple(
                    value for rows in opened.batches(columns=["value"]) for value in rows.column(0).to_pylist()
                )
    return found


def joined(shape: Shape, batches: int) -> dict[str, Rows]:
    """All rows of the first batches, by log."""
    return {log: tuple(value for batch in range(batches) for value in shape.rows(batch)[log]) for log in shape.logs}


def crashes(disk: SimulatedDisk, number: int) -> Iterator[tuple[CrashPattern | None, SimulatedDisk]]:
    yield None, disk.clone()
    for pattern in patterns(number, 1)[number % 8 :: 8]:
        yield pattern, disk.crash(pattern)


def check_whole(disk: SimulatedDisk, shape: Shape, batches: int) -> None:
    assert held(disk, shape) == joined(shape, batches)
    for log in shape.logs:
        report = verify_log(posixpath.join(ROOT, log) if log else ROOT, disk=disk)
        assert not [finding for finding in report.findings if finding.severity == Severity.DAMAGE]


@pytest.mark.parametrize(
    ("shape", "batch"),
    [
        pytest.param(shape, batch, id=f"{'first' if batch == 0 else 'later'}-{name}")
        for name, shape in {"log": ONE_LOG, "rustlog": ONE_UNCHECKED, "two topics": TWO_TOPICS}.items()
        for batch in (0, 2)
    ]
    + [pytest.param(ONE_ENCODED, 2, id="later-encoded by tasks")],
)
def test_every_row_exactly_once(shape: Shape, batch: int) -> None:
    disk = SimulatedDisk()
    for earlier in range(batch):
        send(disk, shape, earlier, attempt=0)
    moments: list[tuple[str, SimulatedDisk]] = []
    disk.on_operation = lambda _number, operation: moments.append((operation, disk.clone()))
    send(disk, shape, batch, attempt=0)
    disk.on_operation = None
    moments.append(("answered", disk))
    allowed = [joined(shape, batch), joined(shape, batch + 1)]
    seen: set[bytes] = set()
    step = every(1 + len(moments) // 20)
    for number, (operation, moment) in enumerate(moments):
        if number % step and not operation.startswith(("make_directory", "replace", "answered")):
            continue
        for pattern, crashed in crashes(moment, number):
            if crashed.digest() in seen:
                continue
            seen.add(crashed.digest())
            where = f"moment {number}, {operation}, {pattern!r}"
            assert held(crashed.clone(), shape) in allowed[operation == "answered" :], where
            send(crashed, shape, batch, attempt=number % 2)  # a driver that starts again counts attempts again
            check_whole(crashed, shape, batch + 1)
            assert held(crashed.crash(CrashPattern("lost", "lost")), shape) == joined(shape, batch + 1), where
            staging = posixpath.join(ROOT, ".duramen/staging")
            assert crashed.kind(staging) == Kind.MISSING, f"{where}: staged files are left"
    assert len(seen) > 15


@pytest.mark.parametrize(("shape", "most"), [(ONE_LOG, 8), (ONE_UNCHECKED, 8), (ONE_ENCODED, 8), (TWO_TOPICS, 18)])
def test_syncs_of_a_micro_batch(shape: Shape, most: int) -> None:
    """On logs that the commit before has closed."""
    disk = SimulatedDisk()
    for batch in range(2):
        send(disk, shape, batch, attempt=0)
    operations: list[str] = []
    disk.on_operation = lambda _number, operation: operations.append(operation)
    send(disk, shape, 2, attempt=0)
    assert len([operation for operation in operations if operation.startswith("sync")]) <= most


def staged(disk: SimulatedDisk) -> tuple[StreamWriter, StoredBatch, str]:
    """A log with batch 0, a writer for batch 1, what its first task returned, and the path of the task's file."""
    send(disk, ONE_LOG, 0, 0)
    options = parse_write_options({"path": ROOT, **ONE_LOG.options})
    writer = StreamWriter(options, plan_target(options, ["value"], overwrite=False, disk=disk))
    writer.disk = disk
    staging = Staging(ROOT, QUERY, 1, disk)
    router = Router(writer._target, staging, 0, "00000-0")
    router.write(ONE_LOG.task(1, 0))
    message = StoredBatch(QUERY, 0, router.close())
    return writer, message, posixpath.join(staging.directory, message.files[0].name)


def test_staged_bytes_that_changed_are_not_committed() -> None:
    """A file on a shared disk that has the right size and other bytes."""
    disk = SimulatedDisk()
    writer, message, path = staged(disk)
    file = disk.open(path)
    file.write(disk.size(path) - 20, b"?")
    file.close()
    with pytest.raises(StorageError, match="not those that the task wrote"):
        writer.commit([message], 1)
    with Log(ROOT, disk=disk) as log:
        assert tuple(record.value for record in log) == ONE_LOG.rows(0)[""]


def test_a_batch_that_lacks_the_message_of_a_task_is_not_committed() -> None:
    disk = SimulatedDisk()
    writer, message, _ = staged(disk)
    with pytest.raises(UsageError, match="1 of 2 tasks returned no message"):
        writer.commit([message, None], 1)
    with Log(ROOT, disk=disk) as log:
        assert tuple(record.value for record in log) == ONE_LOG.rows(0)[""]
    writer.commit([message], 1)
    with Log(ROOT, disk=disk) as log:
        assert [record.value for record in log][2:] == [ONE_LOG.rows(1)[""][0]]
