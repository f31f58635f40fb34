"""A group's state on the disk: a snapshot, a growing delta, and a lock that several processes share.

To change the state, a process takes the lock (`enter`), reads what other processes appended to the delta (`refresh`),
notes its own events (`write`), appends them together (`flush`) and releases the lock (`leave`). If the lock's file says
that this process was the last holder, there is nothing to read. Syncing follows without the lock, so that no process
waits for another one's disk.

**Rewriting.** When the delta has grown, the process writes a new snapshot, then a new delta, each as temporary file,
sync, rename, sync of the directory. A crash between the two leaves the new snapshot with the old delta, and replaying
that delta changes nothing. The new delta's header has a later time, which tells other processes to reload.

**Damage.** After a power loss, unsynced events may be missing anywhere after the last sync. Intact events before and
after a bad place count, missing ones cause redelivery, and rewriting drops the bad bytes after copying them to the
quarantine. Damage in older bytes is handled in the same way and reported as a warning. A reset is never appended to the
delta, because a power loss could keep the reset and lose the events after it: it goes into new files. Files are never
shortened, because another process may have mapped them.

**Names.** A process may be killed between renaming a delta and syncing the directory. Therefore a process that syncs
events in a delta that it did not create also syncs the directory, once.

A snapshot is renamed only after it was synced, so a bad snapshot is damage, and so is a bad header of a delta. Both
raise `CorruptionError`, unless ``on_damage="redeliver"``: then the other file counts. An unknown version or event
always raises.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from duramen.consumers.files import GroupFiles, ensure_directory
from duramen.consumers.groups.members import MemberJournal
from duramen.consumers.groups.state_machine import StateMachine
from duramen.consumers.shared_lock import SharedLock
from duramen.disk import Disk, File, Kind, write_all
from duramen.errors import (
    CorruptionError,
    IncompleteHeaderError,
    LimitError,
    StorageError,
    UnknownVersionError,
    UsageError,
)
from duramen.formats import (
    GROUP_BYTES,
    INFLIGHT,
    Bumped,
    Marked,
    Run,
    decode_events,
    decode_snapshot,
    delta_header,
    delta_start,
    encode_runs,
    encode_snapshot,
)
from duramen.log import Log
from duramen.record import MAX_OFFSET
from duramen.sidecar import Sidecar, create_file

COMPACT_BYTES = 2 << 20
"""Default of ``compact_bytes``: a delta that has grown by this much is replaced by a new snapshot."""
COMPACT_IN_FLIGHT = 50_000
"""Default of ``compact_in_flight``: with this many records in flight, a delta four times the size of their snapshot
is replaced, too."""

_HINT = "`duramen group PATH NAME repair` keeps what can be read and delivers the rest again"


@dataclass
class Loaded:
    """The state as read from the files."""

    machine: StateMachine = field(default_factory=StateMachine)
    created_ms: int | None = None
    """Creation time of the delta; None if it is missing."""
    header: bytes = b""
    end: int = 0
    """Position of the delta's next event."""
    torn: bytes = b""
    """Bytes of the delta to quarantine and drop."""
    damage: list[CorruptionError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    exists: bool = False


def load(disk: Disk, place: GroupFiles) -> Loaded:
    """Read both files. Needs no lock: if another process replaces the delta, read both again."""
    while True:
        before = _created(disk, place)
        loaded = Loaded()
        _load_snapshot(disk, place, loaded)
        _load_delta(disk, place, loaded)
        if _created(disk, place) == before:
            return loaded


def _created(disk: Disk, place: GroupFiles) -> int | None:
    try:
        start = delta_start(_bytes(disk, place.delta))
    except (CorruptionError, FileNotFoundError):
        return None
    return None if start is None else start.created_ts_ms


def _bytes(disk: Disk, path: str) -> memoryview:
    """The bytes of a file; empty if the file is missing."""
    try:
        return disk.map(path).data
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return memoryview(b"")
        raise


def _load_snapshot(disk: Disk, place: GroupFiles, loaded: Loaded) -> None:
    if disk.kind(place.snap) == Kind.MISSING:
        return
    loaded.exists = True
    try:
        snapshot = decode_snapshot(_bytes(disk, place.snap))
    except CorruptionError as error:
        _refuse(error, place.snap, loaded)
        return
    loaded.machine.load(snapshot)
    for field_name, stored in (("tp_hash", snapshot.tp_hash), ("group_hash", snapshot.group_hash)):
        if stored not in (0, getattr(place.name, field_name)):
            loaded.warnings.append(f"{place.snap}: {field_name} {stored:016x} does not match the file's name")


def _load_delta(disk: Disk, place: GroupFiles, loaded: Loaded) -> None:
    if disk.kind(place.delta) == Kind.MISSING:
        return
    loaded.exists = True
    view = _bytes(disk, place.delta)
    try:
        start = delta_start(view)
        if start is None:
            return
        loaded.created_ms, loaded.end = start.created_ts_ms, start.length
        loaded.header = bytes(view[: start.length])
        _load_events(view, loaded, place.delta)
    except IncompleteHeaderError:
        loaded.torn = bytes(view)
    except CorruptionError as error:
        _refuse(error, place.delta, loaded)


def _load_events(view: memoryview, loaded: Loaded, path: str) -> None:
    """Replay the intact events from ``loaded.end`` on, including those after a bad place."""
    while True:
        events = decode_events(view, loaded.end)
        loaded.machine.replay(events)
        if not events.stop.clean and not loaded.torn:
            loaded.torn = bytes(view[events.end :])
        loaded.end = events.end
        if not events.is_damaged:
            return
        loaded.warnings.append(
            f"{path}: byte {events.end}: {events.stop.meaning}; intact events continue at byte {events.resumes_at}, "
            "and records with lost events are delivered again"
        )
        loaded.end = events.resumes_at


def _refuse(error: CorruptionError, path: str, loaded: Loaded) -> None:
    if isinstance(error, UnknownVersionError):
        error.path = path
        raise error
    error.path, error.hint = path, _HINT
    loaded.damage.append(error)


class Ticket(NamedTuple):
    """A position in the delta up to which a caller needs a sync."""

    created_ms: int | None
    end: int
    file: File | None


class GroupStore:
    """The files of one group and its state in this process. Not thread-safe, except for `sync`."""

    exists = False
    is_closed = False
    poison: BaseException | None = None
    """The error of a sync that failed, so that the delta's state on the disk is unknown."""
    _created_ms: int | None = None
    _header = b""
    """The delta's header; a different header means a different delta."""
    _end = 0
    _start_bytes = 0
    """Initial size of the delta: acks that a snapshot cannot store."""
    _file: File | None = None
    _torn = b""
    _shared_lock: SharedLock | None = None
    _is_current = False
    """No other process has held the lock since the files were read."""
    is_forgotten = False
    """The state differs from the files: call `refresh` first."""
    has_lost = False
    """Noted events were undone: their callers must not get a result."""
    must_rewrite = False
    _named_ms: int | None = None
    """Creation time of the delta whose name is synced."""

    def __init__(
        self,
        log: Log,
        place: GroupFiles,
        *,
        on_damage: str,
        compact_bytes: int = COMPACT_BYTES,
        compact_in_flight: int = COMPACT_IN_FLIGHT,
    ) -> None:
        self.place = place
        self.machine = StateMachine()
        self.members = MemberJournal(log.state_disk, place)
        self.warnings: list[str] = []
        self._log = log
        self._disk = log.state_disk
        self.mends = on_damage == "redeliver"
        """Keep what can be read of damaged state, instead of raising."""
        self._compact_bytes = _limit("compact_bytes", compact_bytes, GROUP_BYTES // 2)  # a longer one is not read
        self._compact_in_flight = _limit("compact_in_flight", compact_in_flight, MAX_OFFSET)
        self._delta = place.delta
        self._noted: list[Run] = []
        """Events applied but not yet written."""
        self._synced = Ticket(None, 0, None)

    # --- sharing

    def enter(self) -> None:
        """Wait for the lock. `FencedError` if the log's directory was deleted or replaced."""
        self._log.check_place()
        if self._shared_lock is None:
            ensure_directory(self._log, self.place.sidecar)
            self._shared_lock = SharedLock(self._disk, self.place.lock)
        try:
            was_last = self._shared_lock.enter()
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            ensure_directory(self._log, self.place.sidecar)  # the sidecar was deleted, which costs no record
            was_last = self._shared_lock.enter()
        if not was_last:
            self._is_current = False

    def leave(self) -> None:
        if self._shared_lock is not None:
            self._shared_lock.leave()

    def close(self) -> None:
        """Close the lock's file and the delta."""
        self.is_closed = True
        self._file = None  # closed after the last running sync
        self.members.forget()
        if self._shared_lock is not None:
            self._shared_lock.close()

    def refresh(self) -> None:
        """Read the changes of other processes. Under the lock."""
        if self._is_current and self._header and not self._torn and self._size() == self._end:
            return
        self._is_current = False
        self.members.forget()
        view = _bytes(self._disk, self._delta)
        known = self._header
        if known and not self._torn and len(view) >= self._end and view[: len(known)] == known:
            if len(view) > self._end:
                self._take_in(view)
        else:
            self._reload()
        self._is_current = True

    def _size(self) -> int | None:
        """Size of the delta. It changes under the lock only, but an operator may delete it at any time."""
        try:
            return self._disk.size(self._delta)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def forget(self) -> None:
        """Discard the state, including unwritten events; the next `refresh` reads the files again."""
        self._header = b""
        self.has_lost = bool(self._noted)
        self._noted.clear()
        self.members.forget()
        self.is_forgotten = True

    def _take_in(self, view: memoryview) -> None:
        events = decode_events(view, self._end)
        if events.is_damaged:
            self._reload()
            return
        self.machine.replay(events)
        self._end = events.end
        self._torn = bytes(view[events.end :]) if events.is_torn else b""

    def _check_same(self) -> None:
        """Raise if the log's records were replaced since it was opened."""
        if self._log.is_replaced():
            raise StorageError("the log was recreated after it was opened", path=self._log.path, hint="reopen the log")

    def _reload(self) -> None:
        self._check_same()
        loaded = load(self._disk, self.place)
        if loaded.damage and not self.mends:
            raise loaded.damage[0]
        self.machine, self.exists, self.warnings = loaded.machine, loaded.exists, loaded.warnings
        self._created_ms, self._header = loaded.created_ms, loaded.header
        self._end, self._torn = loaded.end, loaded.torn
        self._start_bytes = 0
        self._file = None
        self.is_forgotten = False
        if loaded.damage:
            self.set_aside(loaded.damage)
            self.must_rewrite = True

    def set_aside(self, damage: list[CorruptionError]) -> None:
        """Copy damaged files to the quarantine."""
        for path in {error.path for error in damage if error.path is not None}:
            Sidecar(self._disk, self._log.path).quarantine(posixpath.basename(path), _bytes(self._disk, path))

    # --- changing

    def write(self, runs: Sequence[Run], now_ms: int) -> None:
        """Apply events; `flush` writes them to the file. Under the lock, after `refresh`."""
        if self._created_ms is None and not runs:
            return  # a refused claim does not create a group
        if self._created_ms is None or self._torn or self.must_rewrite:
            self.rewrite(now_ms)
        if runs:
            self.machine.apply(runs)
            self._noted += runs

    def flush(self, now_ms: int) -> None:
        """Append the noted events with one write. Under the lock."""
        self._flush_events(now_ms)
        self.members.flush()

    def _flush_events(self, now_ms: int) -> None:
        if self._noted and (self._torn or self.must_rewrite):
            self.rewrite(now_ms)
        elif self._noted:
            try:
                data = encode_runs(_joined(self._noted))
                self._check_room(self._end + len(data))
                write_all(self._opened(), self._end, data)
            except BaseException:
                self.must_rewrite = True  # nothing may follow a partial write
                self.forget()
                raise
            self._noted.clear()
            self._end += len(data)
            if self._is_long():
                self.rewrite(now_ms)

    def ticket(self) -> Ticket:
        """What to sync to make all events so far durable. Under the lock, after `flush`."""
        if self._created_ms is None:
            return Ticket(None, 0, None)
        # Needed even if nothing was written: another process may not have synced its events yet.
        is_synced = self._synced[:2] == (self._created_ms, self._end)
        return Ticket(self._created_ms, self._end, self._file if is_synced else self._opened())

    def restart(self, runs: Sequence[Run], now_ms: int) -> None:
        """Apply events that begin with a reset by writing new files durably. Under the lock."""
        self.flush(now_ms)  # results already returned must survive a failure below
        self.machine.apply(runs)
        try:
            self.rewrite(now_ms)
        except BaseException:
            self.forget()
            raise

    def _check_room(self, size_bytes: int) -> None:
        """Raise if a file would exceed the largest size that is read."""
        if size_bytes > GROUP_BYTES:
            raise LimitError(
                f"the group's state must not exceed {GROUP_BYTES} bytes (needs {size_bytes})",
                path=self.place.delta,
                hint="acknowledge the oldest records in flight, which keep the state of all later ones",
            )

    def _opened(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self._delta)
        return self._file

    def _is_long(self) -> bool:
        """Whether to rewrite: the delta has grown, or so much is in flight that replaying it dominates."""
        grown = self._end - self._start_bytes
        if grown >= max(self._compact_bytes, self._start_bytes):
            return True
        in_flight = self.machine.in_flight
        return in_flight >= self._compact_in_flight and grown >= 4 * in_flight * INFLIGHT.size

    def rewrite(self, now_ms: int) -> None:
        """Write a new snapshot and a new delta durably. Under the lock."""
        disk, place = self._disk, self.place
        if self._torn:
            Sidecar(disk, self._log.path).quarantine(posixpath.basename(place.delta), self._torn)
        ensure_directory(self._log, place.directory)
        created_ms = now_ms if self._created_ms is None else max(now_ms, self._created_ms + 1)
        acked_until, inflight = self.machine.snapshot()
        snapshot = encode_snapshot(
            acked_until, inflight, created_ts_ms=created_ms,
            tp_hash=place.name.tp_hash, group_hash=place.name.group_hash,
        )  # fmt: skip
        header = delta_header(created_ms)
        delta = b"".join([header, encode_runs(self.machine.leftover())])
        self._check_room(max(len(snapshot), len(delta)))
        self.must_rewrite = True
        self._replace("snap", place.snap, snapshot)
        self._replace("delta", place.delta, delta)
        self._header = header
        self._noted.clear()
        self.must_rewrite, self._torn, self._file = False, b"", None
        self._created_ms, self._end, self._start_bytes = created_ms, len(delta), len(delta)
        self._synced = Ticket(created_ms, len(delta), None)
        self._named_ms = created_ms
        self.exists = True
        self.members.rewrite(self.machine)

    def _replace(self, suffix: str, path: str, content: bytes) -> None:
        """Like `replace_file`, without syncing the temporary file's directory: a stale name there is harmless."""
        temporary = self.place.temporary(suffix)
        create_file(self._disk, temporary, content)
        self._check_same()
        self._disk.replace(temporary, path)
        self._disk.sync_directory(posixpath.dirname(path))

    def sync(self, ticket: Ticket) -> None:
        """Make the events before the ticket durable. Without the lock."""
        synced, end, created_ms = self._synced, self._end, self._created_ms
        # A process that replaced the delta had read those events, and synced its new files.
        if ticket.created_ms != created_ms or ticket.file is None:
            self._sync_name(created_ms)
            return
        if ticket.created_ms == synced.created_ms and ticket.end <= synced.end:
            return
        ticket.file.sync()
        self._sync_name(created_ms)
        self._log.check_place()
        if self._synced is synced and self._created_ms == ticket.created_ms:
            self._synced = Ticket(created_ms, end, None)

    def _sync_name(self, created_ms: int | None) -> None:
        if created_ms is not None and self._named_ms != created_ms:
            self._disk.sync_directory(self.place.directory)
            self._named_ms = created_ms

    def delete(self) -> bool:
        """Remove the files; return False if none existed. Under the lock."""
        existing = [path for path in (self.place.snap, self.place.delta) if self._disk.kind(path) != Kind.MISSING]
        for path in existing:
            self._disk.remove(path)
        if existing:
            self._disk.sync_directory(self.place.directory)
        for path in (self.place.policy, self.place.members):
            if self._disk.kind(path) != Kind.MISSING:
                self._disk.remove(path)
        self.machine, self.exists, self._created_ms, self._end, self._file = StateMachine(), False, None, 0, None
        self.forget()
        return bool(existing)


def _joined(runs: Sequence[Run]) -> list[Run]:
    """Join adjacent marks with the same lease, and keep the last of successive bumps."""
    joined: list[Run] = []
    for run in runs:
        last = joined[-1] if joined else None
        if isinstance(run, Marked) and isinstance(last, Marked) and (run.start, *run[2:]) == (last.end, *last[2:]):
            joined[-1] = last._replace(end=run.end)
        elif isinstance(run, Bumped) and isinstance(last, Bumped):
            joined[-1] = max(last, run)
        else:
            joined.append(run)
    return joined


def _limit(option: str, value: Any, most: int) -> int:
    if not isinstance(value, int) or not 1 <= value <= most:
        raise UsageError(f"{option} must be 1 to {most} (got {value!r})")
    return value
