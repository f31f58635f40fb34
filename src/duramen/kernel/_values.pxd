# cython: language_level=3
# Values that are encoded, as C sees them: the bytes objects of a tuple, or an Arrow buffer with offsets into it.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport malloc


cdef extern from "bytes.h" nogil:
    ctypedef struct duramen_values:
        int64_t count
        const uint8_t *const *pointers
        const int64_t *lengths
        const uint8_t *data
        int64_t data_bytes
        const int32_t *offsets
    int value_at(const duramen_values *values, int64_t row, const uint8_t **data, int64_t *length)


cdef inline void *point_at(tuple values, duramen_values *out) except NULL:
    """Where each value lies, in memory that the caller frees; ``values`` must live as long."""
    cdef int64_t count = len(values)
    cdef int64_t row
    for value in values:
        if type(value) is not bytes:
            raise TypeError(f"a value is bytes, not {type(value).__name__}")
    cdef void *memory = malloc((count + 1) * (sizeof(void *) + sizeof(int64_t)))
    if memory == NULL:
        raise MemoryError
    cdef const uint8_t **pointers = <const uint8_t **>memory
    cdef int64_t *lengths = <int64_t *>(pointers + count + 1)
    for row in range(count):
        pointers[row] = <const uint8_t *>PyBytes_AS_STRING(values[row])
        lengths[row] = PyBytes_GET_SIZE(values[row])
    out.count = count
    out.pointers = <const uint8_t *const *>pointers
    out.lengths = lengths
    out.data = NULL
    out.data_bytes = 0
    out.offsets = NULL
    return memory


cdef inline int point_into(const uint8_t[::1] data, const int32_t[::1] offsets, duramen_values *out) except -1:
    """One value between each two offsets, which are checked when they are followed."""
    if data is None or offsets.shape[0] == 0:
        raise ValueError("the columns differ in length")
    out.count = offsets.shape[0] - 1
    out.pointers = NULL
    out.lengths = NULL
    out.data = &data[0] if data.shape[0] else NULL
    out.data_bytes = data.shape[0]
    out.offsets = &offsets[0]
    return 0
