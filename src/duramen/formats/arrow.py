"""Conversion between Arrow arrays and the flat columns of the kernel. Knows no format and no file."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen import kernel
from duramen.errors import LimitError, UsageError
from duramen.kernel import Int64s, UInt32s
from duramen.record import TIMESTAMP, VALUE

MAX_BATCH_BYTES = 2**31 - 1
"""What an Arrow binary array can hold."""

_US = {"ms": 1000, "us": 1}


def gather(buf: Any, positions: Int64s, lengths: UInt32s) -> pa.BinaryArray:
    """The bytes at ``positions`` as an Arrow binary array."""
    total = int(lengths.sum(dtype=np.int64))
    if total > MAX_BATCH_BYTES:
        hint = "read fewer bytes at a time" if len(lengths) > 1 else "`read` of its offset reads such a record alone"
        raise LimitError(f"{total} bytes of values do not fit into one Arrow batch", hint=hint)
    offsets = np.empty(len(positions) + 1, np.int32)
    data = allocate(total)
    kernel.gather(buf, positions, lengths, offsets, data)
    return binary_array(offsets, data)


PLACE = pa.struct([("position", pa.int64()), ("length", pa.uint32())])
"""Where a value lies in some bytes."""


def places_of(
    positions: Int64s, lengths: UInt32s, is_null: npt.NDArray[np.bool_] | None = None
) -> pa.StructArray | None:
    """An array of `PLACE`, without a copy; None where the values do not fit into one Arrow batch."""
    if int(lengths.sum(dtype=np.int64)) > MAX_BATCH_BYTES:
        return None
    valid = None if is_null is None else _bits(~is_null)
    children = [number_array(positions), number_array(lengths)]
    return pa.Array.from_buffers(PLACE, len(positions), [valid], children=children)


def gather_two(
    buf: Any, plain: Any, positions: Int64s, lengths: UInt32s, in_plain: npt.NDArray[np.bool_]
) -> pa.BinaryArray:
    """Values of which some lie in ``buf`` and some in ``plain``, in their order."""
    if not in_plain.any():
        return gather(buf, positions, lengths)
    if in_plain.all():
        return gather(plain, positions, lengths)
    if int(lengths.sum(dtype=np.int64)) > MAX_BATCH_BYTES:
        raise LimitError("the values do not fit into one Arrow batch", hint="ask for fewer bytes at a time")
    in_file = ~in_plain
    parts = [gather(buf, positions[in_file], lengths[in_file]), gather(plain, positions[in_plain], lengths[in_plain])]
    order = np.empty(len(positions), np.int64)
    order[in_file] = np.arange(len(parts[0]))
    order[in_plain] = np.arange(len(parts[0]), len(positions))
    return pa.concat_arrays(parts).take(number_array(order))


REUSED_FROM_BYTES = 64 << 10
REUSED_UP_TO_BYTES = 16 << 20


_PAGE_BYTES = 4096


class _ArrowBlock:
    """Memory that a thread reuses."""

    __slots__ = ("_memory", "_user", "address")

    def __init__(self, size_bytes: int) -> None:
        self._memory = np.empty(size_bytes, np.uint8)
        self.address = self._memory.ctypes.data
        self._user: weakref.ref[Any] | None = None

    def __len__(self) -> int:
        return len(self._memory)

    @property
    def is_free(self) -> bool:
        """Whether nothing refers to the last result of `part`."""
        return self._user is None or self._user() is None

    def part(self, start: int, size_bytes: int) -> memoryview:
        part = self._memory[start : start + size_bytes]
        self._user = weakref.ref(part)  # everything made from the memoryview keeps it alive
        return memoryview(part)  # type: ignore[arg-type]


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.blocks: list[_ArrowBlock] = []


_scratch = _Scratch()
_KEPT_BYTES = 32 << 20  # a consumer of batches often holds a few at a time


def allocate(size_bytes: int, position: int = 0) -> memoryview:
    """Uninitialized memory, all of which the caller will write.

    Each thread keeps its last blocks, at most 32 MiB, and reuses them once nothing refers to them: fresh memory of this
    size comes from the operating system page by page, which costs more than filling it. The memory has the same
    alignment within its page as the bytes of a file at ``position``, which the operating system copies a fifth faster.
    """
    if not REUSED_FROM_BYTES <= size_bytes <= REUSED_UP_TO_BYTES:
        return memoryview(np.empty(size_bytes, np.uint8))  # type: ignore[arg-type]
    block = _free_block(size_bytes + _PAGE_BYTES)
    return block.part((position - block.address) % _PAGE_BYTES, size_bytes)


def _free_block(size_bytes: int) -> _ArrowBlock:
    for block in _scratch.blocks:
        if len(block) >= size_bytes and block.is_free:
            return block
    block = _ArrowBlock(size_bytes + size_bytes // 8)
    kept = [*_scratch.blocks, block]
    while len(kept) > 1 and sum(map(len, kept)) > _KEPT_BYTES:
        del kept[0]
    _scratch.blocks = kept
    return block


def binary_array(offsets: npt.NDArray[np.int32], data: Any) -> pa.BinaryArray:
    """An Arrow binary array over these buffers, without a copy."""
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def binary_of(values: Sequence[bytes | None]) -> pa.BinaryArray:
    """An Arrow binary array of bytes objects and None. Unlike ``pa.array``, which looks for pandas objects, this does
    not import pandas."""
    present = [value or b"" for value in values]
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, present), np.int64, len(present)), out=offsets[1:])
    if offsets[-1] > MAX_BATCH_BYTES:
        raise LimitError("the values do not fit into one Arrow batch", hint="append fewer bytes at a time")
    joined = binary_array(offsets.astype(np.int32), b"".join(present))
    return with_nulls(joined, np.array([value is None for value in values])) if None in values else joined


def number_array(numbers: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """An Arrow array over these numbers, without a copy and without an import of pandas; null where ``mask``."""
    kind, data = pa.from_numpy_dtype(numbers.dtype), pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(kind, len(numbers), [None if mask is None else _bits(~mask), data])


def bool_array(values: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """An Arrow array of these truth values, without an import of pandas."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


