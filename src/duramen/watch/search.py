"""Finds records that match a filter, from a position on, newest or oldest first.

A request has a budget of bytes and seconds. When it ends, ``next`` is the offset at which the caller continues. The
search goes through the log in blocks of offsets, whose size adapts to the size of the records, so that going backwards
costs as much as going forwards. Damage ends a search: it returns what it found, and the problem.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import pyarrow as pa

from duramen import compute as pc
from duramen.errors import CorruptionError, UsageError
from duramen.log import Log, records_of
from duramen.record import Record

BLOCK_BYTES = 8 << 20
BLOCK_RECORDS = 65_536
SEARCH_BYTES = 256 << 20
SEARCH_S = 2.0
COLUMNS = ("offset", "timestamp", "key", "value", "headers")


class RecordFilter(NamedTuple):
    """What a record must contain: every part that is not empty. ``header`` is a part of a name or a value, or
    ``name=part of the value``. Bytes are given as ``0x…``."""

    text: bytes = b""
    key: bytes = b""
    header: bytes = b""

    @classmethod
    def of(cls, text: str, key: str, header: str) -> RecordFilter:
        return cls(_needle(text), _needle(key), header.encode())

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that match."""
        if self.text:
            batch = batch.filter(pc.match_substring(batch.column("value"), self.text))
        if self.key:
            batch = batch.filter(pc.match_substring(batch.column("key"), self.key))
        return self._with_header(batch) if self.header and batch.num_rows else batch

    def _with_header(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        column = batch.column("headers")
        names, values = (pc.struct_field(pc.list_flatten(column), part).cast(pa.binary()) for part in ("key", "value"))
        name, equals, value = self.header.partition(b"=")
        if equals:
            hits = pc.and_(pc.equal(names, name), pc.match_substring(values, value))
        else:
            hits = pc.or_kleene(pc.match_substring(names, name), pc.match_substring(values, name))
        return batch.take(pc.unique(pc.list_parent_indices(column).filter(hits)))


class SearchRange(NamedTuple):
    """The offsets of a search: from ``at`` on, up or down, inside ``first`` to before ``stop``."""

    at: int
    first: int
    stop: int
    newest: bool

    def block(self, size: int) -> tuple[int, int]:
        """The next offsets to read: start and end."""
        if self.newest:
            end = min(self.at + 1, self.stop)
            return max(end - size, self.first), end
        return max(self.at, self.first), min(max(self.at, self.first) + size, self.stop)

    def after(self, begin: int, end: int) -> SearchRange:
        return self._replace(at=begin - 1 if self.newest else end)

    @property
    def is_done(self) -> bool:
        begin, end = self.block(1)
        return begin >= end


class Found(NamedTuple):
    """Matching records in the order of the search, and where it continues."""

    records: list[Record]
    looked: int
    next: int | None
    is_finished: bool
    """False: the budget ended before the search found enough or reached the end."""
    problem: str | None = None


class _SearchedBlock(NamedTuple):
    hits: list[Record]
    rows: int
    size_bytes: int
    next_offset: int
    """The first offset that was not read: before the block's end if the block was too large."""


def find(log: Log, wanted: RecordFilter, span: SearchRange, count: int) -> Found:
    """Up to ``count`` records that match."""
    found: list[Record] = []
    looked = size_bytes = 0
    deadline = time.monotonic() + SEARCH_S
    size = count
    while not span.is_done:
        if looked and (size_bytes >= SEARCH_BYTES or time.monotonic() > deadline):
            return Found(found, looked, span.at, False)
        begin, end = span.block(size)
        try:
            block = _read(log, wanted, begin, end, count, newest=span.newest)
        except CorruptionError as error:
            if size > 1:
                size = max(min(size, end - begin) // 2, 1)  # what lies before the damage can still be read
                continue
            return Found(found, looked, None, True, str(error))
        if span.newest and block.next_offset < end and end - begin > 1:
            size = (end - begin) // 2
            continue
        looked += block.rows
        size_bytes += block.size_bytes
        for record in reversed(block.hits) if span.newest else block.hits:
            found.append(record)
            if len(found) == count:
                rest = span.after(record.offset, record.offset + 1)
                return Found(found, looked, None if rest.is_done else rest.at, True)
        span = span.after(begin, block.next_offset)
        if block.size_bytes < BLOCK_BYTES // 4 and block.rows < BLOCK_RECORDS // 4:
            size *= 4
    return Found(found, looked, None, True)


def _read(log: Log, wanted: RecordFilter, begin: int, end: int, count: int, *, newest: bool) -> _SearchedBlock:
    """One block: its first or last hits. It ends early where its records are larger than a block may be."""
    hits: list[Record] = []
    rows = size_bytes = 0
    for batch in log.batches(begin, end, columns=COLUMNS, verify=False):
        rows += batch.num_rows
        size_bytes += pc.sum(pc.binary_length(batch.column("value"))).as_py() or 0
        chosen = wanted.select(batch)
        skip = max(chosen.num_rows - count, 0) if newest else 0
        hits += records_of(chosen.slice(skip, count))
        if size_bytes >= BLOCK_BYTES or rows >= BLOCK_RECORDS:
            return _SearchedBlock(hits, rows, size_bytes, batch.column("offset")[-1].as_py() + 1)
    return _SearchedBlock(hits, rows, size_bytes, end)


def _needle(text: str) -> bytes:
    if text.lower().startswith("0x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            raise UsageError(f"not hexadecimal bytes: {text!r}", hint="give two digits per byte: 0x0aff") from None
    return text.encode()
