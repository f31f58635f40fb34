"""Convert a log from any format to any other.

1. `LossSurvey` reads the source and counts what the target cannot store. Each such field stops the conversion, unless
   the caller allows its loss.
2. The records go batch by batch into a `LogBuilder`, with memory that does not depend on the size of the log. Offsets
   stay, and so do the boundaries of segments, unless ``segment_max_bytes`` is given.
3. The new log is verified as a whole before it gets its name: the destination is complete or missing.

A log that keeps its format and options is copied byte by byte. Damage in the source is refused unless it may be
skipped; a value that the target cannot store is always refused.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen.arguments import check_kind
from duramen.disk import Disk, Kind
from duramen.errors import UnsupportedFieldError, UsageError
from duramen.formats import FORMATS, Encoded, Format, Role, Rows, ScanPosition, SupportsGapFill, SupportsTracking, make
from duramen.kernel import Int64s, ScanEnd, Stop
from duramen.log.segments import LogBuilder, SegmentBuilder, refuse_taken
from duramen.log.transfer.conversion_origin import (
    CHUNK_ID,
    ORIGIN_CHUNKS_PATH,
    ORIGIN_PATH,
    Boundary,
    ChunkList,
    ConversionOrigin,
    KnownChunks,
    encode_origins,
    read_origins,
)
from duramen.log.transfer.copy import Until, check, copy_losses, copy_parts, copy_state, refuse_inside
from duramen.log.transfer.loss_survey import FieldLoss, LossSurvey, check_allowed
from duramen.log.transfer.source import SkippedRange, Source
from duramen.record import TIMESTAMP, VALUE

Progress = Callable[[int], None]
WITHOUT_TRACE = frozenset({
    "segment_max_bytes", "segment_max_age_ms", "index_stride_bytes", "index_interval_records", "max_open_segments",
    "manifest_version", "dialect",
})  # fmt: skip
"""Options that the bytes of a segment do not depend on. For ``dialect`` see `Conversion._is_as_is`."""


OF_THE_BYTES = frozenset({"lost_slots"})
"""Options that describe the bytes of the source; they do not apply to rewritten records."""


class LossError(UnsupportedFieldError):
    """The target format cannot store something that the log holds. ``losses`` lists all of it."""

    losses: list[FieldLoss]


@dataclass
class Converted:
    """What a conversion did, or would do."""

    path: str
    format: str
    dialect: str
    """The dialect that was written: ``"document"`` or ``"program"``."""
    records: int
    size_bytes: int
    """Size of the segments: the source's in a plan, the target's after `Conversion.run`."""
    segments: int
    first_offset: int | None
    next_offset: int
    losses: list[FieldLoss]
    skipped: list[SkippedRange]
    torn_bytes: int
    copied_as_is: bool


class Conversion:
    """One conversion: the constructor plans it, `run` executes it."""

    def __init__(
        self,
        src: str,
        dst: str,
        to: str,
        *,
        allow_loss: Sequence[str] = (),
        on_damage: str = "raise",
        format: str | None = None,
        source_options: Mapping[str, Any] | None = None,
        disk: Disk | None = None,
        nested: bool = False,
        **options: Any,
    ) -> None:
        if isinstance(allow_loss, str) or not isinstance(allow_loss, Iterable):
            raise UsageError(f"allow_loss must be a list of fields (got {allow_loss!r:.80})")
        check_kind("source_options", source_options or {}, Mapping)
        self._allowed = tuple(allow_loss)
        check_allowed(self._allowed)
        refuse_inside(src, dst)
        self.path = dst
        self.source = source = Source(
            src, format=format, disk=disk, on_damage=on_damage, options=source_options,
            hint="`duramen repair` repairs the log; `--on-damage skip` leaves the damage out",
        )  # fmt: skip
        refuse_taken(source.disk, dst, nested=nested)
        self._origins = read_origins(source.disk, src) if source.is_directory else {}
        check_kind("to", to, str)
        self.target = make(to, **{**self._inherited(to, options), **options})
        self.target.refuse_writing(dst)
        self._resized = "segment_max_bytes" in options
        source.check_presence()
        self.survey = self._surveyed()
        self.as_is = self._is_as_is()
        if not self.as_is:
            rewritten = {name: value for name, value in self.target.options.items() if name not in OF_THE_BYTES}
            self.target = make(to, **rewritten)
            self._fit_values()
        self.losses = self.survey.losses(as_is=self.as_is, with_tracking=self._keeps_tracking)

    def _inherited(self, to: str, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of the source, or of the log that it was once converted from; without those of its
        dialect if ``options`` choose one."""
        inherited: dict[str, Any] = {}
        if self.source.fmt.name == to:
            inherited = dict(self.source.written_as.options)
        elif to in self._origins:
            inherited = dict(self._origins[to].options)
        of_dialect = {"dialect", *FORMATS[to].dialect_options} if to in FORMATS else set()
        if of_dialect & options.keys():
            inherited = {name: value for name, value in inherited.items() if name not in of_dialect}
        return inherited

    # The next three methods differ in a conversion that runs on Spark.

    def _surveyed(self) -> LossSurvey:
        return LossSurvey(self.source, self.target).run()

    def _times(self) -> TimestampFitter:
        return TimestampFitter(self.target)

    def _check(self, builder: LogBuilder, records: int, progress: Progress | None) -> None:
        check(builder, records, progress)

    def _is_as_is(self) -> bool:
        """Whether the segments can be copied byte by byte."""
        held, wanted = self.source.written_as, self.target
        if held.name != wanted.name or self._resized or self.source.skipped or self.source.is_only_read:
            return False
        if held.dialect != wanted.dialect and not wanted.capabilities.manifest:
            return False
        names = (held.options.keys() | wanted.options.keys()) - WITHOUT_TRACE
        return all(held.options.get(name) == wanted.options.get(name) for name in names)

    @property
    def _keeps_tracking(self) -> bool:
        """Whether tracking chunks are rewritten one by one. They cannot be kept if segments get other boundaries: each
        would have to begin with a snapshot, which takes an offset."""
        return self.source.fmt.name == self.target.name and self.target.capabilities.tracking and not self._resized

    def _fit_values(self) -> None:
        if "record_size" in self.target.option_names and "record_size" not in self.target.options:
            self.target = make(self.target.name, **self.target.options, record_size=self.survey.record_size)
        self.survey.target = self.target
        self.survey.check_values()

    @property
    def refused(self) -> list[FieldLoss]:
        """The losses that the caller did not allow."""
        return [loss for loss in self.losses if loss.field not in self._allowed]

    def check_losses(self) -> None:
        """Raise `LossError` for losses that the caller did not allow."""
        if self.refused:
            names = [loss.field for loss in self.refused]
            error = LossError(
                f"{self.target.name} cannot store {', '.join(names)}", path=self.source.path,
                hint="allow it: " + " ".join(f"--allow-loss {name}" for name in names),
            )  # fmt: skip
            error.losses = self.losses
            raise error

    @property
    def renumbers(self) -> bool:
        return any(loss.field == "offset" for loss in self.losses)

    def plan(self) -> Converted:
        """Return what `run` would do."""
        return Converted(
            self.path, self.target.name, self.target.dialect, self.survey.records,
            self.source.size_bytes, len(self._boundaries()) or 1,
            self.survey.first_offset, self.survey.next_offset, self.losses, self.source.skipped,
            self.source.torn_bytes, self.as_is,
        )  # fmt: skip

    # --- doing it

    def run(self, progress: Progress | None = None, check_progress: Progress | None = None) -> Converted:
        """Convert. The destination is complete when this returns, and missing if it raises."""
        self.check_losses()
        source = self.source
        with LogBuilder(self.path, self.target, disk=source.disk, created_ms=source.created_ms) as builder:
            if self.as_is:
                copy_parts(builder, source, Until(), progress or _ignore)
            else:
                self._fill(builder, progress or _ignore)
            if source.fmt.name == self.target.name:
                copy_state(builder, source)
                if self.target.dialect == source.written_as.dialect:
                    builder.described_by = source.files(Role.MANIFEST)
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
            builder.path, self.target.name, builder.fmt.dialect, written,
            sum(built.size_bytes for built in segments), len(segments),
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
        columns, target = self._columns(), self.target
        assert isinstance(target, SupportsTracking)
        for part in self.source.parts:
            self.source.check_digest(part)
            for segment, rows in self.source.steps(part):
                for is_state, run in _runs(rows, target.tracking_rows(segment, rows)):
                    if is_state:
                        filler.put(int(run.columns.first_offsets[0]), partial(target.recode, segment, run))
                        continue
                    for batch in self.source.decode(part, segment, run, columns):
                        filler.write(batch)
                progress(rows.end.position - int(rows.columns.position[0]))

    @property
    def _sizes_decide(self) -> bool:
        """Whether segments are cut by size instead of at the boundaries of the source."""
        return self._resized or not self._boundaries()

    def _boundaries(self) -> list[Boundary]:
        """Return where segments begin: as in the source, or in the log that it was once converted from."""
        if self._resized or not self.target.capabilities.segments:
            return []
        own = self._own_boundaries() if self.source.fmt.capabilities.segments else []
        known = self._origins.get(self.target.name)
        if known is None or self.source.fmt.name == self.target.name:
            return own
        # An empty last segment begins where later appends do; the origin already lists it, with its creation time.
        ends_at = max((boundary.base for boundary in known.segments), default=-1)
        return [*known.segments, *(mine for mine in own if mine.base >= known.next_offset and mine.base > ends_at)]

    def _own_boundaries(self) -> list[Boundary]:
        found = []
        for part, first in zip(self.source.parts, self.survey.firsts, strict=True):
            segment = self.source.open(part)
            if segment is None or (first is None and not part.is_last):
                continue
            base = segment.base_offset
            # Offsets before the first record hold no record, unless they are converted as well.
            if not (self.source.fmt.capabilities.compaction or self._keeps_tracking):
                base = self.survey.next_offset if first is None else first
            found.append(Boundary(base, first, segment.created_ms))
        return found

    def _remember(self, builder: LogBuilder) -> None:
        """Store in the sidecar what the new format cannot: the origin of this log, and the origins of that one."""
        if self.source.fmt.name == self.target.name:
            kept = self._origins
        else:
            mine = ConversionOrigin(
                self.source.written_as.options, self.survey.next_offset, tuple(self._own_boundaries())
            )
            kept = {name: found for name, found in self._origins.items() if name != self.target.name}
            kept[self.source.fmt.name] = mine
        if kept:
            builder.put_file(ORIGIN_PATH, encode_origins(kept))
        chunks = posixpath.join(self.source.path, ORIGIN_CHUNKS_PATH)
        is_known = self._origins and self.source.disk.kind(chunks) == Kind.FILE
        if is_known and not (self.source.fmt.capabilities.chunks or self.target.capabilities.chunks):
            builder.put_file(ORIGIN_CHUNKS_PATH, self.source.disk.map(chunks).data)

    # --- records

    def _batches(self, builder: LogBuilder, progress: Progress) -> Generator[pa.RecordBatch]:
        """Yield the records with the columns and times that the target can store."""
        columns = self._columns()
        is_other = self.source.fmt.name != self.target.name
        times = self._times() if is_other and "timestamp" in columns else None
        chunks = self._known_chunks()
        listed = None
        if is_other and self.source.fmt.capabilities.chunks and not self.renumbers:
            listed = ChunkList(builder.disk, builder.root)
            columns += [] if CHUNK_ID in columns else [CHUNK_ID]
        try:
            for batch in self._decoded(columns, progress):
                if listed is not None:
                    listed.add(batch)
                    batch = batch.drop_columns([CHUNK_ID])
                batch = batch if times is None else times.fit(batch)
                batch = batch if self.target.capabilities.null_values else _without_nulls(batch)
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


