"""The ledger: which batches of which writer are in the log, so that a batch that is sent again is not stored again.

::

    .duramen/ledger/
      <hash of the writer's name>.json    the last batch of that writer: number, attempt, rows, offsets, time

One small file per writer, replaced as a whole: the moment at which the new file has the name is the moment at which
the batch, wherever its rows lie, is committed. A writer is a streaming query, whose batches count up, or *all* jobs
that run once: those have no numbers and are never sent again, so only the last one is remembered, and the ledger does
not grow with their number. A writer's name never becomes a path: its hash does.

Refuses to guess. A ledger that cannot be read decides nothing.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from dataclasses import asdict, dataclass
from typing import NamedTuple

from duramen.disk import Disk
from duramen.disk.base import Kind
from duramen.errors import CorruptionError, UsageError
from duramen.log.sidecar import DIRECTORY, VERSION, replace_file

JOBS = "jobs"
"""The writer that all jobs share which run once."""
MAX_NAME_BYTES = 1024


class Key(NamedTuple):
    """A batch of a writer. ``attempt`` tells one try to store it from another; ``batch`` is None for a job."""

    writer: str
    batch: int | None
    attempt: str


@dataclass(frozen=True)
class Entry:
    """What the ledger says about the last batch of a writer."""

    writer: str
    batch: int | None
    attempt: str
    rows: int
    offsets: dict[str, tuple[int, int]]
    """By log, relative to the ledger's directory: the first offset of the batch, and how many follow from there."""
    committed_ms: int

    def covers(self, key: Key) -> bool:
        """Whether that very attempt is committed, or a later batch of the same writer."""
        if self.writer != key.writer:
            return False
        if self.attempt == key.attempt:
            return True
        return self.batch is not None and key.batch is not None and self.batch > key.batch

    def repeats(self, key: Key) -> bool:
        """Whether a batch with that number has been committed, by whichever attempt."""
        return self.batch is not None and key.batch is not None and self.batch >= key.batch


def check_key(key: Key) -> None:
    """Raise for what cannot be a writer or a batch."""
    if not key.writer or len(key.writer.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise UsageError(f"a writer's name has 1 to {MAX_NAME_BYTES} bytes, not {len(key.writer)}")
    if (key.batch is None) != (key.writer == JOBS):
        raise UsageError(f"batch {key.batch} of writer {key.writer!r}: a query's batches have numbers, a job's do not")
    if key.batch is not None and not 0 <= key.batch < 2**63:
        raise UsageError(f"batch {key.batch} is not 0 or more")


def directory(root: str) -> str:
    return posixpath.join(root, DIRECTORY, "ledger")


def path_of(root: str, writer: str) -> str:
    """The file about a writer.

    >>> path_of("events", "../../etc/passwd")
    'events/.duramen/ledger/03d915744132df301bb7f67f4e92a4e9.json'
    """
    digest = hashlib.blake2b(writer.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return posixpath.join(directory(root), f"{digest}.json")


def prepare(disk: Disk, root: str) -> None:
    """Make the directory, on the disk when this returns. So one that is missing later was taken away."""
    if disk.kind(directory(root)) == Kind.MISSING:
        disk.make_directory(directory(root))
        disk.sync_directory(posixpath.dirname(directory(root)))


def read(disk: Disk, path: str) -> Entry | None:
    """What the file at ``path`` says; None where there is none."""
    if disk.kind(path) != Kind.FILE:
        return None
    try:
        tree = json.loads(bytes(disk.map(path).data))
        if tree.pop("duramen") != VERSION:
            raise CorruptionError("unknown version of the ledger", path=path, hint="a newer program wrote it")
        offsets = {str(log): (int(base), int(count)) for log, (base, count) in tree.pop("offsets").items()}
        return Entry(offsets=offsets, **tree)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptionError(
            f"the ledger cannot be read: {error!r}",
            path=path,
            hint="restore it from a copy: without it nobody knows which batches are stored",
        ) from error


def last(disk: Disk, root: str, writer: str) -> Entry | None:
    """The last batch of a writer."""
    return read(disk, path_of(root, writer))


def record(disk: Disk, root: str, entry: Entry) -> None:
    """Commit: atomic, and on the disk when this returns."""
    content = json.dumps({"duramen": VERSION, **asdict(entry)}, sort_keys=True).encode() + b"\n"
    replace_file(disk, path_of(root, entry.writer), content)


def is_committed(disk: Disk, path: str, key: Key) -> bool:
    """Whether the ledger file at ``path`` holds that attempt. Raises where the ledger was taken away."""
    if disk.kind(posixpath.dirname(path)) != Kind.DIRECTORY:
        raise CorruptionError(
            "the ledger of a transaction that was not finished is gone: whether its rows are committed cannot be told",
            path=posixpath.dirname(path),
            hint="restore the ledger; or delete .duramen/pending.json of the log to keep the rows",
        )
    entry = read(disk, path)
    return entry is not None and entry.covers(key)


def settle(disk: Disk, path: str) -> None:
    """Have a name on the disk that a killed process may have left in memory only."""
    disk.sync_directory(posixpath.dirname(path))
