"""Records that nobody could process, moved to another log with the reason.

Where the target's format has headers, the record keeps its value, its key and its own headers, and these are added::

    duramen-dead-letter-reason     why, in words
    duramen-dead-letter-group      the group that gave up
    duramen-dead-letter-source     the log it comes from
    duramen-dead-letter-offset     its offset there
    duramen-dead-letter-attempts   how often it was delivered
    duramen-dead-letter-timestamp  its time there, ISO 8601, if it had one
    duramen-dead-letter-key        its key, where the target has no place for keys

Where it has none, the value is one JSON object with ``reason``, ``group``, ``source``, ``offset``, ``attempts``,
``timestamp``, ``key_base64``, ``value_base64`` and ``headers``. A fixed-slot log cannot be
the target: its values have one size.

The record is appended, and synced, before it counts as acknowledged. A crash between the two leaves it in both logs:
at least once, here too.
"""

from __future__ import annotations

import base64
import json
import os
import posixpath
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from duramen.errors import LockedError, UsageError
from duramen.log.reader import Log
from duramen.log.writer import WritableLog
from duramen.model import HEADERS, KEY, VALUE, Record

PREFIX = "duramen-dead-letter-"
LOCK_PATIENCE_S = 10.0

Target = WritableLog | str | os.PathLike[str]


class DeadLetters:
    """The way into another log: one that is open for append, or a path on the disk of the source, which is opened for
    every move."""

    def __init__(self, target: Target, group: str, source: Log) -> None:
        self._target = target
        self._group = group
        self._source = source.path
        self._disk = source.disk
        if isinstance(target, WritableLog):
            _check(target)
        elif not isinstance(target, str | os.PathLike):
            raise UsageError("dead_letter is neither a log that is open for append nor a path")
        path = target.path if isinstance(target, WritableLog) else os.fspath(target)
        if posixpath.abspath(path) == posixpath.abspath(source.path):
            raise UsageError(
                "a log cannot take its own dead letters: the group would get them again, without end",
                path=source.path, hint="name another log",
            )  # fmt: skip

    def move(self, records: Sequence[Record], attempts: Sequence[int], reasons: Sequence[str]) -> None:
        """Append the records; they are on the disk when this returns."""
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
            kept = {name: column for name, column in columns.items() if column.null_count < len(column)}
            log.append_batch(pa.RecordBatch.from_pydict(kept), durability="fsync")

    @contextmanager
    def _opened(self) -> Iterator[WritableLog]:
        if isinstance(self._target, WritableLog):
            yield self._target
            return
        until = time.monotonic() + LOCK_PATIENCE_S
        while True:
            try:
                log = WritableLog(os.fspath(self._target), disk=self._disk)
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
    ) -> tuple[bytes, bytes | None, list[dict[str, str | bytes | None]]]:
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


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _check(log: WritableLog) -> None:
    if "record_size" in log.codec.options:
        raise UsageError(
            f"a {log.format} log cannot hold dead letters: its values have one size", path=log.path,
            hint="use a keratin log",
        )  # fmt: skip
