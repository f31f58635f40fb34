# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False, cdivision=True
"""Compiled chunk functions; their twins and their contracts are in reference.py."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free

from duramen.kernel._buffers cimport bytes_of, check, narrow, wide
from duramen.kernel._digests cimport digests_in, duramen_digests
from duramen.kernel._pages cimport passed, duramen_mapped_begin, duramen_mapped_end, is_large, looked_at
from duramen.kernel._values cimport duramen_values, point_at, point_into

from duramen.kernel.layout import EntryHit, ScanEnd, is_mapping


cdef extern from "chunks.h" nogil:
    ctypedef struct duramen_scan_end:
        int64_t count, position, stop, last_offset
    ctypedef struct chunk:
        int64_t position, timestamp
    ctypedef struct chunk_entry:
        int64_t offset, value_position
        uint32_t value_length, sub_batch, records, uncompressed_length
    ctypedef struct chunk_columns:
        int64_t *chunk_id
        int64_t *timestamp
        int64_t *epoch
        int64_t *position
        int64_t *data_position
        int64_t *inflated_bytes
        uint32_t *data_length
        uint32_t *trailer_length
        uint32_t *records
        uint32_t *entries
        uint32_t *chunk_type
        uint32_t *sub_batches
        uint32_t *tracking
        int64_t count
    ctypedef struct entry_columns:
        int64_t *offset
        int64_t *timestamp
        int64_t *position
        int64_t *value_position
        uint32_t *value_length
        uint32_t *sub_batch
        uint32_t *records
        uint32_t *uncompressed_length
        int64_t count
    duramen_scan_end duramen_scan_chunks(const uint8_t *buf, int64_t position, int64_t end, chunk_columns *out,
                                         int64_t max_bytes, int64_t max_records, int64_t previous_offset,
                                         int verify, duramen_digests *digests)
    int64_t duramen_seek_chunk(const uint8_t *buf, int64_t position, int64_t end, int64_t target,
                               int64_t previous_offset, chunk *at, chunk_entry *hit)
    int64_t duramen_find_chunk(const uint8_t *buf, int64_t position, int64_t end, int64_t previous_offset)
    int64_t duramen_scan_entries(const uint8_t *buf, int64_t buf_bytes, const chunk_columns *chunks,
                                 entry_columns *out)
    int64_t duramen_scan_prefixed(const uint8_t *buf, int64_t position, int64_t end, int64_t count,
                                  int64_t *positions, uint32_t *lengths)
    int64_t duramen_encode_entries(uint8_t *out, int64_t capacity, const duramen_values *values, int64_t base_position,
                                   int64_t *positions)
    int64_t duramen_encode_chunks(uint8_t *out, int64_t capacity, int version, chunk_columns *chunks,
                                  const duramen_values *values, int64_t base_position)
    int64_t duramen_split_chunks(const duramen_values *values, const uint8_t *breaks, int64_t max_bytes,
                                 int64_t max_records, int64_t *starts)




cdef int point_chunk_columns(columns, chunk_columns *out) except -1:
    cdef int64_t count = len(columns.chunk_id)
    out.count = count
    out.chunk_id = wide(columns.chunk_id, count)
    out.timestamp = wide(columns.timestamp, count)
    out.epoch = wide(columns.epoch, count)
    out.position = wide(columns.position, count)
    out.data_position = wide(columns.data_position, count)
    out.inflated_bytes = wide(columns.inflated_bytes, count)
    out.data_length = narrow(columns.data_length, count)
    out.trailer_length = narrow(columns.trailer_length, count)
    out.records = narrow(columns.records, count)
    out.entries = narrow(columns.entries, count)
    out.chunk_type = narrow(columns.chunk_type, count)
    out.sub_batches = narrow(columns.sub_batches, count)
    out.tracking = narrow(columns.tracking, count)
    return 0


cdef int point_entry_columns(columns, entry_columns *out) except -1:
    cdef int64_t count = len(columns.offset)
    out.count = count
    out.offset = wide(columns.offset, count)
    out.timestamp = wide(columns.timestamp, count)
    out.position = wide(columns.position, count)
    out.value_position = wide(columns.value_position, count)
    out.value_length = narrow(columns.value_length, count)
    out.sub_batch = narrow(columns.sub_batch, count)
    out.records = narrow(columns.records, count)
    out.uncompressed_length = narrow(columns.uncompressed_length, count)
    return 0


def scan_chunks(const uint8_t[::1] buf not None, int64_t position, int64_t end, columns, int64_t previous_offset=-1,
                int64_t max_bytes=2**62, bint verify=True, int64_t max_records=2**62, uint32_t[::1] digests=None):
    cdef duramen_scan_end result
    cdef duramen_digests *sums = digests_in(digests)
    cdef chunk_columns out
    point_chunk_columns(columns, &out)
    check(buf, position, end)
    if out.count == 0:
        raise ValueError("the columns have no room")
    cdef const uint8_t *data = bytes_of(buf)
    cdef bint mapped = is_large(buf.shape[0]) and is_mapping(buf.base)
    with nogil:
        if mapped:
            duramen_mapped_begin(data, buf.shape[0])
            passed(data, position)
        result = duramen_scan_chunks(data, position, end, &out, max_bytes, max_records, previous_offset, verify, sums)
        if mapped:
            duramen_mapped_end()
    return ScanEnd(result.count, result.position, result.stop, result.last_offset)


def seek_chunk(const uint8_t[::1] buf not None, int64_t position, int64_t end, int64_t target, int64_t previous_offset=-1):
    cdef chunk at
    cdef chunk_entry hit
    cdef int64_t stop
    check(buf, position, end)
    cdef const uint8_t *data = bytes_of(buf)
    cdef bint mapped = is_large(buf.shape[0]) and is_mapping(buf.base)
    with nogil:
        if mapped:
            duramen_mapped_begin(data, buf.shape[0])
        stop = duramen_seek_chunk(data, position, end, target, previous_offset, &at, &hit)
        if mapped:
            duramen_mapped_end()
    if stop != 1 or hit.offset < 0:
        return EntryHit(stop, at.position, -1, 0, 0, 0, 0, 0, 0)
    return EntryHit(stop, at.position, hit.offset, at.timestamp, hit.value_position, hit.value_length,
                    hit.sub_batch, hit.records, hit.uncompressed_length)


def find_chunk(const uint8_t[::1] buf not None, int64_t position, int64_t end, int64_t previous_offset=-1):
    cdef int64_t found
    check(buf, position, end)
    cdef const uint8_t *data = bytes_of(buf)
    cdef bint mapped = is_large(buf.shape[0]) and is_mapping(buf.base)
    with nogil:
        if mapped:
            duramen_mapped_begin(data, buf.shape[0])
        found = duramen_find_chunk(data, position, end, previous_offset)
        if mapped:
            looked_at(data, position, found if found >= 0 else end)
            duramen_mapped_end()
    return found


def scan_entries(const uint8_t[::1] buf not None, chunks, columns):
    cdef chunk_columns source
    cdef entry_columns out
    cdef int64_t rows
    point_chunk_columns(chunks, &source)
    point_entry_columns(columns, &out)
    cdef const uint8_t *data = bytes_of(buf)
    with nogil:
        rows = duramen_scan_entries(data, buf.shape[0], &source, &out)
    if rows < 0:
        raise ValueError(f"the entries of chunk {-1 - rows} lie outside")
    return rows


def scan_prefixed(const uint8_t[::1] buf not None, int64_t position, int64_t end, int64_t[::1] positions,
                  uint32_t[::1] lengths):
    cdef int64_t count = positions.shape[0]
    cdef int64_t rows
    check(buf, position, end)
    if lengths.shape[0] != count:
        raise ValueError("the columns differ in length")
    cdef const uint8_t *data = bytes_of(buf)
    cdef int64_t *first_position = &positions[0] if count else NULL
    cdef uint32_t *first_length = &lengths[0] if count else NULL
    with nogil:
        rows = duramen_scan_prefixed(data, position, end, count, first_position, first_length)
    return rows


def encode_entries(uint8_t[::1] out not None, const uint8_t[::1] values not None,
                   const int32_t[::1] value_offsets not None, int64_t[::1] positions not None, int64_t base_position=0):
    cdef duramen_values source
    cdef int64_t written = 0
    if value_offsets.shape[0] != positions.shape[0] + 1:
        raise ValueError("the columns differ in length")
    point_into(values, value_offsets, &source)
    cdef uint8_t *target = <uint8_t *>bytes_of(out)
    if source.count:
        with nogil:
            written = duramen_encode_entries(target, out.shape[0], &source, base_position, &positions[0])
    if written < 0:
        raise ValueError(f"row {-1 - written} does not fit")
    return written


def encode_chunks(uint8_t[::1] out not None, int version, columns, values not None,
                  const int32_t[::1] value_offsets=None, int64_t base_position=0):
    cdef chunk_columns chunks
    cdef duramen_values source
    cdef void *pointers = NULL
    cdef tuple held = ()
    cdef const uint8_t[::1] data = None
    cdef int64_t written
    if not 0 <= version <= 1:
        raise ValueError("version must be 0 or 1")
    point_chunk_columns(columns, &chunks)
    if value_offsets is None:
        held = tuple(values)  # a list may change while the GIL is released
        pointers = point_at(held, &source)
    else:
        data = values
        point_into(data, value_offsets, &source)
    cdef uint8_t *target = <uint8_t *>bytes_of(out)
    with nogil:
        written = duramen_encode_chunks(target, out.shape[0], version, &chunks, &source, base_position)
    free(pointers)
    if written < 0:
        raise ValueError(f"chunk {-1 - written} does not fit")
    return written


def split_chunks(int64_t[::1] starts not None, int64_t max_bytes, int64_t max_records, values not None,
                 const int32_t[::1] value_offsets=None, const uint8_t[::1] breaks=None):
    cdef duramen_values source
    cdef void *pointers = NULL
    cdef tuple held = ()
    cdef const uint8_t[::1] data = None
    cdef const uint8_t *between = NULL
    cdef int64_t count = 0
    if not 1 <= max_bytes <= 2**62 or max_records < 1:
        raise ValueError("max_bytes must be 1 to 2**62, max_records 1 or more")
    if value_offsets is None:
        held = tuple(values)  # a list may change while the GIL is released
        pointers = point_at(held, &source)
    else:
        data = values
        point_into(data, value_offsets, &source)
    try:
        if starts.shape[0] != source.count or (breaks is not None and breaks.shape[0] != max(source.count - 1, 0)):
            raise ValueError("the columns differ in length")
        if breaks is not None and breaks.shape[0]:
            between = &breaks[0]
        if source.count:
            with nogil:
                count = duramen_split_chunks(&source, between, max_bytes, max_records, &starts[0])
    finally:
        free(pointers)
    if count < 0:
        raise ValueError(f"row {-1 - count} does not fit")
    return count
