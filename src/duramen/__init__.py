"""Duramen: a durable, segmented, append-only log, and the pipeline that carries such logs through Spark.

>>> import duramen
>>> duramen.formats()
('durable-log', 'keratin', 'rustlog', 'osiris', 'fixed-slot', 'kafka')
"""

from __future__ import annotations

import duramen.starting  # noqa: F401  # before what takes long, for where this is the program

# isort: split
import importlib
import logging
import os
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Unpack, cast, overload

from duramen.arguments import check_path
from duramen.consumers import (
    Confirmed,
    ConsumeLoop,
    ConsumerLag,
    Cursor,
    CursorState,
    Delivery,
    DeliveryBatch,
    Group,
    GroupPolicy,
    GroupStatus,
    InFlight,
    Member,
    Producer,
    ProducerState,
    Replayed,
)
from duramen.consumers import ConsumableLog as Log
from duramen.consumers import ConsumableWritableLog as WritableLog
from duramen.disk import PosixDisk, disk_for, is_address
from duramen.errors import (
    CorruptionError,
    DetectionError,
    DuramenError,
    FencedError,
    IncompleteHeaderError,
    LateTimestampError,
    LeaseError,
    LimitError,
    LockedError,
    MalformedError,
    OffsetError,
    PoisonedError,
    QueueTimeoutError,
    ReadOnlyError,
    StorageError,
    UnknownTopicError,
    UnknownVersionError,
    UnsupportedFieldError,
    UsageError,
)
from duramen.formats import CommittedOffset, Detected, FormatOptions, KafkaGroup, StoredChunk
from duramen.formats import names as formats
from duramen.log import (
    Appended,
    AppendOptions,
    Compaction,
    CompactionReport,
    Converted,
    Copied,
    Finding,
    Plan,
    ReaderOptions,
    RecoveryStep,
    Report,
    Retention,
    RetentionPlan,
    SegmentInfo,
    WriterOptions,
)
from duramen.log import convert as _convert
from duramen.log import copy as _copy
from duramen.log import detect as _detect
from duramen.log import repair_log as _repair
from duramen.log import verify_log as _verify
from duramen.record import SCHEMA, Record
from duramen.sidecar import Need
from duramen.store import (
    GroupLag,
    KafkaGroups,
    PartitionInfo,
    Placed,
    PlacedOnce,
    Store,
    Topic,
    TopicDelivery,
    TopicGroup,
    TopicInfo,
    TopicProducer,
    TopicRecord,
    log_options,
    log_path,
    open_topic,
    topic_address,
)
from duramen.values import DecodeOptions, Decoder, Encoder, MalformedValue, decoder, encoder


def __getattr__(name: str) -> Any:
    if name == "aio":  # asyncio is imported by those who use it
        return importlib.import_module("duramen.aio")
    raise AttributeError(f"module 'duramen' has no attribute {name!r}")


__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())

Path = str | bytes | os.PathLike[str]


@overload
def open(
    path: Path, mode: Literal["r"] = "r", *, format: str | None = None, **options: Unpack[ReaderOptions]
) -> Log: ...


@overload
def open(
    path: Path, mode: Literal["a"], *, format: str | None = None, **options: Unpack[AppendOptions]
) -> WritableLog: ...


def open(path: Path, mode: str = "r", *, format: str | None = None, **options: Any) -> Log:
    """Open the log at ``path``.

    Mode ``"r"`` reads a directory or a single segment file and writes nothing. Mode ``"a"`` appends, and creates a
    missing log (as ``keratin`` by default). ``format`` is detected from the files unless given. ``options`` belong to
    the format (``record_size`` for fixed-slot) and, for ``"a"``, to the writer: see `WritableLog`. A URI that pyarrow
    or fsspec supports (``s3://bucket/events``) can be read; its segments are fetched whole. As on the command line,
    ``PATH#topic/0`` names a partition of a store, and ``PATH#topic`` a topic: for that this returns a `Topic`.

    >>> import tempfile, duramen
    >>> with duramen.open(tempfile.mkdtemp() + "/events", "a") as log:
    ...     log.append(b"hello", key=b"k")
    ...     log.read(0).value
    0
    b'hello'
    """
    path = check_path(path)
    if mode not in ("r", "a"):
        raise UsageError(f"mode must be 'r' or 'a' (got {mode!r})")
    if is_address(path):
        disk, path = disk_for(path)
        options = {"disk": disk, **options}
    elif (topic := topic_address(path)) is not None:
        return cast(Log, open_topic(topic, writable=mode == "a", **options))
    else:
        path, start = log_path(path), log_options(path) if mode == "r" else {}
        options = {**start, **options}
    if mode == "r":
        return Log(path, format=format, **options)
    return WritableLog(path, format=format, **options)


def _log_path(path: Path) -> str:
    text = check_path(path)
    return text if is_address(text) else log_path(text)


def detect(path: Path) -> Detected:
    """Detect the format of the log at ``path``, with the reason. `DetectionError` if it is unknown."""
    path = _log_path(path)
    return _detect(PosixDisk().within(path), path)


