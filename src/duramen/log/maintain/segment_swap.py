"""Replace or remove segments of a log that is open for writing, in one `FileSwap`.

The swap covers everything that changes together: segments, indexes, the sealed list, the manifest. It runs in its turn
among the appends (`WritableLog.exclusively`). A swap that fails half-way poisons the writer; the next open replays it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace

from duramen.formats import Role, SupportsCheckpoint
from duramen.log.maintain.maintained_log import MaintainedLog, PlannedLog
from duramen.log.segments import BuiltSegment, SegmentFiles, list_log
from duramen.sidecar import (
    COMPACTION_PATH,
    SEALED_PATH,
    SMALL_BYTES,
    CompactionState,
    FileSwap,
    Need,
    bounded_copy,
    commit_file_swap,
    prepare_file_swap,
    read_holds,
    sealed_lines,
)


def all_needs(log: PlannedLog, now_us: int) -> list[Need]:
    """Return the oldest offset that each group, cursor and running job still needs."""
    return [*log.needs(), *read_holds(log.disk, log.path, now_us)]


def swap_segment(
    log: MaintainedLog, files: SegmentFiles, built: BuiltSegment | None, staging: str, state: Mapping[str, bytes],
    stale: Sequence[str],
) -> None:  # fmt: skip
    """Replace a segment by its rewritten version in ``staging``; remove it where ``built`` is None. ``state`` are other
    files of the new version, with their content; the ``stale`` ones of the old version are removed."""
    log.exclusively(lambda: _swap(log, files, built, staging, state, stale))


def _swap(
    log: MaintainedLog, files: SegmentFiles, built: BuiltSegment | None, staging: str, state: Mapping[str, bytes],
    stale: Sequence[str],
) -> None:  # fmt: skip
    base = files.base or 0
    sealed = log.tail.sidecar.sealed_to_replace()
    old = sealed.pop(base, None)
    kept_paths: set[str] = set()
    renames: list[tuple[str, str]] = []
    earlier = [summary for summary in log.tail.earlier if summary.base_offset != base]
    if built is not None:
        last_offset = old.last_offset if old is not None else built.last_offset
        sealed_ms = old.sealed_ms if old is not None else None  # it is as old as it was
        sealed[base] = replace(built.sealed, last_offset=last_offset, sealed_ms=sealed_ms)
        earlier.append(built.summary)  # of what it holds: without the sidecar no one knows of the compaction
        renames = [(posixpath.join(staging, path), path) for path in built.paths]
        kept_paths = set(built.paths)
    earlier.sort(key=lambda summary: summary.base_offset)
    old_paths = [*(file.path for file in files.derived.values()), files.segment.path]
    removals = (*(path for path in old_paths if path not in kept_paths), *stale)
    content = {**state, SEALED_PATH: sealed_lines(entry for _, entry in sorted(sealed.items()))}
    commit_swap(log, FileSwap("compaction", tuple(renames), removals), content | log.tail.log_files(earlier))
    log.tail.earlier = earlier


def write_state(log: MaintainedLog, state: CompactionState) -> None:
    """Record how far the log is compacted."""
    files = {COMPACTION_PATH: state.encode()}
    if state.cleaned_until == state.begun_until and isinstance(log.codec, SupportsCheckpoint):
        files |= log.codec.cleaned_files(read_checkpoint(log), state.cleaned_until, 0, state.at_us)
    log.exclusively(lambda: commit_swap(log, FileSwap("compaction state"), files))


def commit_swap(log: MaintainedLog, wanted: FileSwap, files: Mapping[str, bytes]) -> None:
    """Commit a swap and write ``files`` with it. The caller has its turn among the appends."""
    prepared = prepare_file_swap(log.disk, log.path, wanted, files)
    log.tail.sidecar.forget_sealed()
    try:
        commit_file_swap(log.disk, log.path, prepared)
    except BaseException as error:
        log.tail.poison(error)  # half of it may be done: the next open replays the rest
        raise
    log.look_again()


def read_checkpoint(log: MaintainedLog) -> bytes | None:
    """Return the format's own record of earlier cleaning."""
    for file in list_log(log.disk, log.path, log.codec).others:
        if file.name.role == Role.CHECKPOINT:
            path = posixpath.join(log.path, file.path)
            return bounded_copy(log.disk.map(path).data, path, SMALL_BYTES)
    return None
