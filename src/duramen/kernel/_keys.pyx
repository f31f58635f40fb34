# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False, cdivision=True
"""Compiled `siphash` and `keep_newest`; their twins and their contracts are in reference.py."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t


cdef extern from "keys.h" nogil:
    int64_t duramen_siphash_rows(const uint8_t *data, int64_t data_bytes, const int32_t *offsets, int64_t count,
                                 uint64_t key0, uint64_t key1, uint64_t *hashes)
    int64_t duramen_keep_newest(uint64_t *table, int64_t slots, int64_t most, int64_t *used, const uint64_t *hashes,
                                const int64_t *offsets, int64_t count)


def siphash(const uint8_t[::1] data not None, const int32_t[::1] offsets, uint64_t key0, uint64_t key1,
            uint64_t[:, ::1] hashes):
    cdef int64_t count = hashes.shape[0]
    cdef int64_t done
    cdef uint8_t nothing = 0
    if offsets.shape[0] != count + 1 or hashes.shape[1] != 2:
        raise ValueError("offsets and hashes differ in length")
    if count:
        with nogil:
            done = duramen_siphash_rows(&data[0] if data.shape[0] else &nothing, data.shape[0], &offsets[0], count,
                                        key0, key1, &hashes[0, 0])
        if done < 0:
            raise ValueError(f"row {-1 - done} lies outside of the buffer")
    return count


def keep_newest(uint64_t[:, ::1] table not None, int64_t used, int64_t most, const uint64_t[:, ::1] hashes,
                const int64_t[::1] offsets):
    cdef int64_t slots = table.shape[0]
    cdef int64_t count = offsets.shape[0]
    cdef int64_t done = 0
    cdef int64_t full = used
    if table.shape[1] != 3 or slots < 1 or slots & (slots - 1):
        raise ValueError("a table has a power of two of slots, three words each")
    if not 0 <= used <= most < slots:
        raise ValueError("at least one slot stays free")
    if hashes.shape[0] != count or (count and hashes.shape[1] != 2):
        raise ValueError("hashes and offsets differ in length")
    if count:
        with nogil:
            done = duramen_keep_newest(&table[0, 0], slots, most, &full, &hashes[0, 0], &offsets[0], count)
    return done, full
