"""Positions of consumers in the log itself, for formats that store them there (Osiris).

The writer stores them like records, in order with the appends, and syncs them. They take offsets, and readers skip
them. A new segment starts with all of them, so the last segment is enough to read them.
"""

from __future__ import annotations

import time
import weakref
from functools import partial

from duramen.formats import ConsumerPositions, SupportsTracking
from duramen.log.read import Log, last_begun
from duramen.log.write.writable_log import WritableLog

# The last positions read from each log, with the segment and its size then: a segment only grows.
_cached: weakref.WeakKeyDictionary[Log, tuple[str, int, ConsumerPositions]] = weakref.WeakKeyDictionary()


def stored_positions(log: Log) -> ConsumerPositions:
    """The positions that the log stores; empty where its format stores none."""
    if not isinstance(log.codec, SupportsTracking):
        return ConsumerPositions()
    if not isinstance(log, WritableLog):
        log.refresh()
    segments = log.segments
    if not segments:
        return ConsumerPositions()
    last = segments[-1]
    known = _cached.get(log)
    if known is None or known[:2] != (last.path, last.size_bytes):
        begun = last_begun(log)
        found = ConsumerPositions() if begun is None else log.codec.consumer_positions(begun)
        _cached[log] = known = (last.path, last.size_bytes, found)
    return known[2]


def store_positions(log: WritableLog, positions: ConsumerPositions) -> None:
    """Write positions into the log, and sync them."""
    log.exclusively(partial(_store, log, positions))


def _store(log: WritableLog, positions: ConsumerPositions) -> None:
    tail = log.tail
    if tail.is_full:
        tail.roll()
    now_us = max(time.time_ns() // 1000, tail.last_us)
    assert isinstance(log.codec, SupportsTracking)
    tail.put(log.codec.encode_positions(positions, tail.cursor, now_us))
    tail.sync()
    tail.acknowledge(now_us)