def verify(path: Path, *, format: str | None = None, publish: bool = False, **options: Unpack[ReaderOptions]) -> Report:
    """Check every byte of the log at ``path``.

    ``publish`` stores a summary in the log's sidecar for `duramen top`, `duramen serve` and alerts, as the command
    line does. Without it, and where the log has no sidecar that this process may write to, a check leaves no trace.
    """
    return _verify(_log_path(path), format=format, publish=publish, **options)


def convert(
    src: Path,
    dst: Path,
    to: str,
    *,
    allow_loss: Sequence[str] = (),
    on_damage: str = "raise",
    format: str | None = None,
    source_options: FormatOptions | None = None,
    **options: Unpack[ReaderOptions],
) -> Converted:
    """Convert the log at ``src`` to the format ``to``, as a new log at ``dst``.

    Raises `UnsupportedFieldError` if ``to`` cannot store a field of the log, unless ``allow_loss`` names it.
    ``on_damage="skip"`` skips damaged places. ``format`` and ``source_options`` belong to ``src``, ``options`` to the
    new log. ``dst`` appears completely or not at all.

    >>> import tempfile, duramen
    >>> root = tempfile.mkdtemp()
    >>> with duramen.open(root + "/events", "a", format="keratin") as log:
    ...     log.append(b"hello", timestamp=1_700_000_000_000)
    0
    >>> duramen.convert(root + "/events", root + "/stream", to="osiris").records
    1
    """
    return _convert(
        _log_path(src), check_path(dst), to, allow_loss=allow_loss, on_damage=on_damage, format=format,
        source_options=source_options, **options,
    )  # fmt: skip


def copy(
    src: Path,
    dst: Path,
    *,
    update: bool = False,
    until_offset: int | None = None,
    until_time: datetime | str | int | None = None,
    format: str | None = None,
    **options: Unpack[ReaderOptions],
) -> Copied:
    """Copy the log at ``src``, which a writer may have open, to the new path ``dst``.

    ``update`` brings an existing copy up to date. ``until_offset`` copies the records before that offset;
    ``until_time`` stops at the first record with that time or a later one."""
    bounds = {"until_offset": until_offset, "until_time": until_time}
    return _copy(_log_path(src), check_path(dst), update=update, **bounds, format=format, **options)


def repair(
    path: Path,
    plan_only: bool = True,
    *,
    strategy: str = "salvage",
    format: str | None = None,
    **options: Unpack[ReaderOptions],
) -> Plan:
    """Plan the repair of the log at ``path``; with ``plan_only=False``, also carry it out.

    The plan lists for each file what is kept, what is removed, and why. Every file is copied to the quarantine before
    it changes, and ``duramen repair --undo`` restores it.

    >>> import tempfile, duramen
    >>> path = tempfile.mkdtemp() + "/events"
    >>> with duramen.open(path, "a") as log:
    ...     log.append(b"hello")
    0
    >>> print(duramen.repair(path))
    nothing to repair
    """
    return _repair(_log_path(path), plan_only=plan_only, strategy=strategy, format=format, **options)


__all__ = [
    "SCHEMA",
    "AppendOptions",
    "Appended",
    "CommittedOffset",
    "Compaction",
    "CompactionReport",
    "Confirmed",
    "ConsumeLoop",
    "ConsumerLag",
    "Converted",
    "Copied",
    "CorruptionError",
    "Cursor",
    "CursorState",
    "DecodeOptions",
    "Decoder",
    "Delivery",
    "DeliveryBatch",
    "Detected",
    "DetectionError",
    "DuramenError",
    "Encoder",
    "FencedError",
    "Finding",
    "FormatOptions",
    "Group",
    "GroupLag",
    "GroupPolicy",
    "GroupStatus",
    "InFlight",
    "IncompleteHeaderError",
    "KafkaGroup",
    "KafkaGroups",
    "LateTimestampError",
    "LeaseError",
    "LimitError",
    "LockedError",
    "Log",
    "MalformedError",
    "MalformedValue",
    "Member",
    "Need",
    "OffsetError",
    "PartitionInfo",
    "Placed",
    "PlacedOnce",
    "Plan",
    "PoisonedError",
    "Producer",
    "ProducerState",
    "QueueTimeoutError",
    "ReadOnlyError",
    "ReaderOptions",
    "Record",
    "RecoveryStep",
    "Replayed",
    "Report",
    "Retention",
    "RetentionPlan",
    "SegmentInfo",
    "StorageError",
    "Store",
    "StoredChunk",
    "Topic",
    "TopicDelivery",
    "TopicGroup",
    "TopicInfo",
    "TopicProducer",
    "TopicRecord",
    "UnknownTopicError",
    "UnknownVersionError",
    "UnsupportedFieldError",
    "UsageError",
    "WritableLog",
    "WriterOptions",
    "convert",
    "copy",
    "decoder",
    "detect",
    "encoder",
    "formats",
    "open",
    "repair",
    "verify",
]
