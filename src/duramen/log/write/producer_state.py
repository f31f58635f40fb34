"""Sequences of producers: which of a producer's appends are in the log, so that a repeated one is not stored twice.

::

    .duramen/producers
      0   magic         8 bytes  "DURAPROD"
      8   version       u32      1
      12  state_bytes   u32      of the entries that are known, which follow; the file was replaced as a whole with them
      16  state_crc     u32      CRC-32C of those
      20  header_crc    u32      CRC-32C of the 20 bytes before
      24  entries, then zeros

    entry
      0   kind          u8       1 known: the producer's last sequence, and the offset of that record
                                 2 announced: records that were about to be written
      1   name_size     u8       1 to 255
      2   reserved      u16
      4   count         u32      records (known: how many sequences up to the last one have no gap)
      8   sequence      u64      of the first record (known: of the last)
      16  offset        u64      of the first record (known: of the last)
      24  values_crc    u32      CRC-32C of all values
      28  first_crc     u32      CRC-32C of the first value
      32  name
      .   crc           u32      CRC-32C of the entry before it

All little-endian. A sequence is durable if and only if its record is. To ensure that, the writer *announces* an append
here, with the offsets that it will get, and syncs the announcement before it writes the records. The next writer
counts announced records whose offsets are in the recovered log, and stores the result as known before other records can
get the remaining offsets. So after a crash an announcement counts for exactly the records that were stored. A failed
append rolls its announcement back. The announcements of one group of appends share a write and a sync.

Between the last writer and this one, another program may have given the announced offsets to other records. Values
after the last durable watermark are therefore compared with their checksums.

A damaged file is refused. Taking its producers for unknown would store their repeats again.

Some formats store sequences in the log itself, too (`SupportsSequences`). Where both know a producer, the higher
sequence counts.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from duramen import kernel
from duramen.disk import Disk, File, Kind, write_all
from duramen.errors import CorruptionError, StorageError, UnknownVersionError, UsageError
from duramen.formats import Encoded, Format, SequenceRun, SupportsSequences, SupportsTracking, Values, binary_buffers
from duramen.log.read import Log, begun_segments
from duramen.log.write.batch import Batch, SequenceClaim
from duramen.log.write.group_commit import Request
from duramen.sidecar import DIRECTORY, PRODUCERS_NAME, bounded_copy, replace_file

FILE = PRODUCERS_NAME
ROOM_BYTES = 64 << 10
"""Room for announcements. When it is used up, the file is replaced by one with only known sequences."""
MAX_PRODUCERS = 10_000
"""How many producers are remembered. Those with the oldest last records are forgotten, as RabbitMQ does beyond 255."""
MAX_SEQUENCE = 2**64 - 1
FILE_BYTES = 16 << 20
"""The largest file that is read: every producer with the longest name, and as much again for announcements."""

_MAGIC = b"DURAPROD"
_VERSION = 1
_HEADER = struct.Struct("<8sIII")
_ENTRY = struct.Struct("<BBHIQQII")
_CRC = struct.Struct("<I")
_HEADER_BYTES = _HEADER.size + _CRC.size
_KNOWN, _ANNOUNCED = 1, 2


class Last(NamedTuple):
    """A producer's last record that is in the log."""

    sequence: int
    offset: int
    gapless: int = 1
    """How many sequences up to this one have no gap."""

    def followed_by(self, sequence: int, offset: int, count: int) -> Last:
        """The last of ``count`` records more, which start at ``sequence`` and ``offset``."""
        before = self.gapless if sequence == self.sequence + 1 else 0
        return Last(sequence + count - 1, offset + count - 1, before + count)


_NONE = Last(-2, -1, 0)


class Repeated(NamedTuple):
    """The result of an append whose records are all stored already."""

    base_offset: int = -1
    count: int = 0  # type: ignore[assignment]


class _SequenceEntry(NamedTuple):
    kind: int
    name: bytes
    sequence: int
    offset: int
    count: int = 0  # type: ignore[assignment]
    values_crc: int = 0
    first_crc: int = 0

    def encode(self) -> bytes:
        head = _ENTRY.pack(
            self.kind, len(self.name), 0, self.count, self.sequence, self.offset, self.values_crc, self.first_crc
        )
        return _with_crc(head + self.name)


def _with_crc(raw: bytes) -> bytes:
    return raw + _CRC.pack(kernel.crc32c(raw))


