# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False, cdivision=True
"""Compiled `encode_run`; its twin and its contract are in reference.py."""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint64_t


cdef extern from "events.h" nogil:
    void duramen_encode_run(const uint8_t *head, int64_t head_bytes, int64_t covered_from, uint64_t start,
                            int64_t count, const uint8_t *rest, int64_t rest_bytes, uint8_t *out)


def encode_run(const uint8_t[::1] head not None, int64_t covered_from, uint64_t start, int64_t count,
               const uint8_t[::1] rest not None, uint8_t[::1] out not None):
    cdef int64_t head_bytes = head.shape[0]
    cdef int64_t rest_bytes = rest.shape[0]
    cdef int64_t size_bytes = head_bytes + 8 + rest_bytes + 4
    cdef uint8_t nothing = 0
    if not 0 <= covered_from <= head_bytes:
        raise ValueError("the checksum begins outside of the head")
    if count < 0 or (count and start > <uint64_t>-1 - <uint64_t>(count - 1)):
        raise ValueError("the numbers do not fit into 64 bits")
    if count > INT64_MAX // size_bytes or out.shape[0] != count * size_bytes:
        raise ValueError("the buffer does not have the size of the events")
    if count:
        with nogil:
            duramen_encode_run(&head[0] if head_bytes else &nothing, head_bytes, covered_from, start, count,
                               &rest[0] if rest_bytes else &nothing, rest_bytes, &out[0])
    return count * size_bytes
