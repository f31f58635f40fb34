"""A consumer group: delivers each record under a lease until a consumer acknowledges it.

Promises:

- **At least once.** The group redelivers a record until a consumer acknowledges it, across crashes. It never skips one:
  if its state is damaged or lost, it delivers records again.
- **One holder.** Until its deadline, one consumer holds a record, whichever thread or process fetches. After the
  deadline the group delivers the record again with the next epoch, and from then on refuses the former holder's ack
  (`LeaseError`). Until then a late ack counts.
- **An ack that returned is kept.** With ``durability="fsync"``, the default, it survives a power loss; with ``"write"``
  a killed process. Deliveries are written, not synced: after a power loss the records are delivered again.

Threads share one `Group` (``log.group(name)`` returns the same object); processes share its files. Concurrent calls
take the lock once and sync once. Deadlines use the wall clock because they outlive processes. A clock that jumps ahead
ends leases early, which costs a second delivery, never a record.
"""

from __future__ import annotations

import logging
import os
import posixpath
import socket
import threading
import time
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any, NamedTuple, Self, TypedDict, TypeVar, Unpack

import numpy as np

from duramen.arguments import check_int, check_timeout
from duramen.consumers.cursors import Cursor
from duramen.consumers.files import GroupFiles, files_of
from duramen.consumers.groups.consume import ConsumeLoop, ConsumeOptions
from duramen.consumers.groups.dead_letters import DeadLetters, Target, origin_of, path_of
from duramen.consumers.groups.deliveries import (
    Delivery,
    DeliveryBatch,
    Handed,
    Seconds,
    claims_of,
    joined_claims,
    to_ms,
)
from duramen.consumers.groups.dispatcher import Dispatcher, FetchRequest, Part, checked_position, offset_in
from duramen.consumers.groups.members import InFlight, Member, members_of
from duramen.consumers.groups.policy import GroupPolicy, agree, read_policy, relative, write_policy
from duramen.consumers.groups.state_machine import Decision, LeaseClaim, Refused, runs_of
from duramen.consumers.groups.store import COMPACT_BYTES, COMPACT_IN_FLIGHT, GroupStore, Ticket
from duramen.errors import CorruptionError, LeaseError, PoisonedError, UsageError, printable
from duramen.log import GroupCommit, GroupLimits, Log, Request, Time, WritableLog, refuse_owned
from duramen.names import check_name

logger = logging.getLogger("duramen.consumers")

S = TypeVar("S")
T = TypeVar("T")

WINDOW = 1_000_000
POLL_S = 0.1
"""Longest sleep of a waiting fetch before it checks again for records that other consumers returned."""


class GroupOptions(TypedDict, total=False):
    """The keyword arguments of `Group`, as a type."""

    start: str | int
    lease: Seconds | None
    max_attempts: int | None
    dead_letter: Target | None
    update_policy: bool
    durability: str
    window: int
    on_damage: str
    create: bool
    compact_bytes: int
    compact_in_flight: int
    clock: Callable[[], int] | None


def check_group_options(options: Mapping[str, object]) -> None:
    """`UsageError` for an option that `Group` does not have."""
    if unknown := options.keys() - GroupOptions.__annotations__.keys():
        raise UsageError(
            f"a group has no option {min(unknown)!r}",
            hint=f"its options are {', '.join(GroupOptions.__annotations__)}",
        )


class GroupStatus(NamedTuple):
    """State of a group. Counts are in offsets."""

    name: str
    acked_until: int
    """Every offset before this one is acknowledged."""
    next_offset: int
    """Next offset of the log."""
    lag: int
    """Not acknowledged: in flight or never delivered."""
    in_flight: int
    expired: int
    """In flight with a deadline in the past: will be delivered again."""
    acked_ahead: int
    """Acknowledged after an offset that is not."""
    next_deadline_ms: int | None
    warnings: tuple[str, ...] = ()


class Replayed(NamedTuple):
    """Result of a replay of dead letters."""

    replayed: int
    """Records that the group delivers again."""
    missing: int
    """Records that the log does not hold any more."""


