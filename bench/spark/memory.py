"""A source that has all rows of a log in memory: what reading would cost if the log were Arrow batches already.

`keep` writes the batches that the source ``duramen`` yields, task by task, into files in memory (``/dev/shm``; where
there is none, a scratch directory, which is memory, too, while its pages stay in the cache). A worker maps the files
the first time it is asked, page tables and all, and keeps the batches: a task then does nothing but hand them over. So
the number of tasks, the batches and the bytes are those of the log, and no task pays for a page fault.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from duramen.spark.gc_freeze import settle
from duramen.spark.source.discovery import disk_of
from duramen.spark.source.options import parse_options
from duramen.spark.source.plan import plan_read
from duramen.spark.source.schema import schema_of, wanted_of
from duramen.spark.source.task import read_split

SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def room(scratch: Path, size_bytes: int) -> Iterator[Path]:
    """A directory for so many bytes, in memory if there is room, that is removed at the end."""
    fits = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > 2 * size_bytes
    directory = Path(tempfile.mkdtemp(prefix="duramen-bench-spark-", dir=SHARED_MEMORY if fits else scratch))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def keep(log: Path, directory: Path, **options: str) -> None:
    """Write what a read with these options yields into ``directory``, one file for each task."""
    directory.mkdir()
    parsed = parse_options({**options, "path": str(log)}, streaming=False)
    wanted = wanted_of(schema_of(parsed), parsed)
    disk = disk_of(parsed.path)[0]
    for number, split in enumerate(plan_read(parsed, payload=wanted.payload)):
        with pa.ipc.new_file(str(directory / f"{number:05d}.arrow"), wanted.schema) as file:
            for batch in read_split(split, wanted, disk):
                file.write_batch(batch)


class RowsInMemory(DataSource):
    """Options: ``path``, a directory that `keep` made, and the options that it was made with; ``mapped``: a task maps
    its file itself, as a source of Arrow files would, and pays for the page faults."""

    @classmethod
    def name(cls) -> str:
        return "rows-in-memory"

    def schema(self) -> StructType:
        kept = {name: value for name, value in self.options.items() if name not in ("path", "mapped")}
        return schema_of(parse_options({**kept, "path": "unused"}, streaming=False))

    def reader(self, schema: StructType) -> DataSourceReader:
        return RowsInMemoryReader(self.options["path"], self.options.get("mapped") == "true")


class RowsInMemoryReader(DataSourceReader):
    def __init__(self, directory: str, is_mapped: bool) -> None:
        self._directory = directory
        self._is_mapped = is_mapped

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(name) for name in sorted(os.listdir(self._directory))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle()
        if self._is_mapped:
            return iter(_map(os.path.join(self._directory, partition.value), 0))
        return iter(_held_in(self._directory)[partition.value])


_held: dict[str, dict[str, list[pa.RecordBatch]]] = {}
"""What this worker has in memory: batches by directory and file."""


def _held_in(directory: str) -> dict[str, list[pa.RecordBatch]]:
    if directory not in _held:
        for other in [path for path in _held if not os.path.exists(path)]:
            del _held[other]
        _held[directory] = {name: _map(os.path.join(directory, name)) for name in os.listdir(directory)}
    return _held[directory]


def _map(path: str, flags: int = getattr(mmap, "MAP_POPULATE", 0)) -> list[pa.RecordBatch]:
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | flags, prot=mmap.PROT_READ)
    reader = pa.ipc.open_file(pa.py_buffer(mapped))
    return [reader.get_batch(number) for number in range(reader.num_record_batches)]


def register(spark: SparkSession) -> None:
    spark.dataSource.register(RowsInMemory)
