"""Group commit: appends that arrive together share one write and one sync.

There is no thread in the background. The first appender becomes the leader: it takes everything that is queued (after
an optional wait for more), commits it as one group, wakes those whose requests were in it, and hands the lead to the
next one in line. While a leader waits for the disk, others queue; so the slower the sync, the larger the groups. A new
leader gives those whose requests were just committed a moment to come back: otherwise two halves of a crowd would take
turns, and each would wait for the other's sync. The queue is bounded: appenders wait for room, and a timeout says so.

Knows nothing of records and files: what a group is committed by is a function.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from duramen.errors import PoisonedError, QueueTimeoutError

PATIENCE = 0.5
"""How long a leader waits for those who were there a moment ago, as a part of what the last group took. They come back
within microseconds if they come back at all, and a group with all of them takes hardly longer than one with half."""
MOST_PATIENCE_S = 0.002
_NOBODY = 1 << 62


@dataclass(frozen=True)
class GroupLimits:
    """How much one group takes, how long its leader waits for more, and how much may queue."""

    max_bytes: int = 4 << 20
    max_records: int = 65_536
    linger_ms: float = 0.0
    queue_bytes: int = 64 << 20


@dataclass(eq=False)
class Request:
    """One append (or one control call) that waits to be committed."""

    work: Any
    size_bytes: int
    records: int
    alone: bool = False
    """Must not share a group: seal, close."""
    result: Any = None
    error: BaseException | None = None
    done: bool = False
    leads: bool = False
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def sleep(self, deadline: float | None) -> bool:
        """Wait to be woken; False when the time is over."""
        timeout = -1 if deadline is None else max(0.0, deadline - time.monotonic())
        return self._turn.acquire(timeout=timeout)

    def wake(self) -> None:
        self._turn.release()

    def answer(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class GroupCommit:
    """The queue. ``commit`` is called with the requests of one group, by one thread at a time; it fills in each
    request's ``result``, or raises, which is every request's error."""

    def __init__(self, commit: Callable[[list[Request]], None], limits: GroupLimits) -> None:
        self._commit = commit
        self._limits = limits
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._arrived = threading.Condition(self._lock)
        self._queue: deque[Request] = deque()
        self._queued_bytes = 0
        self._queued_records = 0
        self._leading = False
        self._wanted = _NOBODY
        """How many requests have to be queued before a leader who waits for more is told."""
        self._crowd = 0
        """How many appenders there seem to be: those of the last group, and those who queued meanwhile."""
        self._patience_s = 0.0
        self._waiting = 0
        """How many wait for room."""

    def submit(self, request: Request, timeout_s: float | None = None) -> Any:
        """Have the request committed; returns its result or raises its error.

        Raises `QueueTimeoutError` when it was not even begun within ``timeout_s``: then nothing of it is stored."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        request._turn.acquire()
        try:
            self._enter(request, deadline)
            if not request.leads:
                self._follow(request, deadline)
            if not request.done:
                self._lead()
        except BaseException:
            self._leave(request)
            raise
        return request.answer()

    def _enter(self, request: Request, deadline: float | None) -> None:
        with self._lock:
            self._wait_for_room(request, deadline)
            self._queue.append(request)
            self._queued_bytes += request.size_bytes
            self._queued_records += request.records
            if not self._leading:
                self._leading = request.leads = True
            elif len(self._queue) >= self._wanted or request.alone:
                self._arrived.notify()

    def _follow(self, request: Request, deadline: float | None) -> None:
        """Wait until the request is committed by another, or until it is its turn to lead."""
        if request.sleep(deadline):
            return
        if self._withdraw(request):
            raise QueueTimeoutError("not begun in time", hint="the disk is slower than the appends")
        if not request.leads:
            request.sleep(None)

    def _leave(self, request: Request) -> None:
        """An appender that is interrupted takes its request back where it still can, and leaves the lead here."""
        with self._lock:
            if request not in self._queue:
                return
            self._queue.remove(request)
            self._forget(request)
        if request.leads:
            self._pass_on([])

    def _wait_for_room(self, request: Request, deadline: float | None) -> None:
        while self._queue and self._queued_bytes + request.size_bytes > self._limits.queue_bytes:
            timeout = None if deadline is None else deadline - time.monotonic()
            self._waiting += 1
            self._arrived.notify()
            try:
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
            if request.leads or request not in self._queue:
                return False
            self._queue.remove(request)
            self._forget(request)
            return True

    def _forget(self, request: Request) -> None:
        self._queued_bytes -= request.size_bytes
        self._queued_records -= request.records
        if self._waiting:
            self._room.notify_all()

    # --- leading

    def _lead(self) -> None:
        """Commit one group, which holds the leader's own request, and pass the lead on."""
        group: list[Request] = []
        try:
            self._take(group)
            began = time.monotonic()
            self._commit(group)
            self._patience_s = min((time.monotonic() - began) * PATIENCE, MOST_PATIENCE_S)
        except BaseException as error:
            _fail(group, error)
            if not group or not isinstance(error, Exception):
                raise
        finally:
            if group:
                self._pass_on(group)

    def _take(self, group: list[Request]) -> None:
        """Wait for more, if that is wanted, and move a group out of the queue."""
        limits = self._limits
        with self._lock:
            if limits.linger_ms > 0:
                self._await(_NOBODY, limits.linger_ms / 1000)
            elif len(self._queue) < self._crowd:
                self._await(self._crowd, self._patience_s)
            size_bytes = records = 0
            while self._queue:
                request = self._queue[0]
                size_bytes += request.size_bytes
                records += request.records
                full = size_bytes > limits.max_bytes or records > limits.max_records
                if group and (full or request.alone or group[0].alone):
                    break
                group.append(self._queue.popleft())
                self._forget(request)

    def _await(self, requests: int, seconds: float) -> None:
        """Wait until so many are queued, the group is full, or the time is over."""
        limits, until = self._limits, time.monotonic() + seconds
        self._wanted = requests if requests < _NOBODY else 1
        try:
            while len(self._queue) < requests and not (self._queue[0].alone or self._queue[-1].alone or self._waiting):
                left = until - time.monotonic()
                is_full = self._queued_bytes >= limits.max_bytes or self._queued_records >= limits.max_records
                if is_full or left <= 0 or not self._arrived.wait(left):
                    break
        finally:
            self._wanted = _NOBODY

    def _pass_on(self, group: list[Request]) -> None:
        with self._lock:
            self._crowd = len(group) + len(self._queue)
            following = self._queue[0] if self._queue else None
            if following is None:
                self._leading = False
            else:
                following.leads = True
        for request in group:
            request.done = True
            if not request.leads:
                request.wake()
        if following is not None:
            following.wake()


def _fail(group: list[Request], error: BaseException) -> None:
    """The error of every request that has no answer of its own. An interrupt is the leader's alone: nobody pressed
    a key in the other threads."""
    if not isinstance(error, Exception):
        error = PoisonedError(f"the thread that wrote for this one was interrupted ({type(error).__name__})")
    for request in group:
        if request.result is None and request.error is None:
            request.error = error
