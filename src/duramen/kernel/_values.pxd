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
    ctypedef struct duramen_value_room:
        uint8_t *data
        int64_t data_bytes
        int32_t *offsets
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


cdef inline const duramen_value_room *room_for(int32_t[::1] offsets, uint8_t[::1] values, int64_t rows,
                                               duramen_value_room *out) except? NULL:
    """Where a scan of that many rows copies values to; NULL if it does not."""
    if (offsets is None) != (values is None):
        raise ValueError("values and their offsets go together")
    if values is None:
        return NULL
    if offsets.shape[0] != rows + 1:
        raise ValueError("the columns and the offsets of values differ in length")
    out.data = &values[0] if values.shape[0] else NULL
    out.data_bytes = values.shape[0]
    out.offsets = &offsets[0]
    return out
