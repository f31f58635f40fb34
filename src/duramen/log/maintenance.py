"""Retention and compaction of a log that is open for writing: what they do to its files, and to the writer itself.

What is to be done is found out while appends go on; only the moment of the change takes its turn among them. One run
at a time. Everything that a change touches (segments, indexes, the digests, the manifest) changes in one `change`.
"""

from __future__ import annotations

import posixpath
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from duramen.errors import DuramenError
from duramen.formats.base import Role
from duramen.log import change
from duramen.log.build import BuiltSegment
from duramen.log.change import Change
from duramen.log.compaction.state import PATH as STATE_PATH
from duramen.log.compaction.state import State
from duramen.log.directory import Directory, SegmentFiles, list_log
from duramen.log.holds import Need, read_holds
from duramen.log.retention import Retention, RetentionPlan, Surroundings, newest_us, plan
from duramen.log.sidecar import SEALED_PATH, sealed_lines

if TYPE_CHECKING:
    from duramen.log.writer import WritableLog

RETENTION_INTERVAL_S = 60.0


def retain(log: WritableLog, rules: Retention, needs: Sequence[Need] = (), *, dry_run: bool = False) -> RetentionPlan:
    """Remove the oldest segments as far as the rules say and nobody needs them. Answers what was done and why not
    more; ``dry_run``: what would be."""
    with log._maintaining:
        now_us = time.time_ns() // 1000
        everyone = [*needs, *read_holds(log._disk, log.path, now_us)]
        total, free = log._disk.space(log.path) if rules.keep_free_percent is not None else (0, 0)
        around = Surroundings(now_us, log.durable_offset, everyone, total, free)
        if not dry_run:
            _end_expired_segment(log, rules, now_us)
            around = around._replace(durable_offset=log.durable_offset)
        found = plan(log._disk, log.codec, list_log(log._disk, log.path, log.codec), rules, around)
        if found.removed and not dry_run:
            log.exclusively(lambda: _remove(log, found, rules, now_us))
        return found


def _end_expired_segment(log: WritableLog, rules: Retention, now_us: int) -> None:
    """A log to which nobody appends shrinks, too: an active segment all of whose records are too old is sealed."""
    if rules.max_age_ms is None or not log.codec.capabilities.segments or log._active.is_empty:
        return
    directory = list_log(log._disk, log.path, log.codec)
    active = [files for files in directory.segments if files.base == log._active.base]
    oldest_us = now_us - rules.max_age_ms * 1000
    newest = newest_us(log._disk, log.codec, directory, active[-1], oldest_us) if active else None
    if newest is not None and newest < oldest_us:
        log.seal()


def _remove(log: WritableLog, found: RetentionPlan, rules: Retention, now_us: int) -> None:
    gone = {segment.base for segment in found.removed}
    sealed = {base: entry for base, entry in log._sidecar.sealed().items() if base not in gone}
    log._earlier = [summary for summary in log._earlier if summary.base_offset not in gone]
    files = {SEALED_PATH: sealed_lines(sealed.values()), **_manifest(log)}
    horizon_ms = (now_us // 1000) - (rules.max_age_ms or 0)
    files |= log.codec.cleaned_files(_existing(log), found.first_offset, horizon_ms, now_us)
    _commit(log, found.change, files)
    log.counters.retention_segments += len(found.removed)
    log.counters.retention_bytes += found.removed_bytes


def swap_segment(log: WritableLog, files: SegmentFiles, built: BuiltSegment | None, staging: str) -> None:
    """Put a segment that was written anew (or nothing, where nothing is left of it) in the place of an old one."""

    def swap() -> None:
        base = files.base or 0
        sealed = log._sidecar.sealed()
        old = sealed.pop(base, None)
        kept_paths: set[str] = set()
        renames: list[tuple[str, str]] = []
        earlier = [summary for summary in log._earlier if summary.base_offset != base]
        if built is not None:
            last_offset = old.last_offset if old is not None else built.last_offset
            sealed[base] = built.sealed.__class__(base, last_offset, built.size_bytes, built.crc32, built.crc32c)
            earlier.append(built.summary._replace(last_offset=last_offset))
            renames = [(posixpath.join(staging, path), path) for path in built.paths]
            kept_paths = set(built.paths)
        log._earlier = sorted(earlier, key=lambda summary: summary.base_offset)
        old_paths = [*(file.path for file in files.derived.values()), files.segment.path]
        removals = tuple(path for path in old_paths if path not in kept_paths)
        content = {SEALED_PATH: sealed_lines(entry for _, entry in sorted(sealed.items())), **_manifest(log)}
        _commit(log, Change("compaction", tuple(renames), removals), content)

    log.exclusively(swap)


def write_state(log: WritableLog, state: State) -> None:
    """Remember how far the log is compacted."""
    files = {STATE_PATH: state.encode()}
    if state.cleaned_until == state.begun_until:
        files |= log.codec.cleaned_files(_existing(log), state.cleaned_until, 0, state.at_us)
    log.exclusively(lambda: _commit(log, Change("compaction state"), files))


def sealed_directory(log: WritableLog) -> Directory:
    """The files of the sealed segments."""
    listed = list_log(log._disk, log.path, log.codec)
    listed.segments = [files for files in listed.segments if (files.base or 0) < log._active.base]
    return listed


def _commit(log: WritableLog, wanted: Change, files: Mapping[str, bytes]) -> None:
    log._sidecar.forget_sealed()
    try:
        change.commit(log._disk, log.path, wanted, files)
    except BaseException as error:
        log._poison = error  # half of it may be done: opening the log again does the rest
        raise
    log._shown = None


def _manifest(log: WritableLog) -> dict[str, bytes]:
    return log.codec.log_files([*log._earlier, log._active.summary()], log._created_ms)


def _existing(log: WritableLog) -> bytes | None:
    """The format's own record of earlier cleaning."""
    for file in list_log(log._disk, log.path, log.codec).others:
        if file.name.role == Role.CHECKPOINT:
            return bytes(log._disk.map(posixpath.join(log.path, file.path)).data)
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
