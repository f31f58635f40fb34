"""Put the runs of a damaged segment, which `salvage` found, in the order of their offsets.

Offsets ascend in a file, so the ascending chain of runs with the most records is what was written. A run outside the
chain is a block that was moved, if it fits into a hole of the chain; otherwise it is a copy, or its offset is wrong.

An offset that no checksum covers is corrected only if exactly one fits: the record is adjacent to those on both sides,
which leave room for it and nothing else, no other record has that offset, and it is not a copy. Anything less could
give a payload an offset that it never had. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np

from duramen.formats import ScanPosition, Segment
from duramen.kernel import Stop
from duramen.log.repair.plan import RIVAL
from duramen.log.repair.salvage import Bad, Hole, Patch, Salvaged, SalvagedRun, records_of


def put_in_order(
    segment: Segment, found: Salvaged, low: int, high: int | None, acknowledged: int | None = None
) -> Salvaged:
    """Return the runs that belong together, by offset. ``low`` and ``high`` bound the offsets of the segment; ``high``
    is None without a bound. ``acknowledged`` is the offset after the last acknowledged one, if known."""
    result = Salvaged([], list(found.bad), [], found.end, found.ended_badly, found.version_at)
    every = _with_corrected_offsets(segment, found, low, high, acknowledged)
    runs, beside = [], []
    for run in every:
        inside = _clip(segment, run, low, high, result)
        if inside is not None:
            runs.append(inside)
        elif run.rows == 1:
            beside.append(run)
        else:
            result.bad.append(Bad(run.start, run.end, _does_not_fit(run)))
    kept = _longest_chain(runs)
    in_chain = {run.start for run in kept}
    beside += [run for run in runs if run.start not in in_chain]
    for run in sorted(beside, key=lambda run: (-run.records, run.start)):
        _place(segment, run, kept, every, result, low, high)
    result.runs = sorted(kept, key=lambda run: run.first)
    result.bad.sort()
    result.holes = list(_holes(segment, result, low))
    return result


def _with_corrected_offsets(
    segment: Segment, found: Salvaged, low: int, high: int | None, acknowledged: int | None
) -> list[SalvagedRun]:
    """Correct the offset of a single record between two runs that leave room for exactly one other offset, if no
    checksum covers it."""
    runs = list(found.runs)
    for number, run in enumerate(runs):
        below = runs[number - 1] if number else None
        above = runs[number + 1] if number + 1 < len(runs) else None
        first = low if below is None else below.last + 1
        if above is not None:
            following: int | None = above.first
        else:
            following = acknowledged if high is None else high + 1
        touches = _touches(segment, run, below, above, found.end)
        if touches and run.first != first and following == first + run.span:
            runs[number] = _with_offset(segment, run, first, runs) or run
    return runs


def _touches(
    segment: Segment, run: SalvagedRun, below: SalvagedRun | None, above: SalvagedRun | None, end: int
) -> bool:
    """Whether the run is adjacent to its neighbours. Bytes between them may be the record that is missing."""
    start = segment.start.position if below is None else below.end
    return run.start == start and run.end == (end if above is None else above.start)


def _with_offset(segment: Segment, run: SalvagedRun, first: int, every: list[SalvagedRun]) -> SalvagedRun | None:
    """Return the record with the offset ``first``; None if it is a copy of another record, or another one has that
    offset."""
    patch = segment.at_offset(run.start, first)
    if run.rows != 1 or patch is None:
        return None
    last = first + run.span - 1
    raw = segment.buf[run.start : run.end]
    for other in every:
        if other.start == run.start:
            continue
        if other.first <= last and first <= other.last:
            return None
        same = _clip(segment, other, run.first, run.last, Salvaged())
        if same is not None and segment.buf[same.start : same.end] == raw:
            return None
    position, data = patch
    more = [held for held in run.patches if not position <= held.position < position + len(data)]
    note = f"offset {first}: its offset, which was {run.first}, is corrected (byte {position})"
    if more:
        where = ", ".join(f"byte {held.position}" for held in (*more, Patch(*patch)))
        note = f"offset {first}: its offset, which was {run.first}, and a flipped bit are corrected ({where})"
    return replace(run, first=first, last=last, patches=(*more, Patch(*patch)), notes=(note,))


def _clip(segment: Segment, run: SalvagedRun, low: int, high: int | None, result: Salvaged) -> SalvagedRun | None:
    """Return the part of a run within the bounds; the rest is added to ``result.bad``."""
    if low <= run.first and (high is None or run.last <= high):
        return run
    if run.patches or run.last < low or (high is not None and run.first > high):
        return None
    cursor, kept = ScanPosition(run.start, run.first - 1), None
    while cursor.position < run.end:
        rows = segment.scan(cursor, verify=False)
        firsts, lasts = rows.columns.first_offsets, rows.columns.last_offsets
        ends = np.append(rows.columns.position[1:], rows.end.position)
        fits = np.flatnonzero((firsts >= low) & (lasts <= (2**63 - 1 if high is None else high)) & (ends <= run.end))
        if len(fits):
            begin, stop = int(fits[0]), int(fits[-1]) + 1
            part = SalvagedRun(
                int(rows.columns.position[begin]), int(ends[stop - 1]), int(firsts[begin]), int(lasts[stop - 1]),
                records_of(rows, begin, stop), stop - begin,
            )  # fmt: skip
            kept = part if kept is None else replace(
                kept, end=part.end, last=part.last, records=kept.records + part.records, rows=kept.rows + part.rows
            )  # fmt: skip
        cursor = rows.cursor
        if rows.stop != Stop.LIMIT:
            break
    if kept is None:
        return None
    for start, end, side in ((run.start, kept.start, "before"), (kept.end, run.end, "after")):
        if start < end:
            result.bad.append(Bad(start, end, f"records whose offsets belong to the segment {side} this one"))
    return kept


def _place(
    segment: Segment,
    run: SalvagedRun,
    kept: list[SalvagedRun],
    every: list[SalvagedRun],
    result: Salvaged,
    low: int,
    high: int | None,
) -> None:
    """Place a run outside the chain: into the hole where it lies, or the hole of its offset, or give it up."""
    below = max((other for other in kept if other.end <= run.start), key=lambda other: other.end, default=None)
    above = min((other for other in kept if other.start >= run.end), key=lambda other: other.start, default=None)
    first = below.last + 1 if below is not None else low
    last = above.first - 1 if above is not None else high
    if last == first + run.span - 1 and _touches(segment, run, below, above, result.end):
        mended = _with_offset(segment, run, first, every)
        if mended is not None:
            kept.append(mended)
            return
    overlapping = [other for other in kept if other.first <= run.last and run.first <= other.last]
    top = max((other.last for other in kept), default=low - 1)
    named = low <= run.first and (run.last < top or run.first == top + 1) and (high is None or run.last <= high)
    if named and not overlapping:
        kept.append(run)
        return
    if overlapping and run.rows > 1 and not run.patches:
        _place_parts(segment, run, overlapping, kept, every, result, low, high)
        return
    result.bad += _removed(segment, run, overlapping)


def _place_parts(
    segment: Segment,
    run: SalvagedRun,
    overlapping: list[SalvagedRun],
    kept: list[SalvagedRun],
    every: list[SalvagedRun],
    result: Salvaged,
    low: int,
    high: int | None,
) -> None:
    """Place the records of a run that no other run holds; the rest are copies, or others with the same offsets."""
    rest, first = run, run.first
    for other in [*sorted(overlapping, key=lambda other: other.first), None]:
        last = run.last if other is None else min(other.first - 1, run.last)
        part = _clip(segment, run, first, last, Salvaged()) if first <= last else None
        if part is not None:
            result.bad += _removed(segment, replace(rest, end=part.start, last=part.first - 1), overlapping)
            _place(segment, part, kept, every, result, low, high)
            rest = replace(rest, start=part.end, first=part.last + 1)
        if other is not None:
            first = max(first, other.last + 1)
    result.bad += _removed(segment, rest, overlapping)


def _removed(segment: Segment, run: SalvagedRun, overlapping: list[SalvagedRun]) -> Iterator[Bad]:
    """Yield what is removed with a run: copies of records that are kept, and others with the same offsets, apart."""
    if not overlapping:
        yield Bad(run.start, run.end, _does_not_fit(run))
        return
    kept = chain.from_iterable(_rows_of(segment, other) for other in sorted(overlapping, key=lambda one: one.first))
    held = next(kept, None)
    found: list[tuple[bool, SalvagedRun]] = []
    for row in _rows_of(segment, run):
        while held is not None and held.first < row.first:
            held = next(kept, None)
        is_copy = held is not None and segment.buf[held.start : held.end] == segment.buf[row.start : row.end]
        if found and found[-1][0] == is_copy:
            found[-1] = is_copy, replace(found[-1][1], end=row.end, last=row.last)
        else:
            found.append((is_copy, row))
    for is_copy, rows in found:
        yield Bad(rows.start, rows.end, f"{'a second copy of' if is_copy else RIVAL} {_offsets(rows)}")


def _rows_of(segment: Segment, run: SalvagedRun) -> Iterator[SalvagedRun]:
    """Yield the records or chunks of a run, one by one."""
    if run.rows == 1 or run.patches:
        yield run
        return
    cursor = ScanPosition(run.start, run.first - 1)
    while cursor.position < run.end:
        rows = segment.scan(cursor, verify=False)
        columns = (rows.columns.position, rows.columns.first_offsets, rows.columns.last_offsets)
        ends = np.append(rows.columns.position[1:], rows.end.position)
        for start, first, last, end in zip(*(column.tolist() for column in (*columns, ends)), strict=True):
            if end > run.end:
                return
            yield SalvagedRun(start, end, first, last, last - first + 1, 1)
        cursor = rows.cursor
        if rows.stop != Stop.LIMIT:
            return


def _does_not_fit(run: SalvagedRun) -> str:
    return f"{_offsets(run)} {'does' if run.span == 1 else 'do'} not fit here"


def _offsets(run: SalvagedRun) -> str:
    return f"offset {run.first}" if run.span == 1 else f"offsets {run.first} to {run.last}"


def _longest_chain(runs: list[SalvagedRun]) -> list[SalvagedRun]:
    """Return the ascending chain of runs, in file order, that holds the most records."""
    if all(before.last < after.first for before, after in pairwise(runs)):
        return list(runs)
    firsts = np.array([run.first for run in runs])
    lasts = np.array([run.last for run in runs])
    best = np.array([max(run.records, 1) for run in runs], np.int64)
    previous = np.full(len(runs), -1)
    for row in range(1, len(runs)):
        fits = np.flatnonzero(lasts[:row] < firsts[row])
        if len(fits):
            before = int(fits[int(best[fits].argmax())])
            best[row] += best[before]
            previous[row] = before
    chain, row = [], int(best.argmax())
    while row >= 0:
        chain.append(runs[row])
        row = int(previous[row])
    return chain[::-1]


def _holes(segment: Segment, found: Salvaged, low: int) -> Iterator[Hole]:
    """Yield the offsets that are lost between records. A gap between two adjacent records is not a loss."""
    expected, end = low, segment.start.position
    for run in found.runs:
        if run.first > expected and end != run.start:
            yield Hole(expected, run.first - 1)
        expected, end = run.last + 1, run.end
