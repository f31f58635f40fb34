# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled record writer; its twin and its contract are in disk/record_writer.py."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from posix.unistd cimport close

import fcntl
import os
import sys

from duramen.kernel._buffers cimport narrow, wide

from duramen.kernel.layout import APPENDED_BYTES, NOT_DONE, AppendOutcome


cdef extern from "append.h" nogil:
    ctypedef struct frame_layout:
        int64_t header_bytes
    ctypedef struct frame_columns:
        int64_t *offset
        int64_t *timestamp
        int64_t *position
        int64_t *value_position
        uint32_t *value_length
        uint32_t *headers_length
        uint32_t *flags
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
    enum:
        RECORD_FRAME, RECORD_SLOT, RECORD_CHUNK, RECORD_BATCH
        MARK_COUNTER_BYTES, MARK_SLOT_BYTES, MARK_BYTES
        APPEND_DONE, APPEND_NOT_DONE, APPEND_TORN, APPEND_UNMARKED
    ctypedef struct append_target:
        int kind, is_ordered, has_digest
        frame_layout layout
        int64_t slot_bytes, epoch
        int chunk_version
        int64_t time_unit_us
        int file, index, page
        const void *counter
        const char *lock_path
        uint64_t lock_device, lock_inode
        int64_t process
        uint8_t *buffer
        int64_t buffer_bytes
        frame_columns frames
        int64_t *slot_offsets
        int64_t *slot_positions
        chunk_columns chunks
        batch_columns batches
    ctypedef struct append_limits:
        int64_t position, next_offset, us, rows, timed_records, timed_bytes
    ctypedef struct append_state:
        int64_t position, next_offset, last_us, number, index_position
        uint32_t crc32c, counter
        int64_t rows, timed_records, timed_bytes
    ctypedef struct append_record:
        const uint8_t *value
        const uint8_t *headers
        int64_t value_bytes, headers_bytes, us, now_us
        int is_timed
    int duramen_append(const append_target *to, const append_limits *limits, const append_state *before,
                       const append_record *record, uint8_t *mark, append_state *after)
    double duramen_monotonic_s()


cdef int point_at_frames(rows, frame_columns *c, int64_t count) except -1:
    c.offset, c.position, c.timestamp = wide(rows.offset, count), wide(rows.position, count), wide(rows.timestamp, count)
    c.value_position, c.value_length = wide(rows.value_position, count), narrow(rows.value_length, count)
    c.headers_length, c.flags = narrow(rows.headers_length, count), narrow(rows.flags, count)
    return 0


cdef int point_at_chunks(rows, chunk_columns *c, int64_t count) except -1:
    c.chunk_id, c.timestamp, c.epoch = wide(rows.chunk_id, count), wide(rows.timestamp, count), wide(rows.epoch, count)
    c.position, c.data_position = wide(rows.position, count), wide(rows.data_position, count)
    c.inflated_bytes, c.data_length = wide(rows.inflated_bytes, count), narrow(rows.data_length, count)
    c.trailer_length, c.records = narrow(rows.trailer_length, count), narrow(rows.records, count)
    c.entries, c.chunk_type = narrow(rows.entries, count), narrow(rows.chunk_type, count)
    c.sub_batches, c.tracking = narrow(rows.sub_batches, count), narrow(rows.tracking, count)
    return 0


cdef int point_at_batches(rows, batch_columns *c, int64_t count) except -1:
    c.base_offset, c.last_offset = wide(rows.base_offset, count), wide(rows.last_offset, count)
    c.base_timestamp, c.max_timestamp = wide(rows.base_timestamp, count), wide(rows.max_timestamp, count)
    c.producer_id, c.producer_epoch = wide(rows.producer_id, count), wide(rows.producer_epoch, count)
    c.base_sequence, c.leader_epoch = wide(rows.base_sequence, count), wide(rows.leader_epoch, count)
    c.position, c.data_position = wide(rows.position, count), wide(rows.data_position, count)
    c.data_length, c.records = narrow(rows.data_length, count), narrow(rows.records, count)
    c.visible, c.attributes, c.magic = narrow(rows.visible, count), narrow(rows.attributes, count), narrow(rows.magic, count)
    return 0