def _decode(raw: bytes, at: int, end: int) -> tuple[_SequenceEntry, int] | None:
    """The entry at a byte, and where the next one starts; None where no entry starts."""
    if end - at < _ENTRY.size:
        return None
    kind, name_bytes, reserved, count, sequence, offset, values_crc, first_crc = _ENTRY.unpack_from(raw, at)
    stop = at + _ENTRY.size + name_bytes
    if kind not in (_KNOWN, _ANNOUNCED) or not name_bytes or reserved or stop + _CRC.size > end:
        return None
    if _CRC.unpack_from(raw, stop)[0] != kernel.crc32c(raw[at:stop]):
        return None
    entry = _SequenceEntry(kind, raw[at + _ENTRY.size : stop], sequence, offset, count, values_crc, first_crc)
    return entry, stop + _CRC.size


def _entries(raw: bytes, at: int, end: int) -> Iterator[tuple[_SequenceEntry, int]]:
    while (found := _decode(raw, at, end)) is not None:
        yield found
        at = found[1]


class _Content(NamedTuple):
    known: dict[bytes, Last]
    announced: list[_SequenceEntry]
    end: int
    """Where the next entry goes."""
    unreached: _SequenceEntry | None
    """The first entry after bytes that are none: the bytes before it are damaged if its records were written, and
    otherwise those of a torn write."""


def _unreached(raw: bytes, end: int) -> _SequenceEntry | None:
    stop = min(len(raw), end + ROOM_BYTES)
    starts = range(end + 1, stop) if raw[end:stop].strip(b"\0") else ()
    found = (_decode(raw, at, stop) for at in starts if raw[at] == _ANNOUNCED)
    return next((one[0] for one in found if one is not None), None)


_HINT = "move it away: its producers then count as unknown, and what they repeat is stored again"


def _parse(raw: bytes, path: str) -> _Content:
    head = raw[: _HEADER.size]
    if len(raw) < _HEADER_BYTES or _with_crc(head) != raw[:_HEADER_BYTES] or not head.startswith(_MAGIC):
        raise CorruptionError("the file of the producers' sequences is damaged", path=path, position=0, hint=_HINT)
    _, version, state_bytes, state_crc = _HEADER.unpack(head)
    if version != _VERSION:
        raise UnknownVersionError(f"unknown version {version} of the producers' sequences", path=path, position=8)
    end = _HEADER_BYTES + state_bytes
    if end > len(raw) or kernel.crc32c(raw[_HEADER_BYTES:end]) != state_crc:
        raise CorruptionError(
            "the known sequences of the producers are damaged", path=path, position=_HEADER_BYTES, hint=_HINT
        )
    known = {
        entry.name: Last(entry.sequence, entry.offset, max(entry.count, 1))
        for entry, _ in _entries(raw, _HEADER_BYTES, end)
    }
    announced = []
    for entry, stop in _entries(raw, end, len(raw)):
        announced.append(entry)
        end = stop
    return _Content(known, announced, end, _unreached(raw, end))


def _content(known: Iterable[tuple[bytes, Last]]) -> tuple[bytes, int]:
    """The whole file with the known sequences, and where announcements go."""
    entries = (
        _SequenceEntry(_KNOWN, name, *last._replace(gapless=min(last.gapless, 2**32 - 1))) for name, last in known
    )
    state = b"".join(entry.encode() for entry in entries)
    head = _HEADER.pack(_MAGIC, _VERSION, len(state), kernel.crc32c(state))
    content = _with_crc(head) + state
    return content + bytes(ROOM_BYTES), len(content)


def producers_path(root: str) -> str:
    return posixpath.join(root, DIRECTORY, FILE)


def has_producers(disk: Disk, root: str) -> bool:
    return disk.kind(producers_path(root)) == Kind.FILE


def read_producers(log: Log) -> dict[bytes, Last]:
    """Every producer's last record, for a reader."""
    known: dict[bytes, Last] = {}
    if log.is_directory and has_producers(log.disk, log.path):
        path = producers_path(log.path)
        content = _parse(bounded_copy(log.disk.map(path).data, path, FILE_BYTES), path)
        known = _counted(log, content, log.durable_offset)
    _raise_to(known, _stored(log), log.codec)
    return known