_DTYPES = {pa.from_numpy_dtype(name): np.dtype(name) for name in (*"bhilq", *"BHILQ", *"efd")}
"""Arrow up to 25 asks pandas, even for the type of a number."""


def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
    """The numbers of an Arrow array, without a copy and without an import of pandas. A null is any number."""
    dtype = _DTYPES[array.type]
    if not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]


def null_mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Which values of an Arrow array are null, without an import of pandas."""
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    bitmap = array.buffers()[0]
    if bitmap is None:  # an array of type null
        return np.ones(len(array), np.bool_)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)] == 0


def _bits(valid: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


EMPTY = binary_array(np.zeros(2, np.int32), b"")[0]
"""The scalar that stands for a null where a format stores no bytes."""


def binary_buffers(array: pa.Array | pa.ChunkedArray) -> tuple[Any, npt.NDArray[np.int32]]:
    """An Arrow binary (or string) array as one data buffer and ``len + 1`` offsets into it, without a copy where no
    value is null. A null counts as empty."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.null_count:
        array = array.fill_null(EMPTY if pa.types.is_binary(array.type) else "")
    if array.type != pa.binary():
        array = array.cast(pa.binary())
    _, offsets_buffer, data = array.buffers()
    if offsets_buffer is None or len(offsets_buffer) == 0:
        return b"", np.zeros(len(array) + 1, np.int32)
    offsets = np.frombuffer(offsets_buffer, np.int32)[array.offset : array.offset + len(array) + 1]
    return b"" if data is None else memoryview(data).cast("B"), offsets


def with_nulls(array: pa.BinaryArray, is_null: npt.NDArray[np.bool_]) -> pa.BinaryArray:
    """An array without nulls and without an offset, with null where ``is_null``."""
    if not is_null.any():
        return array
    return pa.Array.from_buffers(array.type, len(array), [_bits(~is_null), *array.buffers()[1:]])


def timestamps_from(raw: Int64s, unit: str | None, *, signed: bool = False) -> pa.Array:
    """Stored numbers as Arrow timestamps; null where 63 bits of microseconds cannot hold the number, or where the top
    bit of an unsigned number is set."""
    if unit is None:
        return pa.nulls(len(raw), TIMESTAMP.type)
    factor = _US[unit]
    most = (2**63 - 1) // factor
    least = -most if signed else 0
    mask = None
    if len(raw) and (int(raw.min()) < least or int(raw.max()) > most):
        mask = (raw > most) | (raw < least)
    us = raw * factor if factor != 1 else raw.copy()
    return number_array(us, mask).view(TIMESTAMP.type)


def timestamps_to(batch: pa.RecordBatch, unit: str, default_us: int = 0) -> Int64s:
    """The batch's timestamps as stored numbers; a null or missing one is ``default_us``."""
    if "timestamp" not in batch.schema.names:
        return np.full(batch.num_rows, default_us // _US[unit], np.int64)
    column = batch.column("timestamp")
    if column.type != TIMESTAMP.type:
        column = column.cast(TIMESTAMP.type)
    column = column.view(pa.int64())
    if column.null_count:
        column = column.fill_null(number_array(np.array([default_us]))[0])
    us: Int64s = numbers_of(column)
    return us if _US[unit] == 1 else us // _US[unit]


def offsets_to(batch: pa.RecordBatch, first: int) -> Int64s:
    """The batch's offsets, or consecutive ones from ``first`` where it has none."""
    if "offset" not in batch.schema.names:
        return np.arange(first, first + batch.num_rows, dtype=np.int64)
    column = batch.column("offset")
    if column.null_count:
        raise UsageError("an offset is null", hint="leave out the column, and the log assigns offsets")
    offsets: Int64s = numbers_of(column.cast(pa.int64()))
    if len(offsets) and (int(offsets[0]) < first or (np.diff(offsets) <= 0).any()):
        raise UsageError(f"offsets must increase and start at {first} or above")
    return offsets


class Values:
    """Records that consist of a value only: bytes objects, or an Arrow array without nulls. Copied only where a format
    needs it. Has what the append queue needs of a record batch: ``num_rows``, ``nbytes``, ``schema``, ``slice``.

    ``values`` and ``offsets`` are the kernel's arguments: bytes objects and None, or a buffer and the value offsets.
    """

    __slots__ = ("_array", "longest", "nbytes", "num_rows", "offsets", "shortest", "values")
    schema = pa.schema([VALUE])

    def __init__(self, values: Sequence[bytes] | pa.BinaryArray) -> None:
        self._array: pa.BinaryArray | None = None
        self.values: Any
        self.offsets: npt.NDArray[np.int32] | None = None
        if isinstance(values, pa.Array):
            self._array = values
            self.values, self.offsets = binary_buffers(values)
            self.num_rows = len(self.offsets) - 1
        else:
            self.values = tuple(values)
            self.num_rows = len(self.values)
        self.nbytes, self.shortest, self.longest = kernel.measure_values(self.values, self.offsets)

    def slice(self, start: int, length: int | None = None) -> Values:
        if self._array is not None:
            return Values(self._array.slice(start, length))
        return Values(self.values[start : None if length is None else start + length])

    def array(self) -> pa.BinaryArray:
        return self._array if self._array is not None else binary_of(self.values)

    def batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([self.array()], schema=self.schema)
