"""Duramen: a durable, segmented, append-only log, and the pipeline that carries such logs through Spark.

>>> import duramen
>>> duramen.formats()
('durable-log', 'keratin', 'rustlog', 'osiris', 'fixed-slot')
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Literal, overload

from duramen.disk import PosixDisk
from duramen.errors import (
    CorruptionError,
    DetectionError,
    DuramenError,
    IncompleteHeaderError,
    LimitError,
    LockedError,
    OffsetError,
    PoisonedError,
    QueueTimeoutError,
    StorageError,
    UnknownVersionError,
    UnsupportedFieldError,
    UsageError,
)
from duramen.formats.detect import Detected
from duramen.formats.registry import names as formats
from duramen.groups.log import ConsumableLog, ConsumableWritableLog
from duramen.log.directory import detect as _detect
from duramen.log.reader import Log, SegmentInfo
from duramen.log.report import Finding, Report
from duramen.log.verify import verify as _verify
from duramen.log.writer import Appended, WritableLog
from duramen.model import SCHEMA, Record


def __getattr__(name: str) -> Any:
    if name == "aio":  # asyncio is imported by those who use it
        return importlib.import_module("duramen.aio")
    raise AttributeError(f"module 'duramen' has no attribute {name!r}")


__version__ = "0.1.0"

Path = str | os.PathLike[str]


@overload
def open(path: Path, mode: Literal["r"] = "r", *, format: str | None = None, **options: Any) -> ConsumableLog: ...


@overload
def open(path: Path, mode: Literal["a"], *, format: str | None = None, **options: Any) -> ConsumableWritableLog: ...


def open(path: Path, mode: str = "r", *, format: str | None = None, **options: Any) -> ConsumableLog:
    """Open the log at ``path``.

    Mode ``"r"`` reads a directory or a single segment file and leaves no trace. Mode ``"a"`` appends, and makes the log
    if there is none (as ``keratin``, unless ``format`` says otherwise). ``format`` is told from the files unless given;
    ``options`` are the format's (``record_size`` for fixed-slot) and, for ``"a"``, the writer's: see `WritableLog`.

    >>> import tempfile, duramen
    >>> with duramen.open(tempfile.mkdtemp() + "/events", "a") as log:
    ...     log.append(b"hello", key=b"k")
    ...     log.read(0).value
    0
    b'hello'
    """
    if mode == "r":
        return ConsumableLog(os.fspath(path), format=format, **options)
    if mode == "a":
        return ConsumableWritableLog(os.fspath(path), format=format, **options)
    raise UsageError(f"mode {mode!r} is not known", hint='it is "r" or "a"')


def detect(path: Path) -> Detected:
    """Which format lies at ``path``, and why. Raises `DetectionError` where that cannot be told."""
    return _detect(PosixDisk(), os.fspath(path))


def verify(path: Path, *, format: str | None = None, **options: Any) -> Report:
    """Check every byte of the log at ``path``."""
    return _verify(os.fspath(path), format=format, **options)


__all__ = [
    "SCHEMA",
    "Appended",
    "CorruptionError",
    "Detected",
    "DetectionError",
    "DuramenError",
    "Finding",
    "IncompleteHeaderError",
    "LimitError",
    "LockedError",
    "Log",
    "OffsetError",
    "PoisonedError",
    "QueueTimeoutError",
    "Record",
    "Report",
    "SegmentInfo",
    "StorageError",
    "UnknownVersionError",
    "UnsupportedFieldError",
    "UsageError",
    "WritableLog",
    "detect",
    "formats",
    "open",
    "verify",
]
