# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False, cdivision=True
"""Compiled functions for Kafka's batches; their twins and their contracts are in reference.py."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from duramen.kernel._buffers cimport bytes_of, check, narrow, wide
from duramen.kernel._digests cimport digests_in, duramen_digests
from duramen.kernel._pages cimport passed, duramen_mapped_begin, duramen_mapped_end, is_large, looked_at
from duramen.kernel._values cimport duramen_value_room, room_for

from duramen.kernel.layout import ScanEnd, is_mapping


cdef extern from "batches.h" nogil:
    ctypedef struct duramen_scan_end:
        int64_t count, position, stop, last_offset
    ctypedef struct batch_columns:
        int64_t *base_offset
        int64_t *last_offset
        int64_t *base_timestamp
        int64_t *max_timestamp
        int64_t *producer_id
        int64_t *producer_epoch
        int64_t *base_sequence
        int64_t *leader_epoch
        int64_t *position
        int64_t *data_position
        uint32_t *data_length
        uint32_t *records
        uint32_t *visible
        uint32_t *attributes
        uint32_t *magic
        int64_t count
    ctypedef struct record_ranges:
        const int64_t *position
        const int64_t *length
        const int64_t *records
        const int64_t *row
        const int64_t *base_offset
        const int64_t *last_offset
        const int64_t *base_timestamp
        const uint32_t *in_plain
        int64_t count
    ctypedef struct record_sources:
        const uint8_t *bytes[2]
        int64_t size_bytes[2]
    ctypedef struct record_columns:
        int64_t *offset
        int64_t *timestamp
        int64_t *position
        int64_t *key_position
        int64_t *value_position
        int64_t *headers_position
        uint32_t *key_length
        uint32_t *value_length
        uint32_t *headers
        int64_t count
    ctypedef struct header_columns:
        int64_t *key_position
        int64_t *value_position
        uint32_t *key_length
        uint32_t *value_length
        int64_t count
    ctypedef struct taken_records:
        record_columns records
        duramen_value_room values
        int64_t count
        int64_t copied
    duramen_scan_end duramen_scan_batches(const uint8_t *buf, int64_t position, int64_t end, batch_columns *out,
                                          int64_t max_bytes, int64_t max_records, int64_t previous_offset,
                                          int verify, duramen_digests *digests, taken_records *taken)
    int64_t duramen_find_batch(const uint8_t *buf, int64_t position, int64_t end, int64_t previous_offset)
    int64_t duramen_scan_records(const record_sources *sources, const record_ranges *ranges, record_columns *out,
                                 int walk_headers, const duramen_value_room *values)
    int64_t duramen_scan_headers(const uint8_t *buf, int64_t buf_bytes, const int64_t *positions,
                                 const uint32_t *counts, int64_t rows, header_columns *out)


cdef int point_batch_columns(columns, batch_columns *out) except -1:
    cdef int64_t count = len(columns.base_offset)
    out.count = count
    out.base_offset = wide(columns.base_offset, count)
    out.last_offset = wide(columns.last_offset, count)
    out.base_timestamp = wide(columns.base_timestamp, count)
    out.max_timestamp = wide(columns.max_timestamp, count)
    out.producer_id = wide(columns.producer_id, count)
    out.producer_epoch = wide(columns.producer_epoch, count)
    out.base_sequence = wide(columns.base_sequence, count)
    out.leader_epoch = wide(columns.leader_epoch, count)
    out.position = wide(columns.position, count)
    out.data_position = wide(columns.data_position, count)
    out.data_length = narrow(columns.data_length, count)
    out.records = narrow(columns.records, count)
    out.visible = narrow(columns.visible, count)
    out.attributes = narrow(columns.attributes, count)
    out.magic = narrow(columns.magic, count)
    return 0


cdef int point_record_ranges(columns, record_ranges *out) except -1:
    cdef int64_t count = len(columns.position)
    out.count = count
    out.position = wide(columns.position, count)
    out.length = wide(columns.length, count)
    out.records = wide(columns.records, count)
    out.row = wide(columns.row, count)
    out.base_offset = wide(columns.base_offset, count)
    out.last_offset = wide(columns.last_offset, count)
    out.base_timestamp = wide(columns.base_timestamp, count)
    out.in_plain = narrow(columns.in_plain, count)
    return 0


cdef int point_record_columns(columns, record_columns *out) except -1:
    cdef int64_t count = len(columns.offset)
    out.count = count
    out.offset = wide(columns.offset, count)
    out.timestamp = wide(columns.timestamp, count)
    out.position = wide(columns.position, count)
    out.key_position = wide(columns.key_position, count)
    out.value_position = wide(columns.value_position, count)
    out.headers_position = wide(columns.headers_position, count)
    out.key_length = narrow(columns.key_length, count)
    out.value_length = narrow(columns.value_length, count)
    out.headers = narrow(columns.headers, count)
    return 0


cdef int point_header_columns(columns, header_columns *out) except -1:
    cdef int64_t count = len(columns.key_position)
    out.count = count
    out.key_position = wide(columns.key_position, count)
    out.value_position = wide(columns.value_position, count)
    out.key_length = narrow(columns.key_length, count)
    out.value_length = narrow(columns.value_length, count)
    return 0


cdef duramen_scan_end scan(const uint8_t[::1] buf, int64_t position, int64_t end, columns, int64_t max_bytes,
                           int64_t max_records, int64_t previous_offset, bint verify, duramen_digests *sums,
                           taken_records *taken) except *:
    cdef duramen_scan_end result
    cdef batch_columns out
    point_batch_columns(columns, &out)
    check(buf, position, end)
    if out.count == 0:
        raise ValueError("the columns have no room")
    cdef const uint8_t *data = bytes_of(buf)
    cdef bint mapped = is_large(buf.shape[0]) and is_mapping(buf.base)
    with nogil:
        if mapped:
            duramen_mapped_begin(data, buf.shape[0])
            passed(data, position)
        result = duramen_scan_batches(data, position, end, &out, max_bytes, max_records, previous_offset, verify, sums,
                                      taken)
        if mapped:
            duramen_mapped_end()
    return result


def scan_batches(const uint8_t[::1] buf not None, int64_t position, int64_t end, columns, int64_t previous_offset=-1,
                 int64_t max_bytes=2**62, bint verify=True, int64_t max_records=2**62, uint32_t[::1] digests=None):
    cdef duramen_scan_end found = scan(buf, position, end, columns, max_bytes, max_records, previous_offset, verify,
                                       digests_in(digests), NULL)
    return ScanEnd(found.count, found.position, found.stop, found.last_offset)


def take_batches(const uint8_t[::1] buf not None, int64_t position, int64_t end, columns, records,
                 int32_t[::1] value_offsets not None, uint8_t[::1] values not None, int64_t previous_offset=-1,
                 int64_t max_bytes=2**62, bint verify=True, int64_t max_records=2**62):
    cdef taken_records taken
    point_record_columns(records, &taken.records)
    room_for(value_offsets, values, taken.records.count, &taken.values)
    taken.count = taken.copied = 0
    value_offsets[0] = 0
    cdef duramen_scan_end found = scan(buf, position, end, columns, max_bytes, max_records, previous_offset, verify,
                                       NULL, &taken)
    return ScanEnd(found.count, found.position, found.stop, found.last_offset), taken.count


def find_batch(const uint8_t[::1] buf not None, int64_t position, int64_t end, int64_t previous_offset=-1):
    cdef int64_t found
    check(buf, position, end)
    cdef const uint8_t *data = bytes_of(buf)
    cdef bint mapped = is_large(buf.shape[0]) and is_mapping(buf.base)
    with nogil:
        if mapped:
            duramen_mapped_begin(data, buf.shape[0])
        found = duramen_find_batch(data, position, end, previous_offset)
        if mapped:
            looked_at(data, position, found if found >= 0 else end)
            duramen_mapped_end()
    return found


def scan_records(const uint8_t[::1] buf not None, const uint8_t[::1] plain not None, ranges, columns,
                 bint walk_headers=True, int32_t[::1] value_offsets=None, uint8_t[::1] values=None):
    cdef record_sources sources
    cdef record_ranges wanted
    cdef record_columns out
    cdef duramen_value_room target
    cdef int64_t rows
    point_record_ranges(ranges, &wanted)
    point_record_columns(columns, &out)
    cdef const duramen_value_room *room = room_for(value_offsets, values, out.count, &target)
    sources.bytes[0], sources.size_bytes[0] = bytes_of(buf), buf.shape[0]
    sources.bytes[1], sources.size_bytes[1] = bytes_of(plain), plain.shape[0]
    with nogil:
        rows = duramen_scan_records(&sources, &wanted, &out, walk_headers, room)
    return rows


def scan_headers(const uint8_t[::1] buf not None, int64_t[::1] positions not None, uint32_t[::1] counts not None,
                 columns):
    cdef header_columns out
    cdef int64_t rows = positions.shape[0]
    cdef int64_t found = 0
    if counts.shape[0] != rows:
        raise ValueError("the columns differ in length")
    point_header_columns(columns, &out)
    cdef const uint8_t *data = bytes_of(buf)
    if rows:
        with nogil:
            found = duramen_scan_headers(data, buf.shape[0], &positions[0], &counts[0], rows, &out)
    return found


cdef extern from "records.h" nogil:
    ctypedef struct record_field:
        const uint8_t *data
        int64_t size_bytes
    ctypedef struct record_fields:
        record_field keys
        record_field values
        record_field header_keys
        record_field header_values
    int64_t duramen_encode_batches(uint8_t *out, int64_t capacity, batch_columns *batches,
                                   const record_columns *records, const header_columns *headers,
                                   const record_fields *fields, int64_t base_position)
    int64_t duramen_encode_record(uint8_t *out, int64_t capacity, batch_columns *batch, const record_field *value,
                                  const record_field *fields, int64_t base_position)


cdef void point_at_field(const uint8_t[::1] buf, record_field *out) noexcept:
    out.data = bytes_of(buf)
    out.size_bytes = buf.shape[0]


def encode_batches(uint8_t[::1] out not None, batches, records, headers, const uint8_t[::1] keys not None,
                   const uint8_t[::1] values not None, const uint8_t[::1] header_keys not None,
                   const uint8_t[::1] header_values not None, int64_t base_position=0):
    cdef batch_columns rows
    cdef record_columns taken
    cdef header_columns pairs
    cdef record_fields fields
    cdef int64_t written
    point_batch_columns(batches, &rows)
    point_record_columns(records, &taken)
    point_header_columns(headers, &pairs)
    point_at_field(keys, &fields.keys)
    point_at_field(values, &fields.values)
    point_at_field(header_keys, &fields.header_keys)
    point_at_field(header_values, &fields.header_values)
    cdef uint8_t *target = <uint8_t *>bytes_of(out)
    with nogil:
        written = duramen_encode_batches(target, out.shape[0], &rows, &taken, &pairs, &fields, base_position)
    if written < 0:
        raise ValueError(f"batch {-1 - written} does not fit")
    return written


def encode_record(uint8_t[::1] out not None, batch, const uint8_t[::1] value not None,
                  const uint8_t[::1] fields not None, int64_t base_position=0):
    cdef batch_columns row
    cdef record_field content
    cdef record_field others
    cdef int64_t written
    point_batch_columns(batch, &row)
    if row.count != 1:
        raise ValueError("one record makes one batch")
    point_at_field(value, &content)
    point_at_field(fields, &others)
    cdef uint8_t *target = <uint8_t *>bytes_of(out)
    with nogil:
        written = duramen_encode_record(target, out.shape[0], &row, &content, &others, base_position)
    if written < 0:
        raise ValueError("the record does not fit")
    return written
