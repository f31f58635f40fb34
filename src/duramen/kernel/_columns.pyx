# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False, cdivision=True
"""Compiled `gather`; its twin and its contract are in reference.py."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from duramen.kernel._pages cimport duramen_mapped_begin, duramen_mapped_end, is_large, looked_at

from duramen.kernel.layout import is_mapping


cdef extern from "bytes.h" nogil:
    bint all_zero(const uint8_t *p, int64_t length)


cdef extern from "columns.h" nogil:
    int64_t duramen_gather(const uint8_t *buf, int64_t buf_bytes, const int64_t *positions, const uint32_t *lengths,
                           int64_t count, int32_t *offsets, uint8_t *data, int64_t data_bytes)


def gather(const uint8_t[::1] buf not None, const int64_t[::1] positions, const uint32_t[::1] lengths,
           int32_t[::1] offsets, uint8_t[::1] data):
    cdef int64_t count = positions.shape[0]
    cdef int64_t total
    if lengths.shape[0] != count or offsets.shape[0] != count + 1:
        raise ValueError("positions, lengths and offsets differ in length")
    cdef const uint8_t *source = &buf[0] if buf.shape[0] else NULL
    cdef const int64_t *first_position = &positions[0] if count else NULL
    cdef const uint32_t *first_length = &lengths[0] if count else NULL
    cdef uint8_t *target = &data[0] if data.shape[0] else NULL
    with nogil:
        total = duramen_gather(source, buf.shape[0], first_position, first_length, count,
                               &offsets[0], target, data.shape[0])
    if total < 0:
        raise ValueError(f"row {-1 - total} lies outside of the buffer")
    return total


def is_zero(const uint8_t[::1] buf not None, int64_t position, int64_t end):
    cdef bint found
    if not 0 <= position <= end <= buf.shape[0]:
        raise ValueError("range lies outside of the buffer")
    if position == end:
        return True
    cdef bint mapped = is_large(buf.shape[0]) and is_mapping(buf.base)
    with nogil:
        if mapped:
            duramen_mapped_begin(&buf[0], buf.shape[0])
        found = all_zero(&buf[position], end - position)
        if mapped:
            looked_at(&buf[0], position, end)
            duramen_mapped_end()
    return found
