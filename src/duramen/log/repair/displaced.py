"""What a file held before other records took its place, where no sidecar says so.

A segment's name is its first offset. If the records in the file begin elsewhere, its index, or the manifest, may still
be that of the records which the name promises. They existed: their offsets are not assigned again, and the plan names
them. An index that was moved together with its segment says nothing.
"""

from __future__ import annotations

from duramen.disk import Disk
from duramen.formats import Format, Index, Role
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
        last = max(self._listed(name), self._indexed(part, name))
        return [(name, last)] if last >= name else []

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


def _begins(index: Index, base: int, position: int) -> bool:
    """Whether the index is in order, and its first entry is that of the first record of a segment."""
    positions, offsets = index.positions, index.offsets
    if positions is None or not len(offsets) or (int(offsets[0]), int(positions[0])) != (base, position):
        return False
    return not ((offsets[1:] <= offsets[:-1]).any() or (positions[1:] <= positions[:-1]).any())
