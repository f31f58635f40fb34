"""Find the offsets that survive a compaction, in bounded memory: the newest of every key, and those without a key.

A key is represented by its 128-bit SipHash under a random key: collisions cannot be provoked, and occur by chance once
in 10²⁰ logs of a billion keys. A table of fixed size holds the newest offset of every hash below a limit. When the
table is full, the limit is halved and the hashes above it are written to a spill file for a later round. A log with n
times as many keys as the table takes n rounds over ever shorter files.

Memory: ``memory_bytes`` for the table, and one bit for every offset between the first and the last (in a file of its
own where that is more than ``memory_bytes``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen import kernel
from duramen.errors import StorageError
from duramen.formats import binary_buffers

WHOLE = 1 << 64
ENTRY_BYTES = 24
SPILL_ROWS = 1 << 16
STEP_SLOTS = 1 << 18
"""Slots of the table that are processed at once; the temporary arrays stay small compared with the table."""
_ONES = np.array([byte.bit_count() for byte in range(256)], np.uint8)


class Keyed(NamedTuple):
    """Rows with their keys; null for a record without a key."""

    offsets: npt.NDArray[np.int64]
    keys: pa.Array


class Survivors:
    """A bit for every offset from ``first`` to ``last``."""

    def __init__(self, first: int, last: int, spill: str, memory_bytes: int) -> None:
        self.first = first
        size = (last - first) // 8 + 1
        if size <= memory_bytes:
            self._bits = np.zeros(size, np.uint8)
            return
        path = os.path.join(spill, "survivors")
        try:
            self._bits = np.memmap(path, np.uint8, "w+", shape=(size,))
        except (OSError, OverflowError, ValueError) as error:
            raise StorageError(
                f"offsets {first} to {last} are too far apart: cannot create a file with one bit for each", path=path
            ) from error

    def add(self, offsets: npt.NDArray[np.int64]) -> None:
        places = offsets - self.first
        np.bitwise_or.at(self._bits, places >> 3, np.left_shift(1, places & 7).astype(np.uint8))

    def remove(self, offsets: npt.NDArray[np.int64]) -> None:
        places = offsets - self.first
        np.bitwise_and.at(self._bits, places >> 3, ~np.left_shift(1, places & 7).astype(np.uint8))

    def count(self, first: int, last: int) -> int:
        """Return how many of the offsets from ``first`` to ``last`` survive."""
        low, high = first - self.first, last - self.first + 1
        start, stop = low >> 3, (high + 7) >> 3
        total = int(_ONES[self._bits[start:stop]].sum(dtype=np.int64))
        before = int(self._bits[start]) & ((1 << (low & 7)) - 1)
        after = int(self._bits[stop - 1]) >> (high - 8 * (stop - 1)) if stop > start else 0
        return total - before.bit_count() - after.bit_count()

    def has(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        places = offsets - self.first
        return (self._bits[places >> 3] >> (places & 7).astype(np.uint8) & 1).astype(np.bool_)


class _Table:
    """The newest offset of every hash from ``low`` up to a limit."""

    def __init__(self, memory_bytes: int) -> None:
        slots = 1 << max(4, (memory_bytes // ENTRY_BYTES).bit_length() - 1)
        self._slots = np.zeros((slots, 3), np.uint64)
        self._most = slots * 3 // 4
        self._used = 0
        self._low = 0
        self.limit = WHOLE

    def put(self, hashes: npt.NDArray[np.uint64], offsets: npt.NDArray[np.int64], spill: _Spill) -> None:
        while True:
            if self.limit < WHOLE:
                above = hashes[:, 0] >= np.uint64(self.limit)
                if above.any():
                    spill.put(hashes[above], offsets[above])
                    hashes, offsets = hashes[~above], offsets[~above]
            taken, self._used = kernel.keep_newest(self._slots, self._used, self._most, hashes, offsets)
            if taken == len(offsets):
                return
            hashes, offsets = hashes[taken:], offsets[taken:]
            self._halve(spill)

    def _halve(self, spill: _Spill) -> None:
        """Keep the lower half of the hashes; spill the upper half for a later round."""
        self.limit = (self._low + self.limit) // 2
        kept = []
        for entries in self._entries():
            above = entries[:, 0] >= np.uint64(self.limit)
            spill.put(*_columns(entries[above]))
            kept.append(entries[~above])
        self._slots[:] = 0
        self._used = 0
        for entries in kept:
            _, self._used = kernel.keep_newest(self._slots, self._used, self._most, *_columns(entries))

    def _entries(self) -> Iterator[npt.NDArray[np.uint64]]:
        for start in range(0, len(self._slots), STEP_SLOTS):
            part = self._slots[start : start + STEP_SLOTS]
            yield part[part[:, 2] != 0]

    def offsets(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the newest offset of every hash of this round, in batches."""
        for entries in self._entries():
            yield _columns(entries)[1]

    def next_round(self) -> None:
        """Start the next round with the hashes from the limit on, all of which were spilled."""
        self._slots[:] = 0
        self._used = 0
        self._low, self.limit = self.limit, WHOLE


