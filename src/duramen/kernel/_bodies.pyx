# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False, cdivision=True
"""Compiled `bound_bodies`; its twin and its contract are in reference.py."""

from libc.stdint cimport int64_t, uint8_t, uint32_t


cdef extern from "bodies.h" nogil:
    ctypedef struct body_columns:
        const int64_t *position
        const uint32_t *length
        const uint32_t *codec
        int64_t count
    int64_t duramen_bound_bodies(const uint8_t *buf, int64_t buf_bytes, const body_columns *bodies, int64_t *bounds)


def bound_bodies(const uint8_t[::1] buf not None, const int64_t[::1] positions not None,
                 const uint32_t[::1] lengths not None, const uint32_t[::1] codecs not None,
                 int64_t[::1] bounds not None):
    cdef body_columns bodies
    cdef int64_t found
    bodies.count = positions.shape[0]
    if not (lengths.shape[0] == codecs.shape[0] == bounds.shape[0] == bodies.count):
        raise ValueError("the columns differ in length")
    if bodies.count == 0:
        return
    bodies.position = &positions[0]
    bodies.length = &lengths[0]
    bodies.codec = &codecs[0]
    cdef const uint8_t *data = &buf[0] if buf.shape[0] else NULL
    with nogil:
        found = duramen_bound_bodies(data, buf.shape[0], &bodies, &bounds[0])
    if found < 0:
        raise ValueError(f"row {-1 - found} lies outside of the buffer")
