"""Converting a log from any format to any other.

Goes over the source twice: first to see what it holds that the target has no place for (`survey`), which stops the
conversion unless each such field was allowed to be lost; then batch by batch into a `LogBuilder`, with memory that does
not depend on the log's size. Offsets are kept, and so are the segments' boundaries, unless ``segment_max_bytes`` is
given. The result is checked as a whole before it gets its name: there is never half a log at the target's path.

To its own format and with its own options a log is copied byte by byte. Refuses damage in the source unless it may be
skipped, and values that the target cannot hold: those are never dropped.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from duramen.disk import Disk
from duramen.disk.base import Kind
from duramen.errors import UnsupportedFieldError
from duramen.formats import Format, make
from duramen.formats.base import Cursor, Encoded, Rows, Segment
from duramen.kernel.layout import Int64s, ScanEnd, Stop
from duramen.log import origin
from duramen.log.build import LogBuilder, SegmentBuilder, refuse_taken
from duramen.log.copy import Until, check, copy_losses, copy_parts, copy_state, refuse_inside
from duramen.log.origin import Boundary, ChunkList, KnownChunks, Origin
from duramen.log.source import Skipped, Source
from duramen.log.survey import Loss, Survey, check_allowed
from duramen.model import TIMESTAMP

Progress = Callable[[int], None]
WITHOUT_TRACE = frozenset({"segment_max_bytes", "segment_max_age_ms", "index_stride_bytes", "index_interval_records"})
"""Options that a segment's own bytes do not depend on."""


OF_THE_BYTES = frozenset({"lost_slots"})
"""Options that say something about bytes that are there, and nothing about those that are written anew."""


class LossError(UnsupportedFieldError):
    """The target has no place for something that the log holds. ``losses`` lists all of it."""

    losses: list[Loss]


@dataclass
class Converted:
    """What a conversion did, or would do."""

    path: str
    format: str
    records: int
    size_bytes: int
    """Of the segments: of the source's in a plan, of the target's afterwards."""
    segments: int
    first_offset: int | None
    next_offset: int
    losses: list[Loss]
    skipped: list[Skipped]
    torn_bytes: int
    copied_as_is: bool


