# cython: language_level=3
# Buffers and columns, as C sees them. The caller holds the columns, and so the arrays, until C is done.

from libc.stdint cimport int64_t, uint8_t, uint32_t


cdef inline const uint8_t *bytes_of(const uint8_t[::1] buf) noexcept:
    return &buf[0] if buf.shape[0] else <const uint8_t *>b""


cdef inline int check(const uint8_t[::1] buf, int64_t position, int64_t end) except -1:
    if not 0 <= position <= end <= buf.shape[0]:
        raise ValueError("range lies outside of the buffer")
    return 0


cdef inline int64_t *wide(int64_t[::1] array, int64_t count) except? NULL:
    if array.shape[0] != count:
        raise ValueError("the columns differ in length")
    return &array[0] if count else NULL


cdef inline uint32_t *narrow(uint32_t[::1] array, int64_t count) except? NULL:
    if array.shape[0] != count:
        raise ValueError("the columns differ in length")
    return &array[0] if count else NULL
