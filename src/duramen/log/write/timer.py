"""What a writer owes at a certain time, even if no append comes: `IntervalSync` says when a sync is due, and `Alarm`
calls the writer then.

One thread per process waits for all writers. Each call runs in a short-lived thread of its own, so a slow disk delays
only its own log. The timer refers to a writer weakly: it does not keep a log open that its owner dropped.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakMethod

from duramen.arguments import LONGEST_S, MOST, check_int, check_number
from duramen.log.write.group_commit import Request

SYNC_INTERVAL_MS = 1000.0
SYNC_INTERVAL_BYTES = 64 << 20


class IntervalSync:
    """The records that were acknowledged at ``interval`` and are not synced yet, and when they must be: that many
    milliseconds after the first of them, or with the append that completes that many records or bytes."""

    def __init__(self, ms: float, records: int | None, size_bytes: int | None, clock: Callable[[], int] | None) -> None:
        for name, limit in (("records", records), ("bytes", size_bytes)):
            if limit is not None:
                check_int(f"sync_interval_{name}", limit, least=1)
        self._us = int(check_number("sync_interval_ms", ms, least=0.001, most=LONGEST_S * 1000) * 1000)
        self._most_records, self._most_bytes = records, size_bytes
        self._clock = clock or time.monotonic_ns
        self._due_us: int | None = None
        self._records = self._bytes = 0

    @property
    def left_us(self) -> int | None:
        """How long until a sync is due; None if nothing waits for one."""
        return None if self._due_us is None else self._due_us - self._clock() // 1000

    @property
    def room(self) -> tuple[int, int]:
        """How many more records and bytes may be written before a sync must follow at once: none if nothing waits for
        a sync, because the first record sets the time."""
        if self._due_us is None:
            return 0, 0
        most_records, most_bytes = self._most_records or MOST, self._most_bytes or MOST
        return most_records - self._records - 1, most_bytes - self._bytes - 1

    def is_completed_by(self, requests: Sequence[Request]) -> bool:
        """Whether a sync must follow the write of these requests at once."""
        records, size_bytes = _total(requests)
        left_us = self.left_us
        return (
            (left_us is not None and left_us <= 0)
            or (self._most_records is not None and self._records + records >= self._most_records)
            or (self._most_bytes is not None and self._bytes + size_bytes >= self._most_bytes)
        )

    def count(self, records: int, size_bytes: int) -> None:
        """Count records that were written and not synced, after others."""
        self._records += records
        self._bytes += size_bytes

    def wrote(self, requests: Sequence[Request]) -> None:
        """Count requests that were written and not synced."""
        self.count(*_total(requests))
        if self._due_us is None:
            self._due_us = self._clock() // 1000 + self._us

    def synced(self) -> None:
        """Everything written is on the disk."""
        self._due_us, self._records, self._bytes = None, 0, 0


def _total(requests: Sequence[Request]) -> tuple[int, int]:
    return sum(request.records for request in requests), sum(request.size_bytes for request in requests)


class _Timer:
    """The thread that waits for all writers of the process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: list[tuple[float, int, WeakMethod[Any]]] = []
        self._numbers = itertools.count()
        self._is_running = False

    def add(self, due_s: float, call: WeakMethod[Any]) -> None:
        with self._changed:
            heapq.heappush(self._calls, (due_s, next(self._numbers), call))
            self._changed.notify()
            if not self._is_running:
                threading.Thread(target=self._run, name="duramen timer", daemon=True).start()
                self._is_running = True

    def _run(self) -> None:
        while True:
            with self._changed:
                while (left_s := self._calls[0][0] - time.monotonic() if self._calls else None) is None or left_s > 0:
                    self._changed.wait(left_s)
                call = heapq.heappop(self._calls)[2]()
            if call is not None:
                try:
                    threading.Thread(target=call, name="duramen due", daemon=True).start()
                except RuntimeError:  # the process has no thread left: the other logs wait for this one
                    with contextlib.suppress(Exception):  # the next append raises it
                        call()
            del call


_timer = _Timer()


def _restart() -> None:
    """In a forked child, no thread runs, and the writers of the parent are not the child's."""
    global _timer
    _timer = _Timer()


os.register_at_fork(after_in_child=_restart)


class Alarm:
    """The time at which the method ``call`` is due. It is not called if its object is gone by then."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = WeakMethod(call)
        self._due_s: float | None = None

    @property
    def is_set(self) -> bool:
        return self._due_s is not None

    def set(self, seconds: float) -> None:
        """Have it called that much later; a call that comes earlier anyway is enough."""
        due_s = time.monotonic() + max(seconds, 0.0)
        if self._due_s is None or due_s < self._due_s:
            self._due_s = due_s
            _timer.add(due_s, self._call)

    def clear(self) -> None:
        """It was called."""
        self._due_s = None
