"""The bytes of one segment file: scanned, decoded, checked. Pure bytes; no file is opened here.

A scan walks a segment in steps. Each step starts at a `ScanPosition` and returns `Rows`: the columns of the records it
found, and where and why it stopped. `Segment.decode` turns rows into Arrow, and an encoder returns the same `Rows` for
the bytes it made (`Encoded`), so that an index is built alike from records read and records written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen.errors import UsageError
from duramen.kernel import Columns, FrameLayout, RecordKind, ScanEnd, Stop, UInt32s
from duramen.record import Record

SCAN_RECORDS = 16_384
SCAN_BYTES = 4 << 20
"""Size of one scan step: large enough to amortize the Python overhead, small enough for the processor's cache."""

SECTOR_BYTES = 512
"""What a disk writes completely or not at all."""


class Role(StrEnum):
    """What a file of a log directory is for."""

    SEGMENT = "segment"
    INDEX = "index"
    TIME_INDEX = "time index"
    MANIFEST = "manifest"
    CHECKPOINT = "checkpoint"
    TXN_INDEX = "transaction index"
    PRODUCER_SNAPSHOT = "producer snapshot"
    LEADER_EPOCHS = "leader epochs"
    METADATA = "metadata"
    SWAP = "unfinished swap"
    GROUP_SNAPSHOT = "group snapshot"
    GROUP_DELTA = "group delta"
    LOCK = "lock"
    LEFTOVER = "leftover"


class ScanPosition(NamedTuple):
    """Where a scan continues: a byte position, and the offset of the record before it."""

    position: int
    previous_offset: int


class Severity(StrEnum):
    """How bad a problem is."""

    NOTE = "note"
    WARNING = "warning"
    DAMAGE = "damage"


class Problem(NamedTuple):
    """A problem that a format found in its own bytes; the log adds the path and the advice."""

    code: str
    severity: Severity
    message: str
    position: int | None = None
    offset: int | None = None
    action: str = ""
    """What to do about it, where the log's own advice does not fit."""


class ScanShape(NamedTuple):
    """What a reader outside of Python must know to scan a segment with the kernel: frames of ``layout``, slots for
    records of ``record_bytes``, chunks or batches. ``time_unit_us`` is the unit of stored times, 0 without times."""

    kind: RecordKind
    layout: FrameLayout | None = None
    record_bytes: int = 0
    time_unit_us: int = 0
    has_signed_times: bool = False
    key_marker: int = -1
    null_marker: int = -1
    """How the blocks of user headers begin, big-endian: of a record with a value, and of one whose value is null. -1:
    they are no blocks."""
    codec: int = 0
    """How the first batch is compressed, in Kafka's numbers."""


class SegmentSummary(NamedTuple):
    """What a manifest records about a segment. ``last_offset`` is ``base - 1`` for an empty one."""

    base_offset: int
    last_offset: int
    segment_bytes: int
    index_bytes: int


@dataclass
class Rows:
    """The result of one scan step: ``count`` user records, in columns that only the format understands."""

    columns: Columns
    count: int
    end: ScanEnd
    values: pa.BinaryArray | None = None
    """The column ``value``, where the scan copied it on the way (``take_values``)."""

    @property
    def cursor(self) -> ScanPosition:
        """Where the next step starts."""
        return ScanPosition(self.end.position, self.end.last_offset)

    @property
    def stop(self) -> Stop:
        """Why the step ended."""
        return Stop(self.end.stop)

    def gaps(self, previous_offset: int | None) -> Iterator[tuple[int, int, int]]:
        """Missing offset ranges, as (position after the gap, first, last). ``previous_offset`` is the offset before
        the first row; None means that the rows may start anywhere."""
        firsts, lasts = self.columns.first_offsets, self.columns.last_offsets
        if not len(firsts):
            return
        expected = np.empty(len(firsts), np.int64)
        expected[1:] = lasts[:-1] + 1
        expected[0] = firsts[0] if previous_offset is None else previous_offset + 1
        for row in np.flatnonzero(firsts > expected).tolist():
            yield int(self.columns.position[row]), int(expected[row]), int(firsts[row]) - 1


class Encoded(NamedTuple):
    """Bytes to append to a segment, and the rows that a scan of them would return."""

    data: memoryview
    rows: Rows


