"""Keys of records: where a key comes from (`extractor`), and its hashes over a whole Arrow column.

=====================  ==========================================================================
``key``                the record's key
``prefix:N``           the first N bytes of the value; a shorter value has no key
``delimiter:TEXT``     the value up to the first TEXT; a value without TEXT has no key
``json:a.b``           the field of a JSON value, as its JSON text; no such field, or not JSON: no key
a Python callable      takes the value, returns the key or None
=====================  ==========================================================================

The first three work on whole columns; the last two create a Python object per record, which is slower.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen import compute as pc
from duramen import kernel
from duramen.errors import UsageError
from duramen.formats.arrow import binary_buffers
from duramen.formats.format import Format

KeyOf = Callable[[bytes], bytes | None]
Extract = Callable[[pa.RecordBatch], pa.Array]

HINT = "a key is 'key', 'prefix:N', 'delimiter:TEXT', 'json:PATH' or a callable"


def extractor(fmt: Format, key: str | KeyOf) -> tuple[tuple[str, ...], Extract]:
    """The columns that hold the keys, and a function from a batch of them to the keys (null: the record has none)."""
    if callable(key):
        return ("value",), _each(key)
    if not isinstance(key, str):
        raise UsageError(f"{key!r:.80} does not say what a record's key is", hint=HINT)
    kind, _, argument = key.partition(":")
    if kind == "key" and not argument:
        if not fmt.capabilities.key:
            raise UsageError(f"{fmt.name} records have no key", hint=f"take it out of the value: {HINT}")
        return ("key",), lambda batch: batch.column("key")
    if kind == "prefix" and argument.isdigit() and int(argument) > 0:
        return ("value",), _prefix(int(argument))
    if kind == "delimiter" and argument:
        return ("value",), _until(argument.encode())
    if kind == "json" and argument:
        return ("value",), _each(_json_field(argument.removeprefix("$").strip(".").split(".")))
    raise UsageError(f"{key!r} does not say what a record's key is", hint=HINT)


def _prefix(size: int) -> Extract:
    def extract(batch: pa.RecordBatch) -> pa.Array:
        values = batch.column("value")
        head = pc.binary_slice(values, 0, size)
        return pc.if_else(pc.greater_equal(pc.binary_length(values), size), head, None)

    return extract


def _until(delimiter: bytes) -> Extract:
    def extract(batch: pa.RecordBatch) -> pa.Array:
        values = batch.column("value")
        head = pc.list_element(pc.split_pattern(values, delimiter, max_splits=1), 0)
        return pc.if_else(pc.greater_equal(pc.find_substring(values, delimiter), 0), head, None)

    return extract


def _each(key_of: KeyOf) -> Extract:
    def extract(batch: pa.RecordBatch) -> pa.Array:
        return pa.array(
            [None if value is None else key_of(value) for value in batch.column("value").to_pylist()], pa.binary()
        )

    return extract


def _json_field(names: list[str]) -> KeyOf:
    def key_of(value: bytes) -> bytes | None:
        try:
            tree: Any = json.loads(value)
            for name in names:
                tree = tree[int(name)] if isinstance(tree, list) else tree[name]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            return None
        return None if tree is None else json.dumps(tree, sort_keys=True).encode()

    return key_of


def murmur2(keys: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.uint32]:
    """Murmur2 of every key, as Kafka's producers compute it; undefined where a key is null.

    >>> murmur2(pa.array([b"21", b"foobar"])).view(np.int32).tolist()
    [-973932308, -790332482]
    """
    data, offsets = binary_buffers(keys)
    hashes = np.empty(len(keys), np.uint32)
    kernel.murmur2(data, offsets, hashes)
    return hashes


def siphash(keys: pa.Array, key0: int, key1: int) -> npt.NDArray[np.uint64]:
    """SipHash of every key, 128 bits in two columns, with a secret, so that collisions cannot be provoked.

    >>> siphash(pa.array([b"a", b"a", b"b"]), 1, 2)[:, 0].argsort(kind="stable").tolist() in ([0, 1, 2], [2, 0, 1])
    True
    """
    data, offsets = binary_buffers(keys)
    hashes = np.empty((len(keys), 2), np.uint64)
    kernel.siphash(data, offsets, key0, key1, hashes)
    return hashes
