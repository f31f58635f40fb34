"""What a program might do with one crashed disk, and the checks that need no model."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from duramen.errors import CorruptionError
from duramen.formats import Role, Severity, make
from duramen.log import Log, WritableLog, verify_log
from duramen.sidecar import DIRECTORY
from duramen.testing.crash import CrashPattern
from duramen.testing.run import ROOT, BrokenPromiseError, Run, Stored, disk_of, has_config, read_all, tracking_of
from duramen.testing.simulated_disk import SimulatedDisk


@dataclass
class CrashOutcome:
    """What recovery and readers find on one crashed disk. It depends only on the disk, so it is computed once."""

    records: list[Stored]
    steps: list[str]
    seen: list[Stored]
    """By a reader, with the sidecar as the crash left it."""
    bare: list[Stored]
    """By a reader, without sidecar, indexes and manifest."""
    bare_in_doubt: bool


def open_again(disk: SimulatedDisk, run: Run) -> WritableLog:
    options = {} if has_config(disk) else run.options
    return WritableLog(ROOT, format=run.setup.format, disk=disk, **options)


def examine(crashed: SimulatedDisk, run: Run, *, again: bool = True) -> CrashOutcome:
    """Read, recover, verify and reopen a crashed disk, with all checks that need no model."""
    before = crashed.tree()
    bare, in_doubt = _read_bare(before, run)
    seen = _read_only(crashed.clone(), run)
    disk = crashed.clone()
    log = open_again(disk, run)
    records, steps = read_all(log), [str(step) for step in log.recovery]
    next_offset = log.next_offset
    opened = disk.clone()
    log.close()
    _check_quarantine(before, disk.tree(), run)
    check_verified(disk, run)
    if run.tracking is not None and tracking_of(disk, run.setup) != run.tracking:
        raise BrokenPromiseError("after recovery: the tracking state has changed")
    if again:
        _check_again(opened, disk, run, records, next_offset)
    return CrashOutcome(records, steps, seen, bare, in_doubt)


def _check_again(
    opened: SimulatedDisk, closed: SimulatedDisk, run: Run, records: list[Stored], next_offset: int
) -> None:
    """Open again after a power loss and after a close, append, and open once more."""
    lost = opened.crash(CrashPattern("lost", "lost"))
    with open_again(lost, run) as log:
        same(records, read_all(log), "opened again after a power loss")
        check_next(log, next_offset)
    log = open_again(closed, run)
    same(records, read_all(log), "opened again after a close")
    check_next(log, next_offset)
    value = bytes(range(256))[: run.setup.record_size or 21]
    offset = log.append(value.ljust(run.setup.record_size or 0, b"."))
    rolled = run.setup.directory is not None and offset == next_offset + 1  # tracking took an offset
    if offset != next_offset and not rolled:
        raise BrokenPromiseError(f"the append after recovery got offset {offset} instead of {next_offset}")
    after = [*records, Stored(offset, value.ljust(run.setup.record_size or 0, b"."))]
    same(after, read_all(log), "after an append")
    lost = closed.crash(CrashPattern("lost", "lost"))
    with open_again(lost, run) as log:
        same(after, read_all(log), "after an append and a power loss")


def check_next(log: WritableLog, next_offset: int) -> None:
    if log.next_offset != next_offset:
        raise BrokenPromiseError(f"opened again: the next offset is {log.next_offset}, and was {next_offset}")


def same(wanted: Sequence[Stored], found: Sequence[Stored], where: str) -> None:
    if list(wanted) != list(found):
        raise BrokenPromiseError(
            f"{where}: {len(found)} records, different from the {len(wanted)} of the first recovery"
        )


def check_verified(disk: SimulatedDisk, run: Run) -> None:
    report = verify_log(ROOT, format=run.setup.format, disk=disk)
    bad = [finding for finding in report.findings if finding.severity != Severity.NOTE]
    if run.setup.directory is not None:
        bad = [finding for finding in bad if finding.severity == Severity.DAMAGE]
    if bad:
        raise BrokenPromiseError(f"after recovery verify finds {bad[0].code}: {bad[0].path}: {bad[0].message}")


def _check_quarantine(before: Mapping[str, bytes], after: Mapping[str, bytes], run: Run) -> None:
    fmt = make(run.setup.format, **run.options)
    kept = [content for path, content in after.items() if f"/{DIRECTORY}/quarantine/" in path]
    for path, content in before.items():
        name = fmt.classify(posixpath.relpath(path, ROOT))
        if name is None or name.role != Role.SEGMENT:
            continue
        now = after.get(path)
        if now is None:
            raise BrokenPromiseError(f"recovery removed the segment {path}")
        start = _same_bytes(content, now)
        cut = content[start:]
        if cut.strip(b"\0") and not any(cut in copy for copy in kept):
            raise BrokenPromiseError(
                f"recovery cut {len(cut)} bytes of {path} at {start} without a copy in the quarantine"
            )


def _same_bytes(one: bytes, other: bytes) -> int:
    """The length of the common prefix."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def _read_only(disk: SimulatedDisk, run: Run) -> list[Stored]:
    """What a reader sees before recovery. If the sidecar tells what was durable, an unfinished write is not damage."""
    if not has_config(disk):
        return _read_up_to_damage(disk, run, run.options)
    with Log(ROOT, disk=disk) as log:
        return read_all(log)


def _read_bare(before: Mapping[str, bytes], run: Run) -> tuple[list[Stored], bool]:
    """What a reader sees without sidecar, indexes and manifest; whether its last record is in doubt."""
    fmt = make(run.setup.format, **run.options)
    kept: dict[str, bytes] = {}
    last = None
    for path, content in before.items():
        name = fmt.classify(posixpath.relpath(path, ROOT)) if path.startswith(ROOT + "/") else None
        if name is not None and name.role == Role.SEGMENT:
            kept[path] = content
            last = (name.base, content) if last is None or (name.base or 0) > (last[0] or 0) else last
    if not kept:
        return [], False
    in_doubt = False
    if last is not None:
        with contextlib.suppress(CorruptionError):
            segment = fmt.open_segment(last[1], last[0])
            in_doubt = segment.ends_in_doubt(segment.scan(segment.start))
    return _read_up_to_damage(disk_of(kept), run, run.options), in_doubt


def _read_up_to_damage(disk: SimulatedDisk, run: Run, options: Mapping[str, Any]) -> list[Stored]:
    found: list[Stored] = []
    if ROOT + "/" not in disk.tree():
        return found
    with contextlib.suppress(CorruptionError), Log(ROOT, format=run.setup.format, disk=disk, **options) as log:
        for batch in log.batches(columns=["offset", "value", "key"]):
            found += map(Stored, *(column.to_pylist() for column in batch.columns))
    return found
