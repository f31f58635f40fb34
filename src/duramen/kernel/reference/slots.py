"""Fixed slots: a big-endian CRC-32C, then the payload."""

from __future__ import annotations

from duramen.kernel.layout import NOT_FOUND, ScanEnd, Stop, UInt32s
from duramen.kernel.reference.columns import Buffer, Int32s, Values, bytes_of, is_zero, values_of
from duramen.kernel.reference.crc import check_digests, crc32c, extend_digests

_SLOT_CRC_BYTES = 4


def _check_slots(buf: Buffer, position: int, end: int, record_bytes: int) -> memoryview:
    view = bytes_of(buf, position, end)
    if not 1 <= record_bytes <= 2**31 - 1:
        raise ValueError("record_bytes must be 1 to 2147483647")
    if position % (record_bytes + _SLOT_CRC_BYTES):
        raise ValueError("position is not the start of a slot")
    return view


def _slot_is_valid(view: memoryview, position: int, record_bytes: int) -> bool:
    stored = int.from_bytes(view[position : position + _SLOT_CRC_BYTES], "big")
    start = position + _SLOT_CRC_BYTES
    return stored == crc32c(view[start : start + record_bytes])


def scan_slots(
    buf: Buffer,
    position: int,
    end: int,
    record_bytes: int,
    max_slots: int,
    verify: bool = True,
    digests: UInt32s | None = None,
) -> ScanEnd:
    """Count the valid slots from ``position``, a slot boundary, on. ``digests`` as in `scan_frames`."""
    check_digests(digests)
    view = _check_slots(buf, position, end, record_bytes)
    start = position
    slot_bytes = record_bytes + _SLOT_CRC_BYTES
    count, stop = 0, Stop.END
    while position < end:
        if count == max_slots:
            stop = Stop.LIMIT
            break
        if end - position < slot_bytes:
            stop = Stop.ZEROS if is_zero(view, position, end) else Stop.SHORT_BODY
            break
        if verify and not _slot_is_valid(view, position, record_bytes):
            stop = Stop.ZEROS if is_zero(view, position, end) else Stop.BAD_CHECKSUM
            break
        count += 1
        position += slot_bytes
    extend_digests(digests, view[start:position])
    return ScanEnd(count, position, int(stop), position // slot_bytes - 1)


def find_slot(buf: Buffer, position: int, end: int, record_bytes: int) -> int:
    """The first slot boundary from ``position`` on that holds a valid slot, or ``NOT_FOUND``."""
    view = _check_slots(buf, position, end, record_bytes)
    slot_bytes = record_bytes + _SLOT_CRC_BYTES
    for at in range(position, end - slot_bytes + 1, slot_bytes):
        if _slot_is_valid(view, at, record_bytes):
            return at
    return NOT_FOUND


def infer_slot(buf: Buffer, max_record_bytes: int) -> int:
    """The smallest record size for which slot 0 is valid, and slot 1 too if it is complete; 0 if no size fits."""
    view = memoryview(buf).cast("B")
    if len(view) < _SLOT_CRC_BYTES + 1:
        return 0
    stored = int.from_bytes(view[:_SLOT_CRC_BYTES], "big")
    crc = 0
    for size in range(1, min(max_record_bytes, len(view) - _SLOT_CRC_BYTES, 2**31 - 1) + 1):
        crc = crc32c(view[_SLOT_CRC_BYTES + size - 1 : _SLOT_CRC_BYTES + size], crc)
        if crc != stored:
            continue
        second = size + _SLOT_CRC_BYTES
        if len(view) - second < second or _slot_is_valid(view, second, size):
            return size
    return 0


def encode_slots(out: Buffer, record_bytes: int, values: Values, value_offsets: Int32s | None = None) -> int:
    """Write one slot per value of ``record_bytes``; returns the bytes written."""
    if not 1 <= record_bytes <= 2**31 - 1:
        raise ValueError("record_bytes must be 1 to 2147483647")
    target = memoryview(out).cast("B")
    at = 0
    for row, value in enumerate(values_of(values, value_offsets)):
        slot_bytes = record_bytes + _SLOT_CRC_BYTES
        if value is None or len(value) != record_bytes or at + slot_bytes > len(target):
            raise ValueError(f"row {row} does not fit")
        target[at : at + slot_bytes] = crc32c(value).to_bytes(_SLOT_CRC_BYTES, "big") + value
        at += slot_bytes
    return at