def _stored(log: Log) -> dict[bytes, Last]:
    """The last sequences that the log itself stores, by stored name."""
    codec = log.codec
    while isinstance(codec, SupportsSequences):
        try:
            found = codec.sequences(begun_segments(log), lambda path: _content_of(log, path))
            return {name: Last(sequence, offset) for name, (offset, sequence) in found.items()}
        except StorageError as error:
            log.refresh_after(error)
        except CorruptionError as error:
            damaged = [one.path for one in log.segments if one.base_offset <= (error.offset or 0)]
            error.path = error.path or (damaged or [log.path])[-1]
            raise
    return {}


def _content_of(log: Log, path: str) -> memoryview | None:
    path = posixpath.join(log.path, path)
    return log.disk.map(path).data if log.is_directory and log.disk.kind(path) == Kind.FILE else None


def _raise_to(known: dict[bytes, Last], stored: dict[bytes, Last], codec: Format) -> None:
    """Let the higher sequence of each producer count, and move those whose names are ``stored`` to the known ones."""
    if not isinstance(codec, SupportsSequences):
        return
    for name, last in known.items():
        found = stored.pop(codec.stored_name(name), last)
        known[name] = found if found.sequence > last.sequence else last
    for name in [name for name in stored if codec.stored_name(name) == name]:
        known[name] = stored.pop(name)


def _counted(log: Log, content: _Content, proven_offset: int) -> dict[bytes, Last]:
    """The known and announced sequences whose records are in the log. Values after ``proven_offset`` are compared."""
    next_offset, first_offset = log.next_offset, log.first_offset
    lost = content.unreached
    if lost is not None and lost.offset < next_offset:
        present = min(lost.count, next_offset - lost.offset)
        if lost.offset < first_offset or _holds(log, lost, present):
            message = f"an announcement before that of the records from offset {lost.offset} on is damaged"
            raise CorruptionError(message, path=producers_path(log.path), position=content.end, hint=_HINT)
    known = {}
    for name, last in content.known.items():
        gone = max(last.offset - next_offset + 1, 0)  # a repair cut them: at most that many were this producer's
        if gone < last.gapless:  # otherwise the last sequence before a gap is unknown, and so is the producer
            known[name] = Last(last.sequence - gone, last.offset - gone, last.gapless - gone)
    for entry in content.announced:
        present = min(entry.count, next_offset - entry.offset)
        if present <= 0:
            continue
        is_proven = entry.offset < first_offset or entry.offset + present <= proven_offset
        if is_proven or _holds(log, entry, present):
            known[entry.name] = known.get(entry.name, _NONE).followed_by(entry.sequence, entry.offset, present)
    return known


def _holds(log: Log, entry: _SequenceEntry, present: int) -> bool:
    """Whether the records are those that were announced, and not another program's."""
    crc = first_crc = rows = 0
    try:
        for batch in log.batches(entry.offset, entry.offset + present, columns=["value"]):
            values = batch.column("value")
            first_crc = first_crc if rows else _values_crc(values.slice(0, 1))
            crc = _values_crc(values, crc)
            rows += len(values)
    except CorruptionError:
        return True  # stored and damaged: `verify` reports that
    return rows == present and (crc == entry.values_crc if present == entry.count else first_crc == entry.first_crc)


def _values_crc(values: Any, crc: int = 0) -> int:
    data, offsets = binary_buffers(values)
    return kernel.crc32c(memoryview(data)[int(offsets[0]) : int(offsets[-1])], crc) if len(values) else crc


def _batch_crc(batch: Batch) -> int:
    if isinstance(batch, Values):
        return kernel.crc32c(b"".join(batch.values)) if batch.offsets is None else _values_crc(batch.array())
    return _values_crc((batch if isinstance(batch, pa.RecordBatch) else batch.batch()).column("value"))


