"""What a file held before other records took its place, where no sidecar says so.

A segment's name is its first offset. If the records in the file begin elsewhere, its index, or the manifest, may still
be that of the records which the name promises. They existed: their offsets are not assigned again, and the plan names
them. An index that was moved together with its segment says nothing.

Kafka's indexes are sparse, and their offsets relative: they count if their positions or times are not those of the
records in the file. Its producer snapshots and leader epochs say how far the log went, whatever the files hold.
"""

from __future__ import annotations

import numpy as np

from duramen.disk import Disk, map_if_exists
from duramen.formats import Format, Index, Role, ScanPosition, SupportsStateFiles
from duramen.kernel import BatchColumns, Int64s
from duramen.log.repair.claims import Ranges
from duramen.log.repair.segment_plan import SegmentPlan
from duramen.log.segments import Directory
from duramen.log.verify import SidecarEvidence


class Displaced:
    """The records of the log that other ones took the place of, by the file that held them."""

    def __init__(self, disk: Disk, fmt: Format, directory: Directory, evidence: SidecarEvidence) -> None:
        self._disk, self._fmt, self._directory, self._evidence = disk, fmt, directory, evidence

    def of(self, part: SegmentPlan) -> Ranges:
        """Return the offsets that the file held by its name, if its records are others."""
        name = part.files.base
        if name is None or part.content is None or part.content[0] == name or self._evidence.knows(name):
            return []
        last = max(self._listed(name), self._indexed(part, name), self._indexed_sparsely(part, name))
        return [(name, last)] if last >= name else []

    def known_end(self) -> int:
        """Return the offset up to which the log went by the files that describe the state of its producers and
        leaders; 0 if there are none, or the watermark says where it ends."""
        fmt = self._fmt
        if not isinstance(fmt, SupportsStateFiles) or self._evidence.watermark is not None:
            return 0
        paths = [file.path for file in self._directory.others if file.name.role in fmt.state_roles]
        ends = fmt.known_ends(paths, lambda path: map_if_exists(self._disk, self._directory.full(path)))
        return max((reached for _, reached in ends), default=0)

    def _listed(self, name: int) -> int:
        """Return the last offset that the manifest lists for the segment with that base."""
        manifest = self._evidence.manifest
        if manifest.get("active_base_offset") == name:
            return int(manifest["next_offset"]) - 1
        listed = manifest.get("segments", ())
        return max((entry["last_offset"] for entry in listed if entry["base_offset"] == name), default=-1)

    def _indexed(self, part: SegmentPlan, name: int) -> int:
        """Return the last offset that an intact index of these records names."""
        file = part.files.derived.get(Role.INDEX)
        data = None if file is None else self._disk.map(self._directory.full(file.path)).data
        index = None if data is None else self._fmt.open_index(Role.INDEX, data, name)
        if data is None or index is None or not _begins(index, name, len(self._fmt.segment_header(name, 0))):
            return -1
        content = part.content[0] if part.content is not None else name
        elsewhere = self._fmt.open_index(Role.INDEX, data, content)
        if elsewhere is None or not len(elsewhere.offsets) or int(elsewhere.offsets[0]) == content:  # relative
            return -1
        return int(index.offsets[-1])

    def _indexed_sparsely(self, part: SegmentPlan, name: int) -> int:
        """Return the last offset that the indexes of these records name, if an entry may be that of a later batch than
        the first: one of them must differ from the records in the file."""
        assert part.content is not None
        opened = [
            self._fmt.open_index(role, self._disk.map(self._directory.full(file.path)).data, name)
            for role, file in part.files.derived.items()
        ]
        indexes = [one for one in opened if one is not None and one.names_last and len(one) and one.in_order()]
        last = max((int(index.offsets[-1]) for index in indexes), default=-1)
        is_elsewhere = part.content[0] < name or part.content[0] > last  # otherwise compaction may have removed some
        if not indexes or not is_elsewhere or not any(_differs(index, part) for index in indexes):
            return -1
        return last


def _differs(index: Index, part: SegmentPlan) -> bool:
    """Whether an entry names a position or a time that no record in the file has."""
    positions, times = _batches(part)
    named = index.repeats.get("max_timestamp")
    by_position = index.positions is not None and not np.isin(index.positions.astype(np.int64), positions).all()
    return by_position or (named is not None and not np.isin(named, times).all())


def _batches(part: SegmentPlan) -> tuple[Int64s, Int64s]:
    """Return position and time of the batches in a file."""
    positions, times = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for run in part.found.runs if part.segment is not None and part.found is not None else ():
        cursor = ScanPosition(run.start, run.first - 1)
        while part.segment is not None and cursor.position < run.end:
            rows = part.segment.scan(cursor, verify=False)
            if not isinstance(rows.columns, BatchColumns) or not len(rows.columns):
                break
            positions.append(rows.columns.position)
            times.append(rows.columns.max_timestamp)
            cursor = rows.cursor
    return np.concatenate(positions), np.concatenate(times)


def _begins(index: Index, base: int, position: int) -> bool:
    """Whether the index is in order, and its first entry is that of the first record of a segment."""
    positions, offsets = index.positions, index.offsets
    if positions is None or not len(offsets) or (int(offsets[0]), int(positions[0])) != (base, position):
        return False
    return not ((offsets[1:] <= offsets[:-1]).any() or (positions[1:] <= positions[:-1]).any())