cdef class DescriptorRecordWriter:
    cdef append_target to
    cdef append_limits limits
    cdef append_state state
    cdef uint8_t mark[84]
    cdef int64_t seen_position, seen_offset, unmarked_bytes, index_start
    cdef uint32_t seen_crc32c
    cdef bint armed, is_busy, is_retired, is_torn
    cdef object rows, lock_path, word, seen_mark
    cdef list seconds, sizes

    def __cinit__(self, int file, index, int page, word, bytes lock_path not None, uint64_t lock_device,
                  uint64_t lock_inode, shape, rows, notes):
        self.to.file = self.to.index = self.to.page = -1
        self.is_retired = True  # until all is set up
        self.seen_offset = -1
        self.rows, self.word, self.lock_path = rows, word, lock_path
        self.seconds, self.sizes = notes
        self.take_shape(shape)
        self.point_at_columns(len(rows))
        self.to.counter = NULL if word is None else <const void *><size_t>word.address
        self.to.lock_path = PyBytes_AS_STRING(lock_path)
        self.to.lock_device, self.to.lock_inode = lock_device, lock_inode
        self.to.process = os.getpid()
        self.to.buffer_bytes = APPENDED_BYTES
        self.to.buffer = <uint8_t *>malloc(APPENDED_BYTES)
        if self.to.buffer == NULL:
            raise MemoryError
        self.to.file = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 0)
        self.to.page = fcntl.fcntl(page, fcntl.F_DUPFD_CLOEXEC, 0)
        if index is not None:
            self.to.index = fcntl.fcntl(index, fcntl.F_DUPFD_CLOEXEC, 0)
        self.is_retired = False

    cdef int take_shape(self, shape) except -1:
        cdef bytes packed
        self.to.kind = shape.kind
        if self.to.kind == RECORD_FRAME:
            packed = shape.layout.packed
            if len(packed) != sizeof(frame_layout):
                raise ValueError("the packed layout has the wrong size")
            memcpy(&self.to.layout, <const char *>packed, sizeof(frame_layout))
        elif self.to.kind == RECORD_SLOT and shape.slot_bytes < 1:
            raise ValueError("the shape has no slots")
        self.to.slot_bytes, self.to.time_unit_us = shape.slot_bytes, shape.time_unit_us
        self.to.epoch, self.to.chunk_version = shape.epoch, shape.chunk_version
        self.to.is_ordered, self.to.has_digest = shape.is_ordered, shape.has_digest
        return 0

    cdef int point_at_columns(self, int64_t count) except -1:
        if self.to.kind == RECORD_FRAME:
            point_at_frames(self.rows, &self.to.frames, count)
        elif self.to.kind == RECORD_SLOT:
            self.to.slot_offsets = wide(self.rows.offset, count)
            self.to.slot_positions = wide(self.rows.position, count)
        elif self.to.kind == RECORD_CHUNK:
            point_at_chunks(self.rows, &self.to.chunks, count)
        elif self.to.kind == RECORD_BATCH:
            point_at_batches(self.rows, &self.to.batches, count)
        else:
            raise ValueError(f"unknown kind of record {self.to.kind}")
        return 0

    def __dealloc__(self):
        self.close_all()
        free(self.to.buffer)

    cdef void close_all(self) noexcept:
        if self.to.file >= 0:
            close(self.to.file)
        if self.to.index >= 0:
            close(self.to.index)
        if self.to.page >= 0:
            close(self.to.page)
        self.to.file = self.to.index = self.to.page = -1

    cdef void release(self) noexcept:
        self.close_all()
        self.to.counter = NULL
        self.word = None

    def arm(self, state not None, limits not None, bytes slot not None, mark):
        if self.is_retired or self.is_busy:
            return
        if len(slot) != MARK_SLOT_BYTES:
            raise ValueError(f"a slot of {len(slot)} bytes is not a watermark")
        self.armed = False
        (self.state.position, self.state.next_offset, self.state.last_us, self.state.number, self.state.crc32c,
         self.state.index_position) = state
        self.index_start = self.state.index_position
        self.state.rows = self.state.timed_records = self.state.timed_bytes = 0
        (self.limits.position, self.limits.next_offset, self.limits.us, self.limits.timed_records,
         self.limits.timed_bytes) = limits
        self.limits.rows = len(self.rows)
        self.state.counter = int.from_bytes(os.pread(self.to.page, MARK_COUNTER_BYTES, 0), sys.byteorder)
        memcpy(self.mark + MARK_COUNTER_BYTES, PyBytes_AS_STRING(slot), MARK_SLOT_BYTES)
        self.seen_mark, self.seen_offset = mark, -1
        self.unmarked_bytes = 0
        self.is_torn = False
        self.armed = True

    def append(self, bytes value not None, bytes headers, int64_t us, int64_t now_us, double began_s, bint is_timed):
        cdef append_record record
        cdef append_state after
        cdef int64_t size
        cdef int result
        if not self.armed or self.is_busy:
            return NOT_DONE
        record.value, record.value_bytes = <const uint8_t *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        record.headers, record.headers_bytes = NULL, 0
        if headers is not None:
            record.headers, record.headers_bytes = <const uint8_t *>PyBytes_AS_STRING(headers), PyBytes_GET_SIZE(headers)
        record.us, record.now_us, record.is_timed = us, now_us, is_timed
        self.is_busy = True
        with nogil:
            result = duramen_append(&self.to, &self.limits, &self.state, &record, self.mark, &after)
        self.is_busy = False
        if self.is_retired:
            self.release()
        if result == APPEND_NOT_DONE:
            return NOT_DONE
        if result == APPEND_TORN:
            self.is_torn, self.armed = True, False
            return NOT_DONE
        size = after.position - self.state.position
        if self.to.index >= 0 and after.index_position == self.state.index_position:
            self.armed = False  # the index waits for an ordinary append
        self.state = after
        if result == APPEND_UNMARKED:
            self.unmarked_bytes, self.armed = size, False
            return -1 - after.next_offset
        self.seen_position, self.seen_offset, self.seen_crc32c = after.position, after.next_offset, after.crc32c
        self.sizes.append(size)
        self.seconds.append(duramen_monotonic_s() - began_s)
        return after.next_offset - 1

    @property
    def is_idle(self):
        return not (self.armed or self.is_torn or self.state.rows)

    @property
    def is_armed(self):
        return self.armed

    def seen(self):
        if self.seen_offset < 0:
            return None
        return self.seen_mark, self.seen_position, self.seen_offset, self.seen_crc32c

    def disarm(self):
        cdef append_state state = self.state
        found = AppendOutcome(state.rows, state.position, state.next_offset, state.last_us, state.number, state.crc32c,
                        state.timed_records, state.timed_bytes, self.is_torn, self.unmarked_bytes,
                        state.index_position - self.index_start)
        self.armed = self.is_torn = False
        self.state.rows = self.unmarked_bytes = 0
        self.index_start = self.state.index_position
        self.seen_offset = -1
        return found

    def retire(self):
        self.armed, self.is_retired = False, True
        if not self.is_busy:
            self.release()
