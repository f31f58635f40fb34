# cython: language_level=3
# The two checksums that a scan takes along, in an array of the caller.

from libc.stdint cimport uint32_t


cdef extern from "crc.h" nogil:
    ctypedef struct duramen_digests:
        uint32_t crc32c, crc32


cdef inline duramen_digests *digests_in(uint32_t[::1] array) except? NULL:
    """The address for C; NULL if there are none."""
    if array is None:
        return NULL
    if array.shape[0] != 2:
        raise ValueError("digests must be two numbers: CRC-32C and CRC-32")
    return <duramen_digests *>&array[0]
