"""The record writer over any disk: the twin of the kernel's, which needs descriptors.

A record writer appends single records to the active segment while nothing but the next record happens: it encodes one,
extends the digest, writes the record and the watermark, and wakes the readers. The log *arms* it with where it stands
and with limits. What would pass a limit, or fails, is not done: the log then disarms the writer, takes over what it
wrote, and appends by the ordinary path, where every error, roll and sync belongs.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from duramen import kernel
from duramen.disk.vfs import File, Lock, Page, RecordWriter
from duramen.errors import FencedError, StorageError
from duramen.kernel import (
    APPENDED_BYTES,
    NOT_DONE,
    AppendLimits,
    AppendNotes,
    AppendOutcome,
    AppendSeen,
    AppendState,
    BatchColumns,
    ChunkColumns,
    Columns,
    FrameColumns,
    RecordKind,
    RecordShape,
)

_SLOT_BYTES = 80
_NUMBER_AT, _POSITION_AT, _DIGESTS_AT, _CRC_AT = 8, 24, 64, 76  # the byte diagrams are in kernel/append.h
_INDEX_ENTRY = struct.Struct(">QqQIB")


class DiskRecordWriter(RecordWriter):
    """The same writes as the kernel's, through files, a page and a lock. Threads that sync take turns: those that meet
    take the ordinary path, and share a sync there."""

    is_shared = can_publish = False

    def __init__(
        self,
        file: File,
        index: File | None,
        page: Page,
        lock: Lock,
        shape: RecordShape,
        rows: Columns,
        notes: AppendNotes,
        check: Callable[[], None],
    ) -> None:
        self._file, self._index, self._page, self._lock, self._process = file, index, page, lock, os.getpid()
        self._shape, self._rows = shape, rows
        self._seconds, self._sizes, _, self._syncs = notes
        self._check = check
        self._state = AppendState(0, 0, 0, 0, 0)
        self._limits = AppendLimits(0, 0, 0, 0, 0)
        self._slot = bytearray(_SLOT_BYTES)
        self._seen_from: Any = None
        self._seen: AppendSeen | None = None
        self._sync_errno = 0
        self._count = self._timed_records = self._timed_bytes = self._unmarked_bytes = self._index_bytes = 0
        self._is_armed = self._is_torn = self._is_retired = False

    def arm(self, state: AppendState, limits: AppendLimits, slot: bytes, mark: Any) -> None:
        if self._is_retired:
            return
        self._state, self._limits, self._slot = state, limits, bytearray(slot)
        self._count = self._timed_records = self._timed_bytes = self._unmarked_bytes = self._index_bytes = 0
        self._seen_from, self._seen = mark, None
        self._sync_errno = 0
        self._is_torn, self._is_armed = False, True

    def append(self, value: bytes, headers: bytes | None, us: int, now_us: int, began_s: float, is_timed: bool) -> int:
        size_bytes = (len(value) + len(headers or b"")) * is_timed
        limits = self._limits
        if is_timed and self._timed_records >= limits.timed_records:
            return NOT_DONE
        if self._timed_bytes + size_bytes > limits.timed_bytes and is_timed:
            return NOT_DONE
        offset = self._append(value, headers or b"", us, now_us, began_s, limits.position, is_synced=False)
        if offset != NOT_DONE:
            self._timed_records += is_timed
            self._timed_bytes += size_bytes
        return offset

    def append_durably(self, value: bytes, headers: bytes | None, us: int, now_us: int, began_s: float) -> int:
        if self._timed_records:
            return NOT_DONE
        return self._append(value, headers or b"", us, now_us, began_s, self._limits.synced_position, is_synced=True)

    def _append(
        self, value: bytes, headers: bytes, us: int, now_us: int, began_s: float, until: int, *, is_synced: bool
    ) -> int:
        us = self._time(us, now_us)
        if not (self._is_armed and us >= 0 and value and self._has_room):
            return NOT_DONE
        data = self._encode(value, headers, us)
        if data is None or len(data) > until - self._state.position:
            return NOT_DONE
        if os.getpid() != self._process or not (self._file.is_linked() and self._lock.is_in_place()):
            return NOT_DONE
        self._is_armed = False  # until all is written
        if not (self._write(data) and (not is_synced or self._sync())):
            return NOT_DONE
        is_indexed = self._write_entry()
        self._advance(data, us, is_synced=is_synced)
        offset = self._state.next_offset - 1
        self._unmarked_bytes = len(data)
        if not self._publish(is_synced=is_synced):
            return -2 - offset
        self._unmarked_bytes = 0
        self._sizes.append(len(data))
        self._seconds.append(time.monotonic() - began_s)
        self._is_armed = is_indexed and not self._is_retired
        return offset

    def _write(self, data: bytes) -> bool:
        self._is_torn = True
        try:
            self._is_torn = self._file.write(self._state.position, data) != len(data)
        except StorageError:
            pass
        return not self._is_torn

    def _sync(self) -> bool:
        began_s = time.monotonic()
        self._sync_errno = errno.EIO  # should an exception from outside end it
        try:
            self._file.sync()
        except StorageError as error:
            self._sync_errno = error.errno or errno.EIO
            return False
        self._sync_errno = 0
        self._syncs.append(time.monotonic() - began_s)
        return True

    def _publish(self, *, is_synced: bool) -> bool:
        """Store the watermark. After a sync, all must be in its place."""
        mark = self._mark()
        try:
            if is_synced:
                self._check()
                if not self._file.is_in_place():
                    return False
            self._page.store(mark)
        except (StorageError, FencedError):
            return False
        state = self._state
        durable = state.durable_position, state.durable_offset, state.durable_crc32c
        self._seen = AppendSeen(self._seen_from, state.position, state.next_offset, state.crc32c, *durable)
        return True

    def _time(self, us: int, now_us: int) -> int:
        """The time of the record; -1 where the ordinary path must decide."""
        now_us = time.time_ns() // 1000 if now_us < 0 else now_us
        usual = max(now_us, self._state.last_us) if self._shape.is_ordered else now_us
        if usual >= self._limits.us:
            return -1
        if us < 0:
            return usual
        if not self._shape.time_unit_us or (self._shape.is_ordered and us < self._state.last_us):
            return -1
        return us

    @property
    def _has_room(self) -> bool:
        return self._count < len(self._rows) and self._state.next_offset < self._limits.next_offset

    def _encode(self, value: bytes, headers: bytes, us: int) -> bytes | None:
        shape, out = self._shape, memoryview(bytearray(APPENDED_BYTES))
        if headers and shape.kind in (RecordKind.SLOT, RecordKind.CHUNK):
            return None
        row = self._rows.slice(self._count, self._count + 1)
        row.first_offsets[0] = self._state.next_offset
        time = us // shape.time_unit_us if shape.time_unit_us else 0
        try:
            if isinstance(row, FrameColumns):
                size_bytes = self._encode_frame(row, out, value, headers, time)
            elif isinstance(row, ChunkColumns):
                size_bytes = self._encode_chunk(row, out, value, time)
            elif isinstance(row, BatchColumns):
                size_bytes = self._encode_batch(row, out, value, headers, time)
            else:
                row.position[0] = self._state.position
                size_bytes = kernel.encode_slots(out, shape.slot_bytes, (value,))
        except ValueError:  # it does not fit
            return None
        return bytes(out[:size_bytes])

    def _encode_frame(self, row: FrameColumns, out: memoryview, value: bytes, headers: bytes, time: int) -> int:
        layout = self._shape.layout
        assert layout is not None
        row.timestamp[0], row.flags[0] = time, 0
        return kernel.encode_frames(
            out,
            layout,
            row,
            (value,),
            base_position=self._state.position,
            headers=headers or None,
            headers_offsets=np.array([0, len(headers)], np.int32) if headers else None,
        )

    def _encode_chunk(self, row: ChunkColumns, out: memoryview, value: bytes, time: int) -> int:
        row.timestamp[0], row.epoch[0], row.records[0] = time, self._shape.epoch, 1
        return kernel.encode_chunks(out, self._shape.chunk_version, row, (value,), None, self._state.position)

    def _encode_batch(self, row: BatchColumns, out: memoryview, value: bytes, fields: bytes, time: int) -> int:
        row.last_offset[0] = row.base_offset[0]
        row.base_timestamp[0] = row.max_timestamp[0] = time
        row.producer_id[0] = row.producer_epoch[0] = row.base_sequence[0] = -1
        row.leader_epoch[0], row.attributes[0] = self._shape.epoch, 0
        return kernel.encode_record(out, row, value, fields, self._state.position)

    def _write_entry(self) -> bool:
        """Write the index entry of the chunk, if each gets one at once. False if that failed."""
        if self._index is None:
            return True
        row = self._rows.slice(self._count, self._count + 1)
        assert isinstance(row, ChunkColumns)
        columns = (row.chunk_id, row.timestamp, row.epoch, row.position, row.chunk_type)
        entry = _INDEX_ENTRY.pack(*(int(column[0]) for column in columns))
        try:
            if self._index.write(self._state.index_position + self._index_bytes, entry) != len(entry):
                return False
        except StorageError:
            return False
        self._index_bytes += len(entry)
        return True

    def _advance(self, data: bytes, us: int, *, is_synced: bool) -> None:
        position, next_offset, last_us, number, crc32c, index_position, *durable = self._state
        if self._shape.has_digest:
            crc32c = kernel.crc32c(data, crc32c)
        position, next_offset = position + len(data), next_offset + 1
        if is_synced:
            durable = [position, next_offset, crc32c]
        self._state = AppendState(position, next_offset, max(last_us, us), number + 1, crc32c, index_position, *durable)
        self._count += 1

    def _mark(self) -> bytes:
        state, slot = self._state, self._slot
        struct.pack_into("<q", slot, _NUMBER_AT, state.number)
        places = state.position, state.next_offset, state.durable_position, state.durable_offset
        struct.pack_into("<4q", slot, _POSITION_AT, *places)
        struct.pack_into("<II", slot, _DIGESTS_AT, state.crc32c, state.durable_crc32c)
        struct.pack_into("<I", slot, _CRC_AT, kernel.crc32c(slot[:_CRC_AT]))
        return bytes(slot)

    @property
    def is_armed(self) -> bool:
        return self._is_armed

    @property
    def is_idle(self) -> bool:
        return not (self._is_armed or self._is_torn or self._sync_errno or self._count)

    def publish(self, content: bytes, syncs: int) -> int:
        return NOT_DONE  # the ordinary calls are its twin

    def seen(self) -> AppendSeen | None:
        return self._seen

    def stop(self) -> None:
        self._is_armed = False

    def disarm(self) -> AppendOutcome:
        state = self._state
        found = AppendOutcome(
            self._count, state.position, state.next_offset, state.last_us, state.number, state.crc32c,
            self._timed_records, self._timed_bytes, self._is_torn, self._unmarked_bytes, self._index_bytes,
            int(self._unmarked_bytes > 0), self._sync_errno, state.durable_position, state.durable_offset,
            state.durable_crc32c,
        )  # fmt: skip
        self._is_armed = self._is_torn = False
        self._sync_errno = self._count = self._unmarked_bytes = self._index_bytes = 0
        self._seen = None
        return found

    def retire(self) -> None:
        self._is_armed, self._is_retired = False, True
