"""Signals during start-up: the program ends silently with the exit code of the signal.

Importing Arrow takes a few tenths of a second, and ctrl-C during that time should not print a traceback. Nothing needs
cleaning up yet. Library users are not affected: the handlers are installed only if this process is the program
`duramen`. `duramen.cli.main` replaces them while a verb runs.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
MODULES = ("duramen", "duramen.cli.main")


def is_program() -> bool:
    """Whether this process was started as ``duramen``, ``python -m duramen`` or ``python -m duramen.cli.main``."""
    if not sys.argv:
        return False
    if sys.argv[0] == "-m":  # the interpreter imports the package to find the module
        return sys.orig_argv[-len(sys.argv)].removeprefix("-m") in MODULES
    return os.path.basename(sys.argv[0]) == "duramen"


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


def _ignore() -> None:
    """Ignore signals while the interpreter shuts down: the default handler would make a finished run look failed."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_quietly() -> None:
    """Install the handlers, except for signals that the parent ignores, as ``nohup`` and shells do."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    atexit.register(_ignore)  # registered first, runs last


if is_program():
    end_quietly()
