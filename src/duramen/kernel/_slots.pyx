# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled fixed-slot functions; their twins and their contracts are in reference.py."""

from libc.stdint cimport int64_t, uint8_t

from duramen.kernel.layout import ScanEnd


cdef extern from "slots.h" nogil:
    ctypedef struct duramen_scan_end:
        int64_t count, position, stop, last_offset
    duramen_scan_end duramen_scan_slots(const uint8_t *buf, int64_t position, int64_t end, int64_t record_bytes,
                                        int64_t max_slots, int verify)
    int64_t duramen_find_slot(const uint8_t *buf, int64_t position, int64_t end, int64_t record_bytes)
    int64_t duramen_infer_slot(const uint8_t *buf, int64_t end, int64_t max_record_bytes)
    void duramen_encode_slots(uint8_t *out, const uint8_t *values, int64_t count, int64_t record_bytes)


cdef int check(const uint8_t[::1] buf, int64_t position, int64_t end, int64_t record_bytes) except -1:
    if not 0 <= position <= end <= buf.shape[0]:
        raise ValueError("range lies outside of the buffer")
    if not 1 <= record_bytes <= 2**31 - 1:
        raise ValueError("record_bytes must be 1 to 2147483647")
    if position % (record_bytes + 4):
        raise ValueError("position is not the start of a slot")
    return 0


def scan_slots(const uint8_t[::1] buf not None, int64_t position, int64_t end, int64_t record_bytes, int64_t max_slots,
               bint verify=True):
    cdef duramen_scan_end result
    check(buf, position, end, record_bytes)
    cdef const uint8_t *data = &buf[0] if buf.shape[0] else NULL
    with nogil:
        result = duramen_scan_slots(data, position, end, record_bytes, max_slots, verify)
    return ScanEnd(result.count, result.position, result.stop, result.last_offset)


def find_slot(const uint8_t[::1] buf not None, int64_t position, int64_t end, int64_t record_bytes):
    cdef int64_t found
    check(buf, position, end, record_bytes)
    cdef const uint8_t *data = &buf[0] if buf.shape[0] else NULL
    with nogil:
        found = duramen_find_slot(data, position, end, record_bytes)
    return found


def infer_slot(const uint8_t[::1] buf not None, int64_t max_record_bytes):
    cdef int64_t size
    cdef const uint8_t *data = &buf[0] if buf.shape[0] else NULL
    if max_record_bytes > 2**31 - 1:
        max_record_bytes = 2**31 - 1
    with nogil:
        size = duramen_infer_slot(data, buf.shape[0], max_record_bytes)
    return size


def encode_slots(uint8_t[::1] out not None, const uint8_t[::1] values, int64_t record_bytes):
    if not 1 <= record_bytes <= 2**31 - 1:
        raise ValueError("record_bytes must be 1 to 2147483647")
    cdef int64_t count = values.shape[0] // record_bytes
    if values.shape[0] != count * record_bytes or out.shape[0] != count * (record_bytes + 4):
        raise ValueError("out and values do not fit the record size")
    if count:
        with nogil:
            duramen_encode_slots(&out[0], &values[0], count, record_bytes)
    return count
