"""Compare a repaired log with its plan: which offsets it holds, and how many records.

The planner computes what stays from the offsets that the segments will hold; after the repair `check_claims` reads the
offsets that they do hold, and raises if the two differ. Reads only.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

import numpy as np

from duramen.disk import Disk
from duramen.errors import CorruptionError
from duramen.formats import Format, Segment
from duramen.log.repair.plan import Plan
from duramen.log.segments import list_log
from duramen.log.verify import Report

Ranges = list[tuple[int, int]]
"""First and last offset of each range, inclusive; sorted, with gaps between them."""


def held_by(segment: Segment) -> Ranges:
    """Return the offsets of a segment's records, up to the first place that is not a record."""
    found: Ranges = []
    for rows in segment.steps(verify=False):
        firsts, lasts = rows.columns.first_offsets, rows.columns.last_offsets
        if len(firsts):
            breaks = np.flatnonzero(firsts[1:] != lasts[:-1] + 1)
            starts = firsts[np.concatenate([[0], breaks + 1])].tolist()
            ends = lasts[np.concatenate([breaks, [len(lasts) - 1]])].tolist()
            found += zip(starts, ends, strict=True)
    return merged(found)


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of the ranges.

    >>> merged([(5, 6), (0, 2), (3, 3), (6, 9)])
    [(0, 3), (5, 9)]
    """
    found: Ranges = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def without(ranges: Ranges, others: Ranges) -> Ranges:
    """Return the offsets of ``ranges`` that are not in ``others``.

    >>> without([(0, 9)], [(2, 3), (8, 12)])
    [(0, 1), (4, 7)]
    """
    found: Ranges = []
    for first, last in ranges:
        for start, end in others:
            if end < first or start > last:
                continue
            if start > first:
                found.append((first, start - 1))
            first = end + 1
        if first <= last:
            found.append((first, last))
    return found


def check_claims(disk: Disk, root: str, fmt: Format, plan: Plan, report: Report) -> None:
    """Raise if the repaired log differs from its plan."""
    if report.records != plan.kept_records:
        raise _broken(root, f"{plan.kept_records} records were to stay, but {report.records} were found")
    if plan.held is None:
        return
    found = merged(
        one
        for files in list_log(disk, root, fmt).segments
        for one in _held_at(disk, posixpath.join(root, files.segment.path), fmt, files.base)
    )
    wrong = without(plan.held, found) or without(found, plan.held)
    if wrong:
        first, last = wrong[0]
        which = "are missing" if without(plan.held, found) else "were to be missing, but exist"
        raise _broken(root, f"offsets {first} to {last} {which}")


def _held_at(disk: Disk, path: str, fmt: Format, base: int | None) -> Ranges:
    try:
        return held_by(fmt.open_segment(disk.map(path).data, base))
    except CorruptionError:
        return []  # the plan refused to change it


def _broken(root: str, what: str) -> CorruptionError:
    return CorruptionError(f"the repaired log differs from its plan: {what}", path=root)
