"""A group's state on the disk: a snapshot, a delta that grows, and a lock that several processes share.

Who wants to change the state takes the lock and reads what others have appended to the delta since (`enter`), notes
its own events (`write`), appends them together (`flush`) and lets the lock go (`leave`). Who was the last one to hold
the lock, as the lock's file tells, need not read. Syncing comes after that, so that nobody waits for another's disk.

**Rewriting.** When the delta has grown, a new snapshot is written and the delta begins again. Snapshot first: temporary
file, sync, rename, sync of the directory; then the delta, likewise. A crash in between leaves the new snapshot with the
old delta, and replaying that changes nothing. The new delta has a later time in its header than the old one: that is
how others notice.

**What is wrong.** Events that were not synced when the power went may be missing anywhere behind the last sync, so a
bad place in the delta is no surprise: the whole events before and behind it count (an ack that is whole is a fact),
what is missing is delivered again, and the bytes are copied aside and left behind by rewriting. It is the same for
damage in older bytes, and shows as a warning. A reset is never left to the delta, of which a power loss could keep the
reset and lose what follows: it goes into new files at once. A file is never shortened, because somebody may have it
mapped.

**Whose name it is.** Another process may have been killed between giving a delta its name and syncing that. So whoever
syncs events in a delta that he did not begin syncs its directory, too, once.

A snapshot has its name only after it was synced. So a bad one is damage, and so is a bad header of a delta: these raise
`CorruptionError`, unless ``on_damage="redeliver"``: then what the other file says counts. A version or an event that
nobody here knows always raises.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from duramen.disk import Disk
from duramen.disk.base import File, Kind, write_all
from duramen.errors import CorruptionError, IncompleteHeaderError, StorageError, UnknownVersionError
from duramen.formats.stroma import INFLIGHT, delta_header
from duramen.formats.stroma_bulk import (
    Bumped,
    Marked,
    Run,
    decode_events,
    decode_snapshot,
    delta_start,
    encode_runs,
    encode_snapshot,
)
from duramen.groups.directories import ensure_directory
from duramen.groups.locking import Turnstile
from duramen.groups.machine import Machine
from duramen.groups.places import Place
from duramen.log.reader import Log
from duramen.log.sidecar import Sidecar

COMPACT_BYTES = 2 << 20
COMPACT_IN_FLIGHT = 50_000

_HINT = "`duramen group PATH NAME repair` keeps what can be read and delivers the rest again"


@dataclass
class Loaded:
    """The state as the files give it."""

    machine: Machine = field(default_factory=Machine)
    created_ms: int | None = None
    """Of the delta; None where there is none."""
    header: bytes = b""
    end: int = 0
    """Where the next event of the delta goes."""
    torn: bytes = b""
    """What of the delta is to be copied aside and left behind."""
    damage: list[CorruptionError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    exists: bool = False


def load(disk: Disk, place: Place) -> Loaded:
    """Read both files. Needs no lock: if the delta is replaced meanwhile, they are read again."""
    while True:
        before = _created(disk, place)
        loaded = Loaded()
        _load_snapshot(disk, place, loaded)
        _load_delta(disk, place, loaded)
        if _created(disk, place) == before:
            return loaded


def _created(disk: Disk, place: Place) -> int | None:
    try:
        start = delta_start(_bytes(disk, place.delta))
    except (CorruptionError, FileNotFoundError):
        return None
    return None if start is None else start.created_ts_ms


def _bytes(disk: Disk, path: str) -> memoryview:
    """The bytes of a file; none where there is no file."""
    try:
        return disk.map(path).data
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return memoryview(b"")
        raise


def _load_snapshot(disk: Disk, place: Place, loaded: Loaded) -> None:
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
            loaded.warnings.append(f"{place.snap}: {field_name} {stored:016x} is not that of the file's name")


def _load_delta(disk: Disk, place: Place, loaded: Loaded) -> None:
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
    """Replay the whole events from ``loaded.end`` on, also those behind a bad place."""
    while True:
        events = decode_events(view, loaded.end)
        loaded.machine.replay(events)
        if not events.stop.clean and not loaded.torn:
            loaded.torn = bytes(view[events.end :])
        loaded.end = events.end
        if not events.is_damaged:
            return
        loaded.warnings.append(
            f"{path}: byte {events.end}: {events.stop.meaning}; whole events follow from byte {events.resumes_at} on, "
            "and what was between them is delivered again"
        )
        loaded.end = events.resumes_at


def _refuse(error: CorruptionError, path: str, loaded: Loaded) -> None:
    if isinstance(error, UnknownVersionError):
        error.path = path
        raise error
    error.path, error.hint = path, _HINT
    loaded.damage.append(error)


class Ticket(NamedTuple):
    """A place in the delta that somebody wants to be on the disk."""

    created_ms: int | None
    end: int
    file: File | None


class Journal:
    """The state of one group as this process knows it, and its files. One thread at a time, except for `sync`."""

    def __init__(
        self,
        log: Log,
        place: Place,
        *,
        on_damage: str,
        compact_bytes: int = COMPACT_BYTES,
        compact_in_flight: int = COMPACT_IN_FLIGHT,
    ) -> None:
        self.place = place
        self.machine = Machine()
        self.exists = False
        self.warnings: list[str] = []
        self._log = log
        self._disk = log.disk
        self._root = log.path
        self._on_damage = on_damage
        self._compact_bytes = compact_bytes
        self._compact_in_flight = compact_in_flight
        self._created_ms: int | None = None
        self._header = b""
        """Of the delta: with another one, it is another delta."""
        self._end = 0
        self._start_bytes = 0
        """How large the delta was when it began: acks that a snapshot has no place for."""
        self._file: File | None = None
        self._torn = b""
        self._delta = place.delta
        self._noted: list[Run] = []
        """Events that are applied and not in the file yet."""
        self._turnstile: Turnstile | None = None
        self._is_current = False
        """Nobody else has held the lock since the files were read."""
        self.is_forgotten = False
        """What is known is not what the files say: `refresh` before anything else."""
        self.has_lost = False
        """Events that were noted are undone: whoever was to be told of them must not be."""
        self.must_rewrite = False
        self._synced = Ticket(None, 0, None)
        self._named_ms: int | None = None
        """Which delta is known to have its name on the disk."""

    # --- sharing

    def enter(self) -> None:
        """Take the lock; waits for other processes."""
        if self._turnstile is None:
            ensure_directory(self._log, self.place.sidecar)
            self._turnstile = Turnstile(self._disk, self.place.lock)
        try:
            was_last = self._turnstile.enter()
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            ensure_directory(self._log, self.place.sidecar)  # somebody deleted the sidecar, which costs no record
            was_last = self._turnstile.enter()
        if not was_last:
            self._is_current = False

    def leave(self) -> None:
        if self._turnstile is not None:
            self._turnstile.leave()

    def close(self) -> None:
        """Let go of the lock's file and the delta; they are opened again when they are needed."""
        self._file = None  # closed once nobody syncs it any more
        if self._turnstile is not None:
            self._turnstile.close()

    def refresh(self) -> None:
        """See what others have done. Under the lock."""
        if self._is_current and self._header and not self._torn and self._size() == self._end:
            return
        self._is_current = False
        view = _bytes(self._disk, self._delta)
        known = self._header
        if known and not self._torn and len(view) >= self._end and view[: len(known)] == known:
            if len(view) > self._end:
                self._take_in(view)
        else:
            self._reload()
        self._is_current = True

    def _size(self) -> int | None:
        """Of the delta: whoever keeps to the lock does not change it, but it may be deleted at any time."""
        try:
            return self._disk.size(self._delta)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def forget(self) -> None:
        """Read everything again before it is used: what was noted and not written is undone."""
        self._header = b""
        self.has_lost = bool(self._noted)
        self._noted.clear()
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
        """Raise where the state is about other records than those that were read here."""
        if self._log.is_replaced():
            raise StorageError("the log was made anew since it was opened here", path=self._root, hint="open it again")

    def _reload(self) -> None:
        self._check_same()
        loaded = load(self._disk, self.place)
        if loaded.damage and self._on_damage == "raise":
            raise loaded.damage[0]
        self.machine, self.exists, self.warnings = loaded.machine, loaded.exists, loaded.warnings
        self._created_ms, self._header = loaded.created_ms, loaded.header
        self._end, self._torn = loaded.end, loaded.torn
        self._start_bytes = 0
        self._file = None
        self.is_forgotten = False
        if loaded.damage:
            self._set_aside(loaded.damage)
            self.must_rewrite = True

    def _set_aside(self, damage: list[CorruptionError]) -> None:
        for path in {error.path for error in damage if error.path is not None}:
            Sidecar(self._disk, self._root).quarantine(posixpath.basename(path), _bytes(self._disk, path))

    # --- changing

    def write(self, runs: Sequence[Run], now_ms: int) -> None:
        """Apply events; `flush` brings them into the file. Under the lock, after `refresh`."""
        if self._created_ms is None and not runs:
            return  # a claim that does not hold makes no group
        if self._created_ms is None or self._torn or self.must_rewrite:
            self.rewrite(now_ms)
        if runs:
            self.machine.apply(runs)
            self._noted += runs

    def flush(self, now_ms: int) -> None:
        """Append what was noted, all at once. Under the lock."""
        if self._noted and (self._torn or self.must_rewrite):
            self.rewrite(now_ms)
        elif self._noted:
            try:
                data = encode_runs(_joined(self._noted))
                write_all(self._opened(), self._end, data)
            except BaseException:
                self.must_rewrite = True  # what was written of it must not be followed by more
                self.forget()
                raise
            self._noted.clear()
            self._end += len(data)
            if self._is_long():
                self.rewrite(now_ms)

    def ticket(self) -> Ticket:
        """What to sync, for all that was done so far. Under the lock, after `flush`."""
        if self._created_ms is None:
            return Ticket(None, 0, None)
        # Also where nothing was written: what is there already may be another process' and not synced yet.
        is_synced = self._synced[:2] == (self._created_ms, self._end)
        return Ticket(self._created_ms, self._end, self._file if is_synced else self._opened())

    def restart(self, runs: Sequence[Run], now_ms: int) -> None:
        """Apply events that begin with a reset, by new files; on the disk when this returns. Under the lock."""
        self.flush(now_ms)  # what others were told stays, whatever becomes of this
        self.machine.apply(runs)
        try:
            self.rewrite(now_ms)
        except BaseException:
            self.forget()
            raise

    def _opened(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self._delta)
        return self._file

    def _is_long(self) -> bool:
        """Whether rewriting pays: by bytes, or because so much is in flight that replaying it is the larger part."""
        grown = self._end - self._start_bytes
        if grown >= max(self._compact_bytes, self._start_bytes):
            return True
        in_flight = self.machine.in_flight
        return in_flight >= self._compact_in_flight and grown >= 4 * in_flight * INFLIGHT.size

    def rewrite(self, now_ms: int) -> None:
        """A new snapshot and a new delta; on the disk when this returns. Under the lock."""
        disk, place = self._disk, self.place
        if self._torn:
            Sidecar(disk, self._root).quarantine(posixpath.basename(place.delta), self._torn)
        ensure_directory(self._log, place.directory)
        created_ms = now_ms if self._created_ms is None else max(now_ms, self._created_ms + 1)
        acked_until, inflight = self.machine.snapshot()
        snapshot = encode_snapshot(
            acked_until, inflight, created_ts_ms=created_ms,
            tp_hash=place.name.tp_hash, group_hash=place.name.group_hash,
        )  # fmt: skip
        header = delta_header(created_ms)
        delta = b"".join([header, encode_runs(self.machine.leftover())])
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

    def _replace(self, suffix: str, path: str, content: bytes) -> None:
        """As `replace_file` does, but for the directory that the file leaves: a name that stays there does no harm."""
        temporary = self.place.temporary(suffix)
        if self._disk.kind(temporary) != Kind.MISSING:
            self._disk.remove(temporary)
        file = self._disk.create(temporary)
        try:
            write_all(file, 0, content)
            file.sync()
        finally:
            file.close()
        self._check_same()
        self._disk.replace(temporary, path)
        self._disk.sync_directory(posixpath.dirname(path))

    def sync(self, ticket: Ticket) -> None:
        """Return when the events before the ticket are on the disk. Without the lock."""
        synced, end, created_ms = self._synced, self._end, self._created_ms
        # Whoever replaced the delta since had seen those events, and his files are on the disk.
        if ticket.created_ms != created_ms or ticket.file is None:
            self._sync_name(created_ms)
            return
        if ticket.created_ms == synced.created_ms and ticket.end <= synced.end:
            return
        ticket.file.sync()
        self._sync_name(created_ms)
        if self._synced is synced and self._created_ms == ticket.created_ms:
            self._synced = Ticket(created_ms, end, None)

    def _sync_name(self, created_ms: int | None) -> None:
        if created_ms is not None and self._named_ms != created_ms:
            self._disk.sync_directory(self.place.directory)
            self._named_ms = created_ms

    def delete(self) -> bool:
        """Remove the files; False where there are none. Under the lock."""
        there = [path for path in (self.place.snap, self.place.delta) if self._disk.kind(path) != Kind.MISSING]
        for path in there:
            self._disk.remove(path)
        if there:
            self._disk.sync_directory(self.place.directory)
        self.machine, self.exists, self._created_ms, self._end, self._file = Machine(), False, None, 0, None
        self.forget()
        return bool(there)


def _joined(runs: Sequence[Run]) -> list[Run]:
    """The same with fewer runs: records that go out together are one, and of bumps that follow each other the last."""
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
