"""Group commit: appends that arrive together share one write and one sync.

No background thread runs. The first caller becomes the leader: it takes everything that is queued (after an optional
wait for more), commits it as one group, wakes the callers of that group, and hands the lead to the next caller in the
queue. While a leader waits for the disk, others queue; so the slower the sync, the larger the groups.

A new leader waits a moment for the callers of the last group to come back: otherwise two halves of a crowd would take
turns, and each would wait for the other's sync (16 threads then share groups of 8 instead of 15). The caller that
completes the crowd takes the lead, which saves waking the one that waited. The queue is bounded: callers wait for room,
and `QueueTimeoutError` reports a queue that stays full.

A single append may need no group: while nothing is queued, its caller holds the lock of the queue instead of the lead
(`alone`).

An exception may arrive between any two steps (Ctrl-C, a signal handler that raises). The interrupted caller leaves
through `_leave`, which finishes what it started, so that no thread waits for it. Therefore a single field names the
leader, waking a request twice does no harm, and a leader's group is stored on its request.

A signal handler or a finalizer may also append in the middle of an append of the same thread. It would wait forever for
the append that it interrupts, so it is refused.

This module knows nothing of records and files: a function commits a group.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from duramen.arguments import check_timeout
from duramen.errors import PoisonedError, QueueTimeoutError, UsageError

PATIENCE = 1.0
"""How long a leader waits for the callers of the last group, as a share of the time that group took. They come back
within microseconds if at all, and a group with all of them takes hardly longer than one with half of them."""
MOST_PATIENCE_S = 0.002
_NOBODY = 1 << 62


@dataclass(frozen=True)
class GroupLimits:
    """How much one group holds, how long its leader waits for more, and how much may queue."""

    max_bytes: int = 4 << 20
    max_records: int = 65_536
    linger_ms: float = 0.0
    queue_bytes: int = 64 << 20


class Request:
    """One append (or one control call) that waits for its commit; ``alone`` if it must not share a group."""

    __slots__ = (
        "_turn", "alone", "began_s", "done", "error", "following", "group", "left", "records", "result", "size_bytes",
        "thread", "work",
    )  # fmt: skip

    def __init__(self, work: Any, size_bytes: int, records: int, alone: bool = False) -> None:
        self.began_s = time.monotonic()
        self.work = work
        self.size_bytes = size_bytes
        self.records = records
        self.alone = alone
        self.thread = 0
        """The thread that submitted it."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.group: Sequence[Request] = ()
        """While it leads: the requests that it commits."""
        self.left = False
        """Its caller was interrupted and does not wait for it."""
        self.following: Request | None = None
        """The request to wake next."""
        self._turn: threading.Lock | None = None

    def prepare_to_sleep(self) -> None:
        """From here on, one `wake` ends one `sleep`, in either order."""
        self._turn = threading.Lock()
        self._turn.acquire()

    def sleep(self, deadline: float | None) -> bool:
        """Wait for `wake`; False at the deadline."""
        assert self._turn is not None
        timeout = -1 if deadline is None else max(0.0, deadline - time.monotonic())
        return self._turn.acquire(timeout=timeout)

    def wake(self) -> None:
        if self._turn is not None:  # otherwise it was interrupted before it slept
            try:
                self._turn.release()
            except RuntimeError:
                pass  # it was woken already

    def outcome(self) -> Any:
        """The result; raises the error."""
        if self.error is not None:
            raise self.error
        return self.result


