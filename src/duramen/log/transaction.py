"""Transactions: append many batches, and make them visible and durable all at once, together with a ledger entry.

Under the writer's lock, for one log or for several:

1. *begin*: what is there is synced, and the marker ``pending.json`` with the watermark as it is now is put on the disk;
2. *append*: the rows go through the usual writer, over as many segments as it takes; the watermark stays;
3. *prepare*: the rows are synced, and the marker gets the watermark as it will be;
4. *commit*: the ledger's file is replaced. From here on all rows count; up to here none does;
5. *finish*: readers are shown the new watermark, and the marker goes.

With several logs all are prepared before the one ledger entry, in the directory above them, commits all of them. A
process that ends in between leaves markers, and whoever opens a log next ends the transaction by what the ledger says:
see `pending`. After an error before the commit the rows are taken back at once; after an error of the commit itself
nobody can know, and the ledger, read again by the next one, decides.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from duramen.disk import Disk, PosixDisk
from duramen.disk.base import Kind, Lock
from duramen.errors import CorruptionError, DetectionError, DuramenError, LockedError, UsageError
from duramen.formats import Format, make
from duramen.log import change, intake, ledger, pending
from duramen.log.directory import detect
from duramen.log.ledger import Entry, Key
from duramen.log.pending import Pending
from duramen.log.place import make_directory
from duramen.log.requests import Appended
from duramen.log.sidecar import DIRECTORY, Sidecar, read_config, read_watermark, replace_file
from duramen.log.writer import WritableLog

LOCK_TIMEOUT_S = 60.0
STEP_BYTES = 1 << 20
INTENT = "transaction.json"
"""In the directory above several logs: which of them a transaction is about, so that all of them get ended."""

Batches = Callable[[], Iterable[Any]]
T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """What goes into one log. ``path`` is relative to the root of the transaction, empty for the root itself."""

    path: str
    batches: Batches
    options: dict[str, Any] = field(default_factory=dict)
    """The format's name under ``format``, and its options: for a log that has to be made."""
    replaces: bool = False
    """Instead of what the log holds, from offset 0 on."""
    raises_late_times: bool = False
    """A time that goes back, in a format that has none such, becomes that of the record before it."""


class Committed(NamedTuple):
    """What became of a batch. ``is_duplicate``: it was there already, and nothing was stored."""

    entry: Entry
    is_duplicate: bool


def new_attempt() -> str:
    return uuid.uuid4().hex


def append_once(log: WritableLog, data: Iterable[Any], writer: str, batch: int) -> Appended | None:
    """See `WritableLog.append_once`."""
    key = Key(writer, batch, new_attempt())
    ledger.check_key(key)
    batches = [intake.many(log.codec, one) for one in data]
    answers: list[Appended | None] = []
    log.exclusively(lambda: answers.append(_once(log, batches, key)))
    return answers[0]


def _once(log: WritableLog, batches: Sequence[intake.Batch], key: Key) -> Appended | None:
    disk, root = log.disk, log.path
    before = ledger.last(disk, root, key.writer)
    if before is not None and before.repeats(key):
        return None
    ledger.prepare(disk, root)
    work = _Appending(log, key, posixpath.relpath(ledger.path_of(root, key.writer), root))
    try:
        stored = work.store(batches)
        ledger.record(disk, root, _entry(key, {"": stored}))
        work.finish()
    except BaseException as error:
        work.abandon(error)
        raise
    return stored


