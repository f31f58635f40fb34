"""Retention and compaction of a log that is open for writing: what they do to its files, and to the writer itself.

What is to be done is found out while appends go on; only the moment of the change takes its turn among them. The caller
sees to it that one runs at a time. Everything that a change touches (segments, indexes, the digests, the manifest)
changes in one `change`.
"""

from __future__ import annotations

import posixpath
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from duramen.errors import DuramenError
from duramen.formats.base import Role
from duramen.log import change
from duramen.log.build import BuiltSegment
from duramen.log.change import Change
from duramen.log.compaction.state import PATH as STATE_PATH
from duramen.log.compaction.state import State, read_state
from duramen.log.directory import SegmentFiles, list_log
from duramen.log.holds import Need, read_holds
from duramen.log.retention import Retention, RetentionPlan, Surroundings, newest_us, plan
from duramen.log.sidecar import SEALED_PATH, sealed_lines

if TYPE_CHECKING:
    from duramen.log.reader import Log
    from duramen.log.writer import WritableLog

RETENTION_INTERVAL_S = 60.0


def retain(log: WritableLog, rules: Retention) -> RetentionPlan:
    """Remove the oldest segments as far as the rules say and nobody needs them. Answers what was done and why not
    more."""
    now_us = time.time_ns() // 1000
    _end_expired_segment(log, rules, now_us)
    while True:
        found = plan_retention(log, rules, now_us)
        if not found.removed:
            return found
        done: list[bool] = []
        log.exclusively(lambda found=found, done=done: done.append(_remove(log, found, rules, now_us)))  # type: ignore[misc]
        if done[0]:
            return found


def plan_retention(log: Log, rules: Retention, now_us: int | None = None) -> RetentionPlan:
    """What the rules would remove now, for a log that is open for reading or for writing. Changes nothing."""
    now_us = time.time_ns() // 1000 if now_us is None else now_us
    total, free = log.disk.space(log.path) if rules.keep_free_percent is not None else (0, 0)
    around = Surroundings(now_us, log.durable_offset, lambda: everyone(log, now_us), total, free)
    return plan(log.disk, log.codec, log.committed_directory(), rules, around)


def everyone(log: Log, now_us: int) -> list[Need]:
    """All who need records of the log: groups, cursors, jobs."""
    return [*log.needs(), *read_holds(log.disk, log.path, now_us)]


def _end_expired_segment(log: WritableLog, rules: Retention, now_us: int) -> None:
    """A log to which nobody appends shrinks, too: an active segment all of whose records are too old is sealed."""
    if rules.max_age_ms is None or not log.codec.capabilities.segments or log.tail.active.is_empty:
        return
    directory = list_log(log.disk, log.path, log.codec)
    active = [files for files in directory.segments if files.base == log.tail.active.base]
    oldest_us = now_us - rules.max_age_ms * 1000
    newest = newest_us(log.disk, log.codec, directory, active[-1], oldest_us) if active else None
    if newest is not None and newest < oldest_us:
        log.seal()


def _remove(log: WritableLog, found: RetentionPlan, rules: Retention, now_us: int) -> bool:
    """False where somebody came who needs what was to go: the turn may have been long in coming."""
    if any(need.offset < found.first_offset for need in everyone(log, now_us)):
        return False
    gone = {segment.base for segment in found.removed}
    sealed = {base: entry for base, entry in log.tail.sidecar.sealed().items() if base not in gone}
    earlier = [summary for summary in log.tail.earlier if summary.base_offset not in gone]
    files = {SEALED_PATH: sealed_lines(sealed.values()), **log.tail.log_files(earlier)}
    horizon_ms = (now_us // 1000) - (rules.max_age_ms or 0)
    files |= log.codec.cleaned_files(_existing(log), found.first_offset, horizon_ms, now_us)
    state = read_state(log.disk, log.path)
    files[STATE_PATH] = state._replace(retained_until=found.first_offset).encode()
    _commit(log, found.change, files)
    log.tail.earlier = earlier
    log.counters.retention_segments += len(found.removed)
    log.counters.retention_bytes += found.removed_bytes
    return True


def swap_segment(log: WritableLog, files: SegmentFiles, built: BuiltSegment | None, staging: str) -> None:
    """Put a segment that was written anew (or nothing, where nothing is left of it) in the place of an old one."""

    def swap() -> None:
        base = files.base or 0
        sealed = log.tail.sidecar.sealed()
        old = sealed.pop(base, None)
        kept_paths: set[str] = set()
        renames: list[tuple[str, str]] = []
        earlier = [summary for summary in log.tail.earlier if summary.base_offset != base]
        if built is not None:
            last_offset = old.last_offset if old is not None else built.last_offset
            sealed[base] = built.sealed.__class__(base, last_offset, built.size_bytes, built.crc32, built.crc32c)
            earlier.append(built.summary._replace(last_offset=last_offset))
            renames = [(posixpath.join(staging, path), path) for path in built.paths]
            kept_paths = set(built.paths)
        earlier.sort(key=lambda summary: summary.base_offset)
        old_paths = [*(file.path for file in files.derived.values()), files.segment.path]
        removals = tuple(path for path in old_paths if path not in kept_paths)
        content = {SEALED_PATH: sealed_lines(entry for _, entry in sorted(sealed.items()))}
        _commit(log, Change("compaction", tuple(renames), removals), content | log.tail.log_files(earlier))
        log.tail.earlier = earlier

    log.exclusively(swap)


def write_state(log: WritableLog, state: State) -> None:
    """Remember how far the log is compacted."""
    files = {STATE_PATH: state.encode()}
    if state.cleaned_until == state.begun_until:
        files |= log.codec.cleaned_files(_existing(log), state.cleaned_until, 0, state.at_us)
    log.exclusively(lambda: _commit(log, Change("compaction state"), files))


def _commit(log: WritableLog, wanted: Change, files: Mapping[str, bytes]) -> None:
    prepared = change.prepare(log.disk, log.path, wanted, files)
    log.tail.sidecar.forget_sealed()
    try:
        change.decide(log.disk, log.path, prepared)
    except BaseException as error:
        log.tail.poison(error)  # half of it may be done: opening the log again does the rest
        raise
    log.look_again()


def _existing(log: WritableLog) -> bytes | None:
    """The format's own record of earlier cleaning."""
    for file in list_log(log.disk, log.path, log.codec).others:
        if file.name.role == Role.CHECKPOINT:
            return bytes(log.disk.map(posixpath.join(log.path, file.path)).data)
    return None


class RetentionTimer:
    """Runs retention when a segment was sealed, and from time to time, so that a log to which nobody appends shrinks,
    too. The last error is kept for people to see; it never stops the timer."""

    def __init__(self, retain: Callable[[], object], interval_s: float, path: str) -> None:
        self._retain = retain
        self._interval_s = interval_s
        self._is_due = threading.Event()
        self._is_closed = False
        self.error: DuramenError | None = None
        self._thread = threading.Thread(target=self._run, name=f"duramen retention {path}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Do not wait for the time to be over."""
        self._is_due.set()

    def _run(self) -> None:
        while True:
            self._is_due.wait(self._interval_s)
            self._is_due.clear()
            if self._is_closed:
                return
            try:
                self._retain()
                self.error = None
            except DuramenError as error:
                self.error = error

    def close(self) -> None:
        self._is_closed = True
        self._is_due.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
