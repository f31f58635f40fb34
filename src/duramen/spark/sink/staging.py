"""Staged files: how rows travel from the tasks of a write to the driver that commits them.

::

    TARGET/.duramen/staging/
      <query or job>/<batch>/
        00003-17.arrow            task 3, attempt 17: an Arrow file with the neutral columns, or with encoded records
                                  (see `encoding`); in a query, the name begins with that of its run
        00003-17-orders-2.arrow   the same for partition 2 of the topic orders

A staged file counts only once a commit message names it, and only if its length and checksum match the message. It is
not synced: a power loss also loses the message, and Spark runs the batch again. No message names the files of attempts
that failed, lost a race or were killed. A task removes its file after an error; the tasks of a restarted query remove
the files of its earlier runs, so that staging needs no more space than one batch; the next commit of the same query
removes the rest. Files of other writers are removed when they are a day old. This module handles names and files only;
`router` decides where rows belong.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from duramen.disk import Disk, Kind, PosixDisk
from duramen.errors import StorageError
from duramen.formats import EncodedRecords
from duramen.kernel import crc32c
from duramen.log import remove_tree
from duramen.sidecar import DIRECTORY, STAGING_NAME
from duramen.spark.output import DiskOutput
from duramen.spark.sink.encoding import decoded

ORPHAN_AGE_S = 24 * 3600.0
CREATE_ATTEMPTS = 8
"""How often a task creates its file, if a failed write removes the directory as an empty one meanwhile."""


@dataclass(frozen=True)
class StagedFile:
    """What a task says about a file that it wrote."""

    name: str
    rows: int
    size_bytes: int
    crc32c: int
    topic: str | None = None
    partition: int = 0
    partitions: int = 1
    """How many the topic had when the task decided about partitions."""


@dataclass(frozen=True)
class Staging:
    """The staged files of one batch of one writer. ``writer`` never becomes a path: its hash does."""

    target: str
    writer: str
    batch: int = 0
    disk: Disk = field(default_factory=PosixDisk)

    @property
    def root(self) -> str:
        return posixpath.join(self.target, DIRECTORY, STAGING_NAME)

    @property
    def _of_writer(self) -> str:
        digest = blake2b(self.writer.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
        return posixpath.join(self.root, digest)

    @property
    def directory(self) -> str:
        return posixpath.join(self._of_writer, str(self.batch))

    def map(self, file: StagedFile) -> memoryview:
        """The bytes of a staged file, mapped into memory. Raises `StorageError` if they are not what the task wrote."""
        path = posixpath.join(self.directory, file.name)
        try:
            data = self.disk.map(path).data
        except StorageError as error:
            raise StorageError(
                f"cannot read a task's staged file: {error.message}", path=path,
                hint="all executors and the driver must see the target under the same path",
            ) from error  # fmt: skip
        if len(data) != file.size_bytes or crc32c(data) != file.crc32c:
            raise StorageError(
                "the bytes of a task's staged file are not those that the task wrote", path=path, hint="run it again"
            )
        return data

    def remove(self) -> None:
        """Remove this batch's files, and the directories above them that are empty then."""
        self._remove_tree(self.directory)
        for above in (self._of_writer, self.root):
            self._remove_if_empty(above)

    def sweep(self) -> None:
        """Remove this batch, the earlier batches of the same writer, and what no writer has changed for a day."""
        for batch in self._directories(self._of_writer):
            if batch.isdecimal() and int(batch) < self.batch:
                self._remove_tree(posixpath.join(self._of_writer, batch))
        for writer in self._directories(self.root):
            path = posixpath.join(self.root, writer)
            if path != self._of_writer and time.time() - self._changed_s(path) > ORPHAN_AGE_S:
                self._remove_tree(path)
        self.remove()

    def remove_earlier_runs(self, run: str) -> None:
        """Remove the files of this writer that another run of its query staged: no message of this run names them."""
        for batch in self._directories(self._of_writer):
            directory = posixpath.join(self._of_writer, batch)
            with contextlib.suppress(StorageError):  # another task of this run may be faster
                for name, _ in self.disk.list(directory):
                    if not name.startswith(run):
                        self.disk.remove(posixpath.join(directory, name))
            if directory != self.directory:
                self._remove_if_empty(directory)

    def remove_empty(self) -> None:
        """After a write that failed: remove empty directories of staged files, and the target if nothing else is there.
        Needs no writer: Spark names none if every task failed."""
        for writer in self._directories(self.root):
            place = posixpath.join(self.root, writer)
            for batch in self._directories(place):
                self._remove_if_empty(posixpath.join(place, batch))
            self._remove_if_empty(place)
        for path in (self.root, posixpath.join(self.target, DIRECTORY), self.target):
            self._remove_if_empty(path)

    def _remove_tree(self, path: str) -> None:
        with contextlib.suppress(StorageError):  # the next commit tries again
            remove_tree(self.disk, path)

    def _remove_if_empty(self, path: str) -> None:
        with contextlib.suppress(StorageError):
            self.disk.remove_directory(path)

    def _directories(self, path: str) -> list[str]:
        return list(self.disk.directories(path)) if self.disk.kind(path) == Kind.DIRECTORY else []

    def _changed_s(self, path: str) -> float:
        """When something below a directory was last changed, in seconds since 1970."""
        newest = 0.0
        with contextlib.suppress(StorageError):
            below = [*self.disk.directories(path), *(name for name, _ in self.disk.list(path))]
            newest = max((self._changed_s(posixpath.join(path, name)) for name in below), default=0.0)
        with contextlib.suppress(StorageError):
            newest = max(newest, self.disk.stamp(path)[1] / 1e9)
        return newest


