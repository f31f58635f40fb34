"""A consumer group: records go out under a lease, and come back acknowledged, returned, or not at all.

What is promised:

- **At least once.** A record is delivered until somebody acknowledges it, in every order and over every crash. It is
  never skipped: where the state is damaged or lost, records are delivered again.
- **One holder.** Until its deadline a record is its holder's alone, whatever thread or process asks. After it, the
  record goes out again with its epoch raised by one, and the former holder's ack is refused (`LeaseError`).
- **An ack that was answered stays.** At ``durability="fsync"``, the default, over a power loss; at ``"write"`` over a
  killed process. Deliveries are written, not synced: a power loss ends all their holders.

Threads share one `Group` (``log.group(name)`` gives the same one); processes share its files. Calls that arrive
together take the lock, and sync, once. The clock is the wall clock, because deadlines outlive processes: one that
jumps ahead lets leases end early, which costs a second delivery, never a record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from operator import index
from typing import Any, NamedTuple, TypeVar

from duramen.errors import LeaseError, PoisonedError, UsageError
from duramen.groups.dead_letters import DeadLetters, Target
from duramen.groups.deliveries import Delivery, DeliveryBatch, Handed, Seconds, claims_of, joined_claims, to_ms
from duramen.groups.fetching import Fetching, Part, Wish, offset_in
from duramen.groups.journal import COMPACT_BYTES, COMPACT_IN_FLIGHT, Journal, Ticket
from duramen.groups.machine import Claim, Decision, Refused
from duramen.groups.places import place_of
from duramen.log.commit import GroupCommit, GroupLimits, Request, refuse_owned
from duramen.log.reader import Log
from duramen.log.window import Time
from duramen.log.writer import DURABILITIES

S = TypeVar("S")
T = TypeVar("T")

DEFAULT_LEASE_S = 30.0
WINDOW = 1_000_000
POLL_S = 0.1
"""How long a waiting fetch sleeps at most before it looks again: for records that others gave back."""


class GroupStatus(NamedTuple):
    """How a group stands. Counts are of offsets."""

    name: str
    acked_until: int
    """Everything before is acknowledged."""
    next_offset: int
    """The log's."""
    lag: int
    """Not acknowledged yet: in flight, or not even delivered."""
    in_flight: int
    expired: int
    """Of those in flight: the deadline has passed, so they will be delivered again."""
    acked_ahead: int
    """Acknowledged behind something that is not."""
    next_deadline_ms: int | None
    warnings: tuple[str, ...] = ()


