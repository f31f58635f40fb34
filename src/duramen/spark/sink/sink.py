"""The sink: ``df.write.format("duramen")`` and ``writeStream``, each batch exactly once.

Tasks write their rows into staged files (`staging`) and return their names, lengths and checksums. The driver's commit
checks and maps those files and stores all rows in one transaction (`duramen.log.commit_batch`), in the order of
the tasks, together with the ledger entry (query, batch). So a batch that Spark runs again is recognised; a task that
failed, was killed or lost a race is never named; and a reader sees all rows of a batch or none. ``abort`` removes
staged files only: Spark calls it even for a commit that failed after it had published.

No Python object is created per row, and no task opens a log.
"""

from __future__ import annotations

import errno
import posixpath
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from duramen.disk import Disk, Kind, PosixDisk
from duramen.errors import LateTimestampError, StorageError, UsageError
from duramen.kernel import crc32c
from duramen.log import TransactionPart, commit_batch, new_attempt, resolve_transaction
from duramen.sidecar import JOBS_LEDGER, BatchKey
from duramen.spark.error_text import Traveller, plain, plainly
from duramen.spark.gc_freeze import settle
from duramen.spark.sink.options import WriteOptions, check_columns, parse_write_options
from duramen.spark.sink.router import Router, SinkTarget, check_new, make_topics, part_of, plan_target
from duramen.spark.sink.staging import StagedFile, StagedRows, Staging

QUERY = "query "
"""How the ledger's name of a streaming query begins."""


@dataclass(frozen=True)
class StoredBatch(WriterCommitMessage):
    writer: str
    task: int
    files: tuple[StagedFile, ...]


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of one job. Runs on the driver, and refuses what cannot work before any task is started."""
    parsed = parse_write_options(options)
    target = plan_target(parsed, check_columns(schema, encoded=parsed.encoder is not None), overwrite=overwrite)
    _free_space(target)
    return BatchWriter(parsed, target, uuid.uuid4().hex)


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of a streaming query. ``overwrite`` is the output mode ``complete``: each batch replaces the log."""
    parsed = parse_write_options(options)
    if parsed.app_id is not None:
        raise UsageError("option txnAppId makes no sense for a stream", hint="a query has an id and numbers of its own")
    target = plan_target(parsed, check_columns(schema, encoded=parsed.encoder is not None), overwrite=overwrite)
    _free_space(target)
    return StreamWriter(parsed, target)


def _free_space(target: SinkTarget) -> None:
    """Roll back what a killed driver left, before tasks stage rows: both together would need the space of two batches.
    A log that is replaced is not opened, because it may be damaged."""
    if not target.replaces:
        resolve_transaction(target.path)


def stage(
    staging: Staging, target: SinkTarget, iterator: Iterable[pa.RecordBatch], writer: str, run: str = ""
) -> StoredBatch:
    """Write what a task gets. ``run`` is that of a query, and begins the names of its files."""
    settle()
    context = TaskContext.get()
    assert context is not None
    task, attempt = context.partitionId(), context.taskAttemptId()
    if run:
        staging.remove_earlier_runs(run)
    router = Router(target, staging, task, f"{run}{task:05d}-{attempt}")
    try:
        for batch in iterator:
            router.write(batch)
        return StoredBatch(writer, task, router.close())
    except BaseException:
        router.discard()
        raise


def publish(
    options: WriteOptions, target: SinkTarget, staging: Staging, key: BatchKey, messages: Sequence[StoredBatch]
) -> None:
    """Store what the tasks staged, unless the batch is stored already, and remove the staged files."""
    places: dict[tuple[str | None, int], list[StagedFile]] = {}
    for message in sorted(messages, key=lambda message: message.task):
        for file in message.files:
            places.setdefault((file.topic, file.partition), []).append(file)
    disk = staging.disk
    if not target.is_there:
        _sync_names(disk, target.path)

    rows = StagedRows(staging, [file for files in places.values() for file in files])
    try:
        for place, files in places.items():
            check_new(disk, target, place, rows.of(files))
        if target.is_store:
            make_topics(disk, target, [file for files in places.values() for file in files])
        written = sorted(target.with_empty(disk, places).items(), key=lambda one: (one[0][0] or "", one[0][1]))
        parts: list[TransactionPart] = [
            part_of(disk, target, place, partial(rows.of, files)) for place, files in written
        ]
        commit_batch(target.path, key, parts, disk=disk, lock_timeout_s=options.lock_timeout_s)
    except LateTimestampError as error:
        error.hint = _late_hint(target, is_stream=key.writer.startswith(QUERY))
        raise
    staging.sweep()