def _without_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with empty values for null ones."""
    row = batch.schema.get_field_index("value")
    values = batch.column(row)
    return batch.set_column(row, VALUE, values.fill_null(b"")) if values.null_count else batch


def _runs(rows: Rows, state: npt.NDArray[np.bool_]) -> Iterator[tuple[bool, Rows]]:
    """Yield the rows in order: those with tracking one by one, the others in contiguous runs."""
    columns = rows.columns
    bounds = [0, *(np.flatnonzero(state[1:] | state[:-1]) + 1).tolist(), len(columns)]
    ends = np.append(columns.position[1:], rows.end.position)
    for first, last in pairwise(bounds):
        part = columns.slice(first, last)
        count = int((part.last_offsets - part.first_offsets + 1).sum())
        end = ScanEnd(last - first, int(ends[last - 1]), int(Stop.LIMIT), int(part.last_offsets[-1]))
        yield bool(state[first]), Rows(part, count, end)


class TimestampFitter:
    """Changes times that the target cannot store: missing ones, those before 1970, those that go backwards."""

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
    """Writes records into one segment after another; a new one begins at a boundary or at the maximum size."""

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

    def put(self, first: int, encode: Callable[[ScanPosition], Encoded]) -> None:
        """Append something other than a batch of records; ``first`` is its offset."""
        self._begin_if_due(None, first)
        if self._segment is None:
            self._begin(first, 0)
            assert self._segment is not None
        self._fill_gap(first, 0)
        encoded = encode(self._segment.cursor)
        self._segment.put(encoded)
        self._last_offset = encoded.rows.end.last_offset

    def _begin_if_due(self, rows: pa.RecordBatch | None, first: int) -> None:
        """Begin a segment if a boundary lies at or before ``first``, at the last such boundary."""
        due = None
        while self._ahead and self._ahead[0].base <= first:
            due = self._ahead.pop(0)
        if due is None:
            return
        self._fill_gap(first, _us(rows))
        # A base before the first record is right only if that record was the first in the source as well.
        base = due.base if self._limits.compaction and due.first_offset == first else first
        self._begin(base, due.created_ms or _ms(rows))

    def _fill_gap(self, until: int, timestamp_us: int) -> None:
        """Fill the missing offsets before ``until`` at the end of the segment, if the format's own program would take a
        gap for a loss."""
        if self._segment is None or until <= self._last_offset + 1:
            return
        fmt = self._builder.fmt
        if isinstance(fmt, SupportsGapFill):
            self._segment.put(fmt.fill_gap(self._segment.cursor, until, timestamp_us))
            self._last_offset = until - 1

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
        """End the last segment. If that of the source is empty, add an empty one, which keeps the next offset."""
        last = self._ahead[-1] if self._ahead else None
        if last is not None and last.base > self._last_offset and last.first_offset is None:
            self._fill_gap(last.base, last.created_ms * 1000)
            if self._segment is None or last.base > self._segment.base:
                self._begin(last.base, last.created_ms)
        self._end()

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()


def _ms(rows: pa.RecordBatch | None) -> int:
    """Return the creation time of a segment that stores none: the time of its first record."""
    return max(_us(rows) // 1000, 0)


def _us(rows: pa.RecordBatch | None) -> int:
    """Return the time of the first record, 0 if it has none."""
    if rows is None or "timestamp" not in rows.schema.names or not rows.num_rows:
        return 0
    return rows.column("timestamp").view(pa.int64())[0].as_py() or 0


def convert(
    src: str,
    dst: str,
    to: str,
    *,
    allow_loss: Sequence[str] = (),
    on_damage: str = "raise",
    format: str | None = None,
    source_options: Mapping[str, Any] | None = None,
    disk: Disk | None = None,
    **options: Any,
) -> Converted:
    """Convert the log at ``src`` to the format ``to``, at the new path ``dst``. See `Conversion`."""
    return Conversion(
        src, dst, to, allow_loss=allow_loss, on_damage=on_damage, format=format, source_options=source_options,
        disk=disk, **options,
    ).run()  # fmt: skip


def _ignore(_bytes: int) -> None:
    pass
