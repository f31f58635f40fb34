"""The part of a transaction in one log that is open: rows that no reader sees before the ledger says so.

`transaction` explains the steps. `append_once` runs all of them for one log.
"""

from __future__ import annotations

import posixpath
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from duramen.arguments import check_int, check_kind
from duramen.disk import Disk
from duramen.formats import EncodedRecords, Format, Values
from duramen.log.write.appender import Appender
from duramen.log.write.batch import Appended, Batch, batch_of, items_of
from duramen.sidecar import (
    BatchKey,
    LedgerEntry,
    TxMarker,
    check_batch_key,
    last_batch,
    ledger_path,
    prepare_ledger,
    prepare_tx_marker,
    record_batch,
    remove_tx_marker,
    write_tx_marker,
)

STEP_BYTES = 1 << 20


class HidingLog(Protocol):
    """What a transaction needs of a log that is open for writing. `WritableLog` describes the methods."""

    disk: Disk
    path: str
    tail: Appender

    @property
    def codec(self) -> Format: ...
    def exclusively(self, work: Callable[[], None]) -> None: ...
    def append_in_turn(self, batch: Batch) -> Appended: ...
    def check_place(self, *, closely: bool = False) -> None: ...


def new_attempt() -> str:
    return uuid.uuid4().hex


def append_once(log: HidingLog, data: Iterable[Any], writer: str, batch: int) -> Appended | None:
    """See `WritableLog.append_once`."""
    check_kind("writer", writer, str)
    key = BatchKey(writer, check_int("batch", batch), new_attempt())
    check_batch_key(key)
    batches = [batch_of(log.codec, one) for one in items_of(data)]
    results: list[Appended | None] = []
    log.exclusively(lambda: results.append(_once(log, batches, key)))
    return results[0]


def _once(log: HidingLog, batches: Sequence[Batch], key: BatchKey) -> Appended | None:
    disk, root = log.disk, log.path
    before = last_batch(disk, root, key.writer)
    if before is not None and before.repeats(key):
        return None
    prepare_ledger(disk, root)
    work = HiddenRows(log, key, posixpath.relpath(ledger_path(root, key.writer), root))
    try:
        stored = work.store(batches)
        work.check()
        record_batch(disk, root, ledger_entry(key, {"": stored}))
        work.finish(closes=False)
    except BaseException as error:
        work.abandon(error)
        raise
    return stored


class HiddenRows:
    """The rows of a transaction in one log, after those that readers see: steps 1 to 3, and 5."""

    def __init__(self, log: HidingLog, key: BatchKey, ledger_file: str) -> None:
        self.log = log
        self.disk = log.disk
        self._pending = TxMarker(key, ledger_file, log.tail.visible)
        self._is_begun = False

    def check(self) -> None:
        """Raise `FencedError` if the log was deleted or replaced."""
        self.log.check_place(closely=True)

    def store(self, batches: Iterable[Any]) -> Appended:
        """Begin, append and prepare."""
        log, tail = self.log, self.log.tail
        if not tail.is_synced:
            tail.sync()
            tail.mark()
        self._pending = replace(self._pending, before=tail.visible)
        self._is_begun = True
        write_tx_marker(log.disk, log.path, self._pending)
        tail.begin_hidden()
        base, count = None, 0
        for data in batches:
            batch = batch_of(log.codec, data) if not isinstance(data, Values) else data
            for piece in _pieces(batch):
                appended = log.append_in_turn(piece)
                base, count = appended.base_offset if base is None else base, count + appended.count
        prepare_tx_marker(log.disk, log.path, tail.sync_hidden())
        return Appended(tail.visible.next_offset if base is None else base, count)

    def finish(self, *, closes: bool = True) -> None:
        """Publish the rows and remove the marker; ``closes``: the log is closed next."""
        log = self.log
        log.tail.publish(is_open=not closes)
        remove_tx_marker(log.disk, log.path)

    def abandon(self, error: BaseException) -> None:
        """Poison the writer: the on-disk state is unknown."""
        if self._is_begun:
            self.log.tail.poison(error)


def _pieces(batch: Batch) -> Iterator[Batch]:
    """The batch in equal slices that fit into a processor's cache together with their encoding."""
    if isinstance(batch, EncodedRecords):
        yield batch
        return
    count = max(1, round(batch.nbytes / STEP_BYTES))
    rows = max(1, -(-batch.num_rows // count))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, min(rows, batch.num_rows - start))


def ledger_entry(key: BatchKey, stored: dict[str, Appended]) -> LedgerEntry:
    """The entry that commits the batch ``key``, with the offsets of its rows in each log."""
    offsets = {path: (appended.base_offset, appended.count) for path, appended in stored.items()}
    rows = sum(appended.count for appended in stored.values())
    return LedgerEntry(key.writer, key.batch, key.attempt, rows, offsets, time.time_ns() // 1_000_000)