def commit_batch(
    root: str,
    key: Key,
    parts: Sequence[Part],
    *,
    disk: Disk | None = None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> Committed:
    """Store the rows of ``parts`` as the batch ``key``, all or none, unless that batch is there already.

    The logs are opened here, and made where there are none. Raises `LockedError` where another writer does not let go
    of one of them in time."""
    ledger.check_key(key)
    disk = disk if disk is not None else PosixDisk()
    paths = [part.path for part in parts]
    if len(set(paths)) < len(paths) or ("" in paths and len(paths) > 1):
        raise UsageError("a log can be in a transaction once, and not together with one above it", path=root)
    deadline = time.monotonic() + lock_timeout_s
    if paths == [""]:
        return _commit(disk, root, key, parts, deadline)
    make_directory(disk, posixpath.join(root, DIRECTORY))
    lock = _waiting(lambda: _lock(disk, root), deadline)
    try:
        _end_leftover(disk, root, deadline)
        return _commit(disk, root, key, parts, deadline)
    finally:
        lock.release()


def _commit(disk: Disk, root: str, key: Key, parts: Sequence[Part], deadline: float) -> Committed:
    with contextlib.ExitStack() as stack:
        works = []
        if parts and parts[0].path == "":  # its own lock guards the ledger, too
            works.append(stack.enter_context(_opened(disk, root, parts[0], key, deadline)))
        before = ledger.last(disk, root, key.writer)
        if before is not None and before.repeats(key):
            return Committed(before, True)
        ledger.prepare(disk, root)
        if not works:
            _write_intent(disk, root, parts)
        stored: dict[str, Appended] = {}
        try:
            for number, part in enumerate(parts):
                if number == len(works):
                    works.append(stack.enter_context(_opened(disk, root, part, key, deadline)))
                stored[part.path] = works[number].store(part.batches())
        except BaseException as error:
            _take_back(works, error)
            raise
        entry = _entry(key, stored)
        try:
            ledger.record(disk, root, entry)
            for work in works:
                work.finish()
        except BaseException as error:
            for work in works:
                work.abandon(error)
            raise
    _remove_intent(disk, root)
    return Committed(entry, False)


def _entry(key: Key, stored: dict[str, Appended]) -> Entry:
    offsets = {path: (appended.base_offset, appended.count) for path, appended in stored.items()}
    rows = sum(appended.count for appended in stored.values())
    return Entry(key.writer, key.batch, key.attempt, rows, offsets, time.time_ns() // 1_000_000)


@contextlib.contextmanager
def _opened(disk: Disk, root: str, part: Part, key: Key, deadline: float) -> Iterator[_Appending | _Replacing]:
    path = posixpath.join(root, part.path) if part.path else root
    file = posixpath.relpath(ledger.path_of(root, key.writer), path)
    if part.replaces:
        replacing = _waiting(lambda: _Replacing(disk, path, part, key, file), deadline)
        try:
            yield replacing
        finally:
            replacing.close()
    else:
        with _waiting(lambda: WritableLog(path, disk=disk, **part.options), deadline) as log:
            log.raises_late_times = part.raises_late_times
            yield _Appending(log, key, file)


def _take_back(works: Sequence[_Appending | _Replacing], error: BaseException) -> None:
    """Nothing is committed: let go of the logs, and take back what is in them. What cannot be taken back now, because
    the disk fails, is not seen by readers either, and is taken back by whoever opens the log next."""
    for work in works:
        work.abandon(error)
    for work in works:
        with contextlib.suppress(DuramenError):
            work.take_back()


# --- one log


class _Appending:
    """Rows behind those of a log."""

    def __init__(self, log: WritableLog, key: Key, ledger_file: str) -> None:
        self._log = log
        self._pending = Pending(key, ledger_file, log.tail.visible)
        self._is_begun = False

    def store(self, batches: Iterable[Any]) -> Appended:
        """Begin, append and prepare."""
        log, tail = self._log, self._log.tail
        tail.sync()
        tail.mark(durable=True)
        self._pending = replace(self._pending, before=tail.visible)
        self._is_begun = True
        pending.write(log.disk, log.path, self._pending)
        tail.hold()
        base, count = None, 0
        for data in batches:
            batch = intake.many(log.codec, data) if not isinstance(data, intake.Values) else data
            for piece in _pieces(batch):
                appended = log.append_in_turn(piece)
                base, count = appended.base_offset if base is None else base, count + appended.count
        self._pending = replace(self._pending, after=tail.sync_held())
        pending.write(log.disk, log.path, self._pending)
        return Appended(tail.visible.next_offset if base is None else base, count)

    def finish(self) -> None:
        log = self._log
        log.tail.show_held()
        pending.remove(log.disk, log.path)

    def abandon(self, error: BaseException) -> None:
        """The writer knows no more what the files hold: it answers nothing any more, and lets go."""
        if self._is_begun:
            self._log.tail.poison(error)

    def take_back(self) -> None:
        """As recovery would."""
        if self._is_begun:
            log = self._log
            log.close()
            WritableLog(log.path, disk=log.disk).close()


def _pieces(batch: intake.Batch) -> Iterator[intake.Batch]:
    """The batch in slices that a processor's cache holds together with their encoding."""
    rows = max(1, batch.num_rows * STEP_BYTES // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, min(rows, batch.num_rows - start))


class _Replacing:
    """Rows instead of those of a log: a new log is built beside it. What the old one holds is not looked at, so one
    that is damaged can be replaced."""

    def __init__(self, disk: Disk, path: str, part: Part, key: Key, ledger_file: str) -> None:
        self._disk, self._path, self._part = disk, path, part
        self._pending = Pending(key, ledger_file, None)
        make_directory(disk, path)
        self._sidecar = Sidecar(disk, path)
        self._sidecar.lock()
        try:
            change.finish(disk, path)  # its list must not be there any more when the new files have the same names
            old = _format_of(disk, path)
            pending.settle(disk, path, old or make("durable-log"), self._sidecar)
            self._old = _format_of(disk, path)
        except BaseException:
            self.close()
            raise

    def store(self, batches: Iterable[Any]) -> Appended:
        disk, path = self._disk, self._path
        pending.clear_next(disk, path)
        pending.write(disk, path, self._pending)
        place = posixpath.join(path, pending.NEXT)
        count = 0
        with WritableLog(place, disk=disk, durability="write", **self._part.options) as log:
            log.raises_late_times = self._part.raises_late_times
            for data in batches:
                count += log.append_batch(data).count
        after = read_watermark(disk, place)
        if after is None:
            raise CorruptionError("the watermark of a log that was just written is gone", path=place)
        self._pending = pending.ready(disk, path, self._old, self._pending, after)
        pending.write(disk, path, self._pending)
        return Appended(0, count)

    def finish(self) -> None:
        pending.move_in(self._disk, self._path, self._pending)
        pending.remove(self._disk, self._path)
        self.close()

    def abandon(self, error: BaseException) -> None:
        return

    def take_back(self) -> None:
        if pending.read(self._disk, self._path) is not None:
            pending.clear_next(self._disk, self._path)
            pending.remove(self._disk, self._path)

    def close(self) -> None:
        self._sidecar.release()


def _format_of(disk: Disk, path: str) -> Format | None:
    """The format of the log that is to be replaced; None where there is none, or none that we know."""
    try:
        config = read_config(disk, path)
        return make(config.format, **config.options) if config is not None else make(detect(disk, path).format)
    except (DetectionError, UsageError):
        return None


# --- several logs


def _lock(disk: Disk, root: str) -> Lock:
    path = posixpath.join(root, DIRECTORY, "transaction.lock")
    try:
        return disk.lock(path, f"pid {os.getpid()}\n".encode())
    except LockedError as error:
        holder = error.note.decode("ascii", "replace").strip() or "another process"
        raise LockedError(f"another transaction is under way ({holder})", note=error.note, path=root) from None


def _write_intent(disk: Disk, root: str, parts: Sequence[Part]) -> None:
    logs = [{"path": part.path, "replaces": part.replaces} for part in parts]
    replace_file(disk, posixpath.join(root, DIRECTORY, INTENT), json.dumps({"logs": logs}).encode() + b"\n")


def _remove_intent(disk: Disk, root: str) -> None:
    path = posixpath.join(root, DIRECTORY, INTENT)
    if disk.kind(path) == Kind.FILE:
        disk.remove(path)
        disk.sync_directory(posixpath.dirname(path))


def _end_leftover(disk: Disk, root: str, deadline: float) -> None:
    """End the transaction that a process left behind, in all logs: the next one may be about others of them, and its
    ledger entry must not be taken for theirs."""
    path = posixpath.join(root, DIRECTORY, INTENT)
    if disk.kind(path) != Kind.FILE:
        return
    for log in json.loads(bytes(disk.map(path).data))["logs"]:
        place = posixpath.join(root, log["path"])
        if disk.kind(pending.path_of(place)) == Kind.FILE:
            _waiting(_settler(disk, place, replaces=log["replaces"]), deadline).close()
    _remove_intent(disk, root)


def _settler(disk: Disk, path: str, *, replaces: bool) -> Callable[[], _Replacing | WritableLog]:
    """Opening ends a transaction. One that replaces may be about a place where no log is yet, and none must be made."""
    if replaces:
        return lambda: _Replacing(disk, path, Part("", tuple), Key(ledger.JOBS, None, ""), "")
    return lambda: WritableLog(path, disk=disk)


def _waiting(attempt: Callable[[], T], deadline: float) -> T:
    """Try until nobody else holds the lock, or until the time is over."""
    began = time.monotonic()
    while True:
        try:
            return attempt()
        except LockedError as error:
            left = deadline - time.monotonic()
            if left <= 0:
                waited = f"{error.message}, and was not let go of within {time.monotonic() - began:.0f} s"
                raise LockedError(waited, note=error.note, path=error.path, hint=error.hint) from None
            time.sleep(min(0.02, left))
