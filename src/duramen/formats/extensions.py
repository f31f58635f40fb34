"""What only some formats have. A format declares it by inheriting the class; callers ask with ``isinstance``.

- `SupportsSequences`: sequences of producers, stored in the log itself (Osiris, Kafka).
- `SupportsTracking`: positions of consumers, too (Osiris).
- `SupportsChunks`: records stored in chunks, the unit of replication and of reading (Osiris).
- `SupportsMoving`: chunks of records that are encoded before their offsets are known (Osiris, Kafka).
- `SupportsGapFill`: filler records for offsets that are missing (Osiris).
- `SupportsManifest`: a file that describes the whole log (Keratin).
- `SupportsCheckpoint`: a file that records how far the cleaner came (RustLog).
- `SupportsIsolation` (in `format`): transactions, which readers may hide (Kafka).
- `SupportsStateFiles`: derived files about the whole log (Kafka).
- `SupportsCleaner`: rules of its own for what compaction leaves (Kafka).
- `SupportsInternalTopics`: records with a meaning to the program itself, which the directory's name tells (Kafka).
- `SlotSegment`: a segment of equal slots (fixed-slot).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen.formats.segment import Encoded, Problem, Role, Rows, ScanPosition, Segment, SegmentSummary
from duramen.formats.struct import Buffer, Field


class SequenceRun(NamedTuple):
    """Rows ``start`` up to ``stop`` of a batch, from one producer; ``sequence`` is that of the first row."""

    start: int
    stop: int
    name: bytes
    sequence: int


class ConsumerPositions(NamedTuple):
    """What the log itself stores for consumers, by name: offsets, and times in milliseconds."""

    offsets: Mapping[bytes, int] = {}
    timestamps_ms: Mapping[bytes, int] = {}


class SupportsSequences(ABC):
    """The log itself stores the sequences of producers, besides the sidecar."""

    def stored_name(self, name: bytes) -> bytes:
        """What the log stores for the name of a producer."""
        return name

    @abstractmethod
    def sequences(
        self, segments: Iterable[Segment], read: Callable[[str], Buffer | None]
    ) -> dict[bytes, tuple[int, int]]:
        """By stored name, each producer's (offset near its last record, sequence). ``segments`` are those of the log,
        the last one first; ``read`` returns an existing file of the log."""

    def sequence_columns(self, runs: Sequence[SequenceRun], rows: int) -> dict[str, pa.Array]:
        """Columns that `Format.encode` needs besides those of a batch of ``rows`` records; empty if none."""
        return {}

    @abstractmethod
    def with_sequences(self, encoded: Encoded, runs: Sequence[SequenceRun]) -> Encoded:
        """The encoded records with their producers' sequences."""

    @abstractmethod
    def tracking_rows(self, segment: Segment, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows hold the state of producers or consumers besides (or instead of) records."""


class SupportsTracking(SupportsSequences):
    """The log itself stores the state of producers and consumers; its last segment holds all of it."""

    @abstractmethod
    def mended_sequences(self, segment: Segment, runs: Sequence[SequenceRun]) -> Iterator[tuple[int, bytes]]:
        """Patches (position, bytes) that restore announced sequences, ``runs`` of offsets, that a crash may have
        torn."""

    @abstractmethod
    def consumer_positions(self, segment: Segment) -> ConsumerPositions:
        """Each consumer's position, from the last segment of a log."""

    @abstractmethod
    def encode_positions(self, positions: ConsumerPositions, cursor: ScanPosition, now_us: int) -> Encoded:
        """Positions of consumers, for appending at ``cursor``."""

    @abstractmethod
    def recode(self, segment: Segment, rows: Rows, cursor: ScanPosition) -> Encoded:
        """One row with tracking state, as this format object writes it at ``cursor``."""


class StoredChunk(NamedTuple):
    """A chunk as it is stored: what a replica copies, and what a reader of one record reads."""

    path: str
    """The segment."""
    position: int
    """Where it starts in the segment."""
    first_offset: int
    last_offset: int
    """``first_offset - 1`` for a chunk without a record."""
    records: int
    """Number of records; 0 if it holds only state, whose offsets readers skip."""
    kind: str
    """What it holds: ``user`` records, or a kind of state that the format names."""
    timestamp: datetime | None
    fields: tuple[Field, ...]
    """The fields of its header, with their positions in the segment."""
    data: bytes
    """All of its bytes, header included."""

    @property
    def header(self) -> dict[str, int | bytes | str]:
        """The fields of its header by name."""
        return {field.name: field.value for field in self.fields}


class SupportsChunks(ABC):
    """Records are stored in chunks, each with a header and a checksum of its own."""

    @abstractmethod
    def chunks(self, segment: Segment, rows: Rows, path: str = "") -> Iterator[StoredChunk]:
        """The chunks that a scan found, one by one. ``path`` is the segment's."""


class SupportsGapFill(ABC):
    """The format's own program requires every offset to exist: fillers occupy those whose records are missing."""

    @abstractmethod
    def fill_gap(self, cursor: ScanPosition, until: int, timestamp_us: int) -> Encoded:
        """Fillers for the offsets after ``cursor`` up to, but not including, ``until``."""


class SupportsManifest(ABC):
    """One or more files describe the whole log."""

    @abstractmethod
    def log_files(
        self, segments: Sequence[SegmentSummary], created_ms: int, existing: Mapping[str, Buffer] | None = None
    ) -> dict[str, bytes]:
        """The files, by path, in the layout of the ``existing`` ones and with what only those know."""

    @abstractmethod
    def log_files_fit(
        self, files: Mapping[str, Buffer], sealed_count: int, active: SegmentSummary, created_ms: int
    ) -> bool:
        """Whether ``files`` still describe a log that did not change since they were written."""

    @abstractmethod
    def check_log(
        self, files: Mapping[str, Buffer], segments: Sequence[SegmentSummary]
    ) -> Iterator[tuple[str, Problem]]:
        """Where the files contradict the segments, by path."""


class SupportsCheckpoint(ABC):
    """A file records how far retention and compaction came."""

    @abstractmethod
    def cleaned_files(
        self, existing: bytes | None, cleaned_until: int, horizon_ms: int, now_us: int
    ) -> dict[str, bytes]:
        """The file, by path, after retention or compaction up to an offset. ``existing`` is its previous content."""


class SupportsInternalTopics(ABC):
    """Some logs hold the program's own state, and the name of their directory says which."""

    @abstractmethod
    def in_directory(self, name: str) -> Self:
        """The format of the log in the directory with that name, for `Format.dump`."""


class SupportsStateFiles(ABC):
    """Derived files describe the state that the records of the whole log add up to."""

    state_roles: ClassVar[tuple[Role, ...]]

    @abstractmethod
    def check_state(self, segments: Sequence[Segment], files: Mapping[str, Buffer]) -> Iterator[tuple[str, Problem]]:
        """Problems of these files, by path, compared with all segments of the log, in order."""

    @abstractmethod
    def build_state(self, segments: Sequence[Segment], files: Mapping[str, Buffer]) -> dict[str, bytes]:
        """These files, by path, rebuilt from all segments of the log, in order. What only ``files`` know is kept."""

    @abstractmethod
    def known_ends(self, paths: Iterable[str], read: Callable[[str], Buffer | None]) -> Iterator[tuple[str, int]]:
        """Offsets that the log had reached when the files with these paths were written, by path. ``read`` returns the
        content of one."""

    @abstractmethod
    def state_after(
        self, previous: Segment, base: int, read: Callable[[str], Buffer | None], *, is_first: bool
    ) -> dict[str, bytes]:
        """The files to write, by path, when the segment ``previous`` is complete and that of ``base`` starts. ``read``
        returns an existing file; ``is_first``: no segment precedes ``previous``."""


@runtime_checkable
class SlotSegment(Protocol):
    """A segment of equal slots, in which the position of a record is its offset: repair fills the slot of a lost record
    instead of removing it, so that no other record moves."""

    slot_bytes: int

    @property
    def lost_slots(self) -> Sequence[int]:
        """The slots that an earlier repair gave up."""

    @property
    def filler(self) -> bytes:
        """The bytes of a lost slot: every program can read them, and none takes them for the end."""

    def bad_slots(self) -> tuple[list[int], int]:
        """Return the slots without a valid record before the last valid one, and the number of slots up to it."""

    def mended_slots(self, slots: Iterable[int]) -> dict[int, bytes]:
        """Return the slots whose checksum alone is damaged, by a single bit, with the right first bytes of each."""

    def losing(self, slots: Iterable[int]) -> dict[str, str]:
        """Return the options that tell readers to skip these slots, in addition to those lost before."""