def _encoded(iterator: Iterable[pa.RecordBatch], options: WriteOptions) -> Iterable[pa.RecordBatch]:
    """The batches with their values as bytes, where the write encodes them."""
    return iterator if options.encoder is None else map(options.encoder.in_place, iterator)


def _late_hint(target: SinkTarget, *, is_stream: bool) -> str:
    one = ', for one topic lateTimestamps={"TOPIC": "clamp"}' if target.is_store else ""
    again = "; until then the query fails at this batch whenever it is started" if is_stream else ""
    return f"sort rows by timestamp, leave the column out, or raise late times: lateTimestamps=clamp{one}{again}"


def _sync_names(disk: Disk, path: str) -> None:
    """Sync the directories above a new target: tasks have created them, and ``.duramen`` in it, without a sync. One
    that this process may not read existed before."""
    while disk.kind(path) == Kind.DIRECTORY:
        try:
            disk.sync_directory(path)
        except StorageError as error:
            if error.errno != errno.EACCES:
                raise
        above = posixpath.dirname(path) or "."
        if above == path:
            break
        path = above


class BatchWriter(Traveller, DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, target: SinkTarget, job: str) -> None:
        self._options = options
        self._target = target
        self._job = job
        self._staging = Staging(target.path, f"job {job}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoredBatch:
        with plainly():
            return stage(self._staging, self._target, _encoded(iterator, self._options), self._job)

    @plain
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        settle()
        key = BatchKey(JOBS_LEDGER, None, self._job)
        if self._options.app_id is not None:
            key = BatchKey(f"app {self._options.app_id}", self._options.app_version, self._job)
        publish(self._options, self._target, self._staging, key, _all(messages))

    @plain
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._staging.remove()
        self._staging.remove_empty()


class StreamWriter(Traveller, DataSourceStreamArrowWriter):
    """One streaming query. Spark creates a new writer for every commit: the query's id travels in the messages."""

    def __init__(self, options: WriteOptions, target: SinkTarget) -> None:
        self._options = options
        self._target = target
        self.disk: Disk = PosixDisk()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoredBatch:
        with plainly():
            context = TaskContext.get()
            assert context is not None
            query = context.getLocalProperty("sql.streaming.queryId")
            batch = context.getLocalProperty("streaming.sql.batchId")
            if query is None or batch is None:
                raise UsageError("Spark does not say which query and batch this task belongs to")
            staging = Staging(self._target.path, query, int(batch), self.disk)
            run = context.getLocalProperty("spark.jobGroup.id") or ""  # Spark's id of this run of the query
            return stage(
                staging, self._target, _encoded(iterator, self._options), query, f"{crc32c(run.encode()):08x}-"
            )

    @plain
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        settle()
        stored = _all(messages)
        if not stored or (not any(one.files for one in stored) and self._target.is_there and not self._target.replaces):
            return  # no rows: there is nothing that could be stored twice
        staging = Staging(self._target.path, stored[0].writer, batchId, self.disk)
        key = BatchKey(f"{QUERY}{stored[0].writer}", batchId, new_attempt())
        publish(self._options, self._target, staging, key, stored)

    @plain
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        stored = next((message for message in messages if isinstance(message, StoredBatch)), None)
        staging = Staging(self._target.path, "" if stored is None else stored.writer, batchId, self.disk)
        if stored is not None:
            staging.remove()
        staging.remove_empty()


def _all(messages: Sequence[WriterCommitMessage | None]) -> list[StoredBatch]:
    stored = [message for message in messages if isinstance(message, StoredBatch)]
    if len(stored) < len(messages):
        raise UsageError(f"{len(messages) - len(stored)} of {len(messages)} tasks returned no message")
    return stored
