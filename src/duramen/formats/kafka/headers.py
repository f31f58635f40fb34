"""The headers of Kafka records as an Arrow column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from duramen import kernel
from duramen.errors import CorruptionError
from duramen.formats.arrow import gather, with_nulls
from duramen.formats.kafka.batch import UnfoldedRecords
from duramen.kernel import NULL_LENGTH, HeaderColumns
from duramen.record import HEADER, HEADERS


def headers_array(buf: memoryview, records: UnfoldedRecords) -> pa.ListArray:
    """The headers of each record; null where it has none."""
    counts = records.columns.headers
    if not counts.any():
        return pa.nulls(len(counts), HEADERS.type)
    parts, order = [], []
    for source, mask in ((buf, ~records.in_plain), (records.plain, records.in_plain)):
        if mask.any():
            parts.append(_lists(source, records.columns.headers_position[mask], counts[mask]))
            order.append(np.flatnonzero(mask))
    joined = parts[0] if len(parts) == 1 else pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(order))))
    return joined


def _lists(source: Any, positions: Any, counts: Any) -> pa.ListArray:
    columns = HeaderColumns.empty(int(counts.sum(dtype=np.int64)))
    if kernel.scan_headers(source, positions, counts, columns) < 0:
        raise CorruptionError("the bytes changed between scan and decode")
    keys = _text(gather(source, columns.key_position, columns.key_length))
    is_null = columns.value_length == NULL_LENGTH
    lengths = np.where(is_null, np.uint32(0), columns.value_length)
    values = with_nulls(gather(source, columns.value_position, lengths), is_null)
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER))
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=HEADERS.type, mask=pa.array(counts == 0))


def _text(keys: pa.BinaryArray) -> pa.StringArray:
    """Header keys as text; what is not UTF-8 is replaced, as Kafka's consumer does."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
