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
    ctypedef struct amqp_given:
        const uint8_t *data
        const int32_t *offsets
        int64_t bytes
        int64_t count
    int64_t duramen_scan_amqp(const uint8_t *buf, int64_t buf_bytes, const int64_t *positions, const uint32_t *lengths,
                              int64_t rows, amqp_spans *fields, uint32_t *faults, int64_t *fault_positions)
    int64_t duramen_scan_amqp_pairs(const uint8_t *buf, int64_t buf_bytes, const amqp_spans *contents, int64_t rows,
                                    amqp_spans *keys, amqp_spans *values, int64_t total)
    int64_t duramen_measure_amqp_texts(const amqp_spans *spans, int64_t count, int64_t *given, int64_t *without)
    int64_t duramen_fill_amqp_texts(const uint8_t *buf, int64_t buf_bytes, const amqp_spans *spans, int64_t count,
                                    const amqp_given *given, int32_t *offsets, uint8_t *data, int64_t data_bytes)
    int64_t duramen_fill_amqp_names(const uint8_t *codes, int64_t count, const amqp_given *names, int32_t *offsets,
                                    uint8_t *data, int64_t data_bytes)


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


cdef int point_at_texts(const uint8_t[::1] data, const int32_t[::1] offsets, amqp_given *out) except -1:
    if offsets.shape[0] == 0:
        raise ValueError("texts have one offset at least")
    out.data = &data[0] if data.shape[0] else NULL
    out.offsets = &offsets[0]
    out.bytes, out.count = data.shape[0], offsets.shape[0] - 1
    return 0


def scan_amqp(const uint8_t[::1] buf not None, const int64_t[::1] positions not None,
              const uint32_t[::1] lengths not None, fields not None, uint32_t[::1] faults not None,
              int64_t[::1] fault_positions not None):
    cdef amqp_spans spans
    cdef int64_t rows = faults.shape[0], found
    if not (positions.shape[0] == lengths.shape[0] == fault_positions.shape[0] == rows):
        raise ValueError("positions and faults differ in length")
    if point_at_spans(fields, &spans) != len(AmqpField) * rows:
        raise ValueError(f"a row has {len(AmqpField)} fields")
    if rows == 0:
        return
    cdef const uint8_t *data = &buf[0] if buf.shape[0] else <const uint8_t *>&spans
    with nogil:
        found = duramen_scan_amqp(data, buf.shape[0], &positions[0], &lengths[0], rows, &spans, &faults[0],
                                  &fault_positions[0])
    if found < 0:
        raise ValueError(f"row {-1 - found} lies outside of the buffer")


def scan_amqp_pairs(const uint8_t[::1] buf not None, contents not None, keys not None, values not None):
    cdef amqp_spans rows_spans, key_spans, value_spans
    cdef int64_t rows = point_at_spans(contents, &rows_spans), total = point_at_spans(keys, &key_spans), found
    if point_at_spans(values, &value_spans) != total:
        raise ValueError("keys and values differ in length")
    if rows == 0 and total == 0:
        return
    cdef const uint8_t *data = &buf[0] if buf.shape[0] else <const uint8_t *>&rows_spans
    with nogil:
        found = duramen_scan_amqp_pairs(data, buf.shape[0], &rows_spans, rows, &key_spans, &value_spans, total)
    if found < 0:
        raise ValueError(f"row {-1 - found} does not hold its pairs")


def measure_amqp_texts(spans not None):
    cdef amqp_spans columns
    cdef int64_t count = point_at_spans(spans, &columns), given, without, total
    with nogil:
        total = duramen_measure_amqp_texts(&columns, count, &given, &without)
    return total, given, without


def fill_amqp_texts(const uint8_t[::1] buf not None, spans not None, const uint8_t[::1] given not None,
                    const int32_t[::1] given_offsets not None, int32_t[::1] offsets not None,
                    uint8_t[::1] data not None):
    cdef amqp_spans columns
    cdef amqp_given texts
    cdef int64_t count = point_at_spans(spans, &columns), total
    point_at_texts(given, given_offsets, &texts)
    if offsets.shape[0] != count + 1:
        raise ValueError("spans and offsets differ in length")
    cdef const uint8_t *source = &buf[0] if buf.shape[0] else <const uint8_t *>&columns
    cdef uint8_t *target = &data[0] if data.shape[0] else NULL
    with nogil:
        total = duramen_fill_amqp_texts(source, buf.shape[0], &columns, count, &texts, &offsets[0], target,
                                        data.shape[0])
    if total < 0:
        raise ValueError(f"row {-1 - total} does not fit, or no text is given for it")
    return total


def fill_amqp_names(const uint8_t[::1] codes not None, const uint8_t[::1] names not None,
                    const int32_t[::1] name_offsets not None, int32_t[::1] offsets not None,
                    uint8_t[::1] data not None):
    cdef amqp_given texts
    cdef int64_t count = codes.shape[0], total
    point_at_texts(names, name_offsets, &texts)
    if offsets.shape[0] != count + 1:
        raise ValueError("codes and offsets differ in length")
    cdef const uint8_t *first = &codes[0] if count else NULL
    cdef uint8_t *target = &data[0] if data.shape[0] else NULL
    with nogil:
        total = duramen_fill_amqp_names(first, count, &texts, &offsets[0], target, data.shape[0])
    if total < 0:
        raise ValueError(f"row {-1 - total} has no name, or does not fit")
    return total
