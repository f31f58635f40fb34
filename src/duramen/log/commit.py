"""Group commit: appends that arrive together share one write and one sync.

There is no thread in the background. The first appender becomes the leader: it takes everything that is queued (after
an optional wait for more), commits it as one group, wakes those whose requests were in it, and hands the lead to the
next one in line. While a leader waits for the disk, others queue; so the slower the sync, the larger the groups. A new
leader gives those whose requests were just committed a moment to come back: otherwise two halves of a crowd would take
turns, and each would wait for the other's sync. Whoever completes the crowd leads it, rather than wake the one who
waited. The queue is bounded: appenders wait for room, and a timeout says so.

An exception may come from outside, between any two steps (ctrl-C, a signal's handler that raises). Whoever is hit
leaves through `_leave`, which finishes what was begun: nobody waits for a leader who is gone. That is why one field
says who leads, why to wake somebody twice does no harm, and why a leader's group hangs on its request.

Such code may also append itself, in the middle of an append of the same thread (a handler that logs, a finalizer that
the garbage collector runs). It would wait for the append that it interrupts, for ever. So it is refused.

Knows nothing of records and files: what a group is committed by is a function.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from duramen.errors import PoisonedError, QueueTimeoutError, UsageError

PATIENCE = 1.0
"""How long a leader waits for those who were there a moment ago, as a part of what the last group took. They come back
within microseconds if they come back at all, and a group with all of them takes hardly longer than one with half: where
it ends in a sync."""
MOST_PATIENCE_S = 0.002
_NOBODY = 1 << 62


@dataclass(frozen=True)
class GroupLimits:
    """How much one group takes, how long its leader waits for more, and how much may queue."""

    max_bytes: int = 4 << 20
    max_records: int = 65_536
    linger_ms: float = 0.0
    queue_bytes: int = 64 << 20


class Request:
    """One append (or one control call) that waits to be committed; ``alone`` if it must not share a group."""

    __slots__ = (
        "_turn", "alone", "done", "error", "following", "group", "left", "records", "result", "size_bytes", "thread",
        "work",
    )  # fmt: skip

    def __init__(self, work: Any, size_bytes: int, records: int, alone: bool = False) -> None:
        self.work = work
        self.size_bytes = size_bytes
        self.records = records
        self.alone = alone
        self.thread = 0
        """Whose it is, once it is submitted."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.group: Sequence[Request] = ()
        """While it leads: whom it has to answer."""
        self.left = False
        """Its appender was interrupted and is gone."""
        self.following: Request | None = None
        """Whom to wake once awake."""
        self._turn: threading.Lock | None = None

    def prepare_to_sleep(self) -> None:
        """From here on, one `wake` ends one `sleep`, whichever comes first."""
        self._turn = threading.Lock()
        self._turn.acquire()

    def sleep(self, deadline: float | None) -> bool:
        """Wait to be woken; False when the time is over."""
        assert self._turn is not None
        timeout = -1 if deadline is None else max(0.0, deadline - time.monotonic())
        return self._turn.acquire(timeout=timeout)

    def wake(self) -> None:
        if self._turn is not None:  # otherwise it was interrupted on its way to sleep
            try:
                self._turn.release()
            except RuntimeError:
                pass  # it was woken already

    def answer(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class GroupCommit:
    """The queue. ``commit`` is called with the requests of one group, by one thread at a time; it fills in each
    request's ``result``, or raises, which is every request's error."""

    def __init__(
        self, commit: Callable[[list[Request]], None], limits: GroupLimits, *, patience: float = PATIENCE
    ) -> None:
        self._commit = commit
        self._limits = limits
        self._patience = patience
        self._lock = threading.RLock()  # which knows its owner; nobody takes it twice
        self._room = threading.Condition(self._lock)
        self._queue: deque[Request] = deque()
        self._queued_bytes = 0
        self._queued_records = 0
        self._queued_alone = 0
        self._leader: Request | None = None
        self._patient: Request | None = None
        """The leader who waits for more."""
        self._wanted = _NOBODY
        """How many requests it waits for."""
        self._crowd = 0
        """How many appenders there seem to be: those of the last group, and those who queued meanwhile."""
        self._patience_s = 0.0
        self._waiting = 0
        """How many wait for room."""

    def submit(self, request: Request, timeout_s: float | None = None) -> Any:
        """Have the request committed; returns its result or raises its error.

        Raises `QueueTimeoutError` when it was not even begun within ``timeout_s``: then nothing of it is stored."""
        refuse_owned(self._lock)
        request.thread = threading.get_ident()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            self._enter(request, deadline)
            while not request.done:
                if self._leader is request:
                    self._lead(request)
                else:
                    self._follow(request, deadline)
            if request.following is not None:
                request.following.wake()
        except BaseException:
            self._leave(request)
            raise
        return request.answer()

    def _enter(self, request: Request, deadline: float | None) -> None:
        with self._lock:
            if self._leader is not None:
                for each in (self._leader, *self._queue):
                    if each.thread == request.thread:
                        raise _within()
            if self._queue and self._queued_bytes + request.size_bytes > self._limits.queue_bytes:
                self._wait_for_room(request, deadline)
            self._queue.append(request)
            self._queued_bytes += request.size_bytes
            self._queued_records += request.records
            self._queued_alone += request.alone
            if self._leader is None:
                self._leader = request
                return
            patient = self._patient
            if patient is not None and self._is_enough():
                self._patient = None
                if self._queued_alone or self._is_full():  # it may not be in the first group itself
                    patient.wake()
                else:
                    self._leader = request
                    return
            request.prepare_to_sleep()

    def _follow(self, request: Request, deadline: float | None) -> None:
        """Wait until the request is committed by another, or until it is its turn to lead."""
        if request.sleep(deadline):
            return
        if self._withdraw(request):
            raise QueueTimeoutError("not begun in time", hint="the disk is slower than the appends")
        if self._leader is not request:
            request.sleep(None)

    def _leave(self, request: Request) -> None:
        """An appender that was interrupted, wherever that was, takes its request back where it still can, and leaves
        the lead here. Whom it had to answer or to wake is told; again, if need be."""
        with self._lock:
            request.left = True
            gone = (request, *request.group)
            self._queue = deque(each for each in self._queue if each not in gone)
            self._queued_bytes = sum(each.size_bytes for each in self._queue)
            self._queued_records = sum(each.records for each in self._queue)
            self._queued_alone = sum(each.alone for each in self._queue)
            self._room.notify_all()
            _fail(request.group, _interrupted("an exception from outside"))
            for each in request.group:
                each.done = True
            if self._leader is request:
                self._hand_on()
            elif self._leader is not None:
                self._leader.wake()
        for each in request.group:
            each.wake()
        if request.following is not None:
            request.following.wake()
        request.group = ()

    def _wait_for_room(self, request: Request, deadline: float | None) -> None:
        while self._queue and self._queued_bytes + request.size_bytes > self._limits.queue_bytes:
            timeout = None if deadline is None else deadline - time.monotonic()
            self._waiting += 1
            try:
                if self._patient is not None:
                    self._patient.wake()
                    self._patient = None
                is_late = (timeout is not None and timeout <= 0) or not self._room.wait(timeout)
            finally:
                self._waiting -= 1
            if is_late:
                raise QueueTimeoutError(
                    f"the queue stayed full ({self._queued_bytes} bytes)", hint="the disk is slower than the appends"
                )

    def _withdraw(self, request: Request) -> bool:
        """Take a request back that no leader has taken yet."""
        with self._lock:
            if self._leader is request or request not in self._queue:
                return False
            self._queue.remove(request)
            self._forget(request)
            return True

    def _forget(self, request: Request) -> None:
        self._queued_bytes -= request.size_bytes
        self._queued_records -= request.records
        self._queued_alone -= request.alone
        if self._waiting:
            self._room.notify_all()

    # --- leading

    def _lead(self, leader: Request) -> None:
        """Commit one group, which holds the leader's own request, and pass the lead on; unless another took the lead in
        the meantime."""
        group: list[Request] = []
        leader.group = group
        try:
            if not self._take(leader, group):
                return
            began = time.monotonic()
            self._commit(group)
            self._patience_s = min((time.monotonic() - began) * self._patience, MOST_PATIENCE_S)
        except BaseException as error:
            _fail(group, error)
            if not group or not isinstance(error, Exception):
                raise
        finally:
            if group:
                self._pass_on(leader, group)
        leader.group = ()

    def _take(self, leader: Request, group: list[Request]) -> bool:
        """Wait for more, if that is wanted, and move a group out of the queue. False where another leads by then."""
        limits = self._limits
        with self._lock:
            if limits.linger_ms > 0:
                self._await(leader, _NOBODY, limits.linger_ms / 1000)
            elif len(self._queue) < self._crowd:
                self._await(leader, self._crowd, self._patience_s)
            if self._leader is not leader:
                return False
            size_bytes = records = 0
            while self._queue:
                request = self._queue[0]
                size_bytes += request.size_bytes
                records += request.records
                full = size_bytes > limits.max_bytes or records > limits.max_records
                if group and (full or request.alone or group[0].alone):
                    break
                group.append(request)  # first: in between, it would be nowhere
                self._queue.popleft()
                self._forget(request)
        return True

    def _await(self, leader: Request, requests: int, seconds: float) -> None:
        """Wait until so many are queued, the group is full, or the time is over."""
        self._wanted = requests
        if seconds <= 0 or self._is_enough():
            return
        leader.prepare_to_sleep()
        self._patient = leader
        try:
            self._lock.release()
            leader.sleep(time.monotonic() + seconds)
        finally:
            self._lock.acquire()
            if self._patient is leader:
                self._patient = None

    def _is_enough(self) -> bool:
        """Whether a leader who waits for more should go on."""
        crowded = len(self._queue) >= self._wanted or self._is_full()
        return crowded or self._queued_alone > 0 or self._waiting > 0

    def _is_full(self) -> bool:
        return self._queued_bytes >= self._limits.max_bytes or self._queued_records >= self._limits.max_records

    def _pass_on(self, leader: Request, group: list[Request]) -> None:
        """Answer the group, and have the next one in line lead."""
        with self._lock:
            self._crowd = len(group) + len(self._queue)
            first = _chain(leader, group)
            self._hand_on()
        if first is not None:
            first.wake()

    def _hand_on(self) -> None:
        """The next one in line leads."""
        while self._queue and self._queue[0].done:
            self._queue.popleft()  # an interrupted leader took it, and did not get to take it out
        self._leader = following = self._queue[0] if self._queue else None
        if following is not None:
            following.wake()  # at once: who sees that it leads may sleep again, and is not to be woken from that


def refuse_owned(lock: Any) -> None:
    """Raise if this thread has the ``RLock`` already: this is code that interrupted whoever took it."""
    if lock._is_owned():  # the only name there is for it; `threading.Condition` uses it, too
        raise _within()


def _within() -> UsageError:
    return UsageError(
        "called from within the same call, which this one would wait for",
        hint="a signal's handler or a finalizer: leave it to another thread",
    )


def _chain(leader: Request, group: list[Request]) -> Request | None:
    """Whom to wake of those who wait for this group: each wakes the next. The interpreter runs one thread at a time,
    and whoever is awake too early only goes to sleep again."""
    following: Request | None = None
    for request in reversed(group):
        if request is not leader and not request.left:
            request.following, following = following, request
        request.done = True
    return following


def _fail(group: Sequence[Request], error: BaseException) -> None:
    """The error of every request that has no answer of its own. An interrupt is the leader's alone: nobody pressed
    a key in the other threads."""
    if not isinstance(error, Exception):
        error = _interrupted(type(error).__name__)
    for request in group:
        if request.result is None and request.error is None:
            request.error = error


def _interrupted(by: str) -> PoisonedError:
    return PoisonedError(f"the thread that wrote for this one was interrupted ({by})")
