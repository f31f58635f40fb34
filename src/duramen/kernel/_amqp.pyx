# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False, cdivision=True
"""Compiled AMQP functions; their twins and their contracts are in reference.py."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from duramen.kernel.layout import AmqpField


cdef extern from "amqp.h" nogil:
    ctypedef struct amqp_spans:
        uint8_t *codes
        int64_t *positions
        uint32_t *lengths
        uint32_t *counts
    int64_t duramen_scan_amqp(const uint8_t *buf, int64_t buf_bytes, const int32_t *offsets, int64_t rows,
                              amqp_spans *fields, uint32_t *faults, int64_t *fault_positions)
    int64_t duramen_scan_amqp_items(const uint8_t *buf, int64_t buf_bytes, const amqp_spans *contents, int64_t rows,
                                    amqp_spans *items, int64_t total)


cdef int64_t point_at_spans(object spans, amqp_spans *out) except -1:
    """Where the columns of spans lie; returns how many there are."""
    cdef uint8_t[::1] codes = spans.code
    cdef int64_t[::1] positions = spans.position
    cdef uint32_t[::1] lengths = spans.length
    cdef uint32_t[::1] counts = spans.count
    cdef int64_t count = codes.shape[0]
    if not (positions.shape[0] == lengths.shape[0] == counts.shape[0] == count):
        raise ValueError("the columns differ in length")
    if count:
        out.codes, out.positions, out.lengths, out.counts = &codes[0], &positions[0], &lengths[0], &counts[0]
    return count


def scan_amqp(const uint8_t[::1] buf not None, const int32_t[::1] offsets not None, fields not None,
              uint32_t[::1] faults not None, int64_t[::1] fault_positions not None):
    cdef amqp_spans spans
    cdef int64_t rows = faults.shape[0], found
    if offsets.shape[0] != rows + 1 or fault_positions.shape[0] != rows:
        raise ValueError("offsets and faults differ in length")
    if point_at_spans(fields, &spans) != len(AmqpField) * rows:
        raise ValueError(f"a row has {len(AmqpField)} fields")
    if rows == 0:
        return
    cdef const uint8_t *data = &buf[0] if buf.shape[0] else <const uint8_t *>&spans
    with nogil:
        found = duramen_scan_amqp(data, buf.shape[0], &offsets[0], rows, &spans, &faults[0], &fault_positions[0])
    if found < 0:
        raise ValueError(f"row {-1 - found} lies outside of the buffer")


def scan_amqp_items(const uint8_t[::1] buf not None, contents not None, items not None):
    cdef amqp_spans rows_spans, item_spans
    cdef int64_t rows = point_at_spans(contents, &rows_spans), total = point_at_spans(items, &item_spans), found
    if rows == 0 and total == 0:
        return
    cdef const uint8_t *data = &buf[0] if buf.shape[0] else <const uint8_t *>&rows_spans
    with nogil:
        found = duramen_scan_amqp_items(data, buf.shape[0], &rows_spans, rows, &item_spans, total)
    if found < 0:
        raise ValueError(f"row {-1 - found} does not hold its items")
