"""The loop of a consumer: fetches record after record, keeps its lease alive, and settles it.

::

    with group.consume() as loop:             group.consume().run(handle)
        for delivery in loop:
            handle(delivery)

- A record is **acknowledged** when the loop asks for the next one, so after its body has succeeded.
- A record is **returned** if the body raises: in ``with``, the exception leaves the loop; `run` goes on with the next
  record. ``break`` returns the current record, too, because it may come before the work: `stop` ends a loop after it.
- While the body runs, a thread extends the lease, for at most ``max_lease_s``.
- In the main thread, SIGTERM and SIGINT stop the loop after the current record; a second signal acts as before the
  loop. Elsewhere a program calls `stop`, which only sets a flag, from its own handler.

A ``for`` statement does not tell its iterator about an exception. Without ``with``, the record is returned when the
iterator is collected, which CPython does as soon as the exception is handled.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Generic, Protocol, Self, TypedDict, TypeVar, Unpack

from duramen.arguments import check_timeout
from duramen.consumers.groups.deliveries import Seconds, to_ms
from duramen.errors import DuramenError, LeaseError, UsageError

POLL_S = 0.1
"""Longest time until a waiting loop notices `ConsumeLoop.stop`."""
MAX_LEASE_S = 3600.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_logger = logging.getLogger("duramen.consumers")

D = TypeVar("D")


class Deliverer(Protocol[D]):
    """What the loop needs of a group, be it of a log or of a topic."""

    @property
    def lease_s(self) -> float: ...
    def fetch(self, max: int = 1, lease: Seconds | None = None, *, timeout_s: float = 0.0) -> list[D]: ...
    def ack(self, handed: Any) -> bool: ...
    def nack(self, handed: Any, *, delay: Seconds = 0.0, reason: str = "") -> int: ...
    def extend(self, handed: Any, lease: Seconds | None = None) -> int: ...


class ConsumeOptions(TypedDict, total=False):
    """Options of ``group.consume()``."""

    lease: Seconds
    """How long a record stays with a consumer that dies (default: the group's lease)."""
    timeout_s: float | None
    """End the loop when no record arrives for so long (default: never)."""
    retry_delay: Seconds
    """When a returned record is delivered again (default: after a second)."""
    max_lease_s: float
    """How long the loop extends the lease of one record (default: an hour)."""
    signals: bool | None
    """Whether SIGTERM and SIGINT stop the loop (default: in the main thread)."""


class ConsumeLoop(Generic[D]):
    """The deliveries of a group, one after another. Created by ``group.consume()``; used by one thread at a time.

    >>> import tempfile, duramen
    >>> with duramen.open(tempfile.mkdtemp() + "/orders", "a") as log:
    ...     _ = log.append_batch([b"a", b"b", b"c"])
    ...     with log.group("billing").consume(timeout_s=0) as loop:
    ...         print([delivery.value for delivery in loop])
    ...     print(log.group("billing").lag)
    [b'a', b'b', b'c']
    0
    """

    def __init__(self, group: Deliverer[D], **options: Unpack[ConsumeOptions]) -> None:
        lease, timeout_s, signals = options.get("lease"), options.get("timeout_s"), options.get("signals")
        if lease is not None and to_ms(lease, "lease") < 1:
            raise UsageError(f"the lease of a loop must be longer than 0 (got {lease!r})")
        if unknown := options.keys() - ConsumeOptions.__annotations__.keys():
            raise UsageError(
                f"consume() has no option {min(unknown)!r}",
                hint=f"its options are {', '.join(ConsumeOptions.__annotations__)}",
            )
        if signals and not _in_main_thread():
            raise UsageError(
                "signals can be handled in the main thread only", hint="let its handler call stop() of this loop"
            )
        self._group = group
        self._lease = lease
        self._timeout_s = None if timeout_s is None else check_timeout(timeout_s)
        self._retry_s = to_ms(options.get("retry_delay", 1.0), "retry_delay") / 1000
        max_lease_s = check_timeout(options.get("max_lease_s", MAX_LEASE_S), "max_lease_s")
        self._keeper: _LeaseKeeper[D] = _LeaseKeeper(group, max_lease_s)
        self._stop = _StopFlag(_in_main_thread() if signals is None else signals)
        self._current: D | None = None

    def stop(self) -> None:
        """End the loop after the current record. Safe to call from any thread and from a signal handler."""
        self._stop.is_set = True

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> D:
        """Acknowledge the current record, and wait for the next one."""
        self.catch_signals()
        if self._lease is None:
            self._lease = self._group.lease_s
        if self._current is not None:
            self._settle(self._group.ack)
        until = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        while not self._stop.is_set:
            left_s = POLL_S if until is None else until - time.monotonic()
            for delivery in self._group.fetch(1, self._lease, timeout_s=max(min(left_s, POLL_S), 0.0)):
                self._current = delivery
                self._keeper.hold(delivery, self._lease)
                return delivery
            if left_s <= 0:
                break
        self.close()
        raise StopIteration

    def catch_signals(self) -> None:
        """Let signals stop the loop, if this is the main thread and the loop shall."""
        self._stop.install()

    def release_signals(self) -> None:
        self._stop.restore()

    def fail(self, error: BaseException) -> None:
        """Return the current record because of an exception."""
        _logger.warning("a record failed and will be delivered again", exc_info=error)
        self.give_back(_reason(error))

    def give_back(self, reason: str) -> None:
        """Return the current record, which the group delivers again after the retry delay."""
        if self._current is not None:
            self._settle(lambda delivery: self._group.nack(delivery, delay=self._retry_s, reason=reason))

    def _settle(self, work: Callable[[D], object]) -> None:
        delivery, self._current = self._current, None
        self._keeper.release()
        try:
            assert delivery is not None
            work(delivery)
        except LeaseError as error:  # another consumer has it: the record is not lost, and its work is done twice
            _logger.warning("a record was delivered to another consumer before this one settled it: %s", error)

    def run(self, handle: Callable[[D], object]) -> int:
        """Call ``handle`` for each record until the loop is stopped. A record for which it raises is returned, with the
        exception as the reason. Return the number of acknowledged records."""
        done = 0
        with self:
            for delivery in self:
                try:
                    handle(delivery)
                except Exception as error:  # noqa: BLE001  the group delivers the record again
                    self.fail(error)
                else:
                    done += 1
        return done

    def close(self) -> None:
        """End the loop. The current record is returned; the group stays open."""
        self._stop.restore()
        try:
            self.give_back("its consumer left the loop")
        finally:
            self._keeper.end()

    def __enter__(self) -> Self:
        self.catch_signals()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self.give_back(_reason(error))
        finally:
            self.close()

    def __del__(self) -> None:  # may run inside any call of this thread: hands the work to the keeper
        if hasattr(self, "_stop"):
            self._stop.restore()
            self._keeper.abandon()


class _LeaseKeeper(Generic[D]):
    """Extends the lease of one delivery at a time. Does not refer to the loop, so that an abandoned loop is collected,
    which ends the thread."""

    def __init__(self, group: Deliverer[D], max_lease_s: float) -> None:
        self._group = group
        self._lease: Seconds = 0.0
        self._period_s = 0.0
        self._max_lease_s = max_lease_s
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # `put` is safe in a destructor
        self._thread: threading.Thread | None = None
        self._held: D | None = None
        self._until_s = 0.0

    def hold(self, delivery: D, lease: Seconds) -> None:
        self._lease, self._period_s = lease, to_ms(lease, "lease") / 3000
        self._until_s = time.monotonic() + self._max_lease_s
        self._held = delivery
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="duramen-lease", daemon=True)
            self._thread.start()

    def release(self) -> None:
        self._held = None

    def end(self) -> None:
        if self._thread is not None:
            thread, self._thread = self._thread, None
            self._orders.put(self._end)
            thread.join()

    def abandon(self) -> None:
        if self._thread is not None:
            self._orders.put(self._give_back)

    def _work(self) -> None:
        while True:
            try:
                self._orders.get(timeout=self._period_s)()
                return
            except queue.Empty:
                self._extend()

    def _extend(self) -> None:
        held = self._held
        if held is None or time.monotonic() > self._until_s:
            return
        try:
            self._group.extend(held, self._lease)
        except LeaseError:
            pass  # settled by now, or delivered to another consumer: the ack tells
        except DuramenError as error:
            _logger.warning("a lease could not be extended: %s", error)

    def _end(self) -> None:
        """Wake the thread so that it ends."""

    def _give_back(self) -> None:
        held = self._held
        if held is not None:
            try:
                self._group.nack(held, reason="its consumer left the loop")
            except DuramenError as error:  # the log was closed before: the lease expires
                _logger.debug("a record stays leased until its deadline: %s", error)


class _StopFlag:
    """Whether a loop shall end, and the signal handlers that say so."""

    def __init__(self, with_signals: bool) -> None:
        self.is_set = False
        self.is_over = False
        """The loop ended in another thread, where its handlers could not be removed."""
        self._with_signals = with_signals
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        self.is_over = False
        if self._with_signals and not self._before and not self.is_set and _in_main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` and shells set it for their children
                    self._before[number] = signal.signal(number, self._on_signal)

    def restore(self) -> None:
        self.is_over = True
        while self._before and _in_main_thread():
            number, handler = self._before.popitem()
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        is_over, self.is_set = self.is_over, True
        self.restore()
        if is_over:
            signal.raise_signal(number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
