"""Staged files: how rows travel from the tasks of a write to the driver that commits them.

::

    TARGET/.duramen/staging/
      <query or job>/<batch>/
        00003-17.arrow            task 3, attempt 17: an Arrow file with the neutral columns
        00003-17-orders-2.arrow   the same for partition 2 of the topic orders

A staged file counts for nothing until a commit message names it, and then only if its length and checksum are what the
message says. It is not synced: a machine that loses power loses the message with it, and Spark runs the batch again.
Files of attempts that failed, lost a race or were killed are never named; they go with their batch's directory, which
every later commit of the same query sweeps away, or when they are a day old. Only names and files: what the rows mean
and where they belong is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa

from duramen.errors import StorageError
from duramen.log.digest import crc32c
from duramen.log.sidecar import DIRECTORY

ORPHAN_AGE_S = 24 * 3600.0


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

    @property
    def root(self) -> Path:
        return Path(self.target, DIRECTORY, "staging")

    @property
    def _of_writer(self) -> Path:
        return self.root / blake2b(self.writer.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()

    @property
    def directory(self) -> Path:
        return self._of_writer / str(self.batch)

    def map(self, file: StagedFile) -> Iterator[pa.RecordBatch]:
        """The rows of a staged file, from memory that the file is mapped into; checked before the first is handed
        out."""
        path = self.directory / file.name
        try:
            source = pa.memory_map(str(path))
            data = source.read_buffer()
        except OSError as error:
            raise StorageError(
                f"a task's staged file cannot be read: {error.strerror or error}",
                path=str(path),
                hint="all executors and the driver must see the target under the same path",
            ) from error
        if data.size != file.size_bytes or crc32c(memoryview(data)) != file.crc32c:
            raise StorageError("a task's staged file is not what the task wrote", path=str(path), hint="run it again")
        reader = pa.ipc.open_file(pa.BufferReader(data))
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)

    def remove(self) -> None:
        """Take away this batch's files and, if nothing is left, the directories above."""
        shutil.rmtree(self.directory, ignore_errors=True)
        for above in (self._of_writer, self.root):
            with contextlib.suppress(OSError):
                above.rmdir()

    def sweep(self) -> None:
        """Take away what attempts left behind that no message named: of this batch and all before it, and whatever
        nobody has touched for a day."""
        for batch in _directories(self._of_writer):
            if batch.name.isdecimal() and int(batch.name) < self.batch:
                shutil.rmtree(batch, ignore_errors=True)
        for writer in _directories(self.root):
            if _age_s(writer) > ORPHAN_AGE_S:
                shutil.rmtree(writer, ignore_errors=True)
        self.remove()

    def remove_empty_target(self) -> None:
        """After a write that failed: a target that was not there before is not left there empty."""
        for path in (Path(self.target, DIRECTORY), Path(self.target)):
            with contextlib.suppress(OSError):
                path.rmdir()


class StagedWriter:
    """A file that a task writes, batch by batch."""

    def __init__(self, staging: Staging, name: str, schema: pa.Schema, place: tuple[str | None, int, int]) -> None:
        self._path = staging.directory / name
        self._place = place
        self._rows = 0
        self._schema = schema
        self._file: Any = None
        self._writer: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._open()
        self._writer.write_batch(batch)
        self._rows += batch.num_rows

    def _open(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pa.OSFile(str(self._path), "wb")
        except OSError as error:
            raise StorageError(f"cannot stage rows: {error.strerror or error}", path=str(self._path)) from error
        self._writer = pa.ipc.new_file(self._file, self._schema)

    def close(self) -> StagedFile | None:
        """What was written; None where there were no rows, and so no file."""
        if self._writer is None:
            return None
        self._writer.close()
        self._file.close()
        with pa.memory_map(str(self._path)) as source:
            data = source.read_buffer()
            digest, size_bytes = crc32c(memoryview(data)), data.size
        return StagedFile(self._path.name, self._rows, size_bytes, digest, *self._place)

    def discard(self) -> None:
        """After an error: leave no file."""
        for opened in (self._writer, self._file):
            if opened is not None:
                with contextlib.suppress(OSError, pa.ArrowInvalid):
                    opened.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def _directories(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if entry.is_dir()]
    except OSError:
        return []


def _age_s(path: Path) -> float:
    """How long ago something in there was last changed."""
    newest = 0.0
    for place in (path, *path.rglob("*")):
        with contextlib.suppress(OSError):
            newest = max(newest, place.stat().st_mtime)
    return time.time() - newest
