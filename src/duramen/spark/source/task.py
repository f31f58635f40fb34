"""What a task does: opens the files of its split, reads the bytes of its pieces, yields Arrow batches.

Nothing is opened before the task runs, and no directory is listed. Batches are sized by bytes, because the other end
converts them to rows and is fastest with two megabytes or so at a time. Damage raises, is skipped or becomes a row, as
the option ``onDamage`` says. A file that was removed since the read was planned raises or is reported on
standard error, as ``failOnDataLoss`` says (`loss`).

No format notices every changed bit by itself, so the task that reads a segment to its end compares the whole file with
what the sidecar knows, whichever part of it the task itself reads: the digest of a sealed segment, the watermark of the
active one. Not compared: a segment that is not read to its end; one that is far away and read in parts, which would
have to be fetched twice; the active one while a writer has it open; and, as with checksums, whatever is read with
``verify=false``.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duramen.disk import Disk, Look
from duramen.errors import CorruptionError, DuramenError, IncompleteHeaderError, LimitError, StorageError
from duramen.formats import Format, Rows, ScanPosition, Segment, Severity, Stop, make
from duramen.log import (
    SEAL_HINT,
    EndKind,
    SegmentEnd,
    against_mark,
    classify_rows,
    find_contradiction,
    judge_seal,
    settled_digests,
)
from duramen.record import MAX_OFFSET
from duramen.sidecar import Sealed
from duramen.spark.gc_freeze import settle
from duramen.spark.source.identity import made_at
from duramen.spark.source.loss import Loss, gap_after, removed_segment
from duramen.spark.source.splits import LogSpec, Piece, Split
from duramen.values import MALFORMED_KEY, MALFORMED_VALUE, Decoding

STEP_BYTES = 8 << 20
"""Of a file, scanned and decoded at once."""
BATCH_BYTES = 2 << 20
"""Handed over at once, about: more does not stay in the caches of the other end while it makes rows of it."""
BATCH_RECORDS = 1 << 16
"""Rows of a batch at most: the columns of a scan are allocated for as many."""
LEAST_RECORDS = 1 << 10
"""A step has room for a few rows more than its predecessor found: the rest would be fresh memory, each time."""
PAYLOAD_COLUMNS = frozenset({"key", "value", "headers"})
NO_PAYLOAD_BYTES = 1 << 30
"""How far one step goes where payloads are jumped over: its batch holds few bytes of each record."""

PLACE_COLUMNS = ("topic", "partition", "segment", "position")
ADDED_COLUMNS = (*PLACE_COLUMNS, MALFORMED_VALUE, MALFORMED_KEY)
"""Columns that no record has."""
TIME_KIND = "timestampType"
"""What a record's time is, in Kafka's numbers: 0 given by the producer, 1 taken at the append, -1 none."""
APPEND_TIME_FORMATS = frozenset({"osiris"})
"""Formats whose times are those at which a broker wrote the chunk."""
OWN_TIME_KINDS = {"kafka": "timestamp_type"}
"""Formats that store with each record what its time is, and the column that says it."""
DAMAGE = "_damage"


@dataclass(frozen=True)
class Wanted:
    """What the batches must look like, and what to do on the way."""

    schema: pa.Schema
    verify: bool = True
    on_damage: str = "fail"
    from_us: int | None = None
    to_us: int | None = None
    skip_missing: bool = False
    """Whether missing records, and files that were removed since the read was planned, are reported and skipped."""

    summary: bool = False
    """Whether a row describes the records of a log in one task."""
    decoding: Decoding | None = None
    """What becomes of values and keys. A decoder knows its type."""

    @property
    def payload(self) -> bool:
        """Whether payloads are read, for a column or for their checksums, and not jumped over."""
        return self.verify or not PAYLOAD_COLUMNS.isdisjoint(self.schema.names)

    def with_fields(self, fields: Mapping[str, Sequence[str]]) -> Wanted:
        """The same with some fields of decoded columns; which values are malformed does not change."""
        if self.decoding is None or not fields:
            return self
        decoding = self.decoding.narrowed(fields)
        schema = self.schema
        for name in fields:
            number = schema.get_field_index(name)
            whole, kept = schema.field(number), decoding.decoders[name].type
            if pa.types.is_struct(kept):
                kind = pa.struct([whole.type.field(field.name) for field in kept])
                schema = schema.set(number, whole.with_type(kind))
        return replace(self, schema=schema, decoding=decoding)


def read_split(split: Split, wanted: Wanted, disk: Disk) -> Iterator[pa.RecordBatch]:
    settle()
    return _summaries(split, wanted, disk) if wanted.summary else _records(split, wanted, disk)


def _summaries(split: Split, wanted: Wanted, disk: Disk) -> Iterator[pa.RecordBatch]:
    """One row for each log of a split. The records are counted as they would be read, so that gaps, damage and the
    range count as there."""
    offsets = replace(wanted, schema=pa.schema([pa.field("offset", pa.int64())]), summary=False)
    for number, spec in enumerate(split.logs):
        pieces = tuple(replace(piece, log=0) for piece in split.pieces if piece.log == number)
        first, last, records = None, None, 0
        for batch in _records(Split((spec,), pieces), offsets, disk):
            first = batch.column(0)[0].as_py() if first is None else first
            last, records = batch.column(0)[-1].as_py(), records + batch.num_rows
        row = {
            "topic": spec.place.topic, "partition": spec.place.partition,
            "first_offset": first, "last_offset": last, "records": records,
        }  # fmt: skip
        arrays = [pa.array([row[field.name]], field.type) for field in wanted.schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted.schema)


def _records(split: Split, wanted: Wanted, disk: Disk) -> Iterator[pa.RecordBatch]:
    codecs = [make(spec.format, **spec.options) for spec in split.logs]
    for piece in split.pieces:
        reading = _Reading(piece, split.logs[piece.log], codecs[piece.log], wanted)
        yield from reading.batches(disk)


class _Reading:
    def __init__(self, piece: Piece, spec: LogSpec, codec: Format, wanted: Wanted) -> None:
        self._piece = piece
        self._spec = spec
        self._codec = codec
        self._wanted = wanted
        self._decoded = [name for name in wanted.schema.names if name not in (*ADDED_COLUMNS, TIME_KIND, DAMAGE)]
        self._step_bytes = NO_PAYLOAD_BYTES if PAYLOAD_COLUMNS.isdisjoint(self._decoded) else STEP_BYTES
        self._by_time = wanted.from_us is not None or wanted.to_us is not None
        needs_time = self._by_time or TIME_KIND in wanted.schema.names
        for name, is_needed in (("offset", True), ("timestamp", needs_time)):
            if is_needed and name not in self._decoded:
                self._decoded.append(name)
        if TIME_KIND in wanted.schema.names and spec.format in OWN_TIME_KINDS:
            self._decoded.append(OWN_TIME_KINDS[spec.format])
        self._end_offset = MAX_OFFSET + 1 if piece.next_base is None else piece.next_base
        self._reaches_over = False
        self._is_plain = self._decoded == wanted.schema.names
        decoder = None if wanted.decoding is None else wanted.decoding.decoders.get("value")
        self._takes_places = decoder is not None and decoder.takes_places and "value" in self._decoded

    def batches(self, disk: Disk) -> Iterator[pa.RecordBatch]:
        piece = self._piece
        self._disk = disk
        try:
            look = Look(disk, piece.path)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            self._tell(removed_segment(disk, self._spec.root, self._codec, piece.path, piece.base or 0, *self._held()))
            return
        self._check_identity()
        look.fetch(0 if piece.start is None else piece.start.position, piece.end_position)
        self._data, self._fetch = look.data, look.fetch
        if len(self._data) < piece.visible_bytes:
            raise CorruptionError(
                f"the file has {len(self._data)} bytes and had {piece.visible_bytes} when the read was planned",
                path=piece.path,
                hint="something cut it; read again",
            )
        try:
            segment = self._open(piece.end_position)
        except CorruptionError as error:
            yield from self._damaged(error, 0, piece.end_position)
            return
        if segment is None:
            return
        try:
            yield from self._scan(segment, segment.start if piece.start is None else piece.start)
            against = self._contradiction(look)
            if against is not None:
                yield from self._changed(against)
        except DuramenError as error:
            error.path = error.path or piece.path
            raise

    # --- what the sidecar knows

    def _contradiction(self, look: Look) -> CorruptionError | None:
        """What speaks against the whole file being what was written; None where that is not compared."""
        piece, wanted = self._piece, self._wanted
        if not wanted.verify or wanted.on_damage == "skip" or (look.is_remote and piece.start is not None):
            return None
        if piece.sealed is not None:
            # The whole file, though a batch or transaction that is still hidden may have filled it up before the seal.
            look.fetch(0, len(look.data))
            return self._unlike_sealed(piece.sealed, look.data)
        if piece.mark is None or self._codec.capabilities.covers_all:
            return None
        whole = self._whole()
        found = None if whole is None else find_contradiction(whole, piece.mark)
        return None if found is None else found.error(piece.path)

    def _unlike_sealed(self, sealed: Sealed, data: memoryview) -> CorruptionError | None:
        found = judge_seal(sealed, data)
        if found is None or found.severity != Severity.DAMAGE:
            return None
        # Compaction may have replaced the file since the read was planned, or be about to say so.
        now = settled_digests(self._disk, self._spec.root, self._codec).get(sealed.base)
        if now is None or (now != sealed and judge_seal(now, data) is None):
            return None
        return CorruptionError(found.message, path=self._piece.path, offset=sealed.base, hint=SEAL_HINT)

    def _changed(self, error: CorruptionError) -> Iterator[pa.RecordBatch]:
        """A file that is not what was written: a record says where, or else nothing more is known."""
        whole = self._whole()
        assert whole is not None
        verdict = self._verdict(whole, whole.last_step())
        if verdict.ending in (EndKind.DAMAGE, EndKind.UNKNOWN_VERSION):
            if self._wanted.on_damage == "fail":
                raise verdict.error(self._piece.path)
            return  # the task that reads that record reports it
        yield from self._damaged(error, 0, self._piece.visible_bytes)

    def _check_identity(self) -> None:
        """Raise if another log has replaced this one since the read was planned. Called after the file was opened, so
        the file belongs to the log that was checked."""
        now = made_at(self._disk, self._spec.root)
        if None not in (now, self._spec.made) and now != self._spec.made:
            raise StorageError(
                "another log has taken the place of this one since the read was planned",
                path=self._spec.root, hint="read it again",
            )  # fmt: skip

    def _held(self) -> tuple[int, int]:
        """The offsets that the piece can hold; the end is exclusive."""
        piece = self._piece
        first = max(piece.from_offset, piece.base or 0 if piece.start is None else piece.start.previous_offset + 1)
        return first, max(first + 1, min(piece.to_offset, MAX_OFFSET if piece.next_base is None else piece.next_base))

    def _tell(self, loss: Loss | None) -> None:
        if loss is not None:
            loss.tell(fails=not self._wanted.skip_missing)

    def _check_gap(self, following: int) -> None:
        """Report a gap between ``following``, the offset after the last record, and the next segment."""
        piece = self._piece
        if piece.next_base is None or piece.end_position < piece.visible_bytes:
            return
        first, end = max(following, piece.from_offset), min(piece.next_base, piece.to_offset)
        self._tell(gap_after(self._disk, self._spec.root, self._codec, piece.path, first, end))

    def _open(self, end_position: int) -> Segment | None:
        """The segment up to a byte; None for the last one whose writer was stopped inside its header."""
        try:
            return self._codec.open_segment(self._data[:end_position], self._piece.base)
        except IncompleteHeaderError:
            if self._piece.is_last:
                return None
            raise

    def _whole(self) -> Segment | None:
        """The segment up to its visible end: the bytes after the piece matter for damage."""
        self._fetch(0, self._piece.visible_bytes)
        return self._open(self._piece.visible_bytes)

    def _scan(self, segment: Segment, cursor: ScanPosition) -> Iterator[pa.RecordBatch]:
        most = BATCH_RECORDS
        take_values = "value" in self._decoded and not (self._takes_places and segment.has_value_places)
        while True:
            rows = segment.scan(
                cursor, max_records=most, max_bytes=self._step_bytes, verify=self._wanted.verify,
                take_values=take_values,
            )  # fmt: skip
            yield from self._rows(segment, rows, cursor)
            yield from self._reaching_over(rows)
            if rows.count and rows.end.last_offset >= self._piece.to_offset - 1:
                return
            cursor = rows.cursor
            most = min(max(rows.count + rows.count // 4, LEAST_RECORDS), BATCH_RECORDS)
            if rows.stop != Stop.LIMIT:
                error = self._judged(segment, rows)
                if error is None:
                    self._check_gap(cursor.previous_offset + 1)
                    return
                goes_on = self._next_valid(cursor)
                yield from self._damaged(error, cursor.position, goes_on)
                if goes_on >= self._piece.end_position:
                    return
                cursor = ScanPosition(goes_on, cursor.previous_offset)

    # --- rows

    def _rows(self, segment: Segment, rows: Rows, start: ScanPosition) -> Iterator[pa.RecordBatch]:
        if not rows.count or rows.end.last_offset < self._piece.from_offset:
            return
        try:
            if self._by_time and not self._in_time(segment.decode(rows, ("offset", "timestamp"))).num_rows:
                return  # most steps of a log, where a range is short: their values need not be copied
            batch, data = self._batch(segment, rows)
        except (CorruptionError, LimitError):
            if self._wanted.on_damage == "fail":
                raise
            yield from self._one_by_one(segment, rows, start)
            return
        yield from self._cut(batch, rows, data)

    def _batch(self, segment: Segment, rows: Rows) -> tuple[pa.RecordBatch, Any]:
        """The columns to read; where the decoder takes places, those of the values instead of a copy, and the bytes
        in which they lie."""
        places = segment.value_places(rows) if self._takes_places else None
        if places is None:
            return segment.decode(rows, self._decoded), None
        batch = segment.decode(rows, [name for name in self._decoded if name != "value"])
        return batch.append_column("value", places), segment.buf

    def _cut(self, batch: pa.RecordBatch, rows: Rows, data: Any = None) -> Iterator[pa.RecordBatch]:
        piece = self._piece
        end = min(piece.to_offset, self._end_offset)
        if int(rows.columns.first_offsets[0]) < piece.from_offset or rows.end.last_offset >= end:
            offsets = batch.column("offset").to_numpy()
            low = int(np.searchsorted(offsets, piece.from_offset))
            batch = batch.slice(low, int(np.searchsorted(offsets, end)) - low)
        if self._by_time:
            batch = self._in_time(batch)
        if not batch.num_rows:
            return
        yield from _bounded(self._shaped(batch, rows, data))

    def _in_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return within_times(batch, self._wanted.from_us, self._wanted.to_us)

    def _shaped(self, batch: pa.RecordBatch, rows: Rows, data: Any) -> pa.RecordBatch:
        """The batch with exactly the columns and types that Spark was promised."""
        if self._is_plain and self._wanted.decoding is None and batch.schema.types == self._wanted.schema.types:
            return pa.RecordBatch.from_arrays(batch.columns, schema=self._wanted.schema)
        count, place = batch.num_rows, self._spec.place
        decoded = {} if self._wanted.decoding is None else self._wanted.decoding.columns(batch, data)
        same = {"topic": place.topic, "partition": place.partition, "segment": posixpath.basename(self._piece.path)}
        arrays = []
        for field in self._wanted.schema:
            if field.name in same:
                array = pa.repeat(pa.scalar(same[field.name], field.type), count)
            elif field.name == "position":
                array = _positions(rows, batch.column("offset").to_numpy())
            elif field.name == TIME_KIND:
                array = self._time_kinds(batch, field.type)
            elif field.name == DAMAGE:
                array = pa.nulls(count, field.type)
            else:
                array = decoded[field.name] if field.name in decoded else batch.column(field.name)
                if array.type != field.type:
                    array = array.cast(field.type)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._wanted.schema)

    def _time_kinds(self, batch: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
        none, given, appended = (pa.scalar(number, kind) for number in (-1, 0, 1))
        own = OWN_TIME_KINDS.get(self._spec.format)
        if own is not None:
            return pc.fill_null(pc.if_else(pc.equal(batch.column(own), "LogAppendTime"), appended, given), none)
        known = appended if self._spec.format in APPEND_TIME_FORMATS else given
        return pc.if_else(batch.column("timestamp").is_valid(), known, none)

    # --- damage

    def _reaching_over(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        """Records whose offsets lie in the next segment: two files overlap, or one has the name of another. They are
        not delivered, and reported once."""
        if not rows.count or rows.end.last_offset < self._end_offset or self._reaches_over:
            return
        self._reaches_over = True
        wrong = int(np.argmax(rows.columns.last_offsets >= self._end_offset))
        offset, position = int(rows.columns.first_offsets[wrong]), int(rows.columns.position[wrong])
        message = f"offset {offset} lies in the next segment, which begins at {self._end_offset}"
        error = CorruptionError(message, position=position, offset=offset, hint=SEAL_HINT)
        yield from self._damaged(error, position, self._piece.end_position)

    def _judged(self, segment: Segment, rows: Rows) -> DuramenError | None:
        """Why the scan cannot go on; None where the piece ends as it should."""
        piece = self._piece
        if rows.stop == Stop.END:
            return None
        whole = self._whole()
        assert whole is not None
        if piece.end_position < piece.visible_bytes:
            following = whole.scan(rows.cursor, max_records=1)
            if len(following.columns) and following.cursor.position > piece.end_position:
                return CorruptionError(
                    f"the index says that a record begins at byte {piece.end_position}, and there is none",
                    path=piece.path,
                    position=rows.cursor.position,
                    offset=rows.cursor.previous_offset + 1,
                    hint="`duramen reindex` rebuilds it",
                )
        verdict = self._verdict(whole, rows)
        if verdict.ending in (EndKind.DAMAGE, EndKind.UNKNOWN_VERSION):
            return verdict.error(piece.path)
        return None

    def _verdict(self, whole: Segment, rows: Rows) -> SegmentEnd:
        return against_mark(
            classify_rows(whole, rows, is_last=self._piece.is_last), whole.base_offset, self._piece.mark
        )

    def _next_valid(self, cursor: ScanPosition) -> int:
        """The position of the next valid record, or the end of the piece."""
        if self._wanted.on_damage == "fail":
            return self._piece.end_position
        whole = self._whole()
        found = -1 if whole is None else whole.resync(cursor)
        return found if found >= 0 else self._piece.end_position

    def _damaged(self, error: DuramenError, position: int, end_position: int) -> Iterator[pa.RecordBatch]:
        """Damage between two bytes: raised, passed over, or shown as a row."""
        error.path = error.path or self._piece.path
        if self._wanted.on_damage == "fail":
            raise error
        if self._wanted.on_damage == "skip":
            return
        end_position = min(end_position, self._piece.end_position)
        first = error.offset if error.offset is not None else self._piece.base
        damage = {
            "path": self._piece.path, "position": position, "end_position": end_position, "first_offset": first,
            "last_offset": self._last_lost(end_position, first), "reason": error.message,
        }  # fmt: skip
        place = self._spec.place
        row: dict[str, Any] = {
            "offset": first, "topic": place.topic, "partition": place.partition,
            "segment": posixpath.basename(self._piece.path), "position": position, DAMAGE: damage,
        }  # fmt: skip
        arrays = [pa.array([row.get(field.name)], field.type) for field in self._wanted.schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._wanted.schema)

    def _last_lost(self, end_position: int, first: int | None) -> int | None:
        """The offset before the first record after a damaged range; None if no record follows in this file."""
        try:
            whole = self._whole()
        except CorruptionError:
            return None
        if whole is None or first is None:
            return None
        rows = whole.scan(ScanPosition(end_position, first - 1), max_records=1, verify=False)
        return int(rows.columns.first_offsets[0]) - 1 if len(rows.columns) else None

    def _one_by_one(self, segment: Segment, rows: Rows, cursor: ScanPosition) -> Iterator[pa.RecordBatch]:
        """Records whose frame is right and whose content is not: the good ones among them, and the others."""
        end_position = rows.cursor.position
        while cursor.position < end_position:
            one = segment.scan(cursor, max_records=1, verify=self._wanted.verify)
            if not len(one.columns):
                return
            try:
                sound = segment.decode(one, self._decoded) if one.count else None
            except (CorruptionError, LimitError) as error:
                error.offset = int(one.columns.first_offsets[0])
                yield from self._damaged(error, cursor.position, one.cursor.position)
            else:
                yield from () if sound is None else self._cut(sound, one)
            cursor = one.cursor


def within_times(batch: pa.RecordBatch, from_us: int | None, to_us: int | None) -> pa.RecordBatch:
    """The rows of ``batch`` from a time on and before another one."""
    us = batch.column("timestamp").view(pa.int64())
    if from_us is not None:
        keep = pc.fill_null(pc.greater_equal(us, from_us), False)
        batch, us = batch.filter(keep), us.filter(keep)
    if to_us is not None:
        batch = batch.filter(pc.fill_null(pc.less(us, to_us), False))
    return batch


def _positions(rows: Rows, offsets: Any) -> pa.Array:
    """Where each record lies; where records lie in chunks, the chunk."""
    row = np.searchsorted(rows.columns.first_offsets, offsets, side="right") - 1
    return pa.array(rows.columns.position[row])


def _bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """In parts of a sensible size. (What a compressed chunk holds may also be much more than its bytes.)"""
    parts = min(max(round(batch.nbytes / BATCH_BYTES), 1), batch.num_rows)
    step = -(-batch.num_rows // parts)
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)
