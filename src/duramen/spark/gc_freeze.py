"""Keeps imported modules out of the garbage collector in the Python processes that Spark starts.

Spark runs a full collection in such a process after each task and after each call for a schema or partitions. It visits
everything that was ever imported and frees next to nothing: 20 to 60 ms for pyspark, pyarrow and pandas, as long as
reading 64 MB takes. Modules stay until the process ends, so they are frozen. Later objects are collected as usual.
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
    """Freeze what is imported: once, and again after more imports. Called at the start of a task, before it creates
    objects; does nothing in other processes."""
    global _seen_modules
    if not in_worker() or len(sys.modules) == _seen_modules:
        return
    _seen_modules = len(sys.modules)
    gc.freeze()