class Conversion:
    """One conversion: planned when it is made, carried out by `run`."""

    def __init__(
        self,
        src: str,
        dst: str,
        to: str,
        *,
        allow_loss: Sequence[str] = (),
        on_damage: str = "raise",
        format: str | None = None,
        source_options: dict[str, Any] | None = None,
        disk: Disk | None = None,
        **options: Any,
    ) -> None:
        self._allowed = tuple(allow_loss)
        check_allowed(self._allowed)
        refuse_inside(src, dst)
        self.path = dst
        self.source = source = Source(
            src, format=format, disk=disk, on_damage=on_damage, options=source_options,
            hint="`duramen repair` mends the log; `--on-damage skip` leaves the damage out",
        )  # fmt: skip
        refuse_taken(source.disk, dst)
        self._origins = origin.read(source.disk, src) if source.is_directory else {}
        inherited: dict[str, Any] = {}
        if source.fmt.name == to:
            inherited = dict(source.written_as.options)
        elif to in self._origins:
            inherited = dict(self._origins[to].options)
        self.target = make(to, **{**inherited, **options})
        self._resized = "segment_max_bytes" in options
        source.check_presence()
        self.survey = self._surveyed()
        self.as_is = self._is_as_is()
        if not self.as_is:
            rewritten = {name: value for name, value in self.target.options.items() if name not in OF_THE_BYTES}
            self.target = make(to, **rewritten)
            self._fit_values()
        self.losses = self.survey.losses(as_is=self.as_is, with_tracking=self._keeps_tracking)

    # What a conversion on several machines does in another way.

    def _surveyed(self) -> Survey:
        return Survey(self.source, self.target).run()

    def _times(self) -> _Times:
        return _Times(self.target)

    def _check(self, builder: LogBuilder, records: int, progress: Progress | None) -> None:
        check(builder, records, progress)

    def _is_as_is(self) -> bool:
        """Whether the segments' bytes can be taken over."""
        held, wanted = self.source.written_as, self.target
        if held.name != wanted.name or self._resized or self.source.skipped:
            return False
        names = (held.options.keys() | wanted.options.keys()) - WITHOUT_TRACE
        return all(held.options.get(name) == wanted.options.get(name) for name in names)

    @property
    def _keeps_tracking(self) -> bool:
        """Whether chunks with tracking are written anew one by one. Where segments are cut elsewhere it cannot be kept:
        each would have to begin with a snapshot, which takes an offset."""
        return self.source.fmt.name == self.target.name and self.target.capabilities.chunks and not self._resized

    def _fit_values(self) -> None:
        if "record_size" in self.target.option_names and "record_size" not in self.target.options:
            self.target = make(self.target.name, **self.target.options, record_size=self.survey.record_size)
        self.survey.target = self.target
        self.survey.check_values()

    @property
    def refused(self) -> list[Loss]:
        """The losses that were not allowed."""
        return [loss for loss in self.losses if loss.field not in self._allowed]

    def check_losses(self) -> None:
        """Raise for what would be lost and was not allowed to be."""
        if self.refused:
            names = [loss.field for loss in self.refused]
            error = LossError(
                f"{self.target.name} has no place for {', '.join(names)}", path=self.source.path,
                hint="allow it: " + " ".join(f"--allow-loss {name}" for name in names),
            )  # fmt: skip
            error.losses = self.losses
            raise error

    @property
    def renumbers(self) -> bool:
        return any(loss.field == "offset" for loss in self.losses)

    def plan(self) -> Converted:
        """What `run` would do."""
        return Converted(
            self.path, self.target.name, self.survey.records, self.source.size_bytes, len(self._boundaries()) or 1,
            self.survey.first_offset, self.survey.next_offset, self.losses, self.source.skipped,
            self.source.torn_bytes, self.as_is,
        )  # fmt: skip

    # --- doing it

    def run(self, progress: Progress | None = None, check_progress: Progress | None = None) -> Converted:
        """Convert; everything is at the path when this returns, and nothing if it raises."""
        self.check_losses()
        source = self.source
        with LogBuilder(self.path, self.target, disk=source.disk, created_ms=source.created_ms) as builder:
            if self.as_is:
                copy_parts(builder, source, Until(), progress or _nobody)
            else:
                self._fill(builder, progress or _nobody)
            if source.fmt.name == self.target.name:
                copy_state(builder, source)
            elif not self.renumbers:
                for path, content in source.state.items():
                    builder.put_file(path, content)
            if not self.renumbers:
                copy_losses(builder, source)
            self._remember(builder)
            builder.finish()
            written = sum(built.records for built in builder.segments)
            self._check(builder, written, check_progress)
            builder.publish()
        segments = builder.segments
        return Converted(
            builder.path, self.target.name, written, sum(built.size_bytes for built in segments), len(segments),
            segments[0].base, segments[-1].next_offset, self.losses, source.skipped, source.torn_bytes, self.as_is,
        )  # fmt: skip

    def _fill(self, builder: LogBuilder, progress: Progress) -> None:
        default_bytes = None if self._boundaries() else self.target.default_segment_bytes
        most = self.target.options.get("segment_max_bytes", default_bytes) if self._sizes_decide else None
        filler = _Filler(builder, self._boundaries(), most)
        try:
            if self._keeps_tracking:
                self._fill_with_tracking(filler, progress)
            else:
                with contextlib.closing(self._batches(builder, progress)) as batches:
                    for batch in batches:
                        filler.write(batch)
            filler.finish()
        finally:
            filler.close()

    def _fill_with_tracking(self, filler: _Filler, progress: Progress) -> None:
        columns = self._columns()
        for part in self.source.parts:
            self.source.check_digest(part)
            for segment, rows in self.source.steps(part):
                for is_state, run in _runs(segment, rows):
                    if is_state:
                        filler.put(int(run.columns.first_offsets[0]), partial(self.target.recode, segment, run))
                        continue
                    for batch in self.source.decode(part, segment, run, columns):
                        filler.write(batch)
                progress(rows.end.position - int(rows.columns.position[0]))

    @property
    def _sizes_decide(self) -> bool:
        """Whether segments are cut by size, and not where the source's are."""
        return self._resized or not self._boundaries()

    def _boundaries(self) -> list[Boundary]:
        """Where segments begin: where those of the source do, or those of the log it was once made from."""
        if self._resized or not self.target.capabilities.segments:
            return []
        own = self._own_boundaries() if self.source.fmt.capabilities.segments else []
        known = self._origins.get(self.target.name)
        if known is None or self.source.fmt.name == self.target.name:
            return own
        # An empty last segment lies where what was appended later begins: it is known already, and when it was made.
        ends_at = max((boundary.base for boundary in known.segments), default=-1)
        return [*known.segments, *(mine for mine in own if mine.base >= known.next_offset and mine.base > ends_at)]

    def _own_boundaries(self) -> list[Boundary]:
        found = []
        for part, first in zip(self.source.parts, self.survey.firsts, strict=True):
            segment = self.source.open(part)
            if segment is None or (first is None and not part.is_last):
                continue
            base = segment.base_offset
            # What lies before the first record is no record, unless it comes along.
            if not (self.source.fmt.capabilities.compaction or self._keeps_tracking):
                base = self.survey.next_offset if first is None else first
            found.append(Boundary(base, first, segment.created_ms))
        return found

    def _remember(self, builder: LogBuilder) -> None:
        """Keep what the new format has no place for: of the log that this one is made from, and of those before."""
        if self.source.fmt.name == self.target.name:
            kept = self._origins
        else:
            mine = Origin(self.source.written_as.options, self.survey.next_offset, tuple(self._own_boundaries()))
            kept = {name: found for name, found in self._origins.items() if name != self.target.name}
            kept[self.source.fmt.name] = mine
        if kept:
            builder.put_file(origin.PATH, origin.encode(kept))
        chunks = posixpath.join(self.source.path, origin.CHUNKS_PATH)
        is_known = self._origins and self.source.disk.kind(chunks) == Kind.FILE
        if is_known and not (self.source.fmt.capabilities.chunks or self.target.capabilities.chunks):
            builder.put_file(origin.CHUNKS_PATH, self.source.disk.map(chunks).data)

    # --- records

    def _batches(self, builder: LogBuilder, progress: Progress) -> Generator[pa.RecordBatch]:
        """The records with the columns that the target has a place for, and times as it can hold them."""
        columns = self._columns()
        is_other = self.source.fmt.name != self.target.name
        times = self._times() if is_other and "timestamp" in columns else None
        chunks = self._known_chunks()
        listed = None
        if is_other and self.source.fmt.capabilities.chunks and not self.renumbers:
            listed = ChunkList(builder.disk, builder.root)
            columns.append(origin.CHUNK_ID)
        try:
            for batch in self._decoded(columns, progress):
                if listed is not None:
                    listed.add(batch)
                    batch = batch.drop_columns([origin.CHUNK_ID])
                batch = batch if times is None else times.fit(batch)
                yield batch if chunks is None else chunks.mark(batch)
            if listed is not None:
                listed.finish()
        finally:
            if listed is not None:
                listed.close()

    def _columns(self) -> list[str]:
        has, can = self.source.fmt.capabilities.columns, self.target.capabilities.columns
        extras = [field.name for field in self.source.fmt.capabilities.extras]
        columns = [name for name in ("offset", "timestamp", "key", "value", "headers", *extras) if name in has & can]
        if self.renumbers:
            columns.remove("offset")
        return columns

    def _known_chunks(self) -> KnownChunks | None:
        known = self._origins.get(self.target.name)
        if known is None or not self.target.capabilities.chunks or self.source.fmt.name == self.target.name:
            return None
        return KnownChunks.read(self.source.disk, self.source.path, known.next_offset)

    def _decoded(self, columns: Sequence[str], progress: Progress) -> Iterator[pa.RecordBatch]:
        for part in self.source.parts:
            self.source.check_digest(part)
            for segment, rows in self.source.steps(part):
                for batch in self.source.decode(part, segment, rows, columns):
                    if batch.num_rows:
                        yield batch
                progress(rows.end.position - int(rows.columns.position[0]))


