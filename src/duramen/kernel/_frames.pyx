# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False, cdivision=True
"""Compiled frame functions; their twins and their contracts are in reference.py."""

from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from duramen.kernel._digests cimport digests_in, duramen_digests
from duramen.kernel._pages cimport passed, duramen_mapped_begin, duramen_mapped_end, is_large, looked_at
from duramen.kernel._values cimport duramen_value_room, duramen_values, point_at, point_into, room_for, value_at

from duramen.kernel.layout import FrameHit, ScanEnd, is_mapping


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
    duramen_scan_end duramen_scan_frames(const uint8_t *buf, int64_t position, int64_t end,
                                         const frame_layout *layout, frame_columns *out, int64_t capacity,
                                         int64_t max_bytes, int64_t previous_offset, int verify,
                                         duramen_digests *digests, const duramen_value_room *values)
    int64_t duramen_seek_frame(const uint8_t *buf, int64_t position, int64_t end, const frame_layout *layout,
                               int64_t target, int64_t previous_offset, frame *out)
    int64_t duramen_find_frame(const uint8_t *buf, int64_t position, int64_t end, const frame_layout *layout,
                               int64_t previous_offset)
    int64_t duramen_encode_frames(uint8_t *out, int64_t capacity, const frame_layout *layout, frame_columns *rows,
                                  const duramen_values *values, const duramen_values *headers, int64_t base_position)
    int64_t duramen_pick_strides(const int64_t *value_positions, const uint32_t *value_lengths, int64_t count,
                                 int64_t trailer_bytes, int64_t stride_bytes, int64_t *counted_from, int64_t *picked)


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


cdef class FrameArrays:
    """The arrays of a FrameColumns, held while C has pointers to them."""

    cdef const int64_t[::1] offset, timestamp
    cdef const uint32_t[::1] flags
    cdef int64_t[::1] position, value_position
    cdef uint32_t[::1] value_length, headers_length
    cdef frame_columns c
    cdef int64_t count

    def __cinit__(self, columns, bint to_encode):
        """To encode, offset, timestamp and flags are only read, and may be read-only."""
        if to_encode:
            self.offset = columns.offset
            self.timestamp = columns.timestamp
            self.flags = columns.flags
        else:
            self.offset = writable(columns.offset)
            self.timestamp = writable(columns.timestamp)
            self.flags = writable_u32(columns.flags)
        self.position = columns.position
        self.value_position = columns.value_position
        self.value_length = columns.value_length
        self.headers_length = columns.headers_length
        self.count = self.offset.shape[0]
        if not (self.timestamp.shape[0] == self.position.shape[0] == self.value_position.shape[0]
                == self.value_length.shape[0] == self.headers_length.shape[0] == self.flags.shape[0] == self.count):
            raise ValueError("the columns differ in length")
        if self.count == 0:
            return
        self.c.offset = <int64_t *>&self.offset[0]
        self.c.timestamp = <int64_t *>&self.timestamp[0]
        self.c.flags = <uint32_t *>&self.flags[0]
        self.c.position = &self.position[0]
        self.c.value_position = &self.value_position[0]
        self.c.value_length = &self.value_length[0]
        self.c.headers_length = &self.headers_length[0]


cdef int64_t[::1] writable(array):
    return array


cdef uint32_t[::1] writable_u32(array):
    return array


def scan_frames(const uint8_t[::1] buf not None, int64_t position, int64_t end, layout, columns,
                int64_t previous_offset=-1, int64_t max_bytes=2**62, bint verify=True, uint32_t[::1] digests=None,
                int32_t[::1] value_offsets=None, uint8_t[::1] values=None):
    cdef frame_layout table
    cdef duramen_scan_end result
    cdef duramen_digests *sums = digests_in(digests)
    cdef duramen_value_room target
    unpack(layout, &table)
    check(buf, position, end)
    cdef FrameArrays out = FrameArrays(columns, False)
    if out.count == 0:
        raise ValueError("the columns have no room")
    cdef const duramen_value_room *wanted = room_for(value_offsets, values, out.count, &target)
    cdef const uint8_t *data = &buf[0] if buf.shape[0] else NULL
    cdef bint mapped = is_large(buf.shape[0]) and is_mapping(buf.base)
    with nogil:
        if mapped:
            duramen_mapped_begin(data, buf.shape[0])
            passed(data, position)
        result = duramen_scan_frames(data, position, end, &table, &out.c, out.count, max_bytes, previous_offset,
                                     verify, sums, wanted)
        if mapped:
            duramen_mapped_end()
    return ScanEnd(result.count, result.position, result.stop, result.last_offset)