class GroupCommit:
    """The queue. One thread at a time calls ``commit`` with the requests of a group. It sets the ``result`` of each
    request, or raises the error of all of them. ``observe`` receives the seconds from the call of each append to its
    commit."""

    def __init__(
        self,
        commit: Callable[[list[Request]], None],
        limits: GroupLimits,
        *,
        patience: float = PATIENCE,
        observe: Callable[[float], None] | None = None,
    ) -> None:
        self._commit = commit
        self._observe = observe
        self._limits = limits
        self._patience = patience
        self._lock = threading.RLock()  # not for reentry: an RLock knows its owner
        self._room = threading.Condition(self._lock)
        self._queue: deque[Request] = deque()
        self._queued_bytes = 0
        self._queued_records = 0
        self._queued_alone = 0
        self._leader: Request | None = None
        self._patient: Request | None = None
        """The leader that waits for more requests."""
        self._wanted = _NOBODY
        """How many requests it waits for."""
        self._crowd = 0
        """How many callers there seem to be: those of the last group, and those that queued during its commit."""
        self._patience_s = 0.0
        self._waiting = 0
        """How many callers wait for room."""

    def alone(self) -> Any:
        """The lock of the queue, for a caller that commits without a request: it may do so while it holds the lock and
        `is_idle`. Callers of `submit` wait meanwhile."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise _within()
        return self._lock

    @property
    def is_idle(self) -> bool:
        """Whether no request is queued or being committed. Only meaningful while the lock is held."""
        return self._leader is None

    @property
    def is_led_elsewhere(self) -> bool:
        """Whether another thread leads a group, as far as one look tells."""
        leader = self._leader
        return leader is not None and leader.thread != threading.get_ident()

    @property
    def is_crowded(self) -> bool:
        """Whether the last group had more than one caller, or others queued meanwhile."""
        return self._crowd > 1

    def submit(self, request: Request, timeout_s: float | None = None) -> Any:
        """Commit the request; returns its result or raises its error.

        Raises `QueueTimeoutError` if no leader took it within ``timeout_s``: then nothing of it is stored."""
        refuse_owned(self._lock)
        request.thread = threading.get_ident()
        deadline = None if timeout_s is None else time.monotonic() + check_timeout(timeout_s)
        try:
            if deadline is None:
                self._enter(request, None)
            else:
                self._enter_until(request, deadline)
            while not request.done:
                if self._leader is request:
                    self._lead(request)
                else:
                    self._follow(request, deadline)
            if request.following is not None:
                request.following.wake()
        except BaseException:
            if not request.left:
                self._leave(request)
            raise
        return request.outcome()

    def _enter_until(self, request: Request, deadline: float) -> None:
        """Enter, unless a commit without a request holds the lock for that long."""
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            request.left = True  # it never entered: nothing to clean up, which would wait for the same lock
            raise _not_begun()
        try:
            self._enter(request, deadline)
        finally:
            self._lock.release()

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
                if self._queued_alone or self._is_full():  # this request may not fit into the next group
                    patient.wake()
                else:
                    self._leader = request
                    return
            request.prepare_to_sleep()

    def _follow(self, request: Request, deadline: float | None) -> None:
        """Wait until another caller has committed the request, or until it has the lead."""
        if request.sleep(deadline):
            return
        if self._withdraw(request):
            raise _not_begun()
        if self._leader is not request:
            request.sleep(None)

    def _leave(self, request: Request) -> None:
        """Withdraw the request of an interrupted caller if no leader has taken it, pass the lead on, and wake every
        caller that waits for it, again if need be."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            self._lock.release()  # the exception came right after it was acquired
        with self._lock:
            request.left = True
            gone = (request, *request.group)
            self._queue = deque(each for each in self._queue if each not in gone)
            self._queued_bytes = sum(each.size_bytes for each in self._queue)
            self._queued_records = sum(each.records for each in self._queue)
            self._queued_alone = sum(each.alone for each in self._queue)
            self._room.notify_all()
            if self._patient is request:
                self._patient = None
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
        """Remove a request that no leader has taken yet."""
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
        """Commit one group, which holds the leader's own request, and pass the lead on; unless another caller took the
        lead while this one waited."""
        group: list[Request] = []
        leader.group = group
        try:
            if not self._take(leader, group):
                return
            began_s = leader.began_s if leader._turn is None else time.monotonic()  # since it last slept
            self._commit(group)
            now_s = time.monotonic()
            self._patience_s = min((now_s - began_s) * self._patience, MOST_PATIENCE_S)
            observe = self._observe
            if observe is not None:
                for request in group:
                    if request.records:  # not a control call
                        observe(now_s - request.began_s)
        except BaseException as error:
            _fail(group, error)
            if not group or not isinstance(error, Exception):
                raise
        finally:
            if group:
                self._pass_on(leader, group)
        leader.group = ()

    def _take(self, leader: Request, group: list[Request]) -> bool:
        """Wait for more requests if due, and move a group out of the queue. False if another caller leads now."""
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
                group.append(request)  # before it leaves the queue: an interrupt must not lose it
                self._queue.popleft()
                self._forget(request)
        return True

    def _await(self, leader: Request, requests: int, seconds: float) -> None:
        """Wait until that many requests are queued, the group is full, or the time is over."""
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
        """Whether a leader that waits for more should commit now."""
        crowded = len(self._queue) >= self._wanted or self._is_full()
        return crowded or self._queued_alone > 0 or self._waiting > 0

    def _is_full(self) -> bool:
        return self._queued_bytes >= self._limits.max_bytes or self._queued_records >= self._limits.max_records

    def _pass_on(self, leader: Request, group: list[Request]) -> None:
        """Wake the group, and give the lead to the next request in the queue."""
        with self._lock:
            self._crowd = len(group) + len(self._queue)
            first = _chain(leader, group)
            self._hand_on()
        if first is not None:
            first.wake()

    def _hand_on(self) -> None:
        """Give the lead to the next request in the queue."""
        while self._queue and self._queue[0].done:
            self._queue.popleft()  # an interrupted leader failed it and did not remove it
        self._leader = following = self._queue[0] if self._queue else None
        if following is not None:
            following.wake()  # under the lock: a leader that sleeps again must not be woken by this


def _not_begun() -> QueueTimeoutError:
    return QueueTimeoutError("not begun in time", hint="the disk is slower than the appends")


def refuse_owned(lock: Any) -> None:
    """Raise if this thread holds the ``RLock`` already: this code interrupted the call that took it."""
    if lock._is_owned():  # not public; `threading.Condition` uses it, too
        raise _within()


def _within() -> UsageError:
    return UsageError(
        "called from within the same call, which this one would wait for",
        hint="in a signal handler or a finalizer, have another thread make the call",
    )


def _chain(leader: Request, group: list[Request]) -> Request | None:
    """Link the callers of the group, each to wake the next, and return the first. The interpreter runs one thread at a
    time: waking them all at once would only have them contend."""
    following: Request | None = None
    for request in reversed(group):
        if request is not leader and not request.left:
            request.following, following = following, request
        request.done = True
    return following


def _fail(group: Sequence[Request], error: BaseException) -> None:
    """Set the error of every request without a result of its own. An interrupt is raised in the leader's thread only:
    the others get a `PoisonedError`."""
    if not isinstance(error, Exception):
        error = _interrupted(type(error).__name__)
    for request in group:
        if request.result is None and request.error is None:
            request.error = error


def _interrupted(by: str) -> PoisonedError:
    return PoisonedError(f"the thread that wrote for this one was interrupted ({by})")
