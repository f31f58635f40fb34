"""Duramen: a durable, segmented, append-only log, and the pipeline that carries such logs through Spark.

>>> import duramen
>>> duramen.formats()
('durable-log', 'keratin', 'rustlog', 'osiris', 'fixed-slot')
"""

from __future__ import annotations

import os
from typing import Any

from duramen.disk import PosixDisk
from duramen.errors import (
    CorruptionError,
    DetectionError,
    DuramenError,
    IncompleteHeaderError,
    LimitError,
    OffsetError,
    StorageError,
    UnknownVersionError,
    UnsupportedFieldError,
    UsageError,
)
from duramen.formats.detect import Detected
from duramen.formats.registry import names as formats
from duramen.log.directory import detect as _detect
from duramen.log.reader import Log, SegmentInfo
from duramen.log.report import Finding, Report
from duramen.log.verify import verify as _verify
from duramen.model import SCHEMA, Record

__version__ = "0.1.0"

Path = str | os.PathLike[str]


def open(path: Path, mode: str = "r", *, format: str | None = None, **options: Any) -> Log:
    """Open the log at ``path``, a directory or a single segment file.

    ``format`` is told from the files unless given; ``options`` are the format's (``record_size`` for fixed-slot).
    Mode ``"r"`` reads and leaves no trace.
    """
    if mode != "r":
        raise UsageError(f"mode {mode!r} is not known", hint='this version reads: mode "r"')
    return Log(os.fspath(path), format=format, **options)


def detect(path: Path) -> Detected:
    """Which format lies at ``path``, and why. Raises `DetectionError` where that cannot be told."""
    return _detect(PosixDisk(), os.fspath(path))


def verify(path: Path, *, format: str | None = None, **options: Any) -> Report:
    """Check every byte of the log at ``path``."""
    return _verify(os.fspath(path), format=format, **options)


__all__ = [
    "SCHEMA",
    "CorruptionError",
    "Detected",
    "DetectionError",
    "DuramenError",
    "Finding",
    "IncompleteHeaderError",
    "LimitError",
    "Log",
    "OffsetError",
    "Record",
    "Report",
    "SegmentInfo",
    "StorageError",
    "UnknownVersionError",
    "UnsupportedFieldError",
    "UsageError",
    "detect",
    "formats",
    "open",
    "verify",
]
