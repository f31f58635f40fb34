"""The library by which Spark's JVM reads, without a JVM: the floor of what the engine can reach.

It reads and checks the same pieces of the same log into buffers of this process, and nothing takes the rows.
"""

from __future__ import annotations

import base64
import ctypes
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from duramen.spark.native_splits import NativeSplits
from duramen.spark.source.narrowed import Narrowed, NarrowedRead
from duramen.spark.source.options import parse_options
from duramen.spark.source.plan import plan_read
from duramen.spark.source.schema import schema_of, wanted_of

ROWS = 1 << 16
VALUES_BYTES, KEYS_BYTES = 1 << 20, 256 << 10
AGAIN = -4
_IN_JAR = "duramen/spark/native/libduramen_spark.so"
_FIELDS = (
    "capacity", "offset", "position", "timestamp", "timestamp_valid", "time_kind",
    "values_bytes", "value_offsets", "values", "value_valid", "keys_bytes", "key_offsets", "keys", "key_valid",
)  # fmt: skip
"""The first numbers of a batch (`java/native/piece_reader.h`); none of the others is wanted."""
_BUFFERS = {
    "offset": {"offset": 8 * ROWS},
    "timestamp": {"timestamp": 8 * ROWS, "timestamp_valid": ROWS},
    "value": {"value_offsets": 4 * ROWS + 4, "values": VALUES_BYTES, "value_valid": ROWS},
    "key": {"key_offsets": 4 * ROWS + 4, "keys": KEYS_BYTES, "key_valid": ROWS},
}
"""The buffers of each column, in bytes."""
_MORE_NUMBERS = 512
_NO_CODECS = (ctypes.c_void_p * 2)()


class NativeLibrary:
    """The library in the jar, and the buffers that it fills."""

    def __init__(self, jar: str, scratch: Path) -> None:
        with zipfile.ZipFile(jar) as archive:
            self._c = ctypes.CDLL(archive.extract(_IN_JAR, scratch))
        self._c.duramen_piece_open.restype = ctypes.c_void_p
        self._c.duramen_piece_next.restype = ctypes.c_int64
        self._c.duramen_piece_next.argtypes = [ctypes.c_void_p] * 3
        self._c.duramen_piece_close.argtypes = [ctypes.c_void_p]

    def read(self, log: Path, columns: Sequence[str], options: Mapping[str, str]) -> int:
        """Read a whole log into the same buffers again and again; returns the number of records."""
        parsed = parse_options({"path": str(log), **options}, streaming=False)
        native = NativeSplits(NarrowedRead(str(log), wanted_of(schema_of(parsed), parsed), Narrowed()))
        batch, kept = self._batch(columns)
        count = 0
        for split in plan_read(parsed):
            for piece in (native.describe(split) or {"pieces": []})["pieces"]:
                count += self._read_piece(piece["path"], base64.b64decode(piece["piece"]), batch)
        del kept
        return count

    def _batch(self, columns: Sequence[str]) -> tuple[ctypes.Array[ctypes.c_int64], list[object]]:
        numbers = (ctypes.c_int64 * (len(_FIELDS) + _MORE_NUMBERS))()
        for name, number in (("capacity", ROWS), ("values_bytes", VALUES_BYTES), ("keys_bytes", KEYS_BYTES)):
            numbers[_FIELDS.index(name)] = number
        kept: list[object] = []
        for column in columns:
            for name, size in _BUFFERS.get(column, {}).items():
                buffer = ctypes.create_string_buffer(size)
                numbers[_FIELDS.index(name)] = ctypes.addressof(buffer)
                kept.append(buffer)
        return numbers, kept

    def _read_piece(self, path: str, packed: bytes, batch: ctypes.Array[ctypes.c_int64]) -> int:
        reader, count = self._c.duramen_piece_open(path.encode(), packed), 0
        if not reader:
            raise RuntimeError(f"the library leaves {path} to Python")
        try:
            while (rows := self._c.duramen_piece_next(reader, batch, _NO_CODECS)) != 0:
                if rows < 0 and rows != AGAIN:
                    raise RuntimeError(f"the library leaves the rest of {path} to Python")
                count += max(rows, 0)
        finally:
            self._c.duramen_piece_close(reader)
        return count