def _runs(segment: Segment, rows: Rows) -> Iterator[tuple[bool, Rows]]:
    """The rows in order: those with tracking one by one, the others as many at a time as lie together."""
    columns, state = rows.columns, segment.state_rows(rows)
    bounds = [0, *(np.flatnonzero(state[1:] | state[:-1]) + 1).tolist(), len(columns)]
    ends = np.append(columns.position[1:], rows.end.position)
    for first, last in pairwise(bounds):
        part = columns.slice(first, last)
        count = int((part.last_offsets - part.first_offsets + 1).sum())
        end = ScanEnd(last - first, int(ends[last - 1]), int(Stop.LIMIT), int(part.last_offsets[-1]))
        yield bool(state[first]), Rows(part, count, end)


class _Times:
    """Makes times such that the target can hold them: not before 1970, not going back, none that is missing."""

    def __init__(self, target: Format, last_us: int = 0) -> None:
        self._signed = target.capabilities.signed_timestamps
        self._ordered = target.capabilities.ordered_timestamps
        self._last_us = last_us

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        row = batch.schema.get_field_index("timestamp")
        column = batch.column(row).view(pa.int64())
        us: Int64s = column.fill_null(0).to_numpy(zero_copy_only=False)
        fitted = us if self._signed else np.maximum(us, 0)
        if self._ordered and len(us):
            fitted = np.maximum.accumulate(np.maximum(fitted, self._last_us))
            self._last_us = int(fitted[-1])
        if fitted is us and not column.null_count:
            return batch
        return batch.set_column(row, TIMESTAMP, pa.array(fitted).view(TIMESTAMP.type))


