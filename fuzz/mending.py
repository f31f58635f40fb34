"""Checksums made right again after a mutation, so that a fuzzer gets past them to what lies behind.

Each function takes bytes as they come and answers bytes of the same length. None judges anything: where the bytes lead
nowhere, they stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from duramen import kernel
from duramen.formats import durable_log, stroma
from duramen.formats.frame import Dialect
from duramen.formats.keratin import keratin
from duramen.formats.keratin.manifest import MANIFEST_HEADER
from duramen.formats.osiris import chunk, segment
from duramen.kernel.layout import FrameColumns

Mend = Callable[[bytes], bytes]
MOST_FRAMES = 256
SLOT_RECORD_BYTES = 16


def _put(out: bytearray, position: int, crc: int, order: str = "big") -> None:
    if 0 <= position <= len(out) - 4:
        out[position : position + 4] = crc.to_bytes(4, order)  # type: ignore[arg-type]


def _frames(out: bytearray, dialect: Dialect, start: int) -> None:
    layout = dialect.layout
    columns = FrameColumns.empty(MOST_FRAMES)
    end = kernel.scan_frames(out, min(start, len(out)), len(out), layout, columns, verify=False)
    for row in range(end.count):
        position = int(columns.position[row])
        value_end = int(columns.value_position[row]) + int(columns.value_length[row])
        crc_at = value_end + layout.trailer_bytes - 4 if layout.checksum_at < 0 else position + layout.checksum_at
        covered = memoryview(out)[position + layout.covered_from : value_end]
        crc = (kernel.crc32c if layout.checksum == layout.checksum.CRC32C else kernel.crc32)(covered)
        covered.release()
        _put(out, crc_at, crc, "big" if layout.big_endian else "little")


def _header(out: bytearray) -> int:
    """The header that Keratin's files share; answers where it ends."""
    if len(out) < stroma.START.size:
        return len(out)
    length = int.from_bytes(out[stroma.START.at("header_len") : stroma.START.size], "big")
    if stroma.START.size <= length <= len(out):
        _put(out, length - 4, kernel.crc32c(bytes(out[: length - 4])))
        return length
    return len(out)


def durable(data: bytes) -> bytes:
    out = bytearray(data)
    _frames(out, durable_log.DIALECT, 0)
    return bytes(out)


def keratin_segment(data: bytes) -> bytes:
    out = bytearray(data)
    _frames(out, keratin.DIALECT, _header(out))
    return bytes(out)


def keratin_header(data: bytes) -> bytes:
    out = bytearray(data)
    _header(out)
    return bytes(out)


def manifest(data: bytes) -> bytes:
    out = bytearray(data)
    at = MANIFEST_HEADER.at("crc32c")
    _put(out, at, kernel.crc32c(bytes(out[at + 4 :])))
    return bytes(out)


def snapshot(data: bytes) -> bytes:
    out = bytearray(data)
    start = _header(out)
    if len(out) >= start + 4:
        _put(out, len(out) - 4, kernel.crc32c(bytes(out[start:-4])))
    return bytes(out)


def delta(data: bytes) -> bytes:
    """Events: magic, then what the checksum covers, of which the length is the last number."""
    out = bytearray(data)
    at = _header(out)
    while at + 16 <= len(out):
        end = at + 12 + int.from_bytes(out[at + 8 : at + 12], "big")
        _put(out, end, kernel.crc32c(bytes(out[at + 2 : end])))
        at = end + 4
    return bytes(out)


def osiris(data: bytes) -> bytes:
    out = bytearray(data)
    header = chunk.HEADER
    at = segment.FILE_HEADER.size
    while at + header.size <= len(out):
        fields = header.unpack(out, at)
        start = at + header.size + int(fields["filter_size"])
        end = start + int(fields["data_length"])
        if end > len(out):
            break
        _put(out, at + header.at("crc"), kernel.crc32(bytes(out[start:end])))
        at = end + int(fields["trailer_length"])
    return bytes(out)


def kafka(data: bytes) -> bytes:
    """Checksums of batches and of older messages, as far as their lengths lead."""
    out, at = bytearray(data), 0
    while at + 17 <= len(out):
        size = 12 + int.from_bytes(out[at + 8 : at + 12], "big", signed=True)
        end = at + size
        if size < 26 or end > len(out):
            break
        if out[at + 16] < 2:
            _put(out, at + 12, kernel.crc32(bytes(out[at + 16 : end])))
        else:
            _put(out, at + 17, kernel.crc32c(bytes(out[at + 21 : end])))
        at = end
    return bytes(out)


def kafka_snapshot(data: bytes) -> bytes:
    out = bytearray(data)
    if len(out) >= 6:
        _put(out, 2, kernel.crc32c(bytes(out[6:])))
    return bytes(out)


def slots(data: bytes) -> bytes:
    out = bytearray(data)
    slot_bytes = SLOT_RECORD_BYTES + 4
    for at in range(0, len(out) - slot_bytes + 1, slot_bytes):
        _put(out, at, kernel.crc32c(bytes(out[at + 4 : at + slot_bytes])))
    return bytes(out)
