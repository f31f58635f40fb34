"""How the program ends when a signal comes while it is only starting: quietly, with the exit code of that signal.

Importing Arrow takes a few tenths of a second, and whoever presses ctrl-C then wants no traceback. Nothing has been
done by then, so there is nothing to clean up. Whoever imports `duramen` as a library is left alone: the handlers are
set only where this process is the program, which its command says. `duramen.cli.main` takes over from here; when it is
done, these handlers are back until the interpreter ends.
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
    if sys.argv[0] == "-m":  # the interpreter looks for the module, and imports its package to find it
        return sys.orig_argv[-len(sys.argv)].removeprefix("-m") in MODULES
    return os.path.basename(sys.argv[0]) == "duramen"


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


def _ignore() -> None:
    """The interpreter's last moments: it would put back the default, which makes a finished run look like a failed
    one."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_quietly() -> None:
    """Set the handlers, but for a signal that is ignored: ``nohup`` and shells mean that."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    atexit.register(_ignore)  # the first to be registered is the last to run


if is_program():
    end_quietly()
