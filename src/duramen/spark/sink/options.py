"""The options and columns of a write, checked on the driver before any task runs.

Nothing is ignored: an unknown option or column raises `UsageError` and lists what is allowed. Opens no file.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from duramen.errors import UsageError
from duramen.formats import FORMATS
from duramen.store import check_topic
from duramen.values import Encoder, encoder

NAMES = (
    "path",
    "logFormat",
    "topic",
    "numPartitions",
    "lockTimeoutMs",
    "lateTimestamps",
    "txnAppId",
    "txnVersion",
    "encode",
    "valueSchema",
)
_SPARKS = ("checkpointlocation", "queryname", "outputmode")
"""Options that Spark adds."""
COLUMNS: Mapping[str, str] = {
    "value": "binary or string",
    "key": "binary or string",
    "headers": "array<struct<key: string, value: binary>>",
    "timestamp": "timestamp",
    "topic": "string",
    "partition": "int",
}
IGNORED = ("offset", "timestampType")
"""Columns that a read returns and a write drops: the log assigns offsets and knows what its times are."""


@dataclass(frozen=True)
class WriteOptions:
    path: str
    log_format: str | None = None
    format_options: Mapping[str, Any] = field(default_factory=dict)
    topic: str | None = None
    partitions: int = 1
    """Of a topic that the write creates."""
    lock_timeout_s: float = 60.0
    clamps_times: bool | frozenset[str] = False
    """Whether, or in which topics, a time that goes back becomes that of the row before it (ordered times only)."""
    app_id: str | None = None
    app_version: int = 0
    encoder: Encoder | None = None
    """What makes bytes of a typed column ``value``."""

    def log_options(self, *, is_new: bool) -> dict[str, Any]:
        """The options to open a log with. An existing log has its own."""
        told = {} if self.log_format is None else {"format": self.log_format}
        return {**told, **self.format_options} if is_new or self.format_options else told


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    texts = {name.lower(): text for name, text in given.items() if name.lower() not in _SPARKS}
    of_format = {name.lower(): name for kind in FORMATS.values() for name in kind.option_names}
    known = {**of_format, **{name.lower(): name for name in NAMES}}
    for name in sorted(texts.keys() - known.keys()):
        near = [known[other] for other in difflib.get_close_matches(name, known, 3, 0.7)]
        hint = f"did you mean {' or '.join(near)}?" if near else f"the options: {', '.join(NAMES)}, and the format's"
        raise UsageError(f"option {name} is not known", hint=hint)
    if not texts.get("path"):
        raise UsageError("option path is missing", hint='name the log: .save("/data/events") or .start("/data/events")')
    log_format = texts.get("logformat")
    if log_format is not None and log_format not in FORMATS:
        raise UsageError(f"option logFormat={log_format!r} is not valid", hint=f"it is one of {', '.join(FORMATS)}")
    if ("txnappid" in texts) != ("txnversion" in texts):
        raise UsageError("options txnAppId and txnVersion go together")
    return WriteOptions(
        path=_local(texts["path"]),
        log_format=log_format,
        format_options={of_format[name]: texts[name] for name in of_format.keys() & texts.keys()},
        topic=texts.get("topic"),
        partitions=_number(texts, "numPartitions", 1, least=1),
        lock_timeout_s=_number(texts, "lockTimeoutMs", 60_000) / 1000,
        clamps_times=_late(texts.get("latetimestamps", "fail")),
        app_id=texts.get("txnappid"),
        app_version=_number(texts, "txnVersion", 0),
        encoder=_encoder(texts),
    )


def _encoder(texts: Mapping[str, str]) -> Encoder | None:
    if "encode" in texts:
        return encoder(texts["encode"].strip().lower(), texts.get("valueschema"))
    if "valueschema" in texts:
        raise UsageError("option valueSchema is given alone", hint="it needs encode")
    return None


def _late(text: str) -> bool | frozenset[str]:
    """
    >>> _late("clamp"), sorted(_late('{"orders": "clamp", "audit": "fail"}'))
    (True, ['orders'])
    """
    try:
        told = json.loads(text) if text.lstrip().startswith("{") else text
    except (ValueError, RecursionError):
        told = None
    given = list(told.values()) if isinstance(told, dict) else [told]
    if not all(one in ("fail", "clamp") for one in given):
        hint = 'it is fail, clamp, or JSON with one of them for each topic: {"orders": "clamp"}'
        raise UsageError(f"option lateTimestamps={text!r} is not valid", hint=hint)
    if isinstance(told, dict):
        return frozenset(check_topic(topic) for topic, one in told.items() if one == "clamp")
    return told == "clamp"


def _local(path: str) -> str:
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    if "://" in path:
        raise UsageError(
            f"a log cannot be written to {path.split('://')[0]}://", path=path,
            hint="appending needs a file system with locks and syncs: give a path that driver and executors share",
        )  # fmt: skip
    return path


def _number(texts: Mapping[str, str], name: str, default: int, *, least: int = 0) -> int:
    text = texts.get(name.lower(), str(default)).strip()
    if not text.isdecimal() or not least <= int(text) < 2**63:
        raise UsageError(f"option {name}={text!r} is not valid", hint=f"a whole number from {least}")
    return int(text)


def check_columns(schema: StructType, *, encoded: bool = False) -> tuple[str, ...]:
    """The columns that will be written, in the order of the schema. ``encoded``: ``value`` may be of any type."""
    hint = "the columns are " + ", ".join(f"{name} ({kind})" for name, kind in COLUMNS.items())
    remedy = "with encode, fields belong into the struct 'value'" if encoded else f"{hint}: select or drop"
    for column in schema.fields:
        if column.name in IGNORED:
            continue
        if column.name not in COLUMNS:
            raise UsageError(f"a log cannot store the column {column.name!r}", hint=remedy)
        if not _fits(column.name, column.dataType) and not (encoded and column.name == "value"):
            raise UsageError(
                f"column {column.name!r} is {column.dataType.simpleString()} and has to be {COLUMNS[column.name]}",
                hint="cast it first",
            )
    names = tuple(name for name in schema.fieldNames() if name not in IGNORED)
    if "value" not in names:
        raise UsageError("the column 'value' is missing", hint=hint)
    return names


def _fits(name: str, kind: DataType) -> bool:
    if name in ("value", "key"):
        return isinstance(kind, BinaryType | StringType)
    if name == "timestamp":
        return isinstance(kind, TimestampType)
    if name == "topic":
        return isinstance(kind, StringType)
    if name == "partition":
        return isinstance(kind, IntegerType | LongType | ShortType)
    pair = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(pair, StructType) or pair.fieldNames() != ["key", "value"]:
        return False
    return isinstance(pair[0].dataType, StringType) and isinstance(pair[1].dataType, BinaryType)
