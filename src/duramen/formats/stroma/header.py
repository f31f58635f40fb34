"""The header that Keratin's files share, and the checksum at its end; all big-endian.

::

      0  magic          8 bytes
      8  version        u16  1
     10  flags          u16  preserved
     12  header_len     u32  the complete header; a longer one than ours is accepted
     16  …              the file's own fields
     -4  header_crc32c  u32  CRC-32C of all header bytes before it
"""

from __future__ import annotations

from typing import Any, NamedTuple

from duramen import kernel
from duramen.errors import CorruptionError, IncompleteHeaderError, UnknownVersionError
from duramen.formats.struct import Block, Buffer, Field, Struct

VERSION = 1
START = Struct(">", magic="8s", version="H", flags="H", header_len="I")
CRC = Struct(">", crc32c="I")


class Header(NamedTuple):
    """A valid file header: its fields, and where the data after it starts."""

    values: dict[str, Any]
    length: int


class FileHeader:
    """The header of one kind of file: magic, version, flags, length, own fields, checksum."""

    def __init__(self, magic: bytes, /, **own: str) -> None:
        self.magic = magic
        self.struct = Struct(">", magic="8s", version="H", flags="H", header_len="I", **own, header_crc32c="I")
        self.size = self.struct.size

    def pack(self, **values: int) -> bytes:
        header = self.struct.pack(magic=self.magic, version=VERSION, header_len=self.size, **values)
        return with_crc(header[: -CRC.size])

    def parse(self, buf: Buffer) -> Header:
        """The header at the start of ``buf``. Raises `CorruptionError` with the position of the problem, or
        `IncompleteHeaderError` for a file that ends within a valid header."""
        view = memoryview(buf)
        length = self._check_start(view)
        if len(view) < self.size:
            raise IncompleteHeaderError(f"the file header is torn: {len(view)} bytes of {length}", position=0)
        if length > len(view):
            raise CorruptionError(
                f"the file header claims {length} bytes, the file has {len(view)}", position=START.at("header_len")
            )
        crc_at = length - CRC.size
        if crc_stored(view, crc_at) != kernel.crc32c(view[:crc_at]):
            raise CorruptionError("checksum mismatch in the file header", position=crc_at)
        return Header(self.struct.unpack(view), length)

    def _check_start(self, view: memoryview) -> int:
        """Check magic, version and length, as far as they exist; returns the length that the header states."""
        sound = START.pack(magic=self.magic, version=VERSION, header_len=self.size)
        start = bytes(view[: START.size])
        magic, version, _, length = START.unpack(start + sound[len(start) :]).values()
        if magic != self.magic:
            raise CorruptionError(f"bad magic number {magic!r} instead of {self.magic!r}", position=0)
        if version != VERSION:
            raise UnknownVersionError(f"unknown version {version!r} of the file", position=START.at("version"))
        assert isinstance(length, int)
        if length < self.size:
            raise CorruptionError(
                f"the file header claims {length} bytes, fewer than its {self.size}", position=START.at("header_len")
            )
        return length

    def claimed_length(self, buf: Buffer) -> int:
        """The length that the header states, valid or not, if the file is that long; otherwise the usual one."""
        view = memoryview(buf)
        length = int.from_bytes(view[START.at("header_len") : START.size], "big")
        return length if self.size <= length <= len(view) else self.size

    def dump(self, buf: Buffer, problem: str | None = None) -> Block:
        """The header field by field; unknown bytes of a longer header as one field."""
        view = memoryview(buf)
        listed = list(self.struct.fields(view, 0))
        length = self.claimed_length(view)
        if length > self.size:
            rest_at, crc_at = self.size - CRC.size, length - CRC.size
            listed[-1:] = [
                Field("extension", rest_at, crc_at - rest_at, bytes(view[rest_at : min(rest_at + 64, crc_at)])),
                Field("header_crc32c", crc_at, CRC.size, crc_stored(view, crc_at)),
            ]
        return Block("hdr", 0, listed, problem)


def crc_stored(view: memoryview, position: int) -> int:
    return int.from_bytes(view[position : position + CRC.size], "big")


def with_crc(covered: bytes) -> bytes:
    """The bytes, followed by their checksum."""
    return covered + CRC.pack(crc32c=kernel.crc32c(covered))


def all_zero(buf: Buffer) -> bool:
    """Whether a file is empty or holds only zeros: its header was never written."""
    return kernel.is_zero(buf, 0, len(memoryview(buf)))
