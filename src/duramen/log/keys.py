"""Hashes of keys, as Kafka's producers compute them, over a whole Arrow column at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen import kernel
from duramen.formats.arrow import binary_buffers


def murmur2(keys: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.uint32]:
    """Murmur2 of every key; what stands where a key is null means nothing.

    >>> murmur2(pa.array([b"21", b"foobar"])).view(np.int32).tolist()
    [-973932308, -790332482]
    """
    data, offsets = binary_buffers(keys)
    hashes = np.empty(len(keys), np.uint32)
    kernel.murmur2(data, offsets, hashes)
    return hashes
