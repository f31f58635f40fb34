"""A streaming query into a log that can be stopped at any step of its commit: what the tests and `kill` share.

The source is a directory of text files, so a replayed batch holds the same rows. `StoppedSource` is the data source
``duramen`` with one difference: its commit runs on a disk that stops the program at the n-th change. How it stops:

- ``driver``: the whole process group of the driver gets SIGKILL at that very moment, and the committing process, too;
- ``commit``: the committing process alone gets SIGKILL; the query fails, and can be started again in the same driver;
- ``broken``: the change and every later one raises, so nothing is cleaned up either. The cheapest of the three.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

import duramen
from duramen.disk import PosixDisk
from duramen.disk.vfs import Buffer, File, Page
from duramen.errors import StorageError
from duramen.spark.sink import sink
from duramen.spark.source.source import DuramenSource

LINES = 300
SPLIT_BYTES = 4096
STOPPED = ("stopped at change", "exited unexpectedly", "EOFException", "Connection reset")
"""How an error reads when the commit was stopped on purpose."""
GROUP = "DURAMEN_TEST_GROUP"
"""The environment variable with the process group that is killed."""


class StoppingDisk(PosixDisk):
    """The real disk, up to its n-th change."""

    def __init__(self, stop_at: int, how: str) -> None:
        super().__init__()
        self.changes = 0
        self._stop_at = stop_at
        self._how = how

    def count(self) -> None:
        self.changes += 1
        if self.changes >= self._stop_at:
            if self._how == "driver":
                os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
            if self._how != "broken":
                os.kill(os.getpid(), signal.SIGKILL)
            raise StorageError(f"stopped at change {self._stop_at}")

    def make_directory(self, path: str, *, parents: bool = True) -> None:
        self.count()
        super().make_directory(path, parents=parents)

    def create(self, path: str) -> File:
        self.count()
        return _StoppingFile(super().create(path), self)

    def open(self, path: str) -> File:
        return _StoppingFile(super().open(path), self)

    def replace(self, source: str, target: str) -> None:
        self.count()
        super().replace(source, target)

    def remove(self, path: str) -> None:
        self.count()
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self.count()
        super().sync_directory(path)

    def page(self, path: str, size_bytes: int, *, writable: bool) -> Page:
        page = super().page(path, size_bytes, writable=writable)
        return _StoppingPage(page, self) if writable else page


class _Wrapped:
    def __init__(self, wrapped: Any, disk: StoppingDisk) -> None:
        self._wrapped = wrapped
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


class _StoppingFile(_Wrapped):
    def write(self, position: int, data: Buffer) -> int:
        self._disk.count()
        return int(self._wrapped.write(position, data))

    def sync(self) -> None:
        self._disk.count()
        self._wrapped.sync()

    def truncate(self, size_bytes: int) -> None:
        self._disk.count()
        self._wrapped.truncate(size_bytes)


class _StoppingPage(_Wrapped):
    def store(self, data: bytes) -> None:
        self._disk.count()
        self._wrapped.store(data)


class StoppedWriter(sink.StreamWriter):
    """Commits batch ``at_batch`` on a disk that stops at change ``stop_at``."""

    stop_at: int
    at_batch: int
    how: str

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if batchId != self.at_batch:
            super().commit(messages, batchId)
            return
        self.disk = StoppingDisk(self.stop_at, self.how)
        super().commit(messages, batchId)


class StoppedSource(DuramenSource):
    @classmethod
    def name(cls) -> str:
        return "duramen-stopped"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        own = ("stopat", "atbatch", "how")
        options = {name: text for name, text in self.options.items() if name.lower() not in own}
        writer = sink.make_stream_writer(options, schema, overwrite)
        writer.__class__ = StoppedWriter
        assert isinstance(writer, StoppedWriter)
        writer.stop_at, writer.at_batch = int(self.options["stopAt"]), int(self.options["atBatch"])
        writer.how = self.options["how"]
        return writer


# --- the query


def write_input(directory: Path, files: int, start: int = 0) -> None:
    """Text files, one line per row: ``file:line``."""
    directory.mkdir(exist_ok=True)
    for number in range(start, start + files):
        lines = "".join(f"{number:04d}:{line:06d} {'x' * 15}\n" for line in range(LINES))
        (directory / f"{number:04d}.txt").write_text(lines)


def rows(spark: SparkSession, directory: Path, *, failing: bool = False) -> DataFrame:
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(SPLIT_BYTES))
    spark.conf.set("spark.sql.files.openCostInBytes", str(SPLIT_BYTES))
    df = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(directory))
    return df.mapInArrow(fail_at_first, "value string") if failing else df


def fail_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of the first attempts of tasks every other fails, after its rows are on their way to the sink."""
    context = TaskContext.get()
    assert context is not None
    yield from batches
    if context.attemptNumber() == 0 and context.taskAttemptId() % 2:
        raise RuntimeError("this attempt fails on purpose")


def start(
    df: DataFrame, log: Path, checkpoint: Path, stop: Mapping[str, object] | None = None, **options: str
) -> StreamingQuery:
    writer = df.writeStream.format("duramen" if stop is None else "duramen-stopped").option(
        "checkpointLocation", str(checkpoint)
    )
    for name, value in {**options, **(stop or {})}.items():
        writer = writer.option(name, str(value))
    return writer.trigger(availableNow=True).start(str(log))


def finish(query: StreamingQuery) -> bool:
    """Whether the query came to its end; False where it was stopped on purpose."""
    try:
        query.awaitTermination()
    except PySparkException as error:
        if not any(words in str(error) for words in STOPPED):
            raise
        return False
    return True


def next_batch(checkpoint: Path) -> int:
    """The number of the batch that is committed next."""
    done = [int(entry.name) for entry in (checkpoint / "commits").glob("[0-9]*")] if checkpoint.exists() else []
    return max(done, default=-1) + 1


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died between our commit and Spark's note of it."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda entry: int(entry.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def check(log: Path, files: int, copies: int = 1) -> None:
    """Every row as often as it has to be, those of a task in order, nothing half done, nothing left behind."""
    with duramen.open(log) as opened:
        report = opened.verify()
        assert report.ok, report.findings
        found = [record.value.decode().split()[0] for record in opened]
    wanted = {f"{number:04d}:{line:06d}": copies for number in range(files) for line in range(LINES)}
    counts = Counter(found)
    missing = sorted(wanted.keys() - counts.keys())
    twice = sorted(row for row, count in counts.items() if count > copies)
    assert not missing, f"{len(missing)} rows are missing, such as {missing[:3]}"
    assert not twice, f"{len(twice)} rows are there twice, such as {twice[:3]}"
    assert counts == wanted
    breaks = sum(1 for one, other in itertools.pairwise(found) if not _follows(one, other))
    tasks = files * copies * (LINES * 27 // SPLIT_BYTES + 1)
    assert breaks < tasks, f"{breaks} breaks in the order, of {tasks} tasks"
    assert not (log / ".duramen/staging").exists(), sorted((log / ".duramen/staging").rglob("*"))
    assert not (log / ".duramen/pending.json").exists()


def check_no_half_batch(log: Path) -> None:
    """What a reader sees at any moment is whole files: each is one batch."""
    if not (log / ".duramen/log.json").exists():
        return
    with duramen.open(log) as opened:
        counts = Counter(record.value.decode().split(":")[0] for record in opened)
    assert all(count % LINES == 0 for count in counts.values()), counts


def _follows(one: str, other: str) -> bool:
    (file, line), (next_file, next_line) = one.split(":"), other.split(":")
    return file == next_file and int(next_line) == int(line) + 1
