"""Transactions: append many batches, and make them visible and durable at once, together with a ledger entry.

Under the writer's lock, for one log or for several:

1. *begin*: sync the log, and store the marker ``pending.json`` with the current watermark;
2. *append*: write the rows to as many segments as needed; the watermark stays where it is;
3. *prepare*: sync the rows, and store the watermark that follows them in the marker;
4. *commit*: replace the ledger's file. From here on all rows count; before, none does;
5. *finish*: publish the new watermark to readers, and remove the marker.

With several logs, all are prepared, at the same time, before one ledger entry, in the directory above them, commits all
of them. A process that dies in between leaves markers; the next writer of each log resolves the transaction by the
ledger. After an error before the commit, the rows are rolled back at once. After an error of the commit itself its
outcome is unknown, and the next writer reads the ledger again.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from duramen.disk import Disk, Kind, Lock, PosixDisk, rooted
from duramen.errors import CorruptionError, DetectionError, DuramenError, LockedError, UsageError
from duramen.formats import Format, make
from duramen.log.recover import clear_next, make_directory, move_in, replacement_marker, resolve_tx
from duramen.log.segments import detect, sync_tree
from duramen.log.write.batch import Appended
from duramen.log.write.hidden_rows import HiddenRows, ledger_entry
from duramen.log.write.writable_log import WritableLog
from duramen.sidecar import (
    DIRECTORY,
    JOBS_LEDGER,
    NEXT,
    TX_INTENT_NAME,
    TX_LOCK_NAME,
    BatchKey,
    JsonFile,
    LedgerEntry,
    Sidecar,
    TxMarker,
    check_batch_key,
    inside_log,
    last_batch,
    ledger_path,
    prepare_ledger,
    read_config,
    read_tx_marker,
    read_watermark,
    record_batch,
    remove_tx_marker,
    replay_file_swap,
    sidecar_path,
    tx_marker_path,
    write_tx_marker,
)

LOCK_TIMEOUT_S = 60.0
_INTENT = JsonFile(
    "the list of the logs of a transaction",
    "open each log for append, which resolves its part of the transaction; then delete the list",
    is_versioned=False,
    sort_keys=False,
)
"""The logs of a transaction, in the sidecar of the directory above them, so that all of them get resolved."""

Batches = Callable[[], Iterable[Any]]
T = TypeVar("T")


@dataclass(frozen=True)
class TransactionPart:
    """The rows for one log. ``path`` is relative to the root of the transaction, empty for the root itself."""

    path: str
    batches: Batches
    options: dict[str, Any] = field(default_factory=dict)
    """The format's name under ``format``, and its options: for a log that has to be created."""
    replaces: bool = False
    """Replace what the log holds, from offset 0 on."""
    raises_late_times: bool = False
    """In a format with ordered times, raise a time that goes back to that of the record before it."""


class Committed(NamedTuple):
    """The ledger entry of a batch. ``is_duplicate``: it was committed before, and nothing was stored now."""

    entry: LedgerEntry
    is_duplicate: bool


