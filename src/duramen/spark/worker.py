"""What a Python process of Spark's is told once, so that its next work begins without delay.

Spark runs the garbage collector over such a process after each task, and after each look at a source's schema and
partitions. It finds next to nothing, and looks at everything
that was ever imported to say so: 20 to 60 ms for pyspark, pyarrow and pandas, as much as reading 64 MB takes. Modules
stay until the process ends, so the collector need not look at them. Everything made later is collected as before.
"""

from __future__ import annotations

import gc
import os
import sys

_FACTORY = ("PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_PATH", "PYTHON_WORKER_FACTORY_SOCK_DIR")
_seen_modules = 0


def in_worker() -> bool:
    """Whether Spark started this process to run Python for it."""
    return any(name in os.environ for name in _FACTORY)


def settle() -> None:
    """Take what is imported out of the collector's sight: once, and again after more was imported. Called where work
    begins, when it has made next to nothing yet; in any other process it does nothing."""
    global _seen_modules
    if not in_worker() or len(sys.modules) == _seen_modules:
        return
    _seen_modules = len(sys.modules)
    gc.freeze()
