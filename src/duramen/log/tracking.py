"""Positions of consumers in the log itself, for formats that have a place for them (Osiris).

They are written like records, in their turn among the appends, and synced; they take offsets, and no reader of records
sees them. A new segment begins with all of them, so the last one alone says everything.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from functools import partial

from duramen.log.begun import last_begun
from duramen.log.reader import Log
from duramen.log.writer import WritableLog

# The last answer for each log, with the segment that it was read from and its size: a segment only grows.
_answers: weakref.WeakKeyDictionary[Log, tuple[str, int, dict[bytes, int]]] = weakref.WeakKeyDictionary()


def stored_offsets(log: Log) -> dict[bytes, int]:
    """What the log says of its consumers; nothing where the format has no place for that."""
    if not log.codec.capabilities.tracking:
        return {}
    if not isinstance(log, WritableLog):
        log.refresh()
    segments = log.segments
    if not segments:
        return {}
    last = segments[-1]
    known = _answers.get(log)
    if known is None or known[:2] != (last.path, last.size_bytes):
        begun = last_begun(log)
        found = {} if begun is None else log.codec.consumer_offsets(begun)
        _answers[log] = known = (last.path, last.size_bytes, found)
    return known[2]


def store_offsets(log: WritableLog, offsets: Mapping[bytes, int]) -> None:
    """Write positions into the log; they are on the disk when this returns."""
    log.exclusively(partial(_store, log, offsets))


def _store(log: WritableLog, offsets: Mapping[bytes, int]) -> None:
    tail = log.tail
    if tail.is_full:
        tail.roll()
    now_us = max(time.time_ns() // 1000, tail.last_us)
    tail.put(log.codec.encode_consumer_offsets(offsets, tail.cursor, now_us))
    tail.sync()
    tail.acknowledge(now_us)