class StagedRows:
    """The rows of the staged files of one batch. When the first are asked for, all files are checked, at the same
    time, and stay mapped: what is stored is what was checked."""

    def __init__(self, staging: Staging, files: Sequence[StagedFile]) -> None:
        self._staging = staging
        self._files = files
        self._turn = threading.Lock()
        self._mapped: Mapping[str, memoryview] = {}

    def _checked(self) -> Mapping[str, memoryview]:
        with self._turn:  # the logs of a transaction are written at the same time
            self._mapped = self._mapped or self._check()
            return self._mapped

    def _check(self) -> Mapping[str, memoryview]:
        with ThreadPoolExecutor(min(len(self._files), os.cpu_count() or 1), "duramen-check") as pool:
            return dict(zip((file.name for file in self._files), pool.map(self._staging.map, self._files), strict=True))

    def of(self, files: Iterable[StagedFile]) -> Iterator[pa.RecordBatch | EncodedRecords]:
        """The rows of some of the files."""
        for file in files:
            reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(self._checked()[file.name])))
            for number in range(reader.num_record_batches):
                yield from decoded(reader.schema, reader.get_batch(number))


class StagedWriter:
    """A staged file that a task writes, batch by batch. The first batch creates it."""

    def __init__(self, staging: Staging, name: str, schema: pa.Schema, place: tuple[str | None, int, int]) -> None:
        self._staging = staging
        self._name = name
        self._place = place
        self._rows = 0
        self._schema = schema
        self._output: DiskOutput | None = None
        self._writer: Any = None

    def write(self, batch: pa.RecordBatch, rows: int) -> None:
        """``rows`` are those of the caller that the batch holds."""
        with _explained():
            if self._writer is None:
                self._output = self._create()
                self._writer = pa.ipc.new_file(self._output, self._schema)
            self._writer.write_batch(batch)
        self._rows += rows

    def _create(self) -> DiskOutput:
        for _ in range(CREATE_ATTEMPTS):
            try:
                return self._create_once()
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise
        return self._create_once()

    def _create_once(self) -> DiskOutput:
        disk, directory = self._staging.disk, self._staging.directory
        disk.make_directory(directory)
        return DiskOutput(disk, posixpath.join(directory, self._name))

    def close(self) -> StagedFile | None:
        """The finished file; None if the task got no rows, and so wrote none."""
        if self._output is None:
            return None
        with _explained():
            self._writer.close()
            self._output.close()
        return StagedFile(self._name, self._rows, self._output.size_bytes, self._output.crc32c, *self._place)

    def discard(self) -> None:
        """Remove the file, after an error."""
        if self._output is None:
            return
        with contextlib.suppress(StorageError, pa.ArrowInvalid):
            if self._writer is not None:
                self._writer.close()
        with contextlib.suppress(StorageError):
            self._output.close()
        with contextlib.suppress(StorageError):
            self._staging.disk.remove(posixpath.join(self._staging.directory, self._name))


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Say what failed, and how much space it takes."""
    try:
        yield
    except StorageError as error:
        error.message = f"cannot stage rows: {error.message}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            error.hint = (
                "the disk is full: until its commit a batch takes its own size beside the log; free some space, or "
                "make batches smaller (maxBytesPerTrigger at the source)"
            )
        raise error from None
