"""A disk that runs full while rows are staged: one clear error, nothing left, and no more space than one batch.

Without a Spark session: the tests call what the tasks and the driver of a streaming query call.
"""

from __future__ import annotations

import errno
import posixpath
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from duramen.disk import Disk, Kind
from duramen.errors import StorageError
from duramen.log import Log, WritableLog, new_attempt, resolve_transaction
from duramen.sidecar import BatchKey
from duramen.spark.sink.options import WriteOptions, parse_write_options
from duramen.spark.sink.router import Router, SinkTarget, plan_target
from duramen.spark.sink.sink import StoredBatch, StreamWriter, publish
from duramen.spark.sink.staging import Staging
from duramen.testing import FaultyDisk, SimulatedDisk, parse_faults

ROOT = "/data/log"
ROWS = pa.RecordBatch.from_pydict({"value": [bytes(1000)] * 200})
SLACK_BYTES = 40_000
"""Frames, indexes, sidecar."""


def planned(disk: Disk, **options: str) -> tuple[WriteOptions, SinkTarget]:
    parsed = parse_write_options({"path": ROOT, **options})
    return parsed, plan_target(parsed, ["value"], overwrite=False, disk=disk)


def files(disk: Disk, path: str = "/") -> dict[str, int]:
    """Sizes of all files below a directory, and 0 for each empty directory."""
    if disk.kind(path) != Kind.DIRECTORY:
        return {}
    found = {posixpath.join(path, name): size for name, size in disk.list(path)}
    for name in disk.directories(path):
        below = files(disk, posixpath.join(path, name))
        found.update(below or {posixpath.join(path, name): 0})
    return found


def staging_error(router: Router) -> StorageError | None:
    try:
        router.write(ROWS)
        router.write(ROWS)
        router.close()
    except StorageError as error:
        return error
    return None


@pytest.mark.parametrize("is_there", [False, True])
def test_nothing_is_left_wherever_staging_fails(is_there: bool) -> None:
    """Spark knows no message of a task that failed: the abort gets None for it."""
    call = 0
    while True:
        call += 1
        inner = SimulatedDisk()
        if is_there:
            WritableLog(ROOT, disk=inner).close()
        before = files(inner, "/data")
        disk = FaultyDisk(inner, parse_faults(f"write#{call}: short ENOSPC; write#{call + 1}+: ENOSPC"))
        options, target = planned(disk)
        router = Router(target, Staging(ROOT, "query", 3, disk), 0, "00000-7")
        refused = staging_error(router)
        if refused is None:
            break
        assert refused.errno == errno.ENOSPC
        assert "cannot stage rows: no space left" in str(refused)
        assert "its own size" in str(refused)
        assert "\n" not in str(refused)
        router.discard()
        writer = StreamWriter(options, target)
        writer.disk = disk
        writer.abort([None, None], 3)
        assert files(inner, "/data") == before, call
    assert call > 4


class MeasuredDisk(SimulatedDisk):
    """Remembers the most bytes that the files of the target held at a time."""

    peak_bytes = 0

    def measure(self) -> None:
        self.peak_bytes = max(self.peak_bytes, sum(files(self, "/data").values()))


@dataclass(frozen=True)
class MeasuredStaging(Staging):
    measured: MeasuredDisk = field(default_factory=MeasuredDisk)

    def sweep(self) -> None:
        """Called when rows are in the log and still staged: the most that a batch takes."""
        self.measured.measure()
        super().sweep()


def run_batch(
    disk: MeasuredDisk, batch: int, run: str, *, stops_in_commit: bool = False, format: str = "keratin"
) -> None:
    """Two tasks and the commit, measured after each step; ``stops_in_commit`` leaves what a killed driver leaves."""
    resolve_transaction(ROOT, disk=disk)
    options, target = planned(disk, logFormat=format)
    staging = Staging(ROOT, "query", batch, disk)
    messages = []
    for task in range(2):
        staging.remove_earlier_runs(run)
        router = Router(target, staging, task, f"{run}{task:05d}-1")
        router.write(ROWS)
        messages.append(StoredBatch("query", task, router.close()))
        disk.measure()
    faults = "replace *ledger*: EIO; remove: EIO; truncate: EIO"
    on = FaultyDisk(disk, parse_faults(faults)) if stops_in_commit else disk
    key = BatchKey("query query", batch, new_attempt())
    publish(options, target, MeasuredStaging(ROOT, "query", batch, on, disk), key, messages)


def size_of_log(disk: Disk) -> int:
    return sum(size for path, size in files(disk, ROOT).items() if "/staging/" not in path)


@pytest.mark.parametrize("format", ["keratin", "kafka"])
def test_a_batch_needs_its_own_size_beside_the_log(format: str) -> None:
    disk = MeasuredDisk()
    for batch in range(3):
        disk.peak_bytes = 0
        run_batch(disk, batch, "run1-", format=format)
        assert disk.peak_bytes <= size_of_log(disk) + 2 * ROWS.nbytes + SLACK_BYTES


def test_a_restart_after_a_stopped_commit_needs_no_more() -> None:
    """The rows of the stopped commit and its staged files are gone before the batch is staged again."""
    disk = MeasuredDisk()
    run_batch(disk, 0, "run1-")
    with pytest.raises(StorageError):
        run_batch(disk, 1, "run1-", stops_in_commit=True)
    assert sum(files(disk, "/data").values()) > size_of_log(disk) + ROWS.nbytes  # a copy is left
    disk.peak_bytes = 0
    run_batch(disk, 1, "run2-")
    with Log(ROOT, disk=disk) as log:
        assert log.next_offset == 4 * ROWS.num_rows
    assert disk.peak_bytes <= size_of_log(disk) + 2 * ROWS.nbytes + SLACK_BYTES
    assert not any("staging" in path for path in files(disk, "/data"))