class ProducerTable:
    """The sequences of a log that is open for append. Used by one thread at a time: the one that commits.

    ``sync`` syncs everything written to the log so far. ``poison`` is called with a failure after which the on-disk
    state is unknown. ``patch`` overwrites bytes of the active segment, by position."""

    def __init__(
        self,
        log: Log,
        proven_offset: int,
        sync: Callable[[], None],
        poison: Callable[[BaseException], None],
        patch: Callable[[Sequence[tuple[int, bytes]]], None],
    ) -> None:
        self._log = log
        self._disk = log.disk
        self._sync = sync
        self._poison = poison
        self._patch = patch
        self._path = producers_path(log.path)
        self._file: File | None = None
        self._announced: list[_SequenceEntry] = []
        self._announced_at = self._end = self._size = 0
        self._group: list[Request] = []
        self._repeats: list[Request] = []
        self._stored: dict[bytes, Last] | None = None
        """By stored name, what the log itself stores of producers that are not `known`; None before `load`."""
        known: dict[bytes, Last] = {}
        if has_producers(self._disk, log.path):
            raw = bounded_copy(self._disk.map(self._path).data, self._path, FILE_BYTES)
            content = _parse(raw, self._path)
            known = _counted(log, content, proven_offset)
            self._end, self._size = content.end, len(raw)
            self._mend([entry for entry in content.announced if entry.offset + entry.count > proven_offset])
            if content.announced or known != content.known or raw[content.end :].strip(b"\0"):
                self._replace(known)  # before another record can get an offset that was announced and not used
        self.known = known

    @property
    def is_loaded(self) -> bool:
        return self._stored is not None

    def load(self) -> None:
        """Read what the log itself stores. Must come before the first claim of a producer."""
        stored = _stored(self._log)
        _raise_to(self.known, stored, self._log.codec)
        self._stored = stored

    def last(self, name: bytes) -> Last | None:
        """The last record of a producer, if the log has one."""
        known, codec = self.known.get(name), self._log.codec
        if known is None and self._stored and isinstance(codec, SupportsSequences):
            return self._stored.get(codec.stored_name(name))
        return known

    def _mend(self, doubtful: list[_SequenceEntry]) -> None:
        """Rewrite the announced sequences that the format itself stores, where a power loss tore them: no checksum
        covers those bytes, so recovery took them for whole. Runs before the announcements are settled, so a crash
        repeats it."""
        segments, codec = self._log.segments, self._log.codec
        if not segments or not isinstance(codec, SupportsTracking):
            return
        presents = [min(entry.count, self._log.next_offset - entry.offset) for entry in doubtful]
        doubtful = [
            entry
            for entry, present in zip(doubtful, presents, strict=True)
            if present > 0 and _holds(self._log, entry, present)
        ]
        if not doubtful:
            return
        data = self._disk.map(segments[-1].path).data[: segments[-1].size_bytes]
        runs = [SequenceRun(each.offset, each.offset + each.count, each.name, each.sequence) for each in doubtful]
        pieces = list(codec.mended_sequences(codec.open_segment(data, segments[-1].base_offset), runs))
        if pieces:
            self._patch(pieces)
            self._log.refresh()

    # --- one group

    def enter(self, group: list[Request]) -> list[Request]:
        """The requests that have records to store, without those that are stored already."""
        ahead: dict[bytes, int] = {}
        self._group, self._repeats, self._announced, self._announced_at = [], [], [], self._end
        for request in group:
            claim = request.work.producer
            if claim is None or self._admit(request, claim, ahead):
                self._group.append(request)
            else:
                self._repeats.append(request)
        return self._group

    def _admit(self, request: Request, claim: SequenceClaim, ahead: dict[bytes, int]) -> bool:
        known = self.last(claim.name)
        if known is not None:
            self.known[claim.name] = known
        claim.stored = -1 if known is None else known.sequence
        last = ahead.get(claim.name, claim.stored)
        count = request.work.batch.num_rows
        first = claim.sequence if claim.sequence is not None else max(last + 1, 1)
        if first + count - 1 > MAX_SEQUENCE:
            message = f"the sequence {first + count - 1} does not fit into 64 bits"
            request.error = UsageError(message, path=self._log.path)
            return False
        claim.duplicates = min(max(last - first + 1, 0), count)
        claim.first = first + claim.duplicates
        if claim.duplicates == count:
            return False
        if claim.duplicates:
            request.work = request.work._replace(batch=request.work.batch.slice(claim.duplicates))
        ahead[claim.name] = first + count - 1
        return True

    def refuse_dependents(self) -> None:
        """Refuse the requests that take records of refused ones in this group for stored."""
        refused = {request.work.producer.name for request in self._group if request.error and request.work.producer}
        for request in [*self._group, *self._repeats] if refused else ():
            claim = request.work.producer
            if claim is None or request.error is not None or claim.name not in refused:
                continue
            if claim.duplicates and claim.first - 1 > claim.stored:
                message = "the append that this one repeats was refused"
                request.error = UsageError(message, path=self._log.path, hint="send it again")

    @property
    def must_sync(self) -> bool:
        """Whether a repeat asks for ``fsync``, which the append that it repeats may not have had."""
        return any(request.work.sync and request.error is None for request in self._repeats)

    def with_columns(self, batch: Batch) -> Batch:
        """The records of the group with the columns that the format needs to store their sequences."""
        codec = self._log.codec
        runs = list(self._runs(0, batch.num_rows)) if isinstance(codec, SupportsSequences) else []
        if not runs or not isinstance(codec, SupportsSequences):
            return batch
        columns = codec.sequence_columns(runs, batch.num_rows)
        if columns and not isinstance(batch, pa.RecordBatch):
            batch = batch.batch()
        for name, column in columns.items():
            batch = batch.append_column(name, column)  # type: ignore[union-attr]
        return batch

    def announce(self, encoded: Encoded, batch: Batch, first_row: int, offsets: Sequence[int]) -> Encoded:
        """Announce the sequences of some rows of the group, and sync them before their records are written. Returns the
        bytes to write: with the sequences in them, where the format stores those itself."""
        runs = list(self._runs(first_row, len(offsets)))
        entries: list[_SequenceEntry] = []
        for start, stop, name, sequence in runs:
            rows = batch.slice(start, stop - start)
            crcs = _batch_crc(rows), _batch_crc(rows.slice(0, 1))
            entries.append(_SequenceEntry(_ANNOUNCED, name, sequence, int(offsets[start]), stop - start, *crcs))
        if not entries:
            return encoded
        self._append(b"".join(entry.encode() for entry in entries))
        self._announced += entries
        codec = self._log.codec
        return codec.with_sequences(encoded, runs) if isinstance(codec, SupportsSequences) else encoded

    def _runs(self, first_row: int, rows: int) -> Iterator[SequenceRun]:
        """The rows of each claim among those that are written now."""
        row = -first_row
        for request in self._group:
            if request.error is not None:
                continue
            count, claim = request.work.batch.num_rows, request.work.producer
            start, stop = max(row, 0), min(row + count, rows)
            if claim is not None and start < stop:
                yield SequenceRun(start, stop, claim.name, claim.first + start - row)
            row += count

    def settle(self) -> None:
        """The group is written: count its sequences, and acknowledge the repeats."""
        self.refuse_dependents()
        self._count_announced()
        self._group = []
        for request in self._repeats:
            request.result = Repeated()

    def _count_announced(self) -> None:
        for entry in self._announced:
            before = self.known.get(entry.name, _NONE)
            self.known[entry.name] = before.followed_by(entry.sequence, entry.offset, entry.count)
        self._announced = []

    def rollback(self) -> None:
        """Nothing of the group was written: remove its announcements."""
        self._announced, self._group = [], []
        if self._end > self._announced_at:
            assert self._file is not None
            write_all(self._file, self._announced_at, bytes(self._end - self._announced_at))
            self._bring_to_disk(self._file)
            self._end = self._announced_at

    # --- the file

    def _append(self, raw: bytes) -> None:
        if self._end + len(raw) > self._size:
            self._sync()  # known sequences must be those of durable records
            self._count_announced()
            self._replace(self.known, room_bytes=len(raw))
            self._announced_at = self._end
        if self._file is None:
            self._file = self._disk.open(self._path)
        at, self._end = self._end, self._end + len(raw)
        write_all(self._file, at, raw)
        self._bring_to_disk(self._file)

    def _bring_to_disk(self, file: File) -> None:
        try:
            file.sync()
        except BaseException as error:
            self._poison(error)
            raise

    def _replace(self, known: dict[bytes, Last], room_bytes: int = 0) -> None:
        """Replace the file, atomically, by one with the known sequences and room for announcements."""
        if len(known) > MAX_PRODUCERS:
            youngest = sorted(known.items(), key=lambda item: item[1].offset)[-MAX_PRODUCERS:]
            known.clear()
            known.update(youngest)
        if self._file is not None:
            self._file.close()
            self._file = None
        content, self._end = _content(known.items())
        content += bytes(room_bytes)
        self._size = len(content)
        try:
            replace_file(self._disk, self._path, content)
        except BaseException as error:
            self._poison(error)
            raise

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