class Group:
    """A consumer group of a log, created by ``log.group(name)``. Times are in seconds; ``clock`` returns milliseconds
    since 1970.

    >>> import tempfile, duramen
    >>> with duramen.open(tempfile.mkdtemp() + "/orders", "a") as log:
    ...     _ = log.append_batch([b"a", b"b", b"c"])
    ...     group = log.group("billing")
    ...     first, second = group.fetch(2, lease=30)
    ...     print(group.ack(first), group.nack(second))
    ...     print([(delivery.offset, delivery.epoch) for delivery in group.fetch(10)])
    True 1
    [(1, 2), (2, 1)]
    """

    def __init__(
        self,
        log: Log,
        name: str,
        *,
        start: str | int = "beginning",
        consumer: str | None = None,
        lease: Seconds | None = None,
        max_attempts: int | None = None,
        dead_letter: Target | None = None,
        update_policy: bool = False,
        durability: str = "fsync",
        window: int = WINDOW,
        on_damage: str = "raise",
        create: bool = True,
        compact_bytes: int = COMPACT_BYTES,
        compact_in_flight: int = COMPACT_IN_FLIGHT,
        clock: Callable[[], int] | None = None,
    ) -> None:
        place = _place(log, name, create=create)
        _check_options(on_damage, max_attempts, window)
        self.name = name
        self.consumer = None if consumer is None else check_name("consumer", consumer)
        self._log = log
        self._durability = _checked(durability)
        if clock is not None and not callable(clock):
            raise UsageError(f"clock must be a function that returns milliseconds since 1970 (got {clock!r:.80})")
        self._clock = clock or _now_ms
        self._store = GroupStore(
            log, place, on_damage=on_damage, compact_bytes=compact_bytes, compact_in_flight=compact_in_flight
        )
        self._dead_letters = None if dead_letter is None else DeadLetters(dead_letter, name, log)
        self._dispatcher = Dispatcher(log, self._store, checked_position(start), window, self._dead_letters)
        self._stated = _stated(log, lease, max_attempts, dead_letter)
        self._updates_policy = update_policy
        self._settle_policy()
        self._mutex = threading.RLock()
        """Held by the thread that holds the file lock for this process; never taken twice."""
        self._turns = GroupCommit(self._take_turn, GroupLimits(), patience=0.0)  # no sync to share
        self._acks = GroupCommit(self._ack_together, GroupLimits())

    # --- the policy

    @property
    def policy(self) -> GroupPolicy:
        """What all consumers of the group agree on."""
        return self._policy

    def _settle_policy(self) -> None:
        """Take over the stored policy, or raise if this handle contradicts it."""
        damage: list[CorruptionError] = []
        try:
            stored = read_policy(self._log.disk, self._store.place.policy)
        except CorruptionError as error:
            if not self._store.mends:
                raise
            stored, damage = None, [error]
        self._policy_damage = damage
        self._policy = agree(stored, self._stated, update=self._updates_policy, group=self.name, path=self._log.path)
        self._is_policy_stored = not damage and self._policy == (stored or GroupPolicy())
        self._dispatcher.max_attempts = None if self._dead_letters is None else self._policy.max_attempts

    def _store_policy(self) -> None:
        """Store the policy with the group's first state. Under the lock."""
        if not self._is_policy_stored and self._store.exists:
            self._settle_policy()
            self._store.set_aside(self._policy_damage)
            write_policy(self._log.state_disk, self._store.place.policy, self._policy)
            self._is_policy_stored, self._updates_policy = True, False

    def as_consumer(self, name: str) -> Self:
        """The same group for the consumer with this name, which `members` lists."""
        view = copy(self)
        view.consumer = check_name("consumer", name)
        return view

    # --- fetching

    def fetch(self, max: int = 1, lease: Seconds | None = None, *, timeout_s: float = 0.0) -> list[Delivery]:
        """Return up to ``max`` records, each leased to the caller for ``lease`` seconds (default: the group's lease).
        Records with expired leases come first. Wait up to ``timeout_s`` for the first record; may return an empty
        list."""
        return list(self.fetch_batch(max, lease, timeout_s=timeout_s))

    def fetch_batch(self, max: int = 1, lease: Seconds | None = None, *, timeout_s: float = 0.0) -> DeliveryBatch:
        """Like `fetch`, as an Arrow batch without an object per record."""
        max = check_int("max", max, least=1)
        lease_ms = self._policy.lease_ms if lease is None else to_ms(lease, "lease")
        self._check_dead_letters()
        consumer = self.consumer or f"{socket.gethostname()}-{os.getpid()}"
        until = time.monotonic() + check_timeout(timeout_s)
        seen: object = None
        while True:
            batch, next_deadline_ms = self._turn(FetchRequest(max, lease_ms, consumer))
            left_s = until - time.monotonic()
            if len(batch):
                self._dispatcher.ahead.read_on(batch.claims[-1].end)
                return batch
            if left_s <= 0:
                return batch
            due_s = POLL_S if next_deadline_ms is None else (next_deadline_ms - self._clock()) / 1000
            seen = self._log.wait(min(left_s, POLL_S, due_s if due_s > 0 else 0.001), seen)

    def _check_dead_letters(self) -> None:
        if self._policy.max_attempts is not None and self._dead_letters is None:
            raise UsageError(
                f"the group {self.name!r} moves records to {self._policy.dead_letter!r} after "
                f"{self._policy.max_attempts} deliveries, and this handle names no dead_letter",
                path=self._log.path,
                hint="open it with dead_letter=…; a path in a file is not followed",
            )

    def consume(self, **options: Unpack[ConsumeOptions]) -> ConsumeLoop[Delivery]:
        """A loop over the deliveries that extends leases, acknowledges, returns and stops: see `ConsumeLoop`."""
        return ConsumeLoop(self, **options)

    @property
    def lease_s(self) -> float:
        """The lease of a fetch that names none."""
        return self._policy.lease_ms / 1000

    # --- giving back

    def ack(self, handed: Delivery | int, epoch: int | None = None, *, durability: str | None = None) -> bool:
        """Acknowledge one delivery, or an offset with its epoch; without an epoch, for any holder. Return False if it
        was acknowledged before. `LeaseError` if the record was delivered again, or a reset ended the lease."""
        return self.ack_many(handed, epoch, durability=durability) > 0

    def ack_many(self, handed: Handed, epochs: Any = None, *, durability: str | None = None) -> int:
        """Acknowledge deliveries, a batch, or offsets with their epochs. Return how many were not acknowledged before.
        If the caller no longer holds some of them, acknowledge the others, then raise a `LeaseError` that lists the
        refused ones."""
        claims = claims_of(handed, epochs)
        if _checked(durability or self._durability) == "fsync":
            self._check_usable()
            decision: Decision = self._acks.submit(Request(claims, 0, 0))
        else:
            decision = self._turn(partial(self._ack, claims))
        return self._settled(decision, "acknowledged")

    def _ack(self, claims: list[LeaseClaim], now_ms: int) -> Decision:
        decision = self._store.machine.ack(claims)
        self._store.write(decision.runs, now_ms)
        return decision

    def _ack_together(self, requests: list[Request]) -> None:
        """Acknowledge for all waiting callers, sorted by offset, and sync once."""
        self._check_usable()
        requests.sort(key=_first_offset)
        with self._mutex:
            decisions, ticket = self._under_lock(requests, self._serve_acks, self._store.ticket)
        self._sync(ticket)
        for request, decision in zip(requests, decisions, strict=True):
            request.result = decision

    def _serve_acks(self, requests: list[Request], now_ms: int) -> list[Decision | None]:
        """Decide each request: all at once if every claim holds, which is the normal case, otherwise one by one."""
        joined = joined_claims(claim for request in requests for claim in request.work)
        if joined is not None and len(requests) > 1:
            decision = self._store.machine.ack(joined)
            counts = [sum(claim.end - claim.start for claim in request.work) for request in requests]
            if not decision.refused and decision.offsets == sum(counts):
                self._store.write(decision.runs, now_ms)
                return [Decision([], count, []) for count in counts]
        return [self._attempt(request, self._ack, request.work, now_ms) for request in requests]

    def nack(
        self, handed: Handed, epochs: Any = None, *, delay: Seconds = 0.0, reason: str = "returned by its consumer"
    ) -> int:
        """Return deliveries for redelivery now or after ``delay`` seconds. Records delivered ``max_attempts`` times
        move to the dead letters, with the reason. Return the number of records."""
        claims = claims_of(handed, epochs)
        return self._settled(self._turn(partial(self._nack, claims, to_ms(delay, "delay"), reason)), "given back")

    def _nack(self, claims: list[LeaseClaim], delay_ms: int, reason: str, now_ms: int) -> Decision:
        machine = self._store.machine
        moved = 0
        most = self._dispatcher.max_attempts
        for run in machine.held(claims) if most is not None else ():
            if most is not None and run.epoch >= most:
                rows = self._dispatcher.rows_of(run)
                self._dispatcher.move(rows, run.epoch, reason, now_ms)
                moved += sum(len(offsets) for _, offsets in rows)
        decision = machine.lease(claims, now_ms + delay_ms)
        self._store.write(decision.runs, now_ms)
        return decision._replace(offsets=decision.offsets + moved)

    def extend(self, handed: Handed, lease: Seconds | None = None, epochs: Any = None) -> int:
        """Extend leases to ``lease`` seconds from now; return the new deadline in milliseconds. Existing `Delivery`
        objects remain valid for `ack`. Acknowledged deliveries are ignored. `LeaseError` if all are acknowledged,
        because another consumer may have processed them, or if the caller no longer holds one."""
        lease_ms = self._policy.lease_ms if lease is None else to_ms(lease, "lease")
        claims = claims_of(handed, epochs)
        deadlines: list[int] = []

        def extended(now_ms: int) -> Decision:
            deadlines.append(now_ms + lease_ms)
            decision = self._store.machine.lease(claims, now_ms + lease_ms)
            self._store.write(decision.runs, now_ms)
            refused = decision.refused if decision.offsets else decision.refused or self._store.machine.done(claims)
            return decision._replace(refused=refused)

        self._settled(self._turn(extended), "extended")
        return deadlines[-1]

    def _settled(self, decision: Decision, done: str) -> int:
        if decision.refused:
            raise _refusal(self._log.path, self.name, decision.refused, decision.offsets, done)
        return decision.offsets

    # --- standing

    def status(self) -> GroupStatus:
        """Return the state of the group."""
        return self._turn(self._status)

    def _status(self, now_ms: int) -> GroupStatus:
        machine = self._store.machine
        next_offset = self._log.next_offset
        if not self._store.exists:
            start = min(self._dispatcher.start_offset(), next_offset)
            return GroupStatus(self.name, start, next_offset, next_offset - start, 0, 0, 0, None)
        start, _ = machine.fresh()
        if start < next_offset and self._dispatcher.ahead.at(start) is None:
            machine.skip(start, next_offset)  # the log's last offsets hold no records
        acked_until = max(machine.acked_until, self._log.first_offset)
        lag = max(next_offset - acked_until - machine.acked_below(next_offset), 0)
        return GroupStatus(
            self.name, acked_until, next_offset, lag, machine.in_flight, machine.expired(now_ms),
            len(machine.acked), machine.next_deadline_ms(), tuple(self._store.warnings),
        )  # fmt: skip

    def members(self) -> list[Member]:
        """The consumers that hold records now, in every process."""

        def found(now_ms: int) -> list[Member]:
            return members_of(self._store.members.in_flight(self._store.machine), now_ms)

        return self._turn(found)

    def stuck(self, *, attempts: int = 3, held: Seconds = 600.0) -> list[InFlight]:
        """Runs of records in flight that were delivered at least ``attempts`` times, or that one consumer has held for
        at least ``held`` seconds. Sorted by offset."""
        attempts, held_ms = check_int("attempts", attempts), to_ms(held, "held")

        def found(now_ms: int) -> list[InFlight]:
            runs = self._store.members.in_flight(self._store.machine)
            return [run for run in runs if run.epoch >= attempts or now_ms - (run.fetched_ms or now_ms) >= held_ms]

        return self._turn(found)

    @property
    def acked_until(self) -> int:
        """Every offset before this one is acknowledged."""
        return self.status().acked_until

    @property
    def lag(self) -> int:
        return self.status().lag

    @property
    def in_flight(self) -> int:
        return self.status().in_flight

    # --- steering

    def begin(self, start: str | int | None = None) -> bool:
        """Start a new group at ``start`` (default: its option) now instead of at the first fetch. Return False if it
        has already started."""

        def begun(now_ms: int) -> bool:
            if self._store.exists:
                return False
            self._dispatcher.begin(now_ms, None if start is None else checked_position(start))
            return True

        return self._turn(begun)

    def reset(self, to: int | str | None = None, *, time: Time | None = None) -> int:
        """Move the group to a position (an offset, ``"beginning"`` or ``"end"``) or to the first record at or after a
        time; return the offset. Earlier records count as acknowledged, later ones are delivered (again). All leases
        end."""
        if (to is None) == (time is None):
            raise UsageError("reset needs exactly one of an offset and a time")
        if time is not None:
            offset = self._log.offset_at(time)
        else:
            offset = offset_in(self._log, checked_position(to, "the position"))
        return self._turn(partial(self._reset, offset))

    def _reset(self, offset: int, now_ms: int) -> int:
        self._store.restart(self._store.machine.reset(offset), now_ms)
        return offset

    def replay(
        self, dead_letter: Target | None = None, *, from_offset: int | None = None, dry_run: bool = False
    ) -> Replayed:
        """Deliver the records again that moved from this group to the dead letters, with epoch 1, to this group only.
        The dead letters stay where they are. A cursor in their log remembers how far they were replayed; a replay
        starts there, or at ``from_offset``."""
        known = None if self._dead_letters is None else self._dead_letters.target
        target = known if dead_letter is None else dead_letter
        if target is None:
            raise UsageError(
                "replay needs the log of the dead letters", path=self._log.path,
                hint=f"the policy of the group names {self._policy.dead_letter!r}",
            )  # fmt: skip
        if isinstance(target, WritableLog):
            return self._replay(target, from_offset, dry_run)
        with Log(path_of(target), disk=self._log.disk) as log:
            return self._replay(log, from_offset, dry_run)

    def _replay(self, dead: Log, from_offset: int | None, dry_run: bool) -> Replayed:
        cursor = Cursor(dead, f"replay {self._store.place.name.stem}")
        start = max(cursor.load() or 0, dead.first_offset) if from_offset is None else from_offset
        until, source = dead.next_offset, posixpath.abspath(self._log.path)
        origins = (origin_of(record) for record in dead.scan(start, until))
        offsets = {one.offset for one in origins if one is not None and one[:2] == (self.name, source)}
        first = self._log.first_offset
        present = np.array(sorted(offset for offset in offsets if offset >= first), np.int64)
        if not dry_run:
            if len(present):
                self._turn(partial(self._reopen, runs_of(present)))
            cursor.store(until)
        return Replayed(len(present), len(offsets) - len(present))

    def _reopen(self, spans: list[tuple[int, int]], now_ms: int) -> bool:
        self._store.restart(self._store.machine.reopen(spans), now_ms)
        return True

    def compact(self) -> None:
        """Write a new snapshot and start a new delta; the group also does this by itself."""
        self._turn(self._compact)

    def _compact(self, now_ms: int) -> bool:
        self._store.rewrite(now_ms)
        return True

    def rewind(self) -> bool:
        """Forget records after the log's end, which a power loss removed before they were synced: new records will
        reuse their offsets. Opening the log for append does this."""
        next_offset = self._log.next_offset

        def rewound(now_ms: int) -> bool:
            if self._store.machine.top() <= next_offset:
                return False
            self._store.restart(self._store.machine.rewind(next_offset), now_ms)
            return True

        return self._turn(rewound)

    def delete(self) -> bool:
        """Delete the group's state; return False if there was none."""

        def deleted(now_ms: int) -> bool:
            return self._store.delete()

        return self._turn(deleted, refresh=False)

    def close(self) -> None:
        """Close the group. Its deliveries go to other consumers after their deadlines."""
        refuse_owned(self._mutex)
        with self._mutex:
            self._store.close()

    @property
    def is_usable(self) -> bool:
        return not self._store.is_closed and self._store.poison is None

    @property
    def is_poisoned(self) -> bool:
        """Whether a sync failed, so that the delta's state on the disk is unknown."""
        return self._store.poison is not None

    def distrust(self) -> None:
        """Rewrite both files before the next change: their present content may never reach the disk."""
        self._store.must_rewrite = True

    def __repr__(self) -> str:
        return f"<duramen.Group {self.name!r} of {self._log.path!r}>"

    # --- turns

    def _turn(self, work: Any, *, refresh: bool = True) -> Any:
        """Run ``work`` (a function of the current time, or a `FetchRequest`) under the lock, on the current state."""
        self._check_usable()
        return self._turns.submit(Request(work, 0, 0, alone=not refresh))

    def _take_turn(self, requests: list[Request]) -> None:
        with self._mutex:
            results, _ = self._under_lock(requests, self._serve, _nothing)
        for request, result in zip(requests, results, strict=True):
            request.result = result

    def _serve(self, requests: list[Request], now_ms: int) -> list[Any]:
        """Return the results: first the calls, one by one, then the fetches, together if possible."""
        results: list[Any] = [None] * len(requests)
        fetching: list[int] = []
        for place, request in enumerate(requests):
            if isinstance(request.work, FetchRequest):
                fetching.append(place)
            else:
                results[place] = self._attempt(request, request.work, now_ms)
        shares: list[Part | None] = [None] * len(fetching)
        if len(fetching) > 1:
            shares = self._dispatcher.fetch_together([requests[place].work for place in fetching], now_ms)
        for place, share in zip(fetching, shares, strict=True):
            results[place] = self._attempt(requests[place], self._dispatcher.fetch, requests[place].work, share, now_ms)
        return results

    def _attempt(self, request: Request, act: Callable[..., T], *arguments: Any) -> T | None:
        """Give an error to its own caller only, unless it undid the work of other callers in this turn."""
        try:
            return act(*arguments)
        except Exception as error:
            if self._store.is_forgotten:
                if self._store.has_lost:
                    raise
                self._store.refresh()
            request.error = error
            return None

    def _under_lock(
        self, requests: list[Request], serve: Callable[[list[Request], int], T], finish: Callable[[], S]
    ) -> tuple[T, S]:
        """Serve the requests on the current state and write all resulting events, before any caller returns."""
        store = self._store
        store.enter()
        try:
            if not requests[0].alone:
                store.refresh()
            now_ms = self._clock()
            self._dispatcher.begin_turn()
            results = serve(requests, now_ms)
            self._store_policy()
            store.flush(now_ms)
            finished = finish()
        except BaseException:  # file and state may differ: read the file again
            store.forget()
            raise
        finally:
            store.leave()
        return results, finished

    def _sync(self, ticket: Ticket) -> None:
        try:
            self._store.sync(ticket)
        except BaseException as error:
            self._store.poison = error
            extra = {"path": self._log.path, "group": self.name, "error": type(error).__name__}
            logger.error(
                "the group %r of %s stops: %s", self.name, printable(self._log.path), printable(error), extra=extra
            )
            raise

    def _check_usable(self) -> None:
        refuse_owned(self._mutex)
        self._log._check_open()
        if self._store.is_closed:
            raise UsageError(f"the group {self.name!r} is closed", path=self._log.path)
        if self._store.poison is not None:
            raise PoisonedError(
                f"a sync of the group {self.name!r} failed: {self._store.poison}",
                path=self._store.place.delta,
                hint="close the log and reopen it",
            ) from self._store.poison


