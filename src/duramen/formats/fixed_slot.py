"""Fixed-slot: an array of slots of one size, each a checksum and a payload. The offset is arithmetic.

::

    00000000.log                   slots, nothing between them
      0  crc32c   u32  big-endian, of the payload
      4  payload  record_size bytes

No file holds the record size: it is an option, stored in the sidecar. Payloads of any other size are errors, unless the
option ``pad`` names a byte: then the writer appends it to short payloads, and readers return the slot as stored.
Records have no time, key or headers, and offsets have no gaps. A slot whose record a repair gave up stays, filled with
zeros: the option ``lost_slots`` ("3,7-9") lists such slots, and readers skip them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from duramen import compute as pc
from duramen import kernel
from duramen.errors import CorruptionError, UnsupportedFieldError, UsageError
from duramen.formats.arrow import (
    Values,
    allocate,
    binary_array,
    binary_buffers,
    gather,
    number_array,
    offsets_to,
    places_of,
)
from duramen.formats.format import COMMON_OPTIONS, Capabilities, FileName, Format, schema_for
from duramen.formats.index import Index
from duramen.formats.segment import SCAN_BYTES, SCAN_RECORDS, Encoded, Role, Rows, ScanPosition, ScanShape, Segment
from duramen.formats.struct import Block, Buffer, Field, Struct
from duramen.kernel import NOT_FOUND, Columns, Int64s, RecordKind, RecordShape, ScanEnd, Stop, UInt32s, column
from duramen.record import SCHEMA, VALUE, Record

NAME = "00000000.log"
CRC = Struct(">", crc32c="I")
INFER_RECORD_BYTES = 1 << 20
"""The largest record size that `infer` tries."""
MAX_LOST_SLOTS = 1 << 24
"""Longest run of lost slots that is accepted."""


@dataclass
class SlotColumns(Columns):
    offset: Int64s = column(np.int64)
    position: Int64s = column(np.int64)


def infer(buf: Buffer) -> int:
    """The record size that fits the checksums of slots 0 and 1; 0 if none does."""
    return kernel.infer_slot(buf, INFER_RECORD_BYTES)


def parse_pad(text: str) -> int:
    """The byte that a character or hexadecimal text names.

    >>> parse_pad("0x00"), parse_pad(" ")
    (0, 32)
    """
    try:
        raw = bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode("ascii")
    except ValueError:
        raw = b""
    if len(raw) != 1:
        raise UsageError(f"pad must be one byte (got {text!r})", hint='such as b"\\0" in Python, 0x00 as text')
    return raw[0]


def parse_slots(text: str) -> list[int]:
    """The numbers of a list like "3,7-9"; raises `ValueError` for anything else.

    >>> parse_slots("3,7-9")
    [3, 7, 8, 9]
    """
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        slots = range(int(first), int(last or first) + 1)
        if not slots or slots[0] < 0 or (found and slots[0] <= found[-1]) or len(slots) > MAX_LOST_SLOTS:
            raise ValueError(f"{part!r} is out of order")
        found += slots
    return found


def print_slots(slots: Iterable[int]) -> str:
    """The list that `parse_slots` reads.

    >>> print_slots([3, 7, 8, 9])
    '3,7-9'
    """
    runs: list[list[int]] = []
    for slot in sorted(set(slots)):
        if runs and slot == runs[-1][1] + 1:
            runs[-1][1] = slot
        else:
            runs.append([slot, slot])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


class FixedSlotSegment(Segment):
    """The one file of a fixed-slot log; a `SlotSegment`."""

    has_value_places = True

    def __init__(self, buf: Buffer, record_bytes: int, lost: Sequence[int] = ()) -> None:
        self.buf = memoryview(buf)
        self.base_offset = 0
        self.start = ScanPosition(0, -1)
        self.dialect = f"record size {record_bytes}"
        self.header_bytes = CRC.size
        self.record_bytes = record_bytes
        self.slot_bytes = record_bytes + CRC.size
        self._lost = np.array(lost, np.int64)

    def scan_shape(self, cursor: ScanPosition) -> ScanShape | None:
        return None if len(self._lost) else ScanShape(RecordKind.SLOT, record_bytes=self.record_bytes)

    @property
    def lost_slots(self) -> Sequence[int]:
        return self._lost.tolist()

    @property
    def filler(self) -> bytes:
        payload = bytes(self.record_bytes)
        return CRC.pack(crc32c=kernel.crc32c(payload)) + payload

    def bad_slots(self) -> tuple[list[int], int]:
        cursor, good = self.start, 0
        bad: list[int] = []
        while True:
            rows = self.scan(cursor)
            cursor = rows.cursor
            good = cursor.position // self.slot_bytes
            if rows.stop == Stop.LIMIT:
                continue
            found = NOT_FOUND if rows.stop in (Stop.END, Stop.ZEROS) else self.resync(cursor)
            if found < 0:
                return bad, good
            bad += range(good, found // self.slot_bytes)
            cursor = ScanPosition(found, found // self.slot_bytes - 1)

    def mended_slots(self, slots: Iterable[int]) -> dict[int, bytes]:
        found = {}
        for slot in slots:
            raw = bytes(self.buf[slot * self.slot_bytes : (slot + 1) * self.slot_bytes])
            if len(raw) == self.slot_bytes:
                right = kernel.crc32c(raw[CRC.size :])
                if (right ^ int(CRC.unpack(raw)["crc32c"])).bit_count() == 1:
                    found[slot] = CRC.pack(crc32c=right)
        return found

    def losing(self, slots: Iterable[int]) -> dict[str, str]:
        lost = {*self.lost_slots, *slots}
        return {"lost_slots": print_slots(lost)} if lost else {}

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
        most = max(1, min(max_records, max_bytes // self.slot_bytes))
        if cursor.position % self.slot_bytes:
            why = f"no slot of record_size={self.record_bytes} begins here"
            raise CorruptionError(why, position=cursor.position, hint="the sidecar holds another position, or size")
        end = kernel.scan_slots(self.buf, cursor.position, len(self.buf), self.record_bytes, most, verify, digests)
        first = cursor.position // self.slot_bytes
        offsets = np.arange(first, first + end.count, dtype=np.int64)
        if len(self._lost):
            offsets = np.setdiff1d(offsets, self._lost, assume_unique=True)
        return Rows(SlotColumns(offsets, offsets * self.slot_bytes), len(offsets), end)

    def decode(self, rows: Rows, columns: Sequence[str]) -> pa.RecordBatch:
        slots = rows.columns
        assert isinstance(slots, SlotColumns)
        arrays = []
        for name in columns:
            if name == "offset":
                arrays.append(number_array(slots.offset))
            elif name == "value":
                lengths = np.full(len(slots), self.record_bytes, np.uint32)
                arrays.append(gather(self.buf, slots.position + CRC.size, lengths))
            else:
                arrays.append(pa.nulls(len(slots), SCHEMA.field(name).type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema_for(FixedSlot, columns))

    def value_places(self, rows: Rows) -> pa.StructArray | None:
        positions = rows.columns.position + CRC.size
        return places_of(positions, np.full(len(positions), self.record_bytes, np.uint32))

    def read(self, cursor: ScanPosition, offset: int) -> Record | Stop:
        position = offset * self.slot_bytes
        if not 0 <= position < len(self.buf):
            return Stop.END
        if len(self._lost) and offset in self._lost:
            return Stop.LIMIT
        end = kernel.scan_slots(self.buf, position, len(self.buf), self.record_bytes, 1)
        if end.count == 0:
            return Stop(end.stop)
        value = bytes(self.buf[position + CRC.size : position + self.slot_bytes])
        return Record(offset, None, None, value, None)

    def cursor_at(self, offset: int, position: int) -> ScanPosition | None:
        if position != offset * self.slot_bytes or not 0 <= position <= len(self.buf):
            return None
        return ScanPosition(position, offset - 1)

    def resync(self, cursor: ScanPosition) -> int:
        following = cursor.position + self.slot_bytes
        if following > len(self.buf):
            return NOT_FOUND
        return kernel.find_slot(self.buf, following, len(self.buf), self.record_bytes)


class FixedSlot(Format):
    content_can_fail = False
    """The fixed-slot format; see the top of this module."""

    name = "fixed-slot"
    capabilities = Capabilities(
        timestamps=None,
        key=False,
        headers=False,
        explicit_offsets=False,
        compaction=False,
        segments=False,
        index=False,
        checksum="CRC-32C over the payload",
        record_checksum=True,
        max_value_bytes=2**31 - 1,
    )
    option_names: ClassVar[Mapping[str, type]] = {**COMMON_OPTIONS, "record_size": int, "pad": str, "lost_slots": str}
    fixed_options = ("record_size",)

    def __init__(self, **options: Any) -> None:
        pad = options.get("pad")
        super().__init__(**{**options, "pad": f"0x{pad.hex()}"} if isinstance(pad, bytes) else options)
        self._pad = parse_pad(self.options["pad"]) if "pad" in self.options else None
        size = self.options.get("record_size")
        if size is not None and not 1 <= size <= self.capabilities.max_value_bytes:
            raise UsageError(f"record_size must be 1 to {self.capabilities.max_value_bytes} (got {size})")
        try:
            self._lost = parse_slots(self.options.get("lost_slots", ""))
        except ValueError as error:
            raise UsageError(f"lost_slots={self.options['lost_slots']!r}: {error}", hint='like "3,7-9"') from error

    def classify(self, path: str) -> FileName | None:
        return FileName(Role.SEGMENT, 0) if path == NAME else None

    def path_of(self, role: Role, base: int | None = None) -> str:
        return NAME

    def _record_size(self, fitting: int = 0) -> int:
        size = self.options.get("record_size")
        if size is None:
            hint = f"slot 0's checksum fits record_size={fitting}" if fitting else "pass record_size=N"
            raise UsageError("fixed-slot needs its record_size, which is in no file", hint=hint)
        return int(size)

    def open_segment(self, buf: Buffer, base: int | None) -> FixedSlotSegment:
        size = self._record_size(infer(buf) if "record_size" not in self.options else 0)
        segment = FixedSlotSegment(buf, size, self._lost)
        if segment.scan(segment.start, max_records=1).stop in (Stop.BAD_CHECKSUM, Stop.SHORT_BODY):
            fitting = infer(buf)
            if fitting and fitting != size:
                raise UsageError(
                    f"record_size={size} does not fit",
                    position=0,
                    hint=f"slot 0's checksum fits record_size={fitting}",
                )
        return segment

    def check_creation(self) -> None:
        self._record_size()

    def no_columns(self) -> SlotColumns:
        return SlotColumns.empty(0)

    def dump(
        self, role: Role, buf: Buffer, base: int | None = None, begin: int = 0, index: Index | None = None
    ) -> Iterator[Block]:
        segment = self.open_segment(buf, base)
        number = begin // segment.slot_bytes
        position = number * segment.slot_bytes
        while position < len(segment.buf):
            end = kernel.scan_slots(segment.buf, position, len(segment.buf), segment.record_bytes, 1)
            stop = Stop(end.stop)
            if stop == Stop.ZEROS:
                rest = len(segment.buf) - position
                yield Block("zeros", position, [Field("zeros", position, rest, f"{rest} zero bytes", "a clean end")])
                return
            fields = list(CRC.fields(segment.buf, position))
            start = position + CRC.size
            payload = bytes(segment.buf[start : position + segment.slot_bytes])
            if payload:
                fields.append(Field("payload", start, len(payload), payload))
            yield Block(f"slot{number}", position, fields, None if end.count else stop.meaning)
            position, number = position + segment.slot_bytes, number + 1

    def accept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.refuse_unsupported(batch)
        row = batch.schema.get_field_index("value")
        return batch.set_column(row, VALUE, self._slots(batch.column(row)))

    def accept_values(self, values: Values) -> Values:
        if not values.num_rows or values.shortest == values.longest == self._record_size():
            return values
        return Values(self._slots(values.array()))

    def _slots(self, values: pa.BinaryArray, *, pads: bool = True) -> pa.BinaryArray:
        """The values, padded to the record size. Raises for one that does not fit."""
        size, fills = self._record_size(), pads and self._pad is not None
        lengths = np.diff(binary_buffers(values)[1])
        wrong = lengths > size if fills else lengths != size
        if wrong.any():
            row = int(wrong.argmax())
            raise UnsupportedFieldError(
                f"value {row} has {int(lengths[row])} bytes; every value must have"
                f" {'at most' if fills else 'exactly'} record_size={size}",
                hint=None if lengths[row] > size else "the option pad=0x00 fills short values",
            )
        if self._pad is None or (lengths == size).all():
            return values
        ends = np.cumsum(size - lengths, dtype=np.int32)
        filling = binary_array(np.append(np.int32(0), ends), np.full(int(ends[-1]), self._pad, np.uint8))
        return pc.binary_join_element_wise(values, filling, pa.scalar(b"", pa.binary()))

    @property
    def record_shape(self) -> RecordShape | None:
        return RecordShape(RecordKind.SLOT, slot_bytes=self._record_size())

    def encode_values(self, values: Values, cursor: ScanPosition, default_us: int = 0) -> Encoded:
        first = cursor.previous_offset + 1
        try:
            return self._encode(cursor, np.arange(first, first + values.num_rows), values.values, values.offsets)
        except ValueError:
            self._slots(values.array(), pads=False)
            raise

    def encode(self, batch: pa.RecordBatch, cursor: ScanPosition, default_us: int = 0) -> Encoded:
        self.refuse_unsupported(batch)
        offsets = offsets_to(batch, cursor.previous_offset + 1)
        first = cursor.previous_offset + 1
        if len(offsets) and (int(offsets[0]) != first or int(offsets[-1]) != first + len(offsets) - 1):
            raise UnsupportedFieldError("fixed-slot offsets cannot have gaps")
        try:
            return self._encode(cursor, offsets, *binary_buffers(batch.column("value")))
        except ValueError:
            self._slots(batch.column("value"), pads=False)
            raise

    def _encode(self, cursor: ScanPosition, offsets: Int64s, values: Any, value_offsets: Any) -> Encoded:
        size, first = self._record_size(), cursor.previous_offset + 1
        out = allocate(len(offsets) * (size + CRC.size), cursor.position)
        kernel.encode_slots(out, size, values, value_offsets)
        columns = SlotColumns(offsets, offsets * (size + CRC.size))
        end = ScanEnd(len(offsets), cursor.position + len(out), int(Stop.END), first + len(offsets) - 1)
        return Encoded(out, Rows(columns, len(offsets), end))