def commit_batch(
    root: str,
    key: BatchKey,
    parts: Sequence[TransactionPart],
    *,
    disk: Disk | None = None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> Committed:
    """Store the rows of ``parts`` as the batch ``key``, all or none, unless that batch is committed already.

    Opens the logs, and creates those that are missing. Raises `LockedError` if another writer does not release one of
    them in time."""
    check_batch_key(key)
    disk = disk if disk is not None else PosixDisk()
    paths = [part.path for part in parts]
    if len(set(paths)) < len(paths) or ("" in paths and len(paths) > 1):
        raise UsageError("a log can be in a transaction once, and not together with one above it", path=root)
    deadline = time.monotonic() + lock_timeout_s
    if paths == [""]:
        return _commit(disk, root, key, parts, deadline)
    make_directory(disk.within(root), posixpath.join(root, DIRECTORY))
    with rooted(disk, root) as inside:
        lock = _waiting(lambda: _lock(inside, root), deadline)
        try:
            _resolve_unfinished(inside, root, deadline)
            _sync_names(inside, root, paths)
            return _commit(inside, root, key, parts, deadline, lock.check)
        finally:
            lock.release()


def resolve_transaction(root: str, *, disk: Disk | None = None) -> None:
    """Publish or roll back what a stopped process left at ``root``: a log, or the directory above several. Rows that
    are rolled back free their space. Does nothing while another writer is at work."""
    disk = disk if disk is not None else PosixDisk()
    now = time.monotonic()
    with contextlib.suppress(LockedError):
        if disk.kind(sidecar_path(root, TX_INTENT_NAME)) == Kind.FILE:
            with rooted(disk, root) as inside:
                lock = _lock(inside, root)
                try:
                    _resolve_unfinished(inside, root, now)
                finally:
                    lock.release()
        marker = read_tx_marker(disk, root)
        if marker is not None:
            _resolver(disk, root, replaces=marker.before is None)().close()


def _commit(
    disk: Disk,
    root: str,
    key: BatchKey,
    parts: Sequence[TransactionPart],
    deadline: float,
    check: Callable[[], None] = lambda: None,
) -> Committed:
    """``check`` raises if the directory of the ledger is not the one that was locked."""
    with contextlib.ExitStack() as stack:
        works: list[_Appending | _Replacing] = []
        if parts and parts[0].path == "":  # its own lock guards the ledger, too
            works.append(stack.enter_context(_opened(disk, root, parts[0], key, deadline)))
            disk = works[0].disk
        before = last_batch(disk, root, key.writer)
        if before is not None and before.repeats(key):
            return Committed(before, True)
        prepare_ledger(disk, root)
        if not works:
            _write_intent(disk, root, parts)
        try:
            works += [stack.enter_context(_opened(disk, root, part, key, deadline)) for part in parts[len(works) :]]
            stored = _store(works, parts)
            for work in works:
                work.check()
            check()
        except BaseException as error:
            _roll_back(works, error)
            raise
        entry = ledger_entry(key, stored)
        _finish(disk, root, entry, works)
    _remove_intent(disk, root)
    return Committed(entry, False)


def _store(works: Sequence[_Appending | _Replacing], parts: Sequence[TransactionPart]) -> dict[str, Appended]:
    """Begin, append and prepare in every log: at the same time, because logs share nothing but the ledger, which is
    written afterwards. All have ended, well or not, when this returns or raises the first error."""
    pairs = list(zip(works, parts, strict=True))
    if len(pairs) < 2:
        return {part.path: work.store(part.batches()) for work, part in pairs}

    def store(pair: tuple[_Appending | _Replacing, TransactionPart]) -> Appended:
        return pair[0].store(pair[1].batches())

    with ThreadPoolExecutor(min(len(pairs), os.cpu_count() or 1), "duramen-commit") as pool:
        running = [pool.submit(store, pair) for pair in pairs]
    return {part.path: future.result() for part, future in zip(parts, running, strict=True)}


def _finish(disk: Disk, root: str, entry: LedgerEntry, works: Sequence[_Appending | _Replacing]) -> None:
    """Commit the entry to the ledger, and publish the rows."""
    try:
        record_batch(disk, root, entry)
        for work in works:
            work.finish()
    except BaseException as error:
        for work in works:
            work.abandon(error)
        raise


@contextlib.contextmanager
def _opened(
    disk: Disk, root: str, part: TransactionPart, key: BatchKey, deadline: float
) -> Iterator[_Appending | _Replacing]:
    path = posixpath.join(root, part.path) if part.path else root
    file = posixpath.relpath(ledger_path(root, key.writer), path)
    if part.replaces:
        replacing = _waiting(lambda: _Replacing(disk, path, part, key, file), deadline)
        try:
            yield replacing
        finally:
            replacing.close()
    else:
        with _waiting(lambda: WritableLog(path, disk=disk, timer=False, **part.options), deadline) as log:
            log.raises_late_times = part.raises_late_times
            yield _Appending(log, key, file)


def _roll_back(works: Sequence[_Appending | _Replacing], error: BaseException) -> None:
    """Release the logs of a transaction that was not committed, and remove its rows. If the disk fails, the rows stay
    hidden from readers, and the next writer removes them."""
    for work in works:
        work.abandon(error)
    for work in works:
        with contextlib.suppress(DuramenError):
            work.rollback()


# --- one log


class _Appending(HiddenRows):
    """Rows after those of a log, which this transaction opened."""

    def __init__(self, log: WritableLog, key: BatchKey, ledger_file: str) -> None:
        super().__init__(log, key, ledger_file)
        self._opened = log

    def rollback(self) -> None:
        """Remove the rows: opening the log again does that."""
        if self._is_begun:
            self.check()
            log = self._opened
            log.close()
            WritableLog(log.path, disk=log.disk, create=False).close()


class _Replacing:
    """Rows instead of those of a log: a new log is built next to it. The old records are not read, so a damaged log can
    be replaced."""

    def __init__(self, disk: Disk, path: str, part: TransactionPart, key: BatchKey, ledger_file: str) -> None:
        self._path, self._part = path, part
        self._pending = TxMarker(key, ledger_file, None)
        make_directory(disk, path)
        self.disk = disk = disk.rooted(path)
        self._sidecar = Sidecar(disk, path)
        try:
            self._sidecar.lock()
            replay_file_swap(disk, path)  # the swap must not apply to the new files, which have the same names
            old = _format_of(disk, path)
            resolve_tx(disk, path, old or make("durable-log"), self._sidecar)
            self._old = _format_of(disk, path)
        except BaseException:
            self.close()
            raise

    def store(self, batches: Iterable[Any]) -> Appended:
        disk, path = self.disk, self._path
        clear_next(disk, path)
        write_tx_marker(disk, path, self._pending)
        place = posixpath.join(path, NEXT)
        count = 0
        with WritableLog(place, disk=disk, durability="write", **self._part.options) as log:
            log.raises_late_times = self._part.raises_late_times
            for data in batches:
                count += log.append_batch(data).count
        sync_tree(disk, place)
        after = read_watermark(disk, place)
        if after is None:
            raise CorruptionError("the watermark of a log that was just written is missing", path=place)
        self._pending = replacement_marker(disk, path, self._old, self._pending, after)
        write_tx_marker(disk, path, self._pending)
        return Appended(0, count)

    def finish(self) -> None:
        move_in(self.disk, self._path, self._pending)
        remove_tx_marker(self.disk, self._path)
        self.close()

    def abandon(self, error: BaseException) -> None:
        return

    def check(self) -> None:
        self._sidecar.check(closely=True)

    def rollback(self) -> None:
        self.check()
        if read_tx_marker(self.disk, self._path) is not None:
            clear_next(self.disk, self._path)
            remove_tx_marker(self.disk, self._path)

    def close(self) -> None:
        self._sidecar.release()
        self.disk.unroot()


def _format_of(disk: Disk, path: str) -> Format | None:
    """The format of the log to replace; None if it does not exist or has no known format."""
    try:
        config = read_config(disk, path)
        return make(config.format, **config.options) if config is not None else make(detect(disk, path).format)
    except (DetectionError, UsageError):
        return None


# --- several logs


def _lock(disk: Disk, root: str) -> Lock:
    path = posixpath.join(root, DIRECTORY, TX_LOCK_NAME)
    try:
        return disk.lock(path, f"pid {os.getpid()}\n".encode())
    except LockedError as error:
        holder = error.note.decode("ascii", "replace").strip() or "another process"
        raise LockedError(f"another transaction is in progress ({holder})", note=error.note, path=root) from None


def _sync_names(disk: Disk, root: str, paths: Sequence[str]) -> None:
    """Sync the directories above logs without records: a process that was killed while it created a topic leaves names
    that are visible and not on the disk."""
    unsynced = set()
    for path in paths:
        mark = read_watermark(disk, posixpath.join(root, path))
        while path and (mark is None or not mark.next_offset):
            path = posixpath.dirname(path)
            unsynced.add(path)
    for path in sorted(unsynced):
        directory = posixpath.join(root, path) if path else root
        if disk.kind(directory) == Kind.DIRECTORY:
            disk.sync_directory(directory)


def _write_intent(disk: Disk, root: str, parts: Sequence[TransactionPart]) -> None:
    logs = [{"path": part.path, "replaces": part.replaces} for part in parts]
    _INTENT.replace(disk, sidecar_path(root, TX_INTENT_NAME), {"logs": logs})


def _remove_intent(disk: Disk, root: str) -> None:
    path = sidecar_path(root, TX_INTENT_NAME)
    if disk.kind(path) == Kind.FILE:
        disk.remove(path)
        disk.sync_directory(posixpath.dirname(path))


def _resolve_unfinished(disk: Disk, root: str, deadline: float) -> None:
    """Resolve the transaction of a process that died, in all its logs. The next transaction may cover other logs, whose
    ledger entry must not count for these."""
    logs = _INTENT.read(disk, sidecar_path(root, TX_INTENT_NAME), _parse_intent)
    if logs is None:
        return
    for log, replaces in logs:
        place = posixpath.join(root, log)
        if disk.kind(tx_marker_path(place)) == Kind.FILE:
            _waiting(_resolver(disk, place, replaces=replaces), deadline).close()
    _remove_intent(disk, root)


def _parse_intent(tree: dict[str, Any]) -> list[tuple[str, bool]]:
    return [(inside_log(str(log["path"])), bool(log["replaces"])) for log in tree["logs"]]


def _resolver(disk: Disk, path: str, *, replaces: bool) -> Callable[[], _Replacing | WritableLog]:
    """Opening resolves a transaction. A log to replace may not exist yet, and must not be created."""
    if replaces:
        return lambda: _Replacing(disk, path, TransactionPart("", tuple), BatchKey(JOBS_LEDGER, None, ""), "")
    return lambda: WritableLog(path, disk=disk)


def _waiting(attempt: Callable[[], T], deadline: float) -> T:
    """Try until no other process holds the lock, or until the deadline."""
    began = time.monotonic()
    while True:
        try:
            return attempt()
        except LockedError as error:
            left = deadline - time.monotonic()
            if left <= 0:
                waited = f"{error.message}, and was not released within {time.monotonic() - began:.0f} s"
                raise LockedError(waited, note=error.note, path=error.path, hint=error.hint) from None
            time.sleep(min(0.02, left))
