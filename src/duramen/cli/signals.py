"""Ctrl-C and SIGTERM on the command line: both end a verb as `KeyboardInterrupt`, with exit code 130 or 143.

A verb has long phases, which a signal may interrupt, and short ones that change files, which it must not. `held` delays
a signal until such a phase ends or calls the check function. The first signal counts. A second one within a few seconds
is ignored, so that pressing ctrl-C twice does not interrupt the clean-up; later ones interrupt again, so that nothing
hangs forever.

Signals reach the main thread only. Library users are not affected.
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
"""Further signals are ignored for this long after an interrupt."""
AFTER_S = 0.01
"""Delay before a lost interrupt is repeated."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM. Not a plain `KeyboardInterrupt`: if that leaves an ``exec`` (every dataclass runs one), the
    interpreter kills itself with SIGINT at exit, whatever the exit code is."""


class Signals:
    """Handles both signals from `start` to the end of the block. Before `start` and after `finish`, none raises."""

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
        """Let signals interrupt from now on. Signals that the parent ignores stay ignored."""
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
        """Only record signals from now on."""
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
        """The exit code: 143 after SIGTERM, even if the verb treated the interrupt as its normal end."""
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
        """Repeat an interrupt that was raised inside a finalizer: Python would print and drop it."""
        if not isinstance(lost.exc_value, Interrupted):
            assert self._hook_before is not None
            self._hook_before(lost)
            return
        returning = threading.Event()
        threading.Thread(target=self._repeat, args=(returning,), daemon=True).start()
        returning.set()

    def _repeat(self, returning: threading.Event) -> None:
        """Signals count again from here: one that came before would be lost in the same finalizer."""
        returning.wait()
        time.sleep(AFTER_S)
        self._raised_s = float("-inf")
        os.kill(os.getpid(), self._first or signal.SIGINT)

    def check(self) -> None:
        """Raise a delayed interrupt."""
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
    """Delay signals during a block, and raise at its end if one arrived. The block gets a function that raises at
    once, for points at which it can still roll back. An error of the block takes precedence."""
    if _current is None or threading.current_thread() is not threading.main_thread():
        yield _nothing
        return
    with _current.hold() as check:
        yield check


def _nothing() -> None:
    pass