def _place(log: Log, name: str, *, create: bool) -> GroupFiles:
    place, exists = files_of(log, name)
    if not exists and not create:
        raise UsageError(
            f"the log has no group {name!r}", path=log.path, hint="`duramen group PATH list` lists the groups"
        )
    return place


def _stated(log: Log, lease: Seconds | None, max_attempts: int | None, dead_letter: Target | None) -> dict[str, Any]:
    """The part of the policy that the caller states."""
    return {
        **({} if lease is None else {"lease_ms": to_ms(lease, "lease")}),
        **({} if max_attempts is None else {"max_attempts": max_attempts}),
        **({} if dead_letter is None else {"dead_letter": relative(path_of(dead_letter), log.path)}),
    }


def _check_options(on_damage: str, max_attempts: int | None, window: int) -> None:
    if on_damage not in ("raise", "redeliver"):
        raise UsageError(f"on_damage must be 'raise' or 'redeliver' (got {on_damage!r})")
    check_int("window", window, least=1)
    if max_attempts is not None:
        check_int("max_attempts", max_attempts, least=1)


def _nothing() -> None:
    """Finish a turn that needs no sync."""


def _first_offset(request: Request) -> int:
    claims: list[LeaseClaim] = request.work
    return claims[0].start if claims else 0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _checked(durability: str) -> str:
    if durability not in ("write", "fsync"):
        raise UsageError(f"durability must be 'write' or 'fsync' for acks (got {durability!r})")
    return durability


def _refusal(path: str, group: str, refused: list[Refused], done: int, verb: str) -> LeaseError:
    first = refused[0]
    count = sum(part.end - part.start for part in refused)
    others = f"; {count - 1} more of them refused, {done} {verb}" if count > 1 or done else ""
    return LeaseError(
        f"not {verb} in group {group!r}: {first.why}{others}", path=path, offset=first.start,
        refused=tuple((part.start, part.end, part.why) for part in refused),
        hint="the group delivers the record to another consumer" if "in flight" not in first.why else None,
    )  # fmt: skip
