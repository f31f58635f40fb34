# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False, cdivision=True
"""Compiled `murmur2`; its twin and its contract are in reference.py."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t


cdef extern from "hashes.h" nogil:
    int64_t duramen_murmur2_rows(const uint8_t *data, int64_t data_bytes, const int32_t *offsets, int64_t count,
                                 uint32_t *hashes)


def murmur2(const uint8_t[::1] data not None, const int32_t[::1] offsets, uint32_t[::1] hashes):
    cdef int64_t count = hashes.shape[0]
    cdef int64_t done
    cdef uint8_t nothing = 0
    if offsets.shape[0] != count + 1:
        raise ValueError("offsets and hashes differ in length")
    if count:
        with nogil:
            done = duramen_murmur2_rows(&data[0] if data.shape[0] else &nothing, data.shape[0], &offsets[0], count,
                                        &hashes[0])
        if done < 0:
            raise ValueError(f"row {-1 - done} lies outside of the buffer")
    return count
