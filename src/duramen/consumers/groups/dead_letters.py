"""Dead letters: records that no consumer could process, moved to another log with the reason.

If the target's format has headers, the record keeps its value, key and headers, and these headers are added::

    duramen-dead-letter-reason     why, as text
    duramen-dead-letter-group      the group that gave up
    duramen-dead-letter-source     path of the source log
    duramen-dead-letter-offset     offset in the source log
    duramen-dead-letter-attempts   number of deliveries
    duramen-dead-letter-timestamp  timestamp in the source log, ISO 8601, if any
    duramen-dead-letter-key        the key, if the target cannot store keys

Otherwise the value is one JSON object with ``reason``, ``group``, ``source``, ``offset``, ``attempts``,
``timestamp``, ``key_base64``, ``value_base64`` and ``headers``. A fixed-slot log cannot be the target, because all its
values have the same size.

The group appends and syncs the record before it acknowledges it. A crash between the two leaves the record in both
logs: delivery to the dead letters is at least once, too.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import posixpath
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

from duramen.errors import LockedError, UsageError, printable
from duramen.log import Log, WritableLog
from duramen.record import HEADERS, KEY, VALUE, Record

PREFIX = "duramen-dead-letter-"
LOCK_PATIENCE_S = 10.0

logger = logging.getLogger("duramen.consumers")

Target = WritableLog | str | os.PathLike[str]


class DeadLetters:
    """Moves records into the target log. The target is open for append, or a path on the source's disk that every move
    opens and closes."""

    def __init__(self, target: Target, group: str, source: Log) -> None:
        self.target = target
        self._group = group
        self._source = posixpath.abspath(source.path)
        self._disk = source.disk
        if isinstance(target, WritableLog):
            _check(target)
        elif not isinstance(target, str | os.PathLike):
            raise UsageError(
                f"dead_letter must be a log opened for append or a path (got {type(target).__name__})", path=source.path
            )
        if posixpath.abspath(path_of(target)) == posixpath.abspath(source.path):
            raise UsageError(
                "dead_letter must be another log: the group would receive its own dead letters endlessly",
                path=source.path, hint="give the path of a different log",
            )  # fmt: skip

    def move(self, records: Sequence[Record], attempts: Sequence[int], reasons: Sequence[str]) -> None:
        """Append the records durably."""
        with self._opened() as log:
            with_headers = log.codec.capabilities.headers
            rows = [
                (self._with_headers if with_headers else self._in_json)(log, *row)
                for row in zip(records, attempts, reasons, strict=True)
            ]
            columns = {
                "value": pa.array([row[0] for row in rows], VALUE.type),
                "key": pa.array([row[1] for row in rows], KEY.type),
                "headers": pa.array([row[2] for row in rows], HEADERS.type),
            }
            kept = {
                name: column for name, column in columns.items() if name == "value" or column.null_count < len(column)
            }
            log.append_batch(pa.RecordBatch.from_pydict(kept), durability="fsync")
            target = log.path
        extra = {"path": self._source, "group": self._group, "offset": records[0].offset, "records": len(records)}
        logger.warning(
            "%d records of group %r moved to the dead letters in %s: %s", len(records), self._group,
            printable(target), printable(reasons[0]),
            extra={**extra, "dead_letter": target, "reason": reasons[0]},
        )  # fmt: skip

    @contextmanager
    def _opened(self) -> Iterator[WritableLog]:
        if isinstance(self.target, WritableLog):
            yield self.target
            return
        until = time.monotonic() + LOCK_PATIENCE_S
        while True:
            try:
                log = WritableLog(os.fspath(self.target), disk=self._disk)
                break
            except LockedError:
                if time.monotonic() >= until:
                    raise
                time.sleep(0.01)
        with log:
            _check(log)
            yield log

    def _facts(self, record: Record, attempts: int, reason: str) -> dict[str, str | int]:
        facts: dict[str, str | int] = {
            "reason": reason, "group": self._group, "source": self._source, "offset": record.offset,
            "attempts": attempts,
        }  # fmt: skip
        if record.timestamp is not None:
            facts["timestamp"] = record.timestamp.isoformat()
        return facts

    def _with_headers(
        self, log: WritableLog, record: Record, attempts: int, reason: str
    ) -> tuple[bytes | None, bytes | None, list[dict[str, str | bytes | None]]]:
        headers: list[dict[str, str | bytes | None]] = [{"key": k, "value": v} for k, v in record.headers or []]
        facts = self._facts(record, attempts, reason)
        headers += [{"key": PREFIX + name, "value": str(fact).encode()} for name, fact in facts.items()]
        key = record.key
        if key is not None and not log.codec.capabilities.key:
            headers.append({"key": PREFIX + "key", "value": key})
            key = None
        return record.value, key, headers

    def _in_json(self, log: WritableLog, record: Record, attempts: int, reason: str) -> tuple[bytes, None, None]:
        tree = {
            **self._facts(record, attempts, reason),
            "key_base64": _base64(record.key),
            "value_base64": _base64(record.value),
            "headers": [{"key": key, "value_base64": _base64(value)} for key, value in record.headers or []],
        }
        return json.dumps(tree).encode(), None, None


def path_of(target: Target) -> str:
    return target.path if isinstance(target, WritableLog) else os.fspath(target)


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _check(log: WritableLog) -> None:
    if "record_size" in log.codec.options:
        raise UsageError(
            f"a {log.format} log cannot store dead letters: all its values have the same size", path=log.path,
            hint="use a keratin log as dead_letter",
        )  # fmt: skip


class Origin(NamedTuple):
    """Where a dead letter comes from."""

    group: str
    source: str
    offset: int


def origin_of(record: Record) -> Origin | None:
    """What a record of a dead-letter log says about its origin; None for any other record."""
    try:
        if record.headers:
            facts: dict[str, Any] = {
                key.removeprefix(PREFIX): (value or b"").decode()
                for key, value in record.headers
                if key.startswith(PREFIX) and key != PREFIX + "key"
            }
        else:
            facts = json.loads(record.value or b"")
        return Origin(str(facts["group"]), posixpath.abspath(facts["source"]), int(facts["offset"]))
    except (KeyError, TypeError, ValueError):
        return None