class Group:
    """A consumer group of a log. Made by ``log.group(name)``.

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
        lease: Seconds = DEFAULT_LEASE_S,
        max_attempts: int | None = None,
        dead_letter: Target | None = None,
        durability: str = "fsync",
        window: int = WINDOW,
        on_damage: str = "raise",
        create: bool = True,
        compact_bytes: int = COMPACT_BYTES,
        compact_in_flight: int = COMPACT_IN_FLIGHT,
        clock: Callable[[], int] | None = None,
    ) -> None:
        place, exists = place_of(log, name)
        if not exists and not create:
            raise UsageError(f"there is no group {name!r}", path=log.path, hint="`duramen group PATH list` shows them")
        if on_damage not in ("raise", "redeliver"):
            raise UsageError(f"on_damage={on_damage!r} is neither 'raise' nor 'redeliver'")
        if (max_attempts is None) != (dead_letter is None):
            raise UsageError("max_attempts and dead_letter belong together", path=log.path)
        for option, number in {"max_attempts": max_attempts, "window": window, "compact_bytes": compact_bytes}.items():
            if number is not None and number < 1:
                raise UsageError(f"{option}={number} is not 1 or more")
        self.name = name
        self._log = log
        self._lease_ms = to_ms(lease, "lease")
        self._durability = _checked(durability)
        self._clock = clock or _now_ms
        self._journal = Journal(
            log, place, on_damage=on_damage, compact_bytes=compact_bytes, compact_in_flight=compact_in_flight
        )
        dead_letters = None if dead_letter is None else DeadLetters(dead_letter, name, log)
        self._fetching = Fetching(log, self._journal, start, window, max_attempts, dead_letters)
        self._mutex = threading.RLock()
        """Held by whoever holds the lock for this process; nobody takes it twice."""
        self._turns = GroupCommit(self._take_turn, GroupLimits(), patience=0.0)  # no sync to share
        self._acks = GroupCommit(self._ack_together, GroupLimits())
        self._poison: BaseException | None = None
        self._closed = False

    # --- fetching

    def fetch(self, max: int = 1, lease: Seconds | None = None, *, timeout_s: float = 0.0) -> list[Delivery]:
        """Up to ``max`` records, each yours for ``lease`` seconds (the group's, unless given). Records whose deadline
        has passed come first. With ``timeout_s``, waits for the first one; an empty list when there is none."""
        return list(self.fetch_batch(max, lease, timeout_s=timeout_s))

    def fetch_batch(self, max: int = 1, lease: Seconds | None = None, *, timeout_s: float = 0.0) -> DeliveryBatch:
        """The same as an Arrow batch, without an object per record."""
        if index(max) < 1:
            raise UsageError(f"max={max} is not 1 or more")
        lease_ms = self._lease_ms if lease is None else to_ms(lease, "lease")
        until = time.monotonic() + timeout_s
        seen: object = None
        while True:
            batch, next_deadline_ms = self._turn(Wish(max, lease_ms))
            left_s = until - time.monotonic()
            if len(batch):
                self._fetching.ahead.read_on(batch.claims[-1].end)
                return batch
            if left_s <= 0:
                return batch
            due_s = POLL_S if next_deadline_ms is None else (next_deadline_ms - self._clock()) / 1000
            seen = self._log.wait(min(left_s, POLL_S, due_s if due_s > 0 else 0.001), seen)

    # --- giving back

    def ack(self, handed: Delivery | int, epoch: int | None = None, *, durability: str | None = None) -> bool:
        """Acknowledge one delivery, or an offset with its epoch; without an epoch, whoever holds it. False where it
        was acknowledged before. `LeaseError` where the lease is not held any more."""
        return self.ack_many(handed, epoch, durability=durability) > 0

    def ack_many(self, handed: Handed, epochs: Any = None, *, durability: str | None = None) -> int:
        """Acknowledge deliveries, a batch of them, or offsets with their epochs; answers how many were not acknowledged
        before. Where some of them are not held any more, the others are acknowledged, and then `LeaseError` says
        which were not."""
        claims = claims_of(handed, epochs)
        if _checked(durability or self._durability) == "fsync":
            self._check_usable()
            decision: Decision = self._acks.submit(Request(claims, 0, 0))
        else:
            decision = self._turn(partial(self._ack, claims))
        return self._settled(decision, "acknowledged")

    def _ack(self, claims: list[Claim], now_ms: int) -> Decision:
        decision = self._journal.machine.ack(claims, now_ms)
        self._journal.write(decision.runs, now_ms)
        return decision

    def _ack_together(self, requests: list[Request]) -> None:
        """Acknowledge for everybody who waits, in the order of the offsets, and sync once."""
        self._check_usable()
        requests.sort(key=_first_offset)
        with self._mutex:
            decisions, ticket = self._under_lock(requests, self._serve_acks, self._journal.ticket)
        self._sync(ticket)
        for request, decision in zip(requests, decisions, strict=True):
            request.result = decision

    def _serve_acks(self, requests: list[Request], now_ms: int) -> list[Decision | None]:
        """What becomes of the claims of each: decided at once where all of them hold, which is nearly always."""
        joined = joined_claims(claim for request in requests for claim in request.work)
        if joined is not None and len(requests) > 1:
            decision = self._journal.machine.ack(joined, now_ms)
            counts = [sum(claim.end - claim.start for claim in request.work) for request in requests]
            if not decision.refused and decision.offsets == sum(counts):
                self._journal.write(decision.runs, now_ms)
                return [Decision([], count, []) for count in counts]
        return [self._attempt(request, self._ack, request.work, now_ms) for request in requests]

    def nack(
        self, handed: Handed, epochs: Any = None, *, delay: Seconds = 0.0, reason: str = "returned by its consumer"
    ) -> int:
        """Give back one delivery or many: they go out again now, or after ``delay`` seconds. One that was delivered
        ``max_attempts`` times is moved to the dead letters, with the reason. Answers how many were given back."""
        claims = claims_of(handed, epochs)
        return self._settled(self._turn(partial(self._nack, claims, to_ms(delay, "delay"), reason)), "given back")

    def _nack(self, claims: list[Claim], delay_ms: int, reason: str, now_ms: int) -> Decision:
        machine = self._journal.machine
        moved = 0
        most = self._fetching.max_attempts
        for run in machine.held(claims, now_ms) if most is not None else ():
            if most is not None and run.epoch >= most:
                rows = self._fetching.rows_of(run)
                self._fetching.move(rows, run.epoch, reason, now_ms)
                moved += sum(len(offsets) for _, offsets in rows)
        decision = machine.lease(claims, now_ms, now_ms + delay_ms)
        self._journal.write(decision.runs, now_ms)
        return decision._replace(offsets=decision.offsets + moved)

    def extend(self, handed: Handed, lease: Seconds | None = None, epochs: Any = None) -> int:
        """Hold deliveries for ``lease`` seconds more, from now on; answers the new deadline in milliseconds. The
        deliveries that you have stay good for `ack`. Those that are acknowledged are left out. `LeaseError` where that
        is all of them, as somebody else may have got them and be done, or where one is not held any more."""
        lease_ms = self._lease_ms if lease is None else to_ms(lease, "lease")
        claims = claims_of(handed, epochs)
        deadlines: list[int] = []

        def extended(now_ms: int) -> Decision:
            deadlines.append(now_ms + lease_ms)
            decision = self._journal.machine.lease(claims, now_ms, now_ms + lease_ms)
            self._journal.write(decision.runs, now_ms)
            refused = decision.refused if decision.offsets else decision.refused or self._journal.machine.done(claims)
            return decision._replace(refused=refused)

        self._settled(self._turn(extended), "extended")
        return deadlines[-1]

    def _settled(self, decision: Decision, done: str) -> int:
        if decision.refused:
            raise _refusal(self._log.path, self.name, decision.refused, decision.offsets, done)
        return decision.offsets

    # --- standing

    def status(self) -> GroupStatus:
        """How the group stands."""
        return self._turn(self._status)

    def _status(self, now_ms: int) -> GroupStatus:
        machine = self._journal.machine
        next_offset = self._log.next_offset
        if not self._journal.exists:
            start = min(self._fetching.start_offset(), next_offset)
            return GroupStatus(self.name, start, next_offset, next_offset - start, 0, 0, 0, None)
        start, _ = machine.fresh()
        if start < next_offset and self._fetching.ahead.at(start) is None:
            machine.skip(start, next_offset)  # the last offsets hold no records
        acked_until = max(machine.acked_until, self._log.first_offset)
        lag = max(next_offset - acked_until - machine.acked_below(next_offset), 0)
        return GroupStatus(
            self.name, acked_until, next_offset, lag, machine.in_flight, machine.expired(now_ms),
            len(machine.acked), machine.next_deadline_ms(), tuple(self._journal.warnings),
        )  # fmt: skip

    @property
    def acked_until(self) -> int:
        """Every offset below is acknowledged."""
        return self.status().acked_until

    @property
    def lag(self) -> int:
        return self.status().lag

    @property
    def in_flight(self) -> int:
        return self.status().in_flight

    # --- steering

    def begin(self, start: str | int | None = None) -> bool:
        """Have a new group start there, or where it was told to, now and not with the first fetch; False where it has
        started before."""

        def begun(now_ms: int) -> bool:
            if self._journal.exists:
                return False
            self._fetching.begin(now_ms, start)
            return True

        return self._turn(begun)

    def reset(self, to: int | str | None = None, *, time: Time | None = None) -> int:
        """Go to an offset, ``"beginning"``, ``"end"``, or the first record at or behind a time; answers the offset.
        What is before it counts as acknowledged, the rest is delivered (again). Those who hold a lease lose it."""
        if (to is None) == (time is None):
            raise UsageError("a group is reset to an offset or to a time: one of them")
        offset = self._log.offset_at(time) if time is not None else offset_in(self._log, to if to is not None else 0)
        return self._turn(partial(self._reset, offset))

    def _reset(self, offset: int, now_ms: int) -> int:
        self._journal.restart(self._journal.machine.reset(offset, now_ms), now_ms)
        return offset

    def compact(self) -> None:
        """Write a new snapshot and begin a new delta, which otherwise happens by itself."""
        self._turn(self._compact)

    def _compact(self, now_ms: int) -> bool:
        self._journal.rewrite(now_ms)
        return True

    def rewind(self) -> bool:
        """Forget what the state says of records behind the log's end: a power loss took them before they were synced,
        and other records will get their offsets. Done when a log is opened for append."""
        next_offset = self._log.next_offset

        def rewound(now_ms: int) -> bool:
            if self._journal.machine.top() <= next_offset:
                return False
            self._journal.restart(self._journal.machine.rewind(next_offset), now_ms)
            return True

        return self._turn(rewound)

    def delete(self) -> bool:
        """Forget the group; False where there was nothing to forget."""

        def deleted(now_ms: int) -> bool:
            return self._journal.delete()

        return self._turn(deleted, refresh=False)

    def close(self) -> None:
        """Use the group no more. What it holds is given back when its deadlines pass."""
        refuse_owned(self._mutex)
        self._closed = True
        with self._mutex:
            self._journal.close()

    @property
    def is_usable(self) -> bool:
        return not self._closed and self._poison is None

    @property
    def is_poisoned(self) -> bool:
        """A sync failed: nobody knows what of the delta is on the disk."""
        return self._poison is not None

    def distrust(self) -> None:
        """Write both files anew before anything is added to them: what they hold may never reach the disk."""
        self._journal.must_rewrite = True

    def __repr__(self) -> str:
        return f"<duramen.Group {self.name!r} of {self._log.path!r}>"

    # --- turns

    def _turn(self, work: Any, *, refresh: bool = True) -> Any:
        """Run ``work`` with the present time, or fetch, under the lock, with the state as it is now."""
        self._check_usable()
        return self._turns.submit(Request(work, 0, 0, alone=not refresh))

    def _take_turn(self, requests: list[Request]) -> None:
        with self._mutex:
            answers, _ = self._under_lock(requests, self._serve, _nothing)
        for request, answer in zip(requests, answers, strict=True):
            request.result = answer

    def _serve(self, requests: list[Request], now_ms: int) -> list[Any]:
        """The answers. First the calls, one after the other; then the fetches, together as far as that goes."""
        answers: list[Any] = [None] * len(requests)
        fetching: list[int] = []
        for place, request in enumerate(requests):
            if isinstance(request.work, Wish):
                fetching.append(place)
            else:
                answers[place] = self._attempt(request, request.work, now_ms)
        shares: list[Part | None] = [None] * len(fetching)
        if len(fetching) > 1:
            shares = self._fetching.fetch_together([requests[place].work for place in fetching], now_ms)
        for place, share in zip(fetching, shares, strict=True):
            answers[place] = self._attempt(requests[place], self._fetching.fetch, requests[place].work, share, now_ms)
        return answers

    def _attempt(self, request: Request, act: Callable[..., T], *arguments: Any) -> T | None:
        """An error is the caller's, and nobody else's, unless it undid what others did in this turn."""
        try:
            return act(*arguments)
        except Exception as error:
            if self._journal.is_forgotten:
                if self._journal.has_lost:
                    raise
                self._journal.refresh()
            request.error = error
            return None

    def _under_lock(
        self, requests: list[Request], serve: Callable[[list[Request], int], T], finish: Callable[[], S]
    ) -> tuple[T, S]:
        """Serve the requests, with the state as it is now, and write what comes of all of them. Nobody may have an
        answer before that."""
        journal = self._journal
        journal.enter()
        try:
            if not requests[0].alone:
                journal.refresh()
            now_ms = self._clock()
            self._fetching.begin_turn()
            answers = serve(requests, now_ms)
            journal.flush(now_ms)
            finished = finish()
        except BaseException:  # perhaps between the file and the state: read it again
            journal.forget()
            raise
        finally:
            journal.leave()
        return answers, finished

    def _sync(self, ticket: Ticket) -> None:
        try:
            self._journal.sync(ticket)
        except BaseException as error:
            self._poison = error
            raise

    def _check_usable(self) -> None:
        refuse_owned(self._mutex)
        self._log._check_open()
        if self._closed:
            raise UsageError(f"the group {self.name!r} is closed", path=self._log.path)
        if self._poison is not None:
            raise PoisonedError(
                f"a sync of the group {self.name!r} failed: {self._poison}",
                path=self._journal.place.delta,
                hint="close the log and open it again",
            ) from self._poison


def _nothing() -> None:
    """For those who need no sync."""


def _first_offset(request: Request) -> int:
    claims: list[Claim] = request.work
    return claims[0].start if claims else 0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _checked(durability: str) -> str:
    if durability not in DURABILITIES:
        raise UsageError(f"durability {durability!r} is not known", hint=f"it is one of {', '.join(DURABILITIES)}")
    return durability


def _refusal(path: str, group: str, refused: list[Refused], done: int, verb: str) -> LeaseError:
    first = refused[0]
    count = sum(part.end - part.start for part in refused)
    others = f"; {count - 1} more of them refused, {done} {verb}" if count > 1 or done else ""
    return LeaseError(
        f"not {verb} in group {group!r}: {first.why}{others}", path=path, offset=first.start,
        refused=tuple((part.start, part.end, part.why) for part in refused),
        hint="the record goes, or went, to another consumer" if "in flight" not in first.why else None,
    )  # fmt: skip