class _Filler:
    """Fills one segment after another, and begins a new one where a boundary or the size says so."""

    def __init__(self, builder: LogBuilder, boundaries: Sequence[Boundary], max_bytes: int | None) -> None:
        self._builder = builder
        self._limits = builder.fmt.capabilities
        self._ahead = list(boundaries)
        self._max_bytes = max_bytes
        self._segment: SegmentBuilder | None = None
        self._last_offset = -1

    def write(self, batch: pa.RecordBatch) -> None:
        if "offset" not in batch.schema.names:
            self._put(batch, 0)
            return
        offsets = batch.column("offset").to_numpy()
        done = 0
        while done < batch.num_rows:
            self._begin_if_due(batch.slice(done), int(offsets[done]))
            following = self._ahead[0].base if self._ahead else 2**63 - 1
            stop = max(int(np.searchsorted(offsets, following)), done + 1)
            self._put(batch.slice(done, stop - done), int(offsets[done]))
            self._last_offset = int(offsets[stop - 1])
            done = stop

    def put(self, first: int, encode: Callable[[Cursor], Encoded]) -> None:
        """Append something that is no batch of records; ``first`` is its offset."""
        self._begin_if_due(None, first)
        if self._segment is None:
            self._begin(first, 0)
            assert self._segment is not None
        encoded = encode(self._segment.cursor)
        self._segment.put(encoded)
        self._last_offset = encoded.rows.end.last_offset

    def _begin_if_due(self, rows: pa.RecordBatch | None, first: int) -> None:
        """Begin a segment where a boundary lies at or before ``first``: at the last of those that do."""
        due = None
        while self._ahead and self._ahead[0].base <= first:
            due = self._ahead.pop(0)
        if due is None:
            return
        if self._segment is not None and self._limits.lost_segments_show and first != self._last_offset + 1:
            return  # it would look as if a segment was lost between the two
        # A base before the first record is right only where that very record was the first before, too.
        base = due.base if self._limits.compaction and due.first_offset == first else first
        self._begin(base, due.created_ms or _ms(rows))

    def _put(self, rows: pa.RecordBatch, first: int) -> None:
        while rows.num_rows:
            if self._segment is None:
                self._begin(first if self._limits.explicit_offsets else 0, _ms(rows))
                assert self._segment is not None
            rows = self._segment.add(rows)
            if rows.num_rows:
                self._begin(rows.column("offset")[0].as_py(), _ms(rows))

    def _begin(self, base: int, created_ms: int) -> None:
        self._end()
        self._segment = self._builder.segment(base, created_ms=created_ms, max_bytes=self._max_bytes)

    def _end(self) -> None:
        if self._segment is not None:
            self._builder.add(self._segment.finish())
            self._segment = None

    def finish(self) -> None:
        """End the last segment. If the source's last one is empty, so is one here: the next offset is kept."""
        last = self._ahead[-1] if self._ahead else None
        if last is not None and last.base > self._last_offset and last.first_offset is None:
            base = last.base
            if self._limits.lost_segments_show and self._last_offset >= 0:
                base = self._last_offset + 1
            if self._segment is None or base > self._segment.base:
                self._begin(base, last.created_ms)
        self._end()

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()


def _ms(rows: pa.RecordBatch | None) -> int:
    """When a segment was made of which nothing says so: the time of its first record."""
    if rows is None or "timestamp" not in rows.schema.names or not rows.num_rows:
        return 0
    us = rows.column("timestamp").view(pa.int64())[0].as_py()
    return max((us or 0) // 1000, 0)


def convert(
    src: str,
    dst: str,
    to: str,
    *,
    allow_loss: Sequence[str] = (),
    on_damage: str = "raise",
    format: str | None = None,
    source_options: dict[str, Any] | None = None,
    disk: Disk | None = None,
    **options: Any,
) -> Converted:
    """Convert the log at ``src`` to the format ``to``, at the new path ``dst``. See `Conversion`."""
    return Conversion(
        src, dst, to, allow_loss=allow_loss, on_damage=on_damage, format=format, source_options=source_options,
        disk=disk, **options,
    ).run()  # fmt: skip


def _nobody(_bytes: int) -> None:
    pass
