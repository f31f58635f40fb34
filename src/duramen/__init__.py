"""Duramen: a durable, segmented, append-only log, and the pipeline that carries such logs through Spark.

>>> import duramen
>>> duramen.formats()
('durable-log', 'keratin', 'rustlog', 'osiris', 'fixed-slot')
"""

from __future__ import annotations

import duramen.starting  # noqa: F401  # before what takes long, for where this is the program

# isort: split
import importlib
import os
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, overload

from duramen.disk import PosixDisk
from duramen.disk.address import disk_for, is_address
from duramen.errors import (
    CorruptionError,
    DetectionError,
    DuramenError,
    IncompleteHeaderError,
    LateTimestampError,
    LeaseError,
    LimitError,
    LockedError,
    OffsetError,
    PoisonedError,
    QueueTimeoutError,
    StorageError,
    UnknownTopicError,
    UnknownVersionError,
    UnsupportedFieldError,
    UsageError,
)
from duramen.formats.detect import Detected
from duramen.formats.registry import names as formats
from duramen.groups.log import ConsumableLog, ConsumableWritableLog
from duramen.log.convert import Converted
from duramen.log.convert import convert as _convert
from duramen.log.copy import Copied
from duramen.log.copy import copy as _copy
from duramen.log.directory import detect as _detect
from duramen.log.reader import Log, SegmentInfo
from duramen.log.repair import Plan
from duramen.log.repair import repair as _repair
from duramen.log.report import Finding, Report
from duramen.log.requests import Appended
from duramen.log.verify import verify as _verify
from duramen.log.writer import WritableLog
from duramen.model import SCHEMA, Record
from duramen.store.store import Store


def __getattr__(name: str) -> Any:
    if name == "aio":  # asyncio is imported by those who use it
        return importlib.import_module("duramen.aio")
    raise AttributeError(f"module 'duramen' has no attribute {name!r}")


__version__ = "0.1.0"

Path = str | bytes | os.PathLike[str]


@overload
def open(path: Path, mode: Literal["r"] = "r", *, format: str | None = None, **options: Any) -> ConsumableLog: ...


@overload
def open(path: Path, mode: Literal["a"], *, format: str | None = None, **options: Any) -> ConsumableWritableLog: ...


def open(path: Path, mode: str = "r", *, format: str | None = None, **options: Any) -> ConsumableLog:
    """Open the log at ``path``.

    Mode ``"r"`` reads a directory or a single segment file and leaves no trace. Mode ``"a"`` appends, and makes the log
    if there is none (as ``keratin``, unless ``format`` says otherwise). ``format`` is told from the files unless given;
    ``options`` are the format's (``record_size`` for fixed-slot) and, for ``"a"``, the writer's: see `WritableLog`.
    An address that pyarrow or fsspec know (``s3://bucket/events``) can be read; its segments are fetched whole.

    >>> import tempfile, duramen
    >>> with duramen.open(tempfile.mkdtemp() + "/events", "a") as log:
    ...     log.append(b"hello", key=b"k")
    ...     log.read(0).value
    0
    b'hello'
    """
    path = os.fsdecode(path)
    if is_address(path):
        disk, path = disk_for(path)
        options = {"disk": disk, **options}
    if mode == "r":
        return ConsumableLog(path, format=format, **options)
    if mode == "a":
        return ConsumableWritableLog(path, format=format, **options)
    raise UsageError(f"mode {mode!r} is not known", hint='it is "r" or "a"')


def detect(path: Path) -> Detected:
    """Which format lies at ``path``, and why. Raises `DetectionError` where that cannot be told."""
    return _detect(PosixDisk(), os.fsdecode(path))


def verify(path: Path, *, format: str | None = None, **options: Any) -> Report:
    """Check every byte of the log at ``path``."""
    return _verify(os.fsdecode(path), format=format, **options)


def convert(
    src: Path,
    dst: Path,
    to: str,
    *,
    allow_loss: Sequence[str] = (),
    on_damage: str = "raise",
    format: str | None = None,
    source_options: dict[str, Any] | None = None,
    **options: Any,
) -> Converted:
    """Convert the log at ``src`` to the format ``to``, as a new log at ``dst``.

    Raises `UnsupportedFieldError` where ``to`` has no place for something that the log holds, unless ``allow_loss``
    names it. ``on_damage="skip"`` leaves damaged places out. ``format`` and ``source_options`` are those of ``src``,
    ``options`` those of the new log. There is never half a log at ``dst``.

    >>> import tempfile, duramen
    >>> root = tempfile.mkdtemp()
    >>> with duramen.open(root + "/events", "a", format="keratin") as log:
    ...     log.append(b"hello", timestamp=1_700_000_000_000)
    0
    >>> duramen.convert(root + "/events", root + "/stream", to="osiris").records
    1
    """
    return _convert(
        os.fsdecode(src), os.fsdecode(dst), to, allow_loss=allow_loss, on_damage=on_damage, format=format,
        source_options=source_options, **options,
    )  # fmt: skip


def copy(
    src: Path,
    dst: Path,
    *,
    until_offset: int | None = None,
    until_time: datetime | str | int | None = None,
    format: str | None = None,
    **options: Any,
) -> Copied:
    """Copy the log at ``src``, which may be written meanwhile, to the new path ``dst``.

    ``until_offset``: without that record and all behind it; ``until_time``: without the first record of that time or
    later, and all behind it."""
    return _copy(
        os.fsdecode(src), os.fsdecode(dst), until_offset=until_offset, until_time=until_time, format=format, **options
    )


def repair(
    path: Path,
    plan_only: bool = True,
    *,
    strategy: str = "salvage",
    format: str | None = None,
    **options: Any,
) -> Plan:
    """What it takes to make the log at ``path`` sound again; with ``plan_only=False`` it is done.

    The plan says file by file what stays, what goes and why. Everything that changes is copied aside first, and
    ``duramen repair --undo`` puts it back.

    >>> import tempfile, duramen
    >>> path = tempfile.mkdtemp() + "/events"
    >>> with duramen.open(path, "a") as log:
    ...     log.append(b"hello")
    0
    >>> print(duramen.repair(path))
    nothing to repair
    """
    return _repair(os.fsdecode(path), plan_only=plan_only, strategy=strategy, format=format, **options)


__all__ = [
    "SCHEMA",
    "Appended",
    "Converted",
    "Copied",
    "CorruptionError",
    "Detected",
    "DetectionError",
    "DuramenError",
    "Finding",
    "IncompleteHeaderError",
    "LateTimestampError",
    "LeaseError",
    "LimitError",
    "LockedError",
    "Log",
    "OffsetError",
    "Plan",
    "PoisonedError",
    "QueueTimeoutError",
    "Record",
    "Report",
    "SegmentInfo",
    "StorageError",
    "Store",
    "UnknownTopicError",
    "UnknownVersionError",
    "UnsupportedFieldError",
    "UsageError",
    "WritableLog",
    "convert",
    "copy",
    "detect",
    "formats",
    "open",
    "repair",
    "verify",
]