def _columns(entries: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Return the hashes and offsets of entries. A slot stores its offset plus one; zero marks an empty slot."""
    return np.ascontiguousarray(entries[:, :2]), (entries[:, 2] - np.uint64(1)).astype(np.int64)


class _Spill:
    """Rows for a later round, in an unnamed temporary file."""

    def __init__(self, directory: str) -> None:
        import tempfile  # slow to import, and only compaction needs it

        self._file: BinaryIO = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
        self.rows = 0

    def put(self, hashes: npt.NDArray[np.uint64], offsets: npt.NDArray[np.int64]) -> None:
        rows = np.empty((len(offsets), 3), np.uint64)
        rows[:, :2] = hashes
        rows[:, 2] = offsets.astype(np.uint64)
        self._file.write(rows.tobytes())
        self.rows += len(offsets)

    def read(self) -> Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]]:
        self._file.seek(0)
        while raw := self._file.read(SPILL_ROWS * ENTRY_BYTES):
            rows = np.frombuffer(raw, np.uint64).reshape(-1, 3)
            yield np.ascontiguousarray(rows[:, :2]), rows[:, 2].astype(np.int64)

    def close(self) -> None:
        self._file.close()


def find_survivors(
    batches: Iterable[Keyed], survivors: Survivors, spill: str, memory_bytes: int, *, keep_keyless: bool = True
) -> tuple[int, int]:
    """Mark the offsets that survive. Returns the number of keys and of records without a key. ``spill`` is a
    directory for temporary files."""
    table = _Table(memory_bytes)
    key0, key1 = (int.from_bytes(os.urandom(8), "little") for _ in range(2))

    keyless = 0

    def hashed() -> Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]]:
        nonlocal keyless
        for offsets, keys in batches:
            if keys.null_count:
                keyless += keys.null_count
                is_keyless = keys.is_null().to_numpy(zero_copy_only=False)
                if keep_keyless:
                    survivors.add(offsets[is_keyless])
                offsets, keys = offsets[~is_keyless], keys.drop_null()
            data, starts = binary_buffers(keys)
            hashes = np.empty((len(keys), 2), np.uint64)
            kernel.siphash(data, starts, key0, key1, hashes)
            yield hashes, offsets

    rows: Iterable[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]] = hashed()
    keys = 0
    with contextlib.ExitStack() as spills:
        while True:
            later = spills.enter_context(contextlib.closing(_Spill(spill)))
            for hashes, offsets in rows:
                table.put(hashes, offsets, later)
            for newest in table.offsets():
                keys += len(newest)
                survivors.add(newest)
            table.next_round()
            if not later.rows:
                return keys, keyless
            rows = later.read()
