# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled frame functions; their twins and their contracts are in reference.py."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from duramen.kernel.layout import FrameHit, ScanEnd


cdef extern from "frames.h" nogil:
    ctypedef struct duramen_scan_end:
        int64_t count, position, stop, last_offset
    ctypedef struct frame_layout:
        int64_t header_bytes
    ctypedef struct frame:
        int64_t offset, timestamp, position, value_position, next
        uint32_t value_length, headers_length, flags
    ctypedef struct frame_columns:
        int64_t *offset
        int64_t *timestamp
        int64_t *position
        int64_t *value_position
        uint32_t *value_length
        uint32_t *headers_length
        uint32_t *flags
    ctypedef struct frame_source:
        int64_t count
        const int64_t *offset
        const int64_t *timestamp
        int64_t first_offset, constant_timestamp
        const uint32_t *flags
        const uint8_t *const *pointers
        const int64_t *lengths
        const uint8_t *values
        int64_t values_bytes
        const int32_t *value_offsets
        const uint8_t *headers
        int64_t headers_bytes
        const int32_t *headers_offsets
    duramen_scan_end duramen_scan_frames(const uint8_t *buf, int64_t position, int64_t end,
                                         const frame_layout *layout, frame_columns *out, int64_t capacity,
                                         int64_t max_bytes, int64_t previous_offset, int verify)
    int64_t duramen_seek_frame(const uint8_t *buf, int64_t position, int64_t end, const frame_layout *layout,
                               int64_t target, int64_t previous_offset, frame *out)
    int64_t duramen_find_frame(const uint8_t *buf, int64_t position, int64_t end, const frame_layout *layout,
                               int64_t previous_offset)
    int64_t duramen_encode_frames(uint8_t *out, int64_t capacity, const frame_layout *layout,
                                  const frame_source *source, int64_t base_position, int64_t *positions)


cdef int unpack(object layout, frame_layout *table) except -1:
    cdef bytes packed = layout.packed
    if len(packed) != sizeof(frame_layout):
        raise ValueError("the packed layout has the wrong size")
    memcpy(table, <const char *>packed, sizeof(frame_layout))
    return 0


cdef int check(const uint8_t[::1] buf, int64_t position, int64_t end) except -1:
    if not 0 <= position <= end <= buf.shape[0]:
        raise ValueError("range lies outside of the buffer")
    return 0


def scan_frames(const uint8_t[::1] buf not None, int64_t position, int64_t end, layout, columns,
                int64_t previous_offset=-1, int64_t max_bytes=2**62, bint verify=True):
    cdef frame_layout table
    cdef frame_columns out
    cdef duramen_scan_end result
    unpack(layout, &table)
    check(buf, position, end)
    cdef int64_t[::1] offset = columns.offset
    cdef int64_t[::1] timestamp = columns.timestamp
    cdef int64_t[::1] positions = columns.position
    cdef int64_t[::1] value_position = columns.value_position
    cdef uint32_t[::1] value_length = columns.value_length
    cdef uint32_t[::1] headers_length = columns.headers_length
    cdef uint32_t[::1] flags = columns.flags
    cdef int64_t capacity = offset.shape[0]
    if not (timestamp.shape[0] == positions.shape[0] == value_position.shape[0] == value_length.shape[0]
            == headers_length.shape[0] == flags.shape[0] == capacity):
        raise ValueError("the columns differ in length")
    if capacity == 0:
        raise ValueError("the columns have no room")
    out.offset = &offset[0]
    out.timestamp = &timestamp[0]
    out.position = &positions[0]
    out.value_position = &value_position[0]
    out.value_length = &value_length[0]
    out.headers_length = &headers_length[0]
    out.flags = &flags[0]
    cdef const uint8_t *data = &buf[0] if buf.shape[0] else NULL
    with nogil:
        result = duramen_scan_frames(data, position, end, &table, &out, capacity, max_bytes, previous_offset, verify)
    return ScanEnd(result.count, result.position, result.stop, result.last_offset)


def seek_frame(const uint8_t[::1] buf not None, int64_t position, int64_t end, layout, int64_t target,
               int64_t previous_offset=-1):
    cdef frame_layout table
    cdef frame hit
    cdef int64_t stop
    unpack(layout, &table)
    check(buf, position, end)
    cdef const uint8_t *data = &buf[0] if buf.shape[0] else NULL
    with nogil:
        stop = duramen_seek_frame(data, position, end, &table, target, previous_offset, &hit)
    if stop != 1:
        return FrameHit(stop, hit.position, -1, 0, 0, 0, 0, 0, 0)
    return FrameHit(stop, hit.position, hit.offset, hit.timestamp, hit.value_position, hit.value_length,
                    hit.headers_length, hit.flags, hit.next)


