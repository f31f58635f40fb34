# cython: language_level=3
# Says to C which buffers are mapped files, so that a long pass keeps few of their pages.

from libc.stdint cimport int64_t, uint8_t


cdef extern from "pages.h" nogil:
    int64_t PASS_BYTES
    void duramen_mapped_begin(const uint8_t *buf, int64_t size_bytes)
    void duramen_mapped_end()
    void duramen_passed(const uint8_t *start, const uint8_t *stop)


cdef inline bint is_large(int64_t size_bytes) noexcept nogil:
    """Whether a buffer is worth the question of whether it is a mapped file."""
    return size_bytes >= 16 * PASS_BYTES


cdef inline void passed(const uint8_t *data, int64_t position) noexcept nogil:
    """Drop what steps before this one have passed; of the last one the caller may still read the values."""
    if position > 4 * PASS_BYTES:
        duramen_passed(data + max(position - 16 * PASS_BYTES, 0), data + position - 4 * PASS_BYTES)


cdef inline void looked_at(const uint8_t *data, int64_t position, int64_t end) noexcept nogil:
    """Drop what a search or a test has passed, to its end."""
    if end - position > PASS_BYTES // 4:
        duramen_passed(data + position, data + end)
