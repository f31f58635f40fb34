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


def siphash(keys: pa.Array, key0: int, key1: int) -> npt.NDArray[np.uint64]:
    """SipHash of every key, 128 bits in two columns, with a secret: nobody can make two keys meet on purpose.

    >>> siphash(pa.array([b"a", b"a", b"b"]), 1, 2)[:, 0].argsort(kind="stable").tolist() in ([0, 1, 2], [2, 0, 1])
    True
    """
    data, offsets = binary_buffers(keys)
    hashes = np.empty((len(keys), 2), np.uint64)
    kernel.siphash(data, offsets, key0, key1, hashes)
    return hashes
