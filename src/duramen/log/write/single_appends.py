"""Single appends through the record writer, without a group.

A record that needs nothing but its bytes, its index entry and the watermark goes through the record writer, which the
appender arms. Everything else goes through a group: whatever leads one absorbs what the record writer appended, so both
see the log as the other left it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from duramen.disk import RecordWriter
from duramen.formats import Format
from duramen.kernel import APPENDED_ROWS, NOT_DONE
from duramen.log.write.appender import Appender
from duramen.log.write.batch import RecordParts
from duramen.log.write.group_commit import GroupCommit, GroupLimits
from duramen.log.write.timer import IntervalSync

MOST_PATIENCE_S = 1.0
"""How long an append waits for a group, to go without one after it."""


class SingleAppends:
    """``due_us`` returns when the log wants an ordinary append."""

    def __init__(
        self, fmt: Format, tail: Appender, commit: GroupCommit, interval: IntervalSync, limits: GroupLimits,
        due_us: Callable[[], int],
    ) -> None:  # fmt: skip
        self._tail, self._commit, self._interval, self._due_us = tail, commit, interval, due_us
        self._pid = os.getpid()
        self.is_open = limits.linger_ms == 0 and fmt.record_shape is not None
        """Whether single appends need not wait for others."""
        # Where a sync is fdatasync, and nothing but the records must be synced.
        is_plain = sys.platform == "linux" and fmt.capabilities.record_checksum
        self._goes_durably = is_plain and limits.max_records >= APPENDED_ROWS
        self._is_committing = False
        """Whether a group is being committed."""
        self._in_turn = False
        """Whether a thread appends at ``fsync`` by a record writer that takes one at a time."""
        self._awaiting: list[threading.Lock] = []
        """One for each thread that waits for the group to end, to append without one. Nobody else takes them: an
        interrupt in a thread that waits locks nothing."""

    def stop(self) -> None:
        """Leave every append to groups. The caller leads one, or is the log's only user."""
        self.is_open = False

    def append(self, parts: RecordParts, level: str, now_us: int, began_s: float) -> int:
        """Append a record and return its offset; `NOT_DONE` if a group must. The result is -2 less the offset if the
        record is written, and the watermark could not be."""
        if level == "fsync":
            return self._append_durably(parts, now_us, began_s)
        is_timed = level == "interval"
        if is_timed and (self._interval.left_us or 0) <= 0:
            return NOT_DONE
        with self._commit.alone():
            if not self._commit.is_idle or not self.is_open:
                return NOT_DONE
            writer = self._tail.writer
            offset = NOT_DONE if writer is None else writer.append(*parts, now_us, began_s, is_timed)
            if offset == NOT_DONE:
                writer = self._arm()
                offset = NOT_DONE if writer is None else writer.append(*parts, now_us, began_s, is_timed)
        return offset

    def _append_durably(self, parts: RecordParts, now_us: int, began_s: float) -> int:
        """At ``fsync``: threads share syncs in the record writer."""
        if self._interval.left_us is not None or not self._goes_durably:
            return NOT_DONE
        writer = self._tail.writer
        if writer is not None and not writer.is_shared:
            return self._append_in_turn(parts, now_us, began_s)
        if writer is not None:
            offset = writer.append_durably(*parts, now_us, began_s)
            if offset == NOT_DONE and self._await_leader():
                writer = self._tail.writer
                offset = NOT_DONE if writer is None else writer.append_durably(*parts, now_us, began_s)
            if offset != NOT_DONE:
                return offset
        with self._commit.alone():
            if not self._can_arm:
                return NOT_DONE
            writer = self._arm()
        return NOT_DONE if writer is None else writer.append_durably(*parts, now_us, began_s)

    def _append_in_turn(self, parts: RecordParts, now_us: int, began_s: float) -> int:
        """At ``fsync``, by a record writer that takes one thread at a time. Others that come meanwhile share syncs in
        a group."""
        if self._in_turn:
            return NOT_DONE
        self._in_turn = True
        try:
            with self._commit.alone():
                if not self._can_arm:
                    return NOT_DONE
                writer = self._tail.writer
                offset = NOT_DONE if writer is None else writer.append_durably(*parts, now_us, began_s)
                if offset == NOT_DONE:
                    writer = self._arm()
                    offset = NOT_DONE if writer is None else writer.append_durably(*parts, now_us, began_s)
        finally:
            self._in_turn = False
        return offset

    @property
    def _can_arm(self) -> bool:
        """Whether single appends at ``fsync`` may go without a group. The caller holds the lock of the queue."""
        is_alone = self._tail.shares_syncs or not self._commit.is_crowded
        return self._commit.is_idle and self.is_open and is_alone

    def _await_leader(self) -> bool:
        """Wait for the group that is being committed, which arms the record writer at its end. A crowd that queued
        behind it would have the next leader disarm the writer, and so on."""
        if not (self._commit.is_led_elsewhere and self._tail.shares_syncs):
            return False
        mine = threading.Lock()
        mine.acquire()
        self._awaiting.append(mine)
        return not self._is_committing or mine.acquire(timeout=MOST_PATIENCE_S)

    def group_begins(self) -> None:
        self._is_committing = True

    def group_ends(self, requests: int) -> None:
        """Arm the record writer for those who wait for this group, and for its own callers. The caller leads it. No
        requests: the group failed."""
        try:
            if requests and (self._awaiting or requests > 1) and self._goes_durably and self._tail.shares_syncs:
                self._arm()
        finally:
            self._is_committing = False
            waited, self._awaiting = self._awaiting, []
            for one in waited:
                one.release()

    def _arm(self) -> RecordWriter | None:
        """Arm the record writer. The caller leads a group, or holds the lock of an idle queue."""
        if not self.is_open or os.getpid() != self._pid:
            return None
        return self._tail.arm(self._due_us(), *self._interval.room)
