"""Logs of every format for the tests of what stands above them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duramen

RECORD_SIZE = 16
FORMATS = ("durable-log", "keratin", "rustlog", "osiris", "fixed-slot", "kafka")


def options(format_name: str) -> dict[str, Any]:
    return {"record_size": RECORD_SIZE} if format_name == "fixed-slot" else {}


def value(offset: int) -> bytes:
    return f"value {offset}".encode().ljust(RECORD_SIZE, b".")


def make_log(root: Path, format_name: str, records: int, **more: Any) -> Path:
    """A closed log whose values say their offsets."""
    with duramen.open(root, "a", format=format_name, **options(format_name), **more) as log:
        if records:
            log.append_batch([value(offset) for offset in range(records)])
    return root
