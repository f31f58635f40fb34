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
    enum:
        MARK_COUNTER_BYTES, MARK_SLOT_BYTES, MARK_BYTES
        APPEND_DONE, APPEND_NOT_DONE, APPEND_TORN, APPEND_UNMARKED
    ctypedef struct append_target:
        frame_layout layout
        int64_t slot_bytes, time_unit_us
        int is_ordered, has_digest
        int file, page
        const void *counter
        const char *lock_path
        uint64_t lock_device, lock_inode
        int64_t process
        uint8_t *buffer
        int64_t buffer_bytes
    ctypedef struct append_limits:
        int64_t position, next_offset, us, rows, timed_records, timed_bytes
    ctypedef struct append_state:
        int64_t position, next_offset, last_us, number
        uint32_t crc32c, counter
        int64_t rows, timed_records, timed_bytes
    ctypedef struct append_record:
        const uint8_t *value
        const uint8_t *headers
        int64_t value_bytes, headers_bytes, us, now_us
        int is_timed
    int duramen_append(const append_target *to, const append_limits *limits, const append_state *before,
                       const append_record *record, frame_columns *row, uint8_t *mark, append_state *after)
    double duramen_monotonic_s()


cdef class DescriptorRecordWriter:
    cdef append_target to
    cdef append_limits limits
    cdef append_state state
    cdef frame_columns columns
    cdef uint8_t mark[84]
    cdef int64_t seen_position, seen_offset, unmarked_bytes
    cdef uint32_t seen_crc32c
    cdef bint armed, is_busy, is_retired, is_torn
    cdef object rows, lock_path, word, seen_mark
    cdef list seconds, sizes

    def __cinit__(self, int file, int page, word, bytes lock_path not None, uint64_t lock_device, uint64_t lock_inode,
                  shape, rows, notes):
        cdef bytes packed
        self.to.file = self.to.page = -1
        self.is_retired = True  # until all is set up
        self.seen_offset = -1
        self.rows, self.word, self.lock_path = rows, word, lock_path
        self.seconds, self.sizes = notes
        self.point_at_columns(len(rows))
        if shape.layout is not None:
            packed = shape.layout.packed
            if len(packed) != sizeof(frame_layout):
                raise ValueError("the packed layout has the wrong size")
            memcpy(&self.to.layout, <const char *>packed, sizeof(frame_layout))
        elif shape.slot_bytes < 1:
            raise ValueError("the shape has neither a layout nor slots")
        self.to.slot_bytes, self.to.time_unit_us = shape.slot_bytes, shape.time_unit_us
        self.to.is_ordered, self.to.has_digest = shape.is_ordered, shape.has_digest
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
        self.is_retired = False

    cdef int point_at_columns(self, int64_t count) except -1:
        rows = self.rows
        cdef frame_columns *c = &self.columns
        c.offset, c.position = wide(rows.offset, count), wide(rows.position, count)
        if hasattr(rows, "value_length"):
            c.timestamp, c.value_position = wide(rows.timestamp, count), wide(rows.value_position, count)
            c.value_length, c.headers_length = narrow(rows.value_length, count), narrow(rows.headers_length, count)
            c.flags = narrow(rows.flags, count)
        return 0

    cdef frame_columns row(self) noexcept:
        cdef frame_columns c = self.columns
        cdef int64_t row = self.state.rows
        c.offset += row
        c.position += row
        if self.to.slot_bytes == 0:
            c.timestamp += row
            c.value_position += row
            c.value_length += row
            c.headers_length += row
            c.flags += row
        return c

    def __dealloc__(self):
        if self.to.file >= 0:
            close(self.to.file)
        if self.to.page >= 0:
            close(self.to.page)
        free(self.to.buffer)

    cdef void release(self) noexcept:
        if self.to.file >= 0:
            close(self.to.file)
        if self.to.page >= 0:
            close(self.to.page)
        self.to.file = self.to.page = -1
        self.to.counter = NULL
        self.word = None

    def arm(self, state not None, limits not None, bytes slot not None, mark):
        if self.is_retired or self.is_busy:
            return
        if len(slot) != MARK_SLOT_BYTES:
            raise ValueError(f"a slot of {len(slot)} bytes is not a watermark")
        self.armed = False
        self.state.position, self.state.next_offset, self.state.last_us, self.state.number, self.state.crc32c = state
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
        cdef frame_columns row
        cdef int64_t size
        cdef int result
        if not self.armed or self.is_busy:
            return NOT_DONE
        record.value, record.value_bytes = <const uint8_t *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        record.headers, record.headers_bytes = NULL, 0
        if headers is not None:
            record.headers, record.headers_bytes = <const uint8_t *>PyBytes_AS_STRING(headers), PyBytes_GET_SIZE(headers)
        record.us, record.now_us, record.is_timed = us, now_us, is_timed
        row = self.row()
        self.is_busy = True
        with nogil:
            result = duramen_append(&self.to, &self.limits, &self.state, &record, &row, self.mark, &after)
        self.is_busy = False
        if self.is_retired:
            self.release()
        if result == APPEND_NOT_DONE:
            return NOT_DONE
        if result == APPEND_TORN:
            self.is_torn, self.armed = True, False
            return NOT_DONE
        size = after.position - self.state.position
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
                        state.timed_records, state.timed_bytes, self.is_torn, self.unmarked_bytes)
        self.armed = self.is_torn = False
        self.state.rows = self.unmarked_bytes = 0
        self.seen_offset = -1
        return found

    def retire(self):
        self.armed, self.is_retired = False, True
        if not self.is_busy:
            self.release()