class Segment(ABC):
    """The bytes of one segment file. Stateless: every call names the position it starts from."""

    buf: memoryview
    base_offset: int
    start: ScanPosition
    """Where the first record lies."""
    dialect: str
    """Which variant of the format the file is written in."""
    header_bytes: int
    """Smallest header of a record (or chunk, or slot)."""
    trailer_bytes: int = 0
    """Size of what follows the payload of every record."""
    version_at: int = 0
    """Position of the version's last byte within the header."""
    record_checksum: bool = True
    has_value_places: bool = False
    """Whether `value_places` finds them in some segments."""
    first_visible: int = 0
    """Readers see no record before this offset."""
    created_ms: int = 0
    """When the file was created, where the format stores it."""

    def scan_shape(self, cursor: ScanPosition) -> ScanShape | None:
        """How to scan from there; None where more than the kernel is needed to read the first record."""
        return None

    @abstractmethod
    def scan(
        self,
        cursor: ScanPosition,
        *,
        max_records: int = SCAN_RECORDS,
        max_bytes: int = SCAN_BYTES,
        verify: bool = True,
        room: Columns | None = None,
        digests: UInt32s | None = None,
        take_values: bool = False,
    ) -> Rows:
        """Return the next records.

        - ``verify`` checks every checksum on the way.
        - ``room`` is reused for the columns instead of new memory; the caller no longer needs the rows in it.
        - ``digests`` (a CRC-32C and a CRC-32) are extended over all bytes of these records.
        - ``take_values`` announces that ``value`` will be decoded, so that a format may copy the values while they are
          in the processor's cache.
        """

    def steps(
        self,
        cursor: ScanPosition | None = None,
        *,
        max_records: int = SCAN_RECORDS,
        max_bytes: int = SCAN_BYTES,
        verify: bool = True,
    ) -> Iterator[Rows]:
        """Scan from ``cursor`` (by default the start) until something other than a limit stops it."""
        rows = self.scan(cursor or self.start, max_records=max_records, max_bytes=max_bytes, verify=verify)
        yield rows
        while rows.stop == Stop.LIMIT:
            rows = self.scan(rows.cursor, max_records=max_records, max_bytes=max_bytes, verify=verify)
            yield rows

    def last_step(self, cursor: ScanPosition | None = None) -> Rows:
        """The last of `steps`: where the records end, and why."""
        return deque(self.steps(cursor), maxlen=1).pop()

    def room(self, records: int = SCAN_RECORDS) -> Columns | None:
        """Reusable columns for that many records; None where a scan would not use them."""
        return None

    @abstractmethod
    def decode(self, rows: Rows, columns: Sequence[str]) -> pa.RecordBatch:
        """The rows as Arrow, with the named columns of the neutral record (or the format's extras) in that order."""

    def value_places(self, rows: Rows) -> pa.StructArray | None:
        """Where in ``buf`` the values of the rows lie, as an array of `PLACE`, for a caller that does not need a copy
        of them. None where they do not all lie there, or do not fit into one batch."""
        return None

    def check(self, rows: Rows) -> Iterator[Problem]:
        """Problems in rows whose checksums are correct."""
        return iter(())

    @abstractmethod
    def read(self, cursor: ScanPosition, offset: int) -> Record | Stop:
        """The record with that offset, searched from ``cursor`` on. If it is missing, the reason: ``LIMIT`` when a
        later record came first, otherwise how the bytes ended."""

    @abstractmethod
    def cursor_at(self, offset: int, position: int) -> ScanPosition | None:
        """The scan position for an index entry; None where the entry is wrong because no such record starts there."""

    def ends_in_doubt(self, rows: Rows) -> bool:
        """Whether the last row could also be the torn start of another record, with zeros for the rest."""
        return False

    def ends_unproven(self, rows: Rows) -> bool:
        """Whether no checksum covers any byte of the last row, so that other bytes may have become it."""
        return False

    def swallowed(self, rows: Rows) -> Iterator[tuple[int, int]]:
        """Rows that include the next record because a length that no checksum covers is wrong: the row's number, and
        where the next record really starts."""
        return iter(())

    def at_offset(self, position: int, offset: int) -> tuple[int, bytes] | None:
        """The patch (position, bytes) that gives the record at ``position`` that offset; None where the format derives
        the offset from the position or covers it with a checksum."""
        return None

    @abstractmethod
    def resync(self, cursor: ScanPosition) -> int:
        """The position of the next valid record after damage, or ``NOT_FOUND`` or ``GAVE_UP``."""

    def resync_outside(self, cursor: ScanPosition, last: int) -> int:
        """As `resync`, but passes over records that lie inside of a damaged one, in formats where they can. ``last`` is
        the offset of the last record before the damage."""
        return self.resync(cursor)

    def select(self, rows: Rows, kept: npt.NDArray[np.bool_], cursor: ScanPosition) -> Encoded:
        """The kept records, byte for byte, for appending at ``cursor``. Only formats with ``compaction`` have it."""
        raise UsageError("records of this format cannot be removed one by one")