def seek_frame(const uint8_t[::1] buf not None, int64_t position, int64_t end, layout, int64_t target,
               int64_t previous_offset=-1):
    cdef frame_layout table
    cdef frame hit
    cdef int64_t stop
    unpack(layout, &table)
    check(buf, position, end)
    cdef const uint8_t *data = &buf[0] if buf.shape[0] else NULL
    cdef bint mapped = is_large(buf.shape[0]) and is_mapping(buf.base)
    with nogil:
        if mapped:
            duramen_mapped_begin(data, buf.shape[0])
        stop = duramen_seek_frame(data, position, end, &table, target, previous_offset, &hit)
        if mapped:
            duramen_mapped_end()
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
    cdef bint mapped = is_large(buf.shape[0]) and is_mapping(buf.base)
    with nogil:
        if mapped:
            duramen_mapped_begin(data, buf.shape[0])
        found = duramen_find_frame(data, position, end, &table, previous_offset)
        if mapped:
            looked_at(data, position, found if found >= 0 else end)
            duramen_mapped_end()
    return found


def encode_frames(uint8_t[::1] out not None, layout, columns, values not None, const int32_t[::1] value_offsets=None, *,
                  int64_t base_position=0, const uint8_t[::1] headers=None, const int32_t[::1] headers_offsets=None):
    cdef frame_layout table
    cdef duramen_values source, blobs
    cdef const duramen_values *with_headers = NULL
    cdef void *pointers = NULL
    cdef tuple held = ()
    cdef const uint8_t[::1] data = None
    cdef int64_t written
    unpack(layout, &table)
    cdef FrameArrays rows = FrameArrays(columns, True)
    if (headers is None) != (headers_offsets is None):
        raise ValueError("headers and headers_offsets go together")
    if not 0 <= base_position <= 2**62:
        raise ValueError("base_position must be 0 to 2**62")
    if headers is not None:
        point_into(headers, headers_offsets, &blobs)
        if blobs.count != rows.count:
            raise ValueError("the columns differ in length")
        with_headers = &blobs
    if value_offsets is None:
        held = tuple(values)  # a list may change while the GIL is released
        pointers = point_at(held, &source)
    else:
        data = values
        point_into(data, value_offsets, &source)
    cdef uint8_t *target = &out[0] if out.shape[0] else NULL
    try:
        if source.count != rows.count:
            raise ValueError("the columns differ in length")
        with nogil:
            written = duramen_encode_frames(target, out.shape[0], &table, &rows.c, &source, with_headers, base_position)
    finally:
        free(pointers)
    if written < 0:
        raise ValueError(f"row {-1 - written} does not fit")
    return written


def pick_strides(const int64_t[::1] value_positions not None, const uint32_t[::1] value_lengths not None,
                 int64_t trailer_bytes, int64_t stride_bytes, int64_t counted_from, int64_t[::1] picked not None):
    cdef int64_t count = value_positions.shape[0]
    cdef int64_t found = 0
    if value_lengths.shape[0] != count or picked.shape[0] != count:
        raise ValueError("the columns differ in length")
    if count:
        with nogil:
            found = duramen_pick_strides(&value_positions[0], &value_lengths[0], count, trailer_bytes, stride_bytes,
                                         &counted_from, &picked[0])
    return found, counted_from


def measure_values(values not None, const int32_t[::1] value_offsets=None):
    cdef int64_t total = 0, shortest = 2**63 - 1, longest = 0, length, row
    cdef const uint8_t[::1] data = None
    cdef duramen_values source
    cdef const uint8_t *value_start
    if value_offsets is not None:
        data = values
        point_into(data, value_offsets, &source)
        with nogil:
            for row in range(source.count):
                if not value_at(&source, row, &value_start, &length):
                    shortest = -1 - row
                    break
                total += length
                shortest = min(shortest, length)
                longest = max(longest, length)
        if shortest < 0:
            raise ValueError(f"row {-1 - shortest} does not fit")
        return total, shortest if source.count else 0, longest
    cdef tuple held = tuple(values)
    for value in held:
        if type(value) is not bytes:
            raise TypeError(f"a value is bytes, not {type(value).__name__}")
        length = PyBytes_GET_SIZE(value)
        total += length
        shortest = min(shortest, length)
        longest = max(longest, length)
    return total, shortest if held else 0, longest
