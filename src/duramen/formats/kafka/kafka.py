"""Kafka: one partition of a topic, as a broker stores it. Read-only.

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
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from duramen.errors import CorruptionError, DuramenError, UsageError
from duramen.formats.arrow import MAX_BATCH_BYTES
from duramen.formats.extensions import SupportsInternalTopics, SupportsStateFiles
from duramen.formats.format import (
    READ_UNCOMMITTED,
    SETTLED,
    Capabilities,
    CommittedView,
    FileName,
    Format,
    SupportsIsolation,
    check_isolation,
)
from duramen.formats.index import Index, dump_index
from duramen.formats.kafka.codec import MAX_UNCOMPRESSED_BYTES
from duramen.formats.kafka.dump import dump_batches, dump_snapshot, dump_text
from duramen.formats.kafka.indexes import ENTRIES, check_entries, open_index
from duramen.formats.kafka.segment import EXTRAS, KafkaSegment, KafkaView, batches_of
from duramen.formats.kafka.state_check import check_state
from duramen.formats.kafka.state_files import (
    EPOCHS_NAME,
    METADATA_NAME,
    parse_epochs,
    parse_properties,
    parse_snapshot,
)
from duramen.formats.kafka.transactions import (
    TXN_ENTRY,
    AbortedTransaction,
    ranges_of,
    ranges_text,
    refuse_damage,
    transactions_of,
)
from duramen.formats.segment import Encoded, Problem, Role, ScanPosition, Segment, Severity
from duramen.formats.struct import Block, Buffer

UNCOVERED = ("base_offset", "length", "leader_epoch", "magic")
"""The fields of a batch that its checksum does not cover."""

_NAME = re.compile(r"([0-9]{20})\.(log|index|timeindex|txnindex|snapshot)")
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
_FIXED = {EPOCHS_NAME: Role.LEADER_EPOCHS, METADATA_NAME: Role.METADATA}


class Kafka(Format, SupportsIsolation, SupportsStateFiles, SupportsInternalTopics):
    """The format of a Kafka partition; see the top of this module."""

    name = "kafka"
    capabilities = Capabilities(
        timestamps="ms",
        key=True,
        headers=True,
        explicit_offsets=True,
        compaction=False,
        segments=True,
        index=True,
        checksum="CRC-32C over a batch from its attributes on; not over its offset, length, epoch and format",
        record_checksum=True,
        max_value_bytes=2**31 - 1 - 128,
        null_values=True,
        compacted_elsewhere=True,
        read_only=True,
        extras=EXTRAS,
    )
    option_names: ClassVar[Mapping[str, type]] = {
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
        self._topic = ""

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

    def committed_view(self, segments: Sequence[Segment]) -> CommittedView:
        ours = [segment for segment in segments if isinstance(segment, KafkaSegment)]
        found = transactions_of(ours)
        hidden = list(found.aborted)
        if self._isolation == SETTLED:
            hidden += [AbortedTransaction(producer, first, 2**63 - 1, first) for producer, first in found.open.items()]
        fmt = Kafka(**{**self.options, "aborted": ranges_text(hidden)})
        stable = found.last_stable_offset
        if stable is None or self._isolation == SETTLED:
            return CommittedView(fmt, None)
        first = max((n for n, segment in enumerate(ours) if segment.base_offset <= stable), default=0)
        position = _position_of(ours[first], stable)
        for number, segment in enumerate(ours[first:], first):
            # A transaction that seems open may be damage, which nobody who stops before it would notice.
            cursor = ScanPosition(position, -1) if number == first else segment.start
            refuse_damage(segment, segment.last_step(cursor), is_last=number == len(ours) - 1)
        return CommittedView(fmt, (ours[first].base_offset, position))

    def check_state(self, segments: Sequence[Segment], files: Mapping[str, Buffer]) -> Iterator[tuple[str, Problem]]:
        ours = [segment for segment in segments if isinstance(segment, KafkaSegment)]
        named = [(path, name, files[path]) for path in sorted(files) if (name := self.classify(path)) is not None]
        return check_state(ours, named)

    # --- dump

    def in_directory(self, name: str) -> Kafka:
        found = Kafka(**self.options)
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

    def encode(self, batch: pa.RecordBatch, cursor: ScanPosition, default_us: int = 0) -> Encoded:
        self.refuse_writing()
        raise AssertionError("a format that is read-only was asked to write")


_REBUILT = "nothing is lost: Kafka rebuilds it from the records"


def _position_of(segment: KafkaSegment, offset: int) -> int:
    """Where the first batch with that offset or a later one starts."""
    for rows in segment.steps(verify=False):
        batches = batches_of(rows)
        found = (batches.base_offset >= offset).nonzero()[0]
        if len(found):
            return int(batches.position[found[0]])
    return rows.end.position
