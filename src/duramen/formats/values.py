"""Records that are nothing but values, on their way into a format's encoder. Knows no format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen import kernel
from duramen.formats.arrow import binary_buffers
from duramen.model import VALUE


class Values:
    """Records that are nothing but values, where the caller has them: bytes objects, or an Arrow array without nulls.
    No copy is made of them unless a format needs one. Looks like a batch to whoever queues and cuts it.

    ``values`` and ``offsets`` are what the kernel takes: bytes objects and None, or a buffer and where each value lies.
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
        return self._array if self._array is not None else pa.array(self.values, VALUE.type)

    def batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([self.array()], schema=self.schema)
