"""Ctrl-C and SIGTERM on the command line: both end a verb as `KeyboardInterrupt`, with exit code 130 or 143.

A verb has long phases, which may be interrupted anywhere, and short ones, in which files change and which must not be:
`held` keeps a signal back until such a phase is over, or until the phase itself asks for it. The first signal counts.
One that follows it within a few seconds does nothing, so that somebody who presses ctrl-C twice does not interrupt the
putting back; later ones interrupt again, so that nothing can hang for ever.

Signals reach the main thread only. Elsewhere, and for those who use the library, nothing here changes anything.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from duramen.starting import SIGNALS

AGAIN_S = 5.0
"""How long after an interrupt another one does nothing."""
AFTER_S = 0.01
"""How long after an interrupt that was lost it comes again."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM. A class of its own: where a plain `KeyboardInterrupt` leaves an ``exec`` of a text (every
    dataclass has one), the interpreter remembers that, and kills itself in the end whatever the exit code is."""


class Signals:
    """Catches both signals from `start` to the end of the block. Before `start` and after `finish` none raises."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._outer: Signals | None = None
        self._hook_before: Callable[[sys.UnraisableHookArgs], object] | None = None
        self._is_raising = False
        self._held = 0
        self._waiting = False
        self._raised_s = float("-inf")
        self._first: int | None = None

    def __enter__(self) -> Signals:
        global _current
        self._outer, _current = _current, self
        return self

    def start(self) -> None:
        """From here on a signal interrupts. Signals that are ignored stay so."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._is_raising = True
        for number in SIGNALS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._on_signal)
        self._hook_before, sys.unraisablehook = sys.unraisablehook, self._on_unraisable

    def finish(self) -> None:
        """From here on a signal is only noted."""
        self._is_raising = False

    def __exit__(self, *_error: object) -> None:
        global _current
        self._is_raising = False
        if self._hook_before is not None:
            sys.unraisablehook = self._hook_before
        for number, before in self._before.items():
            signal.signal(number, before if before is not None else signal.SIG_DFL)
        _current = self._outer

    def code(self, otherwise: int) -> int:
        """The exit code: that of SIGTERM also where a verb took the interrupt as its normal end."""
        return 128 + signal.SIGTERM if self._first == signal.SIGTERM else otherwise

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._first is None:
            self._first = number
        if self._held:
            self._waiting = True
        elif self._is_raising and time.monotonic() - self._raised_s > AGAIN_S:
            self._interrupt()

    def _interrupt(self) -> None:
        self._waiting = False
        self._raised_s = time.monotonic()
        raise Interrupted

    def _on_unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """An interrupt that hit a finalizer goes no further, and Python would print it. It comes again in a moment,
        when the main thread is out of there."""
        if not isinstance(lost.exc_value, Interrupted):
            assert self._hook_before is not None
            self._hook_before(lost)
            return
        self._raised_s = float("-inf")
        again = threading.Timer(AFTER_S, os.kill, (os.getpid(), self._first or signal.SIGINT))
        again.daemon = True
        again.start()

    def check(self) -> None:
        """Raise what was held back."""
        if self._waiting:
            self._interrupt()

    @contextmanager
    def hold(self) -> Iterator[Callable[[], None]]:
        self._held += 1
        try:
            yield self.check
        finally:
            self._held -= 1
            if not self._held:
                waiting, self._waiting = self._waiting, False
        if not self._held and waiting:
            self._interrupt()


_current: Signals | None = None


@contextmanager
def held() -> Iterator[Callable[[], None]]:
    """Hold signals back for a block, and raise at its end if one came. The block gets a function that raises at once:
    for places where it can still be taken back. What ends with an error ends with that error."""
    if _current is None or threading.current_thread() is not threading.main_thread():
        yield _nothing
        return
    with _current.hold() as check:
        yield check


def _nothing() -> None:
    pass
