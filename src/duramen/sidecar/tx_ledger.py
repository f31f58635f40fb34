"""The ledger: the last committed batch of each writer, so that a batch that is sent again is stored once.

::

    .duramen/ledger/
      <hash of the writer's name>.json    the last batch of that writer: number, attempt, rows, offsets, time

Each writer has one small file. Replacing it is the commit: from then on the batch counts, wherever its rows are stored.
A writer is a streaming query, whose batches have increasing numbers, or *all* jobs that run once. Jobs have no batch
numbers and are never repeated, so the ledger keeps only the last one. The file name is a hash of the writer's name, so
no name can become a path.

A ledger that cannot be read decides nothing: the reader raises.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from duramen.disk import Disk, Kind
from duramen.errors import CorruptionError, UsageError
from duramen.sidecar.json_file import TEMPORARY, JsonFile
from duramen.sidecar.layout import LEDGER_NAME, sidecar_path

JOBS_LEDGER = "jobs"
"""The writer name that all jobs that run once share."""
MAX_NAME_BYTES = 1024
ENTRY_BYTES = 1 << 20
"""Largest entry: it names every log of a transaction, which may be thousands of partitions."""
_LEDGER = JsonFile(
    "the ledger",
    "restore it from a copy: without it Duramen cannot tell which batches are stored",
    limit_bytes=ENTRY_BYTES,
)


class BatchKey(NamedTuple):
    """A batch of a writer. ``attempt`` identifies one attempt to store it; ``batch`` is None for a job."""

    writer: str
    batch: int | None
    attempt: str


@dataclass(frozen=True)
class LedgerEntry:
    """The last committed batch of a writer."""

    writer: str
    batch: int | None
    attempt: str
    rows: int
    offsets: dict[str, tuple[int, int]]
    """First offset and number of records in each log, by the log's path relative to the ledger's directory."""
    committed_ms: int

    @classmethod
    def parse(cls, tree: dict[str, Any]) -> LedgerEntry:
        offsets = {str(log): (int(base), int(count)) for log, (base, count) in tree["offsets"].items()}
        batch = None if tree["batch"] is None else int(tree["batch"])
        rows, committed_ms = int(tree["rows"]), int(tree["committed_ms"])
        return cls(str(tree["writer"]), batch, str(tree["attempt"]), rows, offsets, committed_ms)

    def covers(self, key: BatchKey) -> bool:
        """Whether exactly this attempt is committed, or a later batch of the same writer."""
        if self.writer != key.writer:
            return False
        if self.attempt == key.attempt:
            return True
        return self.batch is not None and key.batch is not None and self.batch > key.batch

    def repeats(self, key: BatchKey) -> bool:
        """Whether any attempt of this batch, or of a later one, is committed."""
        return self.batch is not None and key.batch is not None and self.batch >= key.batch


def check_batch_key(key: BatchKey) -> None:
    """Raise `UsageError` for an invalid writer name or batch number."""
    if not key.writer or len(key.writer.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise UsageError(f"a writer's name must have 1 to {MAX_NAME_BYTES} bytes (got {len(key.writer)})")
    if (key.batch is None) != (key.writer == JOBS_LEDGER):
        raise UsageError(f"batch {key.batch} of writer {key.writer!r}: a query's batches have numbers, a job's do not")
    if key.batch is not None and not 0 <= key.batch < 2**63:
        raise UsageError(f"batch must be from 0 to 2**63 - 1 (got {key.batch})")


def ledger_directory(root: str) -> str:
    return sidecar_path(root, LEDGER_NAME)


def ledger_path(root: str, writer: str) -> str:
    """The file of a writer.

    >>> ledger_path("events", "../../etc/passwd")
    'events/.duramen/ledger/03d915744132df301bb7f67f4e92a4e9.json'
    """
    import hashlib  # slow to import, and only transactions need it

    digest = hashlib.blake2b(writer.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return posixpath.join(ledger_directory(root), f"{digest}.json")


def prepare_ledger(disk: Disk, root: str) -> None:
    """Create the ledger's directory, durably. If it is missing later, it was removed."""
    if disk.kind(ledger_directory(root)) == Kind.MISSING:
        disk.make_directory(ledger_directory(root))
        disk.sync_directory(posixpath.dirname(ledger_directory(root)))


def read_ledger(disk: Disk, path: str) -> LedgerEntry | None:
    """The entry in the file at ``path``; None if the file is missing."""
    return _LEDGER.read(disk, path, LedgerEntry.parse)


def unreadable_ledgers(disk: Disk, root: str) -> Iterator[CorruptionError]:
    """The error of every file of the ledger that cannot be read."""
    directory = ledger_directory(root)
    for name, _ in disk.list(directory) if disk.kind(directory) == Kind.DIRECTORY else ():
        try:
            if not name.endswith(TEMPORARY):
                read_ledger(disk, posixpath.join(directory, name))
        except CorruptionError as error:
            yield error


def last_batch(disk: Disk, root: str, writer: str) -> LedgerEntry | None:
    """The last committed batch of a writer; None if there is none."""
    return read_ledger(disk, ledger_path(root, writer))


def record_batch(disk: Disk, root: str, entry: LedgerEntry) -> None:
    """Commit a batch, atomically and durably."""
    _LEDGER.replace(disk, ledger_path(root, entry.writer), asdict(entry))


def is_batch_committed(disk: Disk, path: str, key: BatchKey) -> bool:
    """Whether the ledger file at ``path`` covers that attempt. Raises `CorruptionError` if the ledger was removed."""
    if disk.kind(posixpath.dirname(path)) != Kind.DIRECTORY:
        raise CorruptionError(
            "the ledger of an unfinished transaction is missing: Duramen cannot tell whether its rows are committed",
            path=posixpath.dirname(path),
            hint="restore the ledger; or delete .duramen/pending.json of the log to keep the rows",
        )
    entry = read_ledger(disk, path)
    return entry is not None and entry.covers(key)


def sync_ledger(disk: Disk, path: str) -> None:
    """Sync the name of a ledger file that a killed process may not have synced."""
    disk.sync_directory(posixpath.dirname(path))
