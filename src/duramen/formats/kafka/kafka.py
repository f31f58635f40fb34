"""Kafka: one partition of a topic, as a broker stores it.

::

    {base:020}.log                 batches, nothing before or between them; base is the first offset
    {base:020}.index, .timeindex   derived: see `indexes`
    {base:020}.txnindex            derived: aborted transactions, see `transactions`
    {offset:020}.snapshot          derived: state of producers, see `state_files`
    leader-epoch-checkpoint        derived: epochs of leaders
    partition.metadata             the topic's id
    *.deleted *.cleaned *.swap     files that a broker is about to remove, or has not finished

The kernel's `batches.h` has the bytes of a batch and of the older messages, `batch` those of a record. The checksum of
a batch leaves its first 21 bytes uncovered (`UNCOVERED`): a changed offset shows as a gap or as a step back, a changed
length or format at the next batch, and a changed epoch only against ``leader-epoch-checkpoint``.

New batches have format 2, the epoch of the last leader, and the producer of their records, if they have one. A log
whose last messages have an older format is read only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen.errors import CorruptionError, DuramenError, UsageError
from duramen.formats.arrow import MAX_BATCH_BYTES
from duramen.formats.extensions import (
    SequenceRun,
    SupportsInternalTopics,
    SupportsManifest,
    SupportsSequences,
    SupportsStateFiles,
)
from duramen.formats.format import (
    READ_UNCOMMITTED,
    SEGMENT_OPTIONS,
    SETTLED,
    Capabilities,
    CommittedView,
    EncodedRecords,
    FileName,
    Format,
    SegmentSource,
    SupportsCleaner,
    SupportsIsolation,
    SupportsMoving,
    check_isolation,
)
from duramen.formats.index import Index, dump_index
from duramen.formats.kafka.batch import HEADER, is_control
from duramen.formats.kafka.cleaner import KafkaCleaner
from duramen.formats.kafka.codec import MAX_UNCOMPRESSED_BYTES, KafkaCompression, compression_of
from duramen.formats.kafka.dump import dump_batches, dump_snapshot, dump_text
from duramen.formats.kafka.encoder import (
    BATCH_MAX_BYTES,
    PRODUCER_ID,
    SEQUENCE,
    BatchPolicy,
    encode_fields,
    encode_records,
    move_batches,
)
from duramen.formats.kafka.indexes import (
    ENTRIES,
    INDEX_MAX_BYTES,
    INDEX_STRIDE_BYTES,
    MAX_RELATIVE_OFFSET,
    KafkaIndexes,
    check_entries,
    covered_bytes,
    open_index,
)
from duramen.formats.kafka.producers import (
    DerivedState,
    Producers,
    named_sequences,
    producer_id,
    producers_before,
    sequence_columns,
    stored_name,
    with_sequences,
)
from duramen.formats.kafka.segment import EXTRAS, KafkaSegment, KafkaView, batches_of
from duramen.formats.kafka.state_check import check_state
from duramen.formats.kafka.state_files import (
    EPOCHS_NAME,
    METADATA_NAME,
    LeaderEpoch,
    epochs_text,
    metadata_text,
    parse_epochs,
    parse_properties,
    parse_snapshot,
)
from duramen.formats.kafka.transactions import (
    TXN_ENTRY,
    AbortedTransaction,
    SealedTransactions,
    ranges_of,
    ranges_text,
    refuse_damage,
    transactions_of,
)
from duramen.formats.segment import Encoded, Problem, Role, Rows, ScanPosition, Segment, SegmentSummary, Severity
from duramen.formats.struct import Block, Buffer
from duramen.kernel import BatchColumns, RecordKind, RecordShape

UNCOVERED = ("base_offset", "length", "leader_epoch", "magic")
"""The fields of a batch that its checksum does not cover."""

_NAME = re.compile(r"([0-9]{20})\.(log|index|timeindex|txnindex|snapshot)")
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_UNFINISHED = re.compile(r"([0-9]{20})\.(?:log|index|timeindex|txnindex|snapshot)\.(deleted|cleaned|swap)")
_ROLES = {
    "log": Role.SEGMENT,
    "index": Role.INDEX,
    "timeindex": Role.TIME_INDEX,
    "txnindex": Role.TXN_INDEX,
    "snapshot": Role.PRODUCER_SNAPSHOT,
}
_SUFFIXES = {role: suffix for suffix, role in _ROLES.items()}
_BAD = {
    Role.PRODUCER_SNAPSHOT: "bad-producer-snapshot",
    Role.LEADER_EPOCHS: "bad-leader-epochs",
    Role.METADATA: "bad-metadata",
}
_PRODUCER = [PRODUCER_ID, SEQUENCE]
_FIXED = {EPOCHS_NAME: Role.LEADER_EPOCHS, METADATA_NAME: Role.METADATA}


class Kafka(
    Format,
    SupportsIsolation,
    SupportsStateFiles,
    SupportsManifest,
    SupportsCleaner,
    SupportsInternalTopics,
    SupportsMoving,
    SupportsSequences,
):
    """The format of a Kafka partition; see the top of this module."""

    name = "kafka"
    capabilities = Capabilities(
        timestamps="ms",
        key=True,
        headers=True,
        explicit_offsets=True,
        compaction=True,
        segments=True,
        index=True,
        cuts_indexes=True,
        checksum="CRC-32C over a batch from its attributes on; not over its offset, length, epoch and format",
        record_checksum=True,
        max_value_bytes=2**30,
        max_segment_bytes=2**31 - 1,
        max_relative_offset=MAX_RELATIVE_OFFSET,
        null_values=True,
        chunks=True,
        compacted_elsewhere=True,
        extras=EXTRAS,
    )
    default_segment_bytes = 1 << 30
    default_segment_age_ms = 7 * 24 * 3600 * 1000
    option_names: ClassVar[Mapping[str, type]] = {
        **SEGMENT_OPTIONS,
        "compression": str,
        "leader_epoch": int,
        "batch_max_bytes": int,
        "index_stride_bytes": int,
        "index_max_bytes": int,
        "topic_id": str,
        "isolation": str,
        "log_start_offset": int,
        "max_uncompressed_bytes": int,
        "aborted": str,
    }
    program = "Kafka"
    state_roles: ClassVar[tuple[Role, ...]] = (
        Role.TXN_INDEX,
        Role.PRODUCER_SNAPSHOT,
        Role.LEADER_EPOCHS,
        Role.SWAP,
    )
    replaced_roles: ClassVar[tuple[Role, ...]] = (Role.TXN_INDEX,)
    cleaned_roles: ClassVar[tuple[Role, ...]] = (Role.TXN_INDEX, Role.PRODUCER_SNAPSHOT, Role.SWAP)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._isolation = check_isolation(self.options.get("isolation", READ_UNCOMMITTED))
        start = self._bounded("log_start_offset", 0, 2**63 - 1)
        most = self._bounded("max_uncompressed_bytes", MAX_UNCOMPRESSED_BYTES, MAX_BATCH_BYTES)
        try:
            aborted = ranges_of(self.options.get("aborted", ""))
        except ValueError:
            raise UsageError(f"aborted must be PRODUCER:FIRST-LAST,… (got {self.options['aborted']!r:.80})") from None
        self._view = KafkaView(start, aborted, most)
        self.first_visible = start
        self._topic = ""
        self._policy = BatchPolicy(
            self._bounded("leader_epoch", 0, 2**31 - 1), compression_of(self.options.get("compression", "none")),
            min(self._bounded("batch_max_bytes", BATCH_MAX_BYTES, 2**30), self._segment_room),
        )  # fmt: skip
        self._stride_bytes = self._bounded("index_stride_bytes", INDEX_STRIDE_BYTES, 2**31 - 1)
        indexed_bytes = covered_bytes(self._bounded("index_max_bytes", INDEX_MAX_BYTES, 2**31 - 1), self._stride_bytes)
        if indexed_bytes < type(self).capabilities.max_segment_bytes:
            self.capabilities = replace(type(self).capabilities, max_segment_bytes=indexed_bytes)
        topic_id = self.options.get("topic_id", "")
        if topic_id and not _TOPIC_ID.fullmatch(topic_id):
            raise UsageError(f"topic_id must be the 22 characters of a Kafka UUID (got {topic_id!r:.80})")

    @property
    def _segment_room(self) -> int:
        """The records of a batch that has a segment for itself."""
        return int(self.options.get("segment_max_bytes", self.default_segment_bytes)) - HEADER.size

    def _bounded(self, name: str, default: int, most: int) -> int:
        value = int(self.options.get(name, default))
        if not 0 <= value <= most:
            raise UsageError(f"{name} must be 0 to {most} (got {value})")
        return value

    # --- names

    def classify(self, path: str) -> FileName | None:
        match = _NAME.fullmatch(path)
        if match is not None:
            return FileName(_ROLES[match[2]], int(match[1])) if int(match[1]) < 2**63 else None
        if path in _FIXED:
            return FileName(_FIXED[path])
        match = _UNFINISHED.fullmatch(path)
        if match is None or int(match[1]) >= 2**63:
            return None
        return FileName(Role.SWAP, int(match[1])) if match[2] == "swap" else FileName(Role.LEFTOVER)

    def path_of(self, role: Role, base: int | None = None) -> str:
        for name, fixed in _FIXED.items():
            if role == fixed:
                return name
        return f"{base:020}.{_SUFFIXES[role]}"

    # --- reading

    def open_segment(self, buf: Buffer, base: int | None) -> KafkaSegment:
        view = memoryview(buf)
        if base is None:
            base = max(int.from_bytes(view[:8], "big", signed=True), 0) if len(view) >= 8 else 0
        return KafkaSegment(view, base, self._view)

    def open_index(self, role: Role, buf: Buffer, base: int) -> Index | None:
        return open_index(role, buf, base) if role in ENTRIES else None

    def check_file(self, role: Role, buf: Buffer, name: FileName) -> Iterator[Problem]:
        if role in ENTRIES:
            yield from check_entries(role, buf)
            return
        view = memoryview(buf)
        if role == Role.TXN_INDEX:
            if len(view) % TXN_ENTRY.size:
                at = len(view) - len(view) % TXN_ENTRY.size
                yield Problem("bad-txn-index", Severity.WARNING, "the last entry is cut short", at)
            return
        parse = {Role.PRODUCER_SNAPSHOT: parse_snapshot, Role.LEADER_EPOCHS: parse_epochs}.get(role)
        try:
            if parse is not None:
                parse(view)
            elif role == Role.METADATA:
                parse_properties(view, ":")
        except CorruptionError as error:
            yield Problem(_BAD[role], Severity.WARNING, error.message, error.position, action=_REBUILT)

    def describe(self, files: Mapping[str, Buffer]) -> dict[str, Any]:
        """The topic's id, the epochs of its leaders, and the transactions that are open or aborted."""
        found: dict[str, Any] = {}
        try:
            if METADATA_NAME in files:
                found["topic_id"] = parse_properties(files[METADATA_NAME], ":").get("topic_id")
            if EPOCHS_NAME in files:
                epochs = parse_epochs(files[EPOCHS_NAME])
                found["leader_epochs"] = {str(one.epoch): one.start_offset for one in epochs}
                found["manifest"] = {"leader_epoch": max((one.epoch for one in epochs), default=0)}
        except DuramenError as error:
            found["damaged"] = error.message
        found["isolation"] = self._isolation
        if self._view.start_offset:
            found["log_start_offset"] = self._view.start_offset
        return found

    # --- isolation and derived state

    @property
    def hides_records(self) -> bool:
        return self._isolation != READ_UNCOMMITTED

    def committed_view(self, segments: Sequence[SegmentSource], known: CommittedView | None = None) -> CommittedView:
        found, sealed = transactions_of(segments, SealedTransactions() if known is None else known.sealed)
        hidden = list(found.aborted)
        if self._isolation == SETTLED:
            hidden += [AbortedTransaction(producer, first, 2**63 - 1, first) for producer, first in found.open.items()]
        fmt = self.hiding(ranges_text(hidden))
        stable = found.last_stable_offset
        if stable is None or self._isolation == SETTLED:
            return CommittedView(fmt, None, sealed)
        first = max((n for n, segment in enumerate(segments) if segment.base <= stable), default=0)
        checked: dict[tuple[Hashable, int], int] = {}
        for number, source in enumerate(segments[first:], first):
            position = sealed.checked.get((source.stamp, stable))
            is_last = number == len(segments) - 1
            if position is None or is_last:
                position = _check_from(source.open(), stable, is_last=is_last)
            checked[source.stamp, stable] = position
        until = (segments[first].base, checked[segments[first].stamp, stable])
        return CommittedView(fmt, until, sealed._replace(checked=checked))

    def hiding(self, aborted: str) -> Kafka:
        """The format that hides these ranges of producers."""
        return Kafka(**{**self.options, "aborted": aborted})

    def check_state(self, segments: Sequence[Segment], files: Mapping[str, Buffer]) -> Iterator[tuple[str, Problem]]:
        ours = [segment for segment in segments if isinstance(segment, KafkaSegment)]
        named = [(path, name, files[path]) for path in sorted(files) if (name := self.classify(path)) is not None]
        return check_state(ours, named)

    def build_state(self, segments: Sequence[Segment], files: Mapping[str, Buffer]) -> dict[str, bytes]:
        """What is missing or wrong. Compaction and retention remove batches that the other files still describe."""
        ours = [segment for segment in segments if isinstance(segment, KafkaSegment)]
        wrong = {path for path, _ in self.check_state(ours, files)} | {
            path for path in files if self._is_bad(path, files)
        }
        first = ours[0].base_offset if ours else 0
        path = self.path_of(Role.PRODUCER_SNAPSHOT, first)
        retained = producers_before(first, files[path]) if path in files and path not in wrong else ()
        state = DerivedState(retained)
        for number, segment in enumerate(ours):
            state.add_segment(segment, is_first=not number)
        known = [] if EPOCHS_NAME in wrong else _known_epochs(files.get(EPOCHS_NAME))
        built = {**state.files, EPOCHS_NAME: epochs_text(state.epochs(known))}
        return {path: content for path, content in built.items() if path in wrong or path not in files}

    def _is_bad(self, path: str, files: Mapping[str, Buffer]) -> bool:
        name = self.classify(path)
        return name is not None and any(True for _ in self.check_file(name.role, files[path], name))

    def known_ends(self, paths: Iterable[str], read: Callable[[str], Buffer | None]) -> Iterator[tuple[str, int]]:
        for path in paths:
            name = self.classify(path)
            if name is not None and name.role == Role.PRODUCER_SNAPSHOT:
                yield path, name.base or 0
            elif name is not None and name.role == Role.LEADER_EPOCHS:
                yield path, max((one.start_offset for one in _known_epochs(read(path))), default=0)

    def state_after(
        self, previous: Segment, base: int, read: Callable[[str], Buffer | None], *, is_first: bool
    ) -> dict[str, bytes]:
        """The snapshot of the producers; none where the one before is missing: a broker then reads the batches."""
        assert isinstance(previous, KafkaSegment)
        held = read(self.path_of(Role.PRODUCER_SNAPSHOT, previous.base_offset))
        if held is None and not is_first:
            return {}
        try:
            producers = Producers(() if held is None else producers_before(previous.base_offset, held))
            producers.add_segment(previous)
        except CorruptionError:
            return {}
        return {self.path_of(Role.PRODUCER_SNAPSHOT, base): producers.snapshot()}

    # --- compaction

    def cleaner(self, segments: Iterable[Segment], now_us: int, delay_ms: int) -> KafkaCleaner:
        return KafkaCleaner(self.hiding, segments, now_us, delay_ms)

    # --- dump

    def in_directory(self, name: str) -> Self:
        found = type(self)(**self.options)
        found._topic = name.rpartition("-")[0]
        return found

    def dump(
        self, role: Role, buf: Buffer, base: int | None = None, begin: int = 0, index: Index | None = None
    ) -> Iterator[Block]:
        if role == Role.SEGMENT:
            segment = KafkaSegment(memoryview(buf), base or 0, KafkaView(0, (), self._view[2]))
            yield from dump_batches(segment, begin, index, self._topic)
        elif role in ENTRIES:
            yield from dump_index(buf, 0, ENTRIES[role], begin)
        elif role == Role.TXN_INDEX:
            yield from dump_index(buf, 0, TXN_ENTRY, begin)
        elif role == Role.PRODUCER_SNAPSHOT:
            yield from dump_snapshot(memoryview(buf))
        else:
            yield from dump_text(memoryview(buf))

    # --- writing

    @property
    def stored_options(self) -> dict[str, Any]:
        """Without the epoch: a broker may have started another one since."""
        return {name: value for name, value in super().stored_options.items() if name != "leader_epoch"}

    def no_columns(self) -> BatchColumns:
        return BatchColumns.empty(0)

    def continuing(self, segment: Segment) -> Kafka:
        """In an epoch that is not lower than that of the segment's last batch. Raises `UsageError` where the last
        messages of the segment have an older format."""
        assert isinstance(segment, KafkaSegment)
        last = segment.last_batch()
        if last is None:
            return self
        if last.magic[0] < 2:
            raise UsageError(
                f"the log ends with messages of format v{int(last.magic[0])}, which are only read",
                hint="`duramen convert` makes a log of the present format from one",
            )  # fmt: skip
        epoch = max(self._policy.leader_epoch, int(last.leader_epoch[0]))
        return self if epoch == self._policy.leader_epoch else Kafka(**{**self.options, "leader_epoch": epoch})

    def is_only_read(self, segment: Segment) -> bool:
        assert isinstance(segment, KafkaSegment)
        last = segment.last_batch()
        return last is not None and bool(last.magic[0] < 2)

    def encode(self, batch: pa.RecordBatch, cursor: ScanPosition, default_us: int = 0) -> Encoded:
        self.refuse_unsupported(batch.drop_columns(_PRODUCER) if PRODUCER_ID in batch.schema.names else batch)
        return encode_records(batch, cursor, self._policy, default_us)

    @property
    def record_shape(self) -> RecordShape | None:
        if self._policy.compression != KafkaCompression.NONE:
            return None
        return RecordShape(RecordKind.BATCH, epoch=self._policy.leader_epoch, time_unit_us=1000)

    def user_headers(self, key: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
        return encode_fields(key, headers)

    def can_move(self, records: EncodedRecords) -> bool:
        return isinstance(records.fmt, Kafka)

    def open_encoded(self, data: memoryview) -> KafkaSegment:
        return KafkaSegment(data, 0, KafkaView(0, (), self._view[2]))

    def move(self, records: EncodedRecords, cursor: ScanPosition, default_us: int) -> Encoded:
        return move_batches(records, cursor, self._policy.leader_epoch, default_us)

    def index_builder(self, base: int, created_ms: int) -> KafkaIndexes:
        return KafkaIndexes(base, self._stride_bytes)

    # --- producers

    def stored_name(self, name: bytes) -> bytes:
        return stored_name(producer_id(name))

    def sequences(
        self, segments: Iterable[Segment], read: Callable[[str], Buffer | None]
    ) -> dict[bytes, tuple[int, int]]:
        return named_sequences(segments, lambda base: read(self.path_of(Role.PRODUCER_SNAPSHOT, base)))

    def sequence_columns(self, runs: Sequence[SequenceRun], rows: int) -> dict[str, pa.Array]:
        return sequence_columns(runs, rows)

    def with_sequences(self, encoded: Encoded, runs: Sequence[SequenceRun]) -> Encoded:
        return with_sequences(encoded, runs)

    def tracking_rows(self, segment: Segment, rows: Rows) -> npt.NDArray[np.bool_]:
        batches = batches_of(rows)
        found: npt.NDArray[np.bool_] = (batches.producer_id >= 0) & (batches.magic == 2) & ~is_control(batches)
        return found

    # --- files about the whole log

    def log_files(
        self, segments: Sequence[SegmentSummary], created_ms: int, existing: Mapping[str, Buffer] | None = None
    ) -> dict[str, bytes]:
        """The epochs of leaders; and the topic's id, if it is known."""
        held = existing or {}
        known = _known_epochs(held.get(EPOCHS_NAME))
        epoch, next_offset = self._policy.leader_epoch, segments[-1].last_offset + 1 if segments else 0
        kept = [one for one in known if one.start_offset <= next_offset]
        if not kept or kept[-1].epoch < epoch:
            # No epoch is lower than 0: then the whole log has it.
            is_first = bool(segments) and not kept and not epoch
            kept.append(LeaderEpoch(epoch, segments[0].base_offset if is_first else next_offset))
        files = {EPOCHS_NAME: epochs_text(kept)}
        topic_id = str(self.options.get("topic_id", ""))
        if METADATA_NAME in held or topic_id:
            files[METADATA_NAME] = bytes(held.get(METADATA_NAME) or metadata_text(topic_id))
        return files

    def log_files_fit(
        self, files: Mapping[str, Buffer], sealed_count: int, active: SegmentSummary, created_ms: int
    ) -> bool:
        wanted = self.log_files([active], created_ms, files)
        return all(name in files and bytes(files[name]) == content for name, content in wanted.items())

    def check_log(
        self, files: Mapping[str, Buffer], segments: Sequence[SegmentSummary]
    ) -> Iterator[tuple[str, Problem]]:
        return iter(())  # `check_state` compares the epochs with the batches


def _known_epochs(buf: Buffer | None) -> list[LeaderEpoch]:
    try:
        return [] if buf is None else parse_epochs(buf)
    except CorruptionError:
        return []  # it is rebuilt


_REBUILT = "nothing is lost: Kafka rebuilds it from the records"


def _check_from(segment: Segment, offset: int, *, is_last: bool) -> int:
    """Where the first batch with that offset or a later one starts. Raises `CorruptionError` where damage follows: a
    transaction that seems open may be damage, which nobody who stops before it would notice."""
    assert isinstance(segment, KafkaSegment)
    position = segment.start.position
    for rows in segment.steps(verify=False):
        batches = batches_of(rows)
        found = (batches.base_offset >= offset).nonzero()[0]
        position = int(batches.position[found[0]]) if len(found) else rows.end.position
        if len(found):
            break
    cursor = segment.start if position == segment.start.position else ScanPosition(position, -1)
    refuse_damage(segment, segment.last_step(cursor), is_last=is_last)
    return position
