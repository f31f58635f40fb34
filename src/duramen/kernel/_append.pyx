# cython: language_level=3, freethreading_compatible=True, boundscheck=False, wraparound=False, cdivision=True
"""The compiled record writer; its twin and its contract are in disk/record_writer.py."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from posix.unistd cimport close, getpid

import fcntl
import os
import sys

from duramen.kernel._buffers cimport narrow, wide

from duramen.kernel.layout import APPENDED_BYTES, NOT_DONE, AppendOutcome, AppendSeen


cdef extern from "append_queue.h" nogil:
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
        APPEND_DONE, APPEND_NOT_DONE, APPEND_TORN, APPEND_UNMARKED, APPEND_UNSYNCED
        MOST_PLACES
    ctypedef struct append_place:
        const char *path
        uint64_t device, inode
    ctypedef struct append_target:
        int kind, is_ordered, has_digest
        frame_layout layout
        int64_t slot_bytes, epoch
        int chunk_version
        int64_t time_unit_us
        int file, index, page
        const void *counter
        append_place *places
        int place_count
        int64_t process
        uint8_t *buffer
        int64_t buffer_bytes
        frame_columns frames
        int64_t *slot_offsets
        int64_t *slot_positions
        chunk_columns chunks
        batch_columns batches
    ctypedef struct append_limits:
        int64_t position, next_offset, us, rows, timed_records, timed_bytes, synced_position
    ctypedef struct append_state:
        int64_t position, next_offset, last_us, number, index_position, durable_position, durable_offset
        uint32_t crc32c, counter, durable_crc32c
        int64_t rows, timed_records, timed_bytes
    ctypedef struct append_record:
        const uint8_t *value
        const uint8_t *headers
        int64_t value_bytes, headers_bytes, us, now_us
        int is_timed
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_trylock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    ctypedef struct append_entry:
        int result
        int64_t offset, group_records, group_bytes
        double sync_s
    ctypedef struct append_writer:
        append_target to
        append_limits limits
        append_state state
        append_state seen
        uint8_t *mark
        int is_seen, is_armed, is_retired, is_busy, is_torn, sync_errno
        int64_t unmarked_records, unmarked_bytes
        pthread_mutex_t mutex
    int duramen_open_writer(append_writer *writer)
    void duramen_free_writer(append_writer *writer)
    int duramen_append_alone(append_writer *writer, const append_record *record, int64_t *offset, int64_t *size)
    int duramen_append_durably(append_writer *writer, const append_record *record, append_entry *mine)
    void duramen_release(append_entry *mine)
    int duramen_publish(append_writer *writer, uint8_t *page, int64_t page_bytes, int syncs, int *error,
                        double *sync_s)
    void duramen_drain(append_writer *writer)
    int duramen_is_unused(const append_writer *writer)
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


cdef append_record record_of(bytes value, bytes headers, int64_t us, int64_t now_us, bint is_timed) noexcept:
    cdef append_record record
    record.value, record.value_bytes = <const uint8_t *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
    record.headers, record.headers_bytes = NULL, 0
    if headers is not None:
        record.headers, record.headers_bytes = <const uint8_t *>PyBytes_AS_STRING(headers), PyBytes_GET_SIZE(headers)
    record.us, record.now_us, record.is_timed = us, now_us, is_timed
    return record


# Without the GIL, the mutex also guards the references that a thread may drop while another one takes them.
cdef class DescriptorRecordWriter:
    cdef append_writer own
    cdef int64_t index_start
    cdef bint is_open
    cdef object rows, word, armed_with
    cdef tuple places
    cdef list seconds, sizes, records, syncs

    def __cinit__(self, int file, index, int page, word, tuple places not None, shape, rows, notes):
        self.own.to.file = self.own.to.index = self.own.to.page = -1
        if duramen_open_writer(&self.own) != 0:
            raise MemoryError
        self.is_open = True
        self.own.is_retired = 1  # until all is set up
        self.rows, self.word = rows, word
        self.seconds, self.sizes, self.records, self.syncs = notes
        self.take_shape(shape)
        self.take_places(places)
        self.point_at_columns(len(rows))
        self.own.to.counter = NULL if word is None else <const void *><size_t>word.address
        self.own.to.process = os.getpid()
        self.own.to.buffer_bytes = APPENDED_BYTES
        self.own.to.buffer = <uint8_t *>malloc(APPENDED_BYTES)
        if self.own.to.buffer == NULL:
            raise MemoryError
        self.own.to.file = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 0)
        self.own.to.page = fcntl.fcntl(page, fcntl.F_DUPFD_CLOEXEC, 0)
        if index is not None:
            self.own.to.index = fcntl.fcntl(index, fcntl.F_DUPFD_CLOEXEC, 0)
        self.own.is_retired = 0

    cdef int take_places(self, tuple places) except -1:
        cdef int number
        if not 1 <= len(places) <= MOST_PLACES:
            raise ValueError(f"{len(places)} places")
        self.places = places  # keeps the paths
        for number in range(len(places)):
            path, device, inode = places[number]
            self.own.to.places[number].path = PyBytes_AS_STRING(path)
            self.own.to.places[number].device, self.own.to.places[number].inode = device, inode
        self.own.to.place_count = len(places)
        return 0

    cdef int take_shape(self, shape) except -1:
        cdef bytes packed
        cdef append_target *to = &self.own.to
        to.kind = shape.kind
        if to.kind == RECORD_FRAME:
            packed = shape.layout.packed
            if len(packed) != sizeof(frame_layout):
                raise ValueError("the packed layout has the wrong size")
            memcpy(&to.layout, <const char *>packed, sizeof(frame_layout))
        elif to.kind == RECORD_SLOT and shape.slot_bytes < 1:
            raise ValueError("the shape has no slots")
        to.slot_bytes, to.time_unit_us = shape.slot_bytes, shape.time_unit_us
        to.epoch, to.chunk_version = shape.epoch, shape.chunk_version
        to.is_ordered, to.has_digest = shape.is_ordered, shape.has_digest
        return 0

    cdef int point_at_columns(self, int64_t count) except -1:
        cdef append_target *to = &self.own.to
        if to.kind == RECORD_FRAME:
            point_at_frames(self.rows, &to.frames, count)
        elif to.kind == RECORD_SLOT:
            to.slot_offsets, to.slot_positions = wide(self.rows.offset, count), wide(self.rows.position, count)
        elif to.kind == RECORD_CHUNK:
            point_at_chunks(self.rows, &to.chunks, count)
        elif to.kind == RECORD_BATCH:
            point_at_batches(self.rows, &to.batches, count)
        else:
            raise ValueError(f"unknown kind of record {to.kind}")
        return 0

    def __dealloc__(self):
        self.close_all()
        free(self.own.to.buffer)
        if self.is_open and not self.is_inherited():  # what threads of the parent waited for cannot be freed
            duramen_free_writer(&self.own)

    cdef void close_all(self) noexcept:
        cdef append_target *to = &self.own.to
        for number in (to.file, to.index, to.page):
            if number >= 0:
                close(number)
        to.file = to.index = to.page = -1

    cdef void release(self) noexcept:
        """Close the files of a retired writer once no thread uses them."""
        cdef object word = None
        cdef bint is_locked = self.lock()
        if self.own.is_retired and (self.is_inherited() or duramen_is_unused(&self.own)):
            self.close_all()
            self.own.to.counter = NULL
            word, self.word = self.word, None
        if is_locked:
            pthread_mutex_unlock(&self.own.mutex)

    def arm(self, state not None, limits not None, bytes slot not None, mark):
        cdef append_writer *own = &self.own
        cdef append_state *to = &own.state
        if own.is_retired or own.is_armed or not duramen_is_unused(own):
            return
        if len(slot) != MARK_SLOT_BYTES:
            raise ValueError(f"a slot of {len(slot)} bytes is not a watermark")
        (to.position, to.next_offset, to.last_us, to.number, to.crc32c, to.index_position, to.durable_position,
         to.durable_offset, to.durable_crc32c) = state
        self.index_start = to.index_position
        to.rows = to.timed_records = to.timed_bytes = 0
        (own.limits.position, own.limits.next_offset, own.limits.us, own.limits.timed_records,
         own.limits.timed_bytes, own.limits.synced_position) = limits
        own.limits.rows = len(self.rows)
        to.counter = int.from_bytes(os.pread(own.to.page, MARK_COUNTER_BYTES, 0), sys.byteorder)
        memcpy(own.mark + MARK_COUNTER_BYTES, PyBytes_AS_STRING(slot), MARK_SLOT_BYTES)
        pthread_mutex_lock(&own.mutex)
        before, self.armed_with = self.armed_with, mark  # dropped after the mutex
        own.is_seen = own.is_torn = own.sync_errno = 0
        own.unmarked_records = own.unmarked_bytes = 0
        own.is_armed = not own.is_retired
        pthread_mutex_unlock(&own.mutex)

    def append(self, bytes value not None, bytes headers, int64_t us, int64_t now_us, double began_s, bint is_timed):
        cdef append_record record
        cdef int64_t offset = -1, size = 0
        cdef int result
        if not self.own.is_armed:
            return NOT_DONE
        record = record_of(value, headers, us, now_us, is_timed)
        with nogil:
            result = duramen_append_alone(&self.own, &record, &offset, &size)
        if self.own.is_retired:
            self.release()
        if result == APPEND_UNMARKED:
            return -2 - offset
        if result != APPEND_DONE:
            return NOT_DONE
        self.sizes.append(size)
        self.seconds.append(duramen_monotonic_s() - began_s)
        return offset

    def append_durably(self, bytes value not None, bytes headers, int64_t us, int64_t now_us, double began_s):
        cdef append_record record
        cdef append_entry mine
        cdef int result
        if not self.own.is_armed:
            return NOT_DONE
        record = record_of(value, headers, us, now_us, False)
        with nogil:
            result = duramen_append_durably(&self.own, &record, &mine)
        if result != APPEND_NOT_DONE:
            duramen_release(&mine)
        if self.own.is_retired:
            self.release()
        if result == APPEND_UNMARKED:
            return -2 - mine.offset
        if result != APPEND_DONE:
            return NOT_DONE
        if mine.group_records:
            self.sizes.append(mine.group_bytes)
            self.syncs.append(mine.sync_s)
            if mine.group_records > 1:
                self.records.append(mine.group_records)
        self.seconds.append(duramen_monotonic_s() - began_s)
        return mine.offset

    def publish(self, bytes content not None, int syncs):
        cdef uint8_t page[512]
        cdef int64_t page_bytes = MARK_COUNTER_BYTES + len(content)
        cdef double sync_s = 0
        cdef int result, error = 0
        if page_bytes > <int64_t>sizeof(page):
            raise ValueError(f"a page of {len(content)} bytes is not one of watermarks")
        memcpy(page + MARK_COUNTER_BYTES, PyBytes_AS_STRING(content), len(content))
        with nogil:
            result = duramen_publish(&self.own, page, page_bytes, syncs, &error, &sync_s)
        if self.own.is_retired:
            self.release()
        if result == APPEND_UNSYNCED:
            return error if error > 0 else NOT_DONE + error
        if result != APPEND_DONE:
            return NOT_DONE
        if syncs:
            self.syncs.append(sync_s)
        return 0

    @property
    def is_shared(self):
        return True

    @property
    def can_publish(self):
        return sys.platform == "linux"  # others need more than fdatasync

    @property
    def is_idle(self):
        cdef append_writer *own = &self.own
        return not (own.is_armed or own.is_torn or own.sync_errno or own.state.rows or not duramen_is_unused(own))

    @property
    def is_armed(self):
        return bool(self.own.is_armed)

    def seen(self):
        cdef append_state seen
        cdef bint is_seen
        if not self.lock():
            return None  # a forked child: a thread of the parent was changing it
        is_seen, seen = self.own.is_seen, self.own.seen
        mark = self.armed_with
        pthread_mutex_unlock(&self.own.mutex)
        if not is_seen:
            return None
        return AppendSeen(mark, seen.position, seen.next_offset, seen.crc32c, seen.durable_position, seen.durable_offset,
                          seen.durable_crc32c)

    cdef bint lock(self) noexcept:
        """Lock the mutex; False in a forked child whose parent held it at the fork, and which has no other thread."""
        if self.is_inherited():
            return pthread_mutex_trylock(&self.own.mutex) == 0
        pthread_mutex_lock(&self.own.mutex)
        return True

    cdef bint is_inherited(self) noexcept:
        return self.own.to.process != getpid()

    def stop(self):
        if self.is_inherited():
            return
        with nogil:
            duramen_drain(&self.own)

    def disarm(self):
        cdef append_writer *own = &self.own
        cdef append_state state
        self.stop()
        state = own.state
        found = AppendOutcome(
            state.rows, state.position, state.next_offset, state.last_us, state.number, state.crc32c,
            state.timed_records, state.timed_bytes, bool(own.is_torn), own.unmarked_bytes,
            state.index_position - self.index_start, own.unmarked_records, own.sync_errno, state.durable_position,
            state.durable_offset, state.durable_crc32c)
        own.is_torn = own.sync_errno = 0
        own.state.rows = own.unmarked_records = own.unmarked_bytes = 0
        self.index_start = state.index_position
        cdef bint is_locked = self.lock()
        own.is_seen = 0
        if is_locked:
            pthread_mutex_unlock(&own.mutex)
        return found

    def retire(self):
        cdef bint is_locked = self.lock()
        self.own.is_armed, self.own.is_retired = 0, 1
        if is_locked:
            pthread_mutex_unlock(&self.own.mutex)
        self.release()
