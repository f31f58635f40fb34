"""The appends of a group as one batch of records, and from where those went what each append is told.

Decides on times: a row without one gets ours, and an append whose times go back where the format forbids it is refused
by itself. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from duramen.errors import LateTimestampError
from duramen.formats import Format
from duramen.log import intake
from duramen.log.commit import Request
from duramen.log.sequences import Claim
from duramen.model import from_us


class Appended(NamedTuple):
    """What an append was given: the first offset, and how many records follow one another from there."""

    base_offset: int
    count: int  # type: ignore[assignment]


class Work(NamedTuple):
    """What an append in the queue asks for."""

    batch: intake.Batch
    sync: bool
    producer: Claim | None = None


def one_batch(
    group: list[Request], fmt: Format, path: str, now_us: int, last_us: int, *, raises_late_times: bool
) -> tuple[list[Request], intake.Batch, int, int]:
    """The requests whose times are in order, their records as one batch, the time for rows that have none, and the last
    time of all. ``last_us`` is that of the log so far. A time that the caller gave may not go back, unless it is to be
    raised; one of ours never does."""
    ordered = fmt.capabilities.ordered_timestamps
    now_us = max(now_us, last_us if ordered else 0)
    batches = [request.work.batch for request in group]
    if not any(map(intake.has_times, batches)):
        return group, intake.merge(batches), now_us, now_us
    taken, stamped = [], []
    for request, batch in zip(group, batches, strict=True):
        batch, latest_us = intake.stamp(batch, now_us, last_us if ordered else 0)
        if ordered and raises_late_times:
            batch = intake.raise_late(batch, last_us)
        back = intake.goes_back(batch, last_us) if ordered else None
        if back is not None:
            request.error = _late(fmt, path, back)
            continue
        last_us = latest_us
        taken.append(request)
        stamped.append(batch)
    merged = intake.merge(stamped) if stamped else batches[0]
    return taken, merged, now_us, last_us


def check_times(batches: Iterable[pa.RecordBatch], fmt: Format, path: str, now_us: int) -> None:
    """Raise what appending these batches to a new log would raise because of their times."""
    last_us = 0
    if not fmt.capabilities.ordered_timestamps:
        return
    for batch in batches:
        times, latest_us = intake.stamp(batch.select(["timestamp"]), now_us, last_us)
        back = intake.goes_back(times, last_us)
        if back is not None:
            raise _late(fmt, path, back)
        last_us = latest_us


def _late(fmt: Format, path: str, back: tuple[int, int]) -> LateTimestampError:
    given, before = (from_us(us) or f"{us} µs" for us in back)
    return LateTimestampError(
        f"a timestamp goes back, from {before} to {given}, which {fmt.name} forbids", path=path,
        hint="append records in the order of their times, or without times",
    )  # fmt: skip


def answered(group: list[Request], pieces: list[tuple[int, int]]) -> list[Appended]:
    """What each request is told, by what `Tail.write` answered for the batch of them all."""
    answers, row = [], 0
    start, offset = pieces[0]
    following = iter(pieces[1:])
    after = next(following, None)
    for request in group:
        while after is not None and after[0] <= row:
            (start, offset), after = after, next(following, None)
        count = request.work.batch.num_rows
        answers.append(Appended(offset + row - start, count))
        row += count
    return answers
