"""The functions of `pyarrow.compute`, which is imported when the first of them is used.

It builds some 300 functions with their documentation from a registry. That takes longer than to open a log, and most
programs call none of them.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    function = globals()[name] = getattr(importlib.import_module("pyarrow.compute"), name)
    return function
