"""The neutral record and its Arrow schema, which every format decodes to and encodes from.

Nothing here knows a byte layout. ``offset`` is logical; a byte in a file is a ``position``.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pyarrow as pa

from duramen.errors import UsageError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

OFFSET = pa.field("offset", pa.int64(), nullable=False)
TIMESTAMP = pa.field("timestamp", pa.timestamp("us", tz="UTC"))
KEY = pa.field("key", pa.binary())
VALUE = pa.field("value", pa.binary())
HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
HEADERS = pa.field("headers", pa.list_(HEADER))

SCHEMA = pa.schema([OFFSET, TIMESTAMP, KEY, VALUE, HEADERS])
COLUMNS: tuple[str, ...] = tuple(SCHEMA.names)

MAX_OFFSET = 2**63 - 1
_EARLIEST_US = -62_135_596_800_000_000
_LATEST_US = 253_402_300_799_999_999

Headers = list[tuple[str, bytes | None]]


class Record(NamedTuple):
    """One record. A value of None is a *tombstone*: it deletes the key.

    >>> Record(0, None, None, b"hello", None).value
    b'hello'
    """

    offset: int
    timestamp: datetime | None
    key: bytes | None
    value: bytes | None
    headers: Headers | None


def from_us(us: int | None) -> datetime | None:
    """Microseconds since the epoch as an aware datetime; ``None`` for a year that Python cannot represent.

    >>> from_us(1_700_000_000_000_000).isoformat()
    '2023-11-14T22:13:20+00:00'
    >>> from_us(2**62) is None
    True
    """
    if us is None or not _EARLIEST_US <= us <= _LATEST_US:
        return None
    return EPOCH + timedelta(microseconds=us)


def to_us(when: datetime | int | str) -> int:
    """Microseconds since the epoch, from a datetime, ISO 8601 text or epoch milliseconds.

    A datetime or text without a zone is UTC.

    >>> to_us("2023-11-14T22:13:20Z") == to_us(1_700_000_000_000) == 1_700_000_000_000_000
    True
    """
    if isinstance(when, int):
        return when * 1000
    if isinstance(when, str):
        text = when.strip()
        if text.lstrip("-").isdigit():
            return int(text) * 1000
        when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return (when - EPOCH) // timedelta(microseconds=1)


def checked_us(when: datetime | int | str) -> int:
    """`to_us` with validation: raises `UsageError` for what is not a time, or does not fit into 63 bits.

    >>> checked_us("2023-11-14T22:13:20Z")
    1700000000000000
    """
    if not isinstance(when, datetime | int | str):
        raise UsageError(f"not a time: {when!r}", hint="give a datetime, ISO 8601 text or epoch milliseconds")
    try:
        us = to_us(when)
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"not a time: {when!r}: {error}", hint="give ISO 8601 text or epoch milliseconds") from error
    if not -(2**63) < us < 2**63:
        raise UsageError(f"the time {when!r} is out of range", hint="a time must fit in 64-bit microseconds")
    return us


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """The neutral schema with these columns, in this order."""
    return pa.schema([SCHEMA.field(name) for name in columns])
