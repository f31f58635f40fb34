"""What a Python worker of Spark's is told once, so that its next task begins without delay.

Spark runs the garbage collector over a worker between any two tasks. It finds next to nothing, and looks at everything
that was ever imported to say so: 20 to 60 ms for pyspark, pyarrow and pandas, as much as reading 64 MB takes. Modules
stay until the process ends, so the collector need not look at them. Everything a task makes is collected as before.
"""

from __future__ import annotations

import gc
import sys

from pyspark import TaskContext

_seen_modules = 0


def settle() -> None:
    """Take what is imported out of the collector's sight: once, and again after more was imported. Called where a task
    begins, when it has made next to nothing yet; outside of a task it does nothing."""
    global _seen_modules
    if TaskContext.get() is None or len(sys.modules) == _seen_modules:
        return
    _seen_modules = len(sys.modules)
    gc.freeze()
