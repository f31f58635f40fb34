"""Run retention on a log that is open for writing: once (`retain_segments`), or in a thread (`RetentionTimer`).

The plan is made while appends go on; only the removal takes its turn among them. The caller makes sure that one
retention or compaction runs at a time.
"""

from __future__ import annotations

import logging
import posixpath
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakMethod

from duramen.disk import map_if_exists
from duramen.errors import DuramenError, printable
from duramen.formats import SupportsCheckpoint
from duramen.log.maintain.maintained_log import MaintainedLog, PlannedLog
from duramen.log.maintain.retention import (
    RemovedSegment,
    Retention,
    RetentionPlan,
    Surroundings,
    newest_us,
    plan_segments,
)
from duramen.log.maintain.segment_swap import all_needs, commit_swap, read_checkpoint
from duramen.log.segments import list_log, while_files_go
from duramen.sidecar import COMPACTION_PATH, SEALED_NAME, SEALED_PATH, read_compaction_state, sealed_lines

logger = logging.getLogger(__package__)

RETENTION_INTERVAL_S = 60.0


def retain_segments(log: MaintainedLog, rules: Retention) -> RetentionPlan:
    """Remove the oldest segments that the rules remove and no consumer needs. Returns the plan that was executed."""
    now_us = time.time_ns() // 1000
    _seal_expired_segment(log, rules, now_us)
    while True:
        found = plan_retention(log, rules, now_us)
        if not found.removed:
            return found
        done: list[bool] = []
        log.exclusively(lambda found=found, done=done: done.append(_remove(log, found, rules, now_us)))  # type: ignore[misc]
        if done[0]:
            return found


def plan_retention(log: PlannedLog, rules: Retention, now_us: int | None = None) -> RetentionPlan:
    """Return what the rules would remove now from a log that is open for reading or writing. Changes nothing. Plans
    again if the log's writer removed a segment meanwhile."""
    now_us = time.time_ns() // 1000 if now_us is None else now_us
    total, free = log.disk.space(log.path) if rules.keep_free_percent is not None else (0, 0)
    around = Surroundings(now_us, log.durable_offset, lambda: all_needs(log, now_us), total, free)
    return while_files_go(
        log.disk, log.path, lambda: plan_segments(log.disk, log.codec, log.committed_directory(), rules, around)
    )


def _seal_expired_segment(log: MaintainedLog, rules: Retention, now_us: int) -> None:
    """Seal an active segment whose records are all too old, so that a log without new appends shrinks as well."""
    limits = log.codec.capabilities
    if rules.max_age_ms is None or not limits.segments or not limits.timestamps or log.tail.active.is_empty:
        return
    directory = list_log(log.disk, log.path, log.codec)
    active = [files for files in directory.segments if files.base == log.tail.active.base]
    oldest_us = now_us - rules.max_age_ms * 1000
    newest = newest_us(log.disk, log.codec, directory, active[-1], oldest_us) if active else None
    if newest is not None and newest < oldest_us:
        log.seal()


def _remove(log: MaintainedLog, found: RetentionPlan, rules: Retention, now_us: int) -> bool:
    """Execute the plan. Returns False if a consumer that needs one of the segments has appeared since it was made."""
    if any(need.offset < found.first_offset for need in all_needs(log, now_us)):
        return False
    for segment in found.removed:
        if segment.damage:
            _set_aside(log, segment)
    gone = {segment.base for segment in found.removed}
    sealed = [entry for base, entry in log.tail.sidecar.sealed_to_replace().items() if base not in gone]
    earlier = [summary for summary in log.tail.earlier if summary.base_offset not in gone]
    files = {SEALED_PATH: sealed_lines(sealed), **log.tail.log_files(earlier)}
    horizon_ms = (now_us // 1000) - (rules.max_age_ms or 0)
    if isinstance(log.codec, SupportsCheckpoint):
        files |= log.codec.cleaned_files(read_checkpoint(log), found.first_offset, horizon_ms, now_us)
    state = read_compaction_state(log.disk, log.path)
    files[COMPACTION_PATH] = state._replace(retained_until=found.first_offset).encode()
    commit_swap(log, found.change, files)
    log.tail.earlier = earlier
    log.counters.retention_segments += len(found.removed)
    log.counters.retention_bytes += found.removed_bytes
    removed = {"segments": len(found.removed), "bytes": found.removed_bytes}
    logger.info(
        "retention removed %d segments of %s: it begins at offset %d now", len(found.removed), printable(log.path),
        found.first_offset, extra={"path": log.path, "offset": found.first_offset, **removed},
    )  # fmt: skip
    return True


def _set_aside(log: MaintainedLog, segment: RemovedSegment) -> None:
    """Copy the files of a damaged segment to the quarantine, with the list that has its digest."""
    names = {path: path for path in segment.files} | {SEALED_PATH: SEALED_NAME}
    for path, name in names.items():
        content = map_if_exists(log.disk, posixpath.join(log.path, path))
        if content is not None:
            log.tail.sidecar.quarantine(name, content)
    logger.warning(
        "retention removes the damaged segment %s of %s, and keeps a copy in the quarantine: %s", segment.path,
        printable(log.path), printable(segment.damage), extra={"path": log.path, "offset": segment.base},
    )  # fmt: skip


class RetentionTimer:
    """Runs retention in a thread: after a segment is sealed, and every ``interval_s`` seconds.

    An error is logged and does not stop the timer. The timer does not keep the log alive: it ends with it."""

    def __init__(self, retain: Callable[[], object], interval_s: float, path: str) -> None:
        self._retain = WeakMethod(retain, lambda _: self.wake())
        self._interval_s = interval_s
        self._is_due = threading.Lock()  # released when due: that never waits, as an event's lock in a finalizer could
        self._is_due.acquire()
        self._is_closed = False
        self._path = path
        self._thread = threading.Thread(target=self._run, name=f"duramen retention {path}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Run retention now instead of at the end of the interval."""
        with suppress(RuntimeError):  # it is due already
            self._is_due.release()

    def _run(self) -> None:
        while True:
            self._is_due.acquire(timeout=self._interval_s)
            retain = self._retain()
            if self._is_closed or retain is None:
                return
            try:
                retain()
            except DuramenError as error:
                failed = "retention failed, and will be tried again: %s"
                logger.warning(failed, printable(error), extra={"path": self._path})
            del retain

    def close(self) -> None:
        self._is_closed = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()
