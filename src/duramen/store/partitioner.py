"""Chooses the partition of a record, like Kafka's default partitioner.

A key's murmur2 hash selects the partition, so records land where Kafka's own clients would put them. Records without a
key go to one partition until it has received a batch of bytes, then to the next. The first one is random, so that
several producers do not start with the same partition.
"""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen import compute as pc
from duramen.errors import UsageError
from duramen.formats import murmur2

STICKY_BYTES = 16 << 10
"""Bytes of keyless values per partition before moving on: the batch size of Kafka's producer."""

Numbers = npt.NDArray[np.int64]


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of one key.

    >>> partition_of(b"foobar", 10)
    6
    """
    return int(key_partitions(pa.array([key], pa.binary()), partitions)[0])


def key_partitions(keys: pa.Array | pa.ChunkedArray, partitions: int) -> Numbers:
    """The partition of every key in a column of binary or text; -1 for a null.

    >>> key_partitions(pa.array([b"21", None, b"abc"]), 10).tolist()
    [0, -1, 7]
    """
    if partitions < 1:
        raise UsageError(f"partitions must be at least 1 (got {partitions})")
    found: Numbers = (murmur2(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions
    if keys.null_count:
        found[np.asarray(keys.is_null())] = -1
    return found


def key_column(keys: Any) -> pa.Array | pa.ChunkedArray:
    """Keys as a binary column; text as UTF-8. `UsageError` if one of them is neither bytes nor text."""
    try:
        column = keys if isinstance(keys, pa.Array | pa.ChunkedArray) else pa.array(keys, pa.binary())
        return column.cast(pa.binary())
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, UnicodeError) as error:
        raise UsageError(f"a key is bytes or text: {error}") from error


class Sticky:
    """Chooses partitions for records without a key. Safe to use from several threads."""

    def __init__(self, first: int | None = None) -> None:
        self._partition = random.randrange(2**31) if first is None else first
        self._bytes = 0
        self._guard = threading.Lock()

    def next(self, size_bytes: int, partitions: int) -> int:
        """The partition of one record."""
        return int(self.spread(np.array([size_bytes], np.int64), partitions)[0])

    def spread(self, sizes_bytes: Numbers, partitions: int) -> Numbers:
        """The partition of every record, given the size of each. A record larger than a batch advances by one
        partition only; otherwise large records of a round size would never reach some partitions."""
        found = np.empty(len(sizes_bytes), np.int64)
        ends = np.cumsum(np.maximum(sizes_bytes, 1))  # empty values must advance, too
        with self._guard:
            row, before = 0, 0
            while row < len(found):
                full = int(np.searchsorted(ends, before + STICKY_BYTES - self._bytes)) + 1
                found[row:full] = self._partition % partitions
                if full > len(found):
                    self._bytes += int(ends[-1]) - before
                    break
                self._partition, self._bytes = self._partition + 1, 0
                row, before = full, int(ends[full - 1])
        return found


def assign(
    keys: pa.Array | pa.ChunkedArray | None, values: pa.Array | pa.ChunkedArray, partitions: int, sticky: Sticky
) -> Numbers:
    """The partition of every row: by its key, or sticky if it has none."""
    if keys is None:
        return sticky.spread(_sizes(values), partitions)
    found = key_partitions(keys, partitions)
    keyless = found < 0
    if keyless.any():
        found[keyless] = sticky.spread(_sizes(values)[keyless], partitions)
    return found


def _sizes(values: pa.Array | pa.ChunkedArray) -> Numbers:
    lengths = pc.fill_null(pc.binary_length(values), 0)
    return np.asarray(lengths.to_numpy(), np.int64)