def find_frame(const uint8_t[::1] buf not None, int64_t position, int64_t end, layout, int64_t previous_offset=-1):
    cdef frame_layout table
    cdef int64_t found
    unpack(layout, &table)
    check(buf, position, end)
    cdef const uint8_t *data = &buf[0] if buf.shape[0] else NULL
    with nogil:
        found = duramen_find_frame(data, position, end, &table, previous_offset)
    return found


def encode_frames(uint8_t[::1] out not None, layout, const int64_t[::1] offsets, const uint8_t[::1] values,
                  const int32_t[::1] value_offsets, int64_t[::1] positions, *, int64_t base_position=0,
                  const int64_t[::1] timestamps=None, const uint32_t[::1] flags=None,
                  const uint8_t[::1] headers=None, const int32_t[::1] headers_offsets=None):
    cdef frame_layout table
    cdef frame_source source
    cdef int64_t written
    unpack(layout, &table)
    cdef int64_t count = offsets.shape[0]
    if value_offsets.shape[0] != count + 1 or positions.shape[0] != count:
        raise ValueError("the columns differ in length")
    if timestamps is not None and timestamps.shape[0] != count:
        raise ValueError("the columns differ in length")
    if flags is not None and flags.shape[0] != count:
        raise ValueError("the columns differ in length")
    if (headers is None) != (headers_offsets is None):
        raise ValueError("headers and headers_offsets go together")
    if headers_offsets is not None and headers_offsets.shape[0] != count + 1:
        raise ValueError("the columns differ in length")
    if not 0 <= base_position <= 2**62:
        raise ValueError("base_position must be 0 to 2**62")
    if count == 0:
        return 0
    source.count = count
    source.first_offset = source.constant_timestamp = 0
    source.pointers = NULL
    source.lengths = NULL
    source.offset = &offsets[0]
    source.timestamp = NULL if timestamps is None else &timestamps[0]
    source.flags = NULL if flags is None else &flags[0]
    source.values = &values[0] if values.shape[0] else NULL
    source.values_bytes = values.shape[0]
    source.value_offsets = &value_offsets[0]
    source.headers = NULL if headers is None or headers.shape[0] == 0 else &headers[0]
    source.headers_bytes = 0 if headers is None else headers.shape[0]
    source.headers_offsets = NULL if headers_offsets is None else &headers_offsets[0]
    cdef uint8_t *target = &out[0] if out.shape[0] else NULL
    with nogil:
        written = duramen_encode_frames(target, out.shape[0], &table, &source, base_position, &positions[0])
    if written < 0:
        raise ValueError(f"row {-1 - written} does not fit")
    return written


def values_bytes(list values not None):
    """The bytes of all values; refuses anything but bytes."""
    cdef int64_t total = 0
    for value in values:
        if type(value) is not bytes:
            raise TypeError(f"a value is bytes, not {type(value).__name__}")
        total += PyBytes_GET_SIZE(value)
    return total


def encode_values(uint8_t[::1] out not None, layout, int64_t first_offset, list values not None,
                  int64_t[::1] positions not None, *, int64_t base_position=0, int64_t timestamp=0):
    cdef frame_layout table
    cdef frame_source source
    cdef int64_t written, row
    cdef tuple held = tuple(values)  # the list may change while the GIL is released
    cdef int64_t count = len(held)
    unpack(layout, &table)
    if positions.shape[0] != count:
        raise ValueError("the columns differ in length")
    if not 0 <= base_position <= 2**62 or not 0 <= first_offset <= 2**63 - 1 - count:
        raise ValueError("base_position or first_offset is out of range")
    if count == 0:
        return 0
    cdef const uint8_t **pointers = <const uint8_t **>malloc(count * sizeof(void *))
    cdef int64_t *lengths = <int64_t *>malloc(count * sizeof(int64_t))
    try:
        if pointers == NULL or lengths == NULL:
            raise MemoryError
        for row in range(count):
            value = held[row]
            if type(value) is not bytes:
                raise TypeError(f"a value is bytes, not {type(value).__name__}")
            pointers[row] = <const uint8_t *>PyBytes_AS_STRING(value)
            lengths[row] = PyBytes_GET_SIZE(value)
        memset(&source, 0, sizeof(frame_source))
        source.count = count
        source.first_offset = first_offset
        source.constant_timestamp = timestamp
        source.pointers = pointers
        source.lengths = lengths
        written = 0
        if out.shape[0]:
            with nogil:
                written = duramen_encode_frames(&out[0], out.shape[0], &table, &source, base_position, &positions[0])
        else:
            written = -1
    finally:
        free(<void *>pointers)
        free(<void *>lengths)
    if written < 0:
        raise ValueError(f"row {-1 - written} does not fit")
    return written
