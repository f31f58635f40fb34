# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False, cdivision=True
"""Compiled fixed-slot functions; their twins and their contracts are in reference.py."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free

from duramen.kernel._digests cimport digests_in, duramen_digests
from duramen.kernel._pages cimport passed, duramen_mapped_begin, duramen_mapped_end, is_large, looked_at
from duramen.kernel._values cimport duramen_values, point_at, point_into

from duramen.kernel.layout import ScanEnd, is_mapping


cdef extern from "slots.h" nogil:
    ctypedef struct duramen_scan_end:
        int64_t count, position, stop, last_offset
    duramen_scan_end duramen_scan_slots(const uint8_t *buf, int64_t position, int64_t end, int64_t record_bytes,
                                        int64_t max_slots, int verify, duramen_digests *digests)
    int64_t duramen_find_slot(const uint8_t *buf, int64_t position, int64_t end, int64_t record_bytes)
    int64_t duramen_infer_slot(const uint8_t *buf, int64_t end, int64_t max_record_bytes)
    int64_t duramen_encode_slots(uint8_t *out, int64_t capacity, const duramen_values *values, int64_t record_bytes)


cdef int check(const uint8_t[::1] buf, int64_t position, int64_t end, int64_t record_bytes) except -1:
    if not 0 <= position <= end <= buf.shape[0]:
        raise ValueError("range lies outside of the buffer")
    if not 1 <= record_bytes <= 2**31 - 1:
        raise ValueError("record_bytes must be 1 to 2147483647")
    if position % (record_bytes + 4):
        raise ValueError("position is not the start of a slot")
    return 0


def scan_slots(const uint8_t[::1] buf not None, int64_t position, int64_t end, int64_t record_bytes, int64_t max_slots,
               bint verify=True, uint32_t[::1] digests=None):
    cdef duramen_scan_end result
    cdef duramen_digests *sums = digests_in(digests)
    check(buf, position, end, record_bytes)
    cdef const uint8_t *data = &buf[0] if buf.shape[0] else NULL
    cdef bint mapped = is_large(buf.shape[0]) and is_mapping(buf.base)
    with nogil:
        if mapped:
            duramen_mapped_begin(data, buf.shape[0])
            passed(data, position)
        result = duramen_scan_slots(data, position, end, record_bytes, max_slots, verify, sums)
        if mapped:
            duramen_mapped_end()
    return ScanEnd(result.count, result.position, result.stop, result.last_offset)


def find_slot(const uint8_t[::1] buf not None, int64_t position, int64_t end, int64_t record_bytes):
    cdef int64_t found
    check(buf, position, end, record_bytes)
    cdef const uint8_t *data = &buf[0] if buf.shape[0] else NULL
    cdef bint mapped = is_large(buf.shape[0]) and is_mapping(buf.base)
    with nogil:
        if mapped:
            duramen_mapped_begin(data, buf.shape[0])
        found = duramen_find_slot(data, position, end, record_bytes)
        if mapped:
            looked_at(data, position, found if found >= 0 else end)
            duramen_mapped_end()
    return found


def infer_slot(const uint8_t[::1] buf not None, int64_t max_record_bytes):
    cdef int64_t size
    cdef const uint8_t *data = &buf[0] if buf.shape[0] else NULL
    if max_record_bytes > 2**31 - 1:
        max_record_bytes = 2**31 - 1
    with nogil:
        size = duramen_infer_slot(data, buf.shape[0], max_record_bytes)
    return size


def encode_slots(uint8_t[::1] out not None, int64_t record_bytes, values not None,
                 const int32_t[::1] value_offsets=None):
    cdef duramen_values source
    cdef void *pointers = NULL
    cdef tuple held = ()
    cdef const uint8_t[::1] data = None
    cdef int64_t written
    if not 1 <= record_bytes <= 2**31 - 1:
        raise ValueError("record_bytes must be 1 to 2147483647")
    if value_offsets is None:
        held = tuple(values)  # a list may change while the GIL is released
        pointers = point_at(held, &source)
    else:
        data = values
        point_into(data, value_offsets, &source)
    cdef uint8_t *target = &out[0] if out.shape[0] else NULL
    with nogil:
        written = duramen_encode_slots(target, out.shape[0], &source, record_bytes)
    free(pointers)
    if written < 0:
        raise ValueError(f"row {-1 - written} does not fit")
    return written
