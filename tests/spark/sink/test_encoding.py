"""Rows that tasks stage in the bytes of the target's format: what is stored is what an append would have stored.

Without a Spark session: the tests call what the tasks and the driver of a job call.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.errors import StorageError
from duramen.formats import EncodedRecords
from duramen.record import HEADERS
from duramen.sidecar import JOBS_LEDGER, BatchKey
from duramen.spark.sink.options import parse_write_options
from duramen.spark.sink.router import Router, SinkTarget, plan_target
from duramen.spark.sink.sink import StoredBatch, publish
from duramen.spark.sink.staging import StagedRows, Staging

ROWS, TASKS = 5000, 2
FORMATS: dict[str, dict[str, Any]] = {
    "kafka": {},
    "kafka, zstd, small segments": {"compression": "zstd", "segment_max_bytes": 200_000},
    "osiris": {},
    "osiris, version 0": {"chunk_version": 0},
    "osiris, gzip, filters": {"compression": "gzip", "filter_bytes": 16, "filter_by": "json:wood"},
}


def rows(columns: list[str], seed: int) -> pa.RecordBatch:
    """More than one piece; some keys, headers and times are null."""
    random = np.random.default_rng(seed)
    us = np.arange(ROWS) * 1_000_000 + 1_700_000_000_000_000
    arrays = {
        "value": pa.array([random.bytes(int(size)) for size in random.integers(0, 700, ROWS)], pa.binary()),
        "key": pa.array([None if row % 7 == 0 else b"key %d" % row for row in range(ROWS)], pa.binary()),
        "headers": pa.array(
            [None if row % 3 else [{"key": "trace", "value": b"%d" % row}] for row in range(ROWS)], HEADERS.type
        ),
        "timestamp": pa.array(us, pa.int64()).view(pa.timestamp("us", "UTC")),
    }
    return pa.RecordBatch.from_arrays([arrays[name] for name in columns], names=columns)


def staged(path: Path, options: dict[str, Any], columns: list[str]) -> tuple[SinkTarget, Staging, list[StoredBatch]]:
    parsed = parse_write_options({"path": str(path), **{name: str(value) for name, value in options.items()}})
    target = plan_target(parsed, columns, overwrite=False)
    staging = Staging(str(path), "job one")
    messages = []
    for task in range(TASKS):
        router = Router(target, staging, task, f"{task:05d}-{task}")
        router.write(rows(columns, task))
        messages.append(StoredBatch("one", task, router.close()))
    return target, staging, messages


def commit(path: Path, target: SinkTarget, staging: Staging, messages: list[StoredBatch]) -> None:
    publish(parse_write_options({"path": str(path)}), target, staging, BatchKey(JOBS_LEDGER, None, "one"), messages)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("has_times", [True, False], ids=["times", "no times"])
def test_what_is_stored(tmp_path: Path, name: str, has_times: bool) -> None:
    format, options = name.split(",", maxsplit=1)[0], FORMATS[name]
    columns = ["value", *(["key", "headers"] if format == "kafka" else []), *(["timestamp"] if has_times else [])]
    path, plain = tmp_path / "sink", tmp_path / "plain"
    for log_path in (path, plain):
        with duramen.open(log_path, "a", format=format, **options) as log:
            log.append(b"first")
    target, staging, messages = staged(path, {"logFormat": format, **options}, columns)
    found = list(StagedRows(staging, messages[0].files).of(messages[0].files))
    assert all(isinstance(one, EncodedRecords) for one in found)
    assert len(found) > 1, "the rows of a task are several pieces"
    commit(path, target, staging, messages)
    with duramen.open(plain, "a") as log:
        for task in range(TASKS):
            log.append_batch(rows(columns, task))
    with duramen.open(path) as ours, duramen.open(plain) as theirs:
        assert ours.verify().findings == []
        assert (
            pa.table(ours)
            .select(["offset", *columns])
            .slice(1)
            .equals(pa.table(theirs).select(["offset", *columns]).slice(1))
        )
        times = pa.table(ours).column("timestamp")
        assert times.null_count == 0
        assert has_times or times[-1].as_py() >= times[0].as_py(), "records without a time have that of the commit"
    assert not (path / ".duramen" / "staging").exists()


@pytest.mark.parametrize("became", [{"format": "keratin"}, {"format": "osiris", "chunk_version": 0}])
def test_a_log_that_changed_before_the_commit(tmp_path: Path, became: dict[str, Any]) -> None:
    """The commit cannot take the bytes as they are, and takes the records."""
    path = tmp_path / "log"
    target, staging, messages = staged(path, {"logFormat": "osiris"}, ["value"])
    with duramen.open(path, "a", **became) as log:
        log.append(b"first")
    named = {name: value for name, value in target.options.items() if name != "format"}
    changed = SinkTarget(target.path, target.columns, False, None, 1, False, True, options=named)
    commit(path, changed, staging, messages)
    with duramen.open(path) as log:
        assert log.format == became["format"]
        assert log.verify().ok
        expected = [
            b"first",
            *(value for task in range(TASKS) for value in rows(["value"], task).column(0).to_pylist()),
        ]
        assert [record.value for record in log] == expected


def test_a_staged_file_that_changed_stores_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with duramen.open(path, "a", format="kafka") as log:
        log.append(b"first")
    target, staging, messages = staged(path, {}, ["value"])
    file = Path(staging.directory) / messages[1].files[0].name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(StorageError, match="are not those that the task wrote"):
        commit(path, target, staging, messages)
    with duramen.open(path) as log:
        assert [record.value for record in log] == [b"first"]
        assert log.verify().ok


def test_formats_whose_checksums_cover_offsets_are_staged_as_columns(tmp_path: Path) -> None:
    for format in ("keratin", "durable-log", "rustlog"):
        _, staging, messages = staged(tmp_path / format, {"logFormat": format}, ["value"])
        reader = pa.ipc.open_file(PosixDisk().map(f"{staging.directory}/{messages[0].files[0].name}").data)
        assert reader.schema.names == ["value"]
