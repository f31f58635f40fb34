# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled chunk functions; their twins and their contracts are in reference.py."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free

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


cdef uint8_t NOTHING = 0


cdef const uint8_t *bytes_of(const uint8_t[::1] buf) noexcept:
    return &buf[0] if buf.shape[0] else &NOTHING


cdef int check(const uint8_t[::1] buf, int64_t position, int64_t end) except -1:
    if not 0 <= position <= end <= buf.shape[0]:
        raise ValueError("range lies outside of the buffer")
    return 0


cdef class ChunkArrays:
    """The arrays of a ChunkColumns, held while C has pointers to them."""

    cdef int64_t[::1] chunk_id, timestamp, epoch, position, data_position, inflated_bytes
    cdef uint32_t[::1] data_length, trailer_length, records, entries, chunk_type, sub_batches, tracking
    cdef chunk_columns c

    def __cinit__(self, columns):
        self.chunk_id = columns.chunk_id
        self.timestamp = columns.timestamp
        self.epoch = columns.epoch
        self.position = columns.position
        self.data_position = columns.data_position
        self.inflated_bytes = columns.inflated_bytes
        self.data_length = columns.data_length
        self.trailer_length = columns.trailer_length
        self.records = columns.records
        self.entries = columns.entries
        self.chunk_type = columns.chunk_type
        self.sub_batches = columns.sub_batches
        self.tracking = columns.tracking
        cdef int64_t count = self.chunk_id.shape[0]
        if not (self.timestamp.shape[0] == self.epoch.shape[0] == self.position.shape[0]
                == self.data_position.shape[0] == self.inflated_bytes.shape[0] == self.data_length.shape[0]
                == self.trailer_length.shape[0] == self.records.shape[0] == self.entries.shape[0]
                == self.chunk_type.shape[0] == self.sub_batches.shape[0] == self.tracking.shape[0] == count):
            raise ValueError("the columns differ in length")
        self.c.count = count
        if count == 0:
            return
        self.c.chunk_id = &self.chunk_id[0]
        self.c.timestamp = &self.timestamp[0]
        self.c.epoch = &self.epoch[0]
        self.c.position = &self.position[0]
        self.c.data_position = &self.data_position[0]
        self.c.inflated_bytes = &self.inflated_bytes[0]
        self.c.data_length = &self.data_length[0]
        self.c.trailer_length = &self.trailer_length[0]
        self.c.records = &self.records[0]
        self.c.entries = &self.entries[0]
        self.c.chunk_type = &self.chunk_type[0]
        self.c.sub_batches = &self.sub_batches[0]
        self.c.tracking = &self.tracking[0]


def scan_chunks(const uint8_t[::1] buf not None, int64_t position, int64_t end, columns, int64_t previous_offset=-1,
                int64_t max_bytes=2**62, bint verify=True, int64_t max_records=2**62, uint32_t[::1] digests=None):
    cdef duramen_scan_end result
    cdef duramen_digests *sums = digests_in(digests)
    cdef ChunkArrays out = ChunkArrays(columns)
    check(buf, position, end)
    if out.c.count == 0:
        raise ValueError("the columns have no room")
    cdef const uint8_t *data = bytes_of(buf)
    cdef bint mapped = is_large(buf.shape[0]) and is_mapping(buf.base)
    with nogil:
        if mapped:
            duramen_mapped_begin(data, buf.shape[0])
            passed(data, position)
        result = duramen_scan_chunks(data, position, end, &out.c, max_bytes, max_records, previous_offset, verify, sums)
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
    cdef ChunkArrays source = ChunkArrays(chunks)
    cdef entry_columns out
    cdef int64_t rows
    cdef int64_t[::1] offset = columns.offset
    cdef int64_t[::1] timestamp = columns.timestamp
    cdef int64_t[::1] position = columns.position
    cdef int64_t[::1] value_position = columns.value_position
    cdef uint32_t[::1] value_length = columns.value_length
    cdef uint32_t[::1] sub_batch = columns.sub_batch
    cdef uint32_t[::1] records = columns.records
    cdef uint32_t[::1] uncompressed_length = columns.uncompressed_length
    out.count = offset.shape[0]
    if not (timestamp.shape[0] == position.shape[0] == value_position.shape[0] == value_length.shape[0] == sub_batch.shape[0]
            == records.shape[0] == uncompressed_length.shape[0] == out.count):
        raise ValueError("the columns differ in length")
    if out.count > 0:
        out.offset = &offset[0]
        out.timestamp = &timestamp[0]
        out.position = &position[0]
        out.value_position = &value_position[0]
        out.value_length = &value_length[0]
        out.sub_batch = &sub_batch[0]
        out.records = &records[0]
        out.uncompressed_length = &uncompressed_length[0]
    cdef const uint8_t *data = bytes_of(buf)
    with nogil:
        rows = duramen_scan_entries(data, buf.shape[0], &source.c, &out)
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
    cdef uint8_t *target = &out[0] if out.shape[0] else &NOTHING
    if source.count:
        with nogil:
            written = duramen_encode_entries(target, out.shape[0], &source, base_position, &positions[0])
    if written < 0:
        raise ValueError(f"row {-1 - written} does not fit")
    return written


def encode_chunks(uint8_t[::1] out not None, int version, columns, values not None,
                  const int32_t[::1] value_offsets=None, int64_t base_position=0):
    cdef ChunkArrays chunks = ChunkArrays(columns)
    cdef duramen_values source
    cdef void *pointers = NULL
    cdef tuple held = ()
    cdef const uint8_t[::1] data = None
    cdef int64_t written
    if not 0 <= version <= 1:
        raise ValueError("version must be 0 or 1")
    if value_offsets is None:
        held = tuple(values)  # a list may change while the GIL is released
        pointers = point_at(held, &source)
    else:
        data = values
        point_into(data, value_offsets, &source)
    cdef uint8_t *target = &out[0] if out.shape[0] else &NOTHING
    with nogil:
        written = duramen_encode_chunks(target, out.shape[0], version, &chunks.c, &source, base_position)
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
