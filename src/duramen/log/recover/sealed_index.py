"""Rebuilds the indexes of sealed segments from their records.

The sealed list says which indexes a segment was sealed with. Opening a log compares their sizes, a reader compares the
checksum of an index before it follows it. An index that contradicts the records is copied aside before it is replaced.
The indexes of a damaged segment stay as they are: they are evidence.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from duramen.disk import Disk, Kind
from duramen.errors import CorruptionError
from duramen.formats import Format, Role
from duramen.kernel import Stop
from duramen.log.recover.case import RecoveryCase, RecoveryStep
from duramen.log.segments import LogFile, SegmentFiles, judge_seal, sealed_indexes
from duramen.metrics import process as process_counters
from duramen.sidecar import Sealed, Sidecar, replace_file


def rebuild_sealed_indexes(
    disk: Disk, root: str, fmt: Format, sidecar: Sidecar, segments: Iterable[SegmentFiles]
) -> list[RecoveryStep]:
    """Rebuild the indexes of these sealed segments where they differ from the records. The caller holds the lock.
    Updates ``segments``, and the sealed list where other index options apply now."""
    steps: list[RecoveryStep] = []
    sealed = sidecar.sealed()
    changed: dict[int, Sealed] = {}
    for files in segments:
        base, entry = files.base or 0, sealed.get(files.base or 0)
        wanted = _wanted(disk, root, fmt, files, entry)
        steps += [
            step for role, content in wanted.items() for step in _put(disk, root, fmt, sidecar, files, role, content)
        ]
        if entry is not None and entry.indexes is not None and wanted:
            indexes = sealed_indexes(disk, root, fmt, base)
            if indexes != entry.indexes:
                changed[base] = replace(entry, indexes=indexes)
    if changed:
        sidecar.forget_sealed()
        sidecar.replace_sealed((sidecar.sealed_to_replace() | changed).values())
    return steps


def _wanted(disk: Disk, root: str, fmt: Format, files: SegmentFiles, entry: Sealed | None) -> Mapping[Role, bytes]:
    """The indexes that the records give; none if the segment is damaged."""
    data = disk.map(posixpath.join(root, files.segment.path)).data
    if entry is not None and judge_seal(entry, data) is not None:
        return {}
    try:
        segment = fmt.open_segment(data, files.base)
    except CorruptionError:
        return {}
    builder = fmt.continuing(segment).index_builder(files.base or 0, segment.created_ms)
    rows = segment.scan(segment.start)
    builder.add(rows)
    while rows.stop == Stop.LIMIT:
        rows = segment.scan(rows.cursor)
        builder.add(rows)
    roles = None if entry is None or entry.indexes is None else {index.role for index in entry.indexes}
    built = builder.build_complete() if rows.stop.clean else {}
    return {role: content for role, content in built.items() if roles is None or role.value in roles}


def _put(
    disk: Disk, root: str, fmt: Format, sidecar: Sidecar, files: SegmentFiles, role: Role, content: bytes
) -> Iterable[RecoveryStep]:
    """Replace an index if it differs. Yields the step if so."""
    began = time.perf_counter()
    name = fmt.path_of(role, files.base or 0)
    path = posixpath.join(root, name)
    held = disk.map(path).data if disk.kind(path) == Kind.FILE else memoryview(b"")
    known = fmt.classify(name)
    assert known is not None
    files.derived[role] = LogFile(name, known, len(content))
    if held == content:
        return
    if content[: len(held)] != held:
        sidecar.quarantine(name, held)
    temporary = posixpath.join(root, fmt.temporary_path(name))
    if disk.kind(posixpath.dirname(temporary)) == Kind.MISSING:
        disk.make_directory(posixpath.dirname(temporary))
    replace_file(disk, path, content, temporary=temporary)
    process_counters.rebuilt_index(time.perf_counter() - began)
    yield RecoveryStep(RecoveryCase.INDEX, name)
