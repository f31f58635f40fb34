"""Which consumer holds which records: a journal beside the group's state. It informs people; no decision depends on it.

One line per fetch: time, consumer, runs of offsets with their epochs, and a checksum::

    1700000000000 worker-1 0-5:1,9-10:2 1a2b3c4d

The group writes it under its lock, without a sync, and drops the lines of settled records when it rewrites its files. A
line that cannot be read is skipped, and a line counts only as far as its leases are still those of the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from duramen.consumers.files import GroupFiles
from duramen.consumers.groups.interval_map import IntervalMap
from duramen.consumers.groups.state_machine import LeaseClaim, StateMachine
from duramen.disk import Disk, File, Kind, map_if_exists, write_all
from duramen.errors import StorageError
from duramen.names import decode_name, encode_name
from duramen.sidecar import add_checksum, checked_body, create_file

MAX_BYTES = 64 << 20


class Member(NamedTuple):
    """A consumer that holds records of a group."""

    consumer: str | None
    """None: the journal does not say."""
    in_flight: int
    oldest_ms: int | None
    """When it fetched the oldest of them."""


class InFlight(NamedTuple):
    """A run of records in flight with one holder."""

    start: int
    end: int
    epoch: int
    """Delivery attempt (1 = first)."""
    deadline_ms: int
    consumer: str | None
    fetched_ms: int | None


class _Fetch(NamedTuple):
    fetched_ms: int
    consumer: str
    claims: list[LeaseClaim]

    def encode(self) -> bytes:
        runs = ",".join(f"{start}-{end}:{epoch}" for start, end, epoch in self.claims)
        return add_checksum(f"{self.fetched_ms} {encode_name(self.consumer)} {runs}".encode())

    @classmethod
    def decode(cls, line: bytes) -> _Fetch:
        """`ValueError` for anything that `encode` did not return."""
        at, name, runs = checked_body(line).decode().split(" ")
        claims = []
        for run in runs.split(","):
            span, _, epoch = run.partition(":")
            start, _, end = span.partition("-")
            claims.append(LeaseClaim(int(start), int(end), int(epoch)))
        return cls(int(at), decode_name(name) or "?", claims)


class MemberJournal:
    """The journal of one group. Used under the group's lock."""

    def __init__(self, disk: Disk, place: GroupFiles) -> None:
        self._disk = disk
        self._place = place
        self._file: File | None = None
        self._noted: list[_Fetch] = []

    def note(self, consumer: str, claims: Iterable[LeaseClaim], now_ms: int) -> None:
        """Note a fetch; `flush` writes it."""
        self._noted.append(_Fetch(now_ms, consumer, list(claims)))

    def forget(self) -> None:
        """Discard what is not written, and find the file again: another process may have replaced it."""
        self._noted.clear()
        self._file = None

    def flush(self) -> None:
        if not self._noted:
            return
        with suppress(StorageError):  # a fetch does not fail for want of its line
            if self._file is None:
                exists = self._disk.kind(self._place.members) == Kind.FILE
                self._file = (self._disk.open if exists else self._disk.create)(self._place.members)
            write_all(self._file, self._file.size(), b"".join(fetch.encode() for fetch in self._noted))
        self._noted.clear()

    def rewrite(self, machine: StateMachine) -> None:
        """Drop the lines of settled records."""
        self._file = None
        with suppress(StorageError):
            if self._disk.kind(self._place.members) == Kind.FILE:
                kept = [fetch.encode() for fetch in self._read() if any(_held(machine, fetch))]
                create_file(self._disk, self._place.temporary("members"), b"".join(kept))
                self._disk.replace(self._place.temporary("members"), self._place.members)

    def in_flight(self, machine: StateMachine) -> list[InFlight]:
        """Everything in flight with its holder, by offset."""
        self.flush()
        known: IntervalMap[tuple[str, int] | None] = IntervalMap()
        for fetch in self._read():
            for start, end in _held(machine, fetch):
                known.put(start, end, (fetch.consumer, fetch.fetched_ms))
        found = []
        for start, end, lease in machine.leases:
            at = start
            for span in known.within(start, end):
                if at < span.start:
                    found.append(InFlight(at, span.start, lease.epoch, lease.deadline_ms, None, None))
                consumer, fetched_ms = span.value or (None, None)
                found.append(InFlight(span.start, span.end, lease.epoch, lease.deadline_ms, consumer, fetched_ms))
                at = span.end
            if at < end:
                found.append(InFlight(at, end, lease.epoch, lease.deadline_ms, None, None))
        return found

    def _read(self) -> Iterator[_Fetch]:
        data = map_if_exists(self._disk, self._place.members)
        for line in bytes(data[:MAX_BYTES]).splitlines(keepends=True) if data is not None else ():
            with suppress(ValueError):
                yield _Fetch.decode(line)


def _held(machine: StateMachine, fetch: _Fetch) -> Iterator[tuple[int, int]]:
    """The offsets of a fetch that are still leased as it leased them."""
    for start, end, epoch in fetch.claims:
        for span in machine.leases.within(start, end):
            if span.value.epoch == epoch:
                yield span.start, span.end


def members_of(held: Iterable[InFlight], now_ms: int) -> list[Member]:
    """The consumers whose leases have not ended, sorted by name; those without a name last."""
    found: dict[str | None, Member] = {}
    for run in held:
        if run.deadline_ms > now_ms:
            before = found.get(run.consumer, Member(run.consumer, 0, None))
            times = [time for time in (before.oldest_ms, run.fetched_ms) if time is not None]
            found[run.consumer] = Member(run.consumer, before.in_flight + run.end - run.start, min(times, default=None))
    return sorted(found.values(), key=lambda member: (member.consumer is None, member.consumer or ""))


def members_in(disk: Disk, place: GroupFiles, machine: StateMachine, now_ms: int) -> list[Member]:
    """The consumers that hold records according to the files of a group, without its lock."""
    return members_of(MemberJournal(disk, place).in_flight(machine), now_ms)
