"""The library by which Spark's JVM reads, without a JVM: it reads what Python reads, or leaves it to Python."""

from __future__ import annotations

import base64
import ctypes
import random
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import duramen
from duramen.log.read.log import Log
from duramen.spark import jar
from duramen.spark.native_splits import NativeSplits
from duramen.spark.source.narrowed import Narrowed, NarrowedRead
from duramen.spark.source.options import parse_options
from duramen.spark.source.schema import schema_of, wanted_of
from tests.spark.source_logs import batch_of, build_log, read_here, splits_of

NAME = "libduramen_spark.so"
IN_JAR = f"duramen/spark/native/{NAME}"
SANITIZED = Path(str(distribution("duramen").locate_file(f"duramen/spark/{NAME}")))
"""Built instead of the jar under the sanitizers."""
FORMATS = ("durable-log", "keratin", "rustlog", "fixed-slot", "osiris", "kafka")


def has_library() -> bool:
    found = jar()
    if found is None:
        return SANITIZED.is_file()
    with zipfile.ZipFile(found) as archive:
        return IN_JAR in archive.namelist()


def library_at(directory: Path) -> Path:
    if SANITIZED.is_file():
        return SANITIZED
    with zipfile.ZipFile(str(jar())) as archive:
        return Path(archive.extract(IN_JAR, directory))


def without_headers(name: str, count: int) -> pa.RecordBatch:
    batch = batch_of(name, 0, count)
    return batch.drop_columns(["headers"]) if "headers" in batch.schema.names else batch


pytestmark = pytest.mark.skipif(not has_library(), reason="built without a JDK")

ROOM = ("capacity", "values_bytes", "keys_bytes")
BUFFERS = (
    "offset", "position", "timestamp", "timestamp_valid", "time_kind", "value_offsets", "values", "value_valid",
    "key_offsets", "keys", "key_valid",
)  # fmt: skip
RESULTS = ("wants_blocks", "first_offset", "last_offset", "needed_bytes")


class Batch(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ROOM),
        *((name, ctypes.c_void_p) for name in BUFFERS),
        *((name, ctypes.c_int64) for name in RESULTS),
    )


ROWS, PYTHON = 1000, -1


class Library:
    """The C functions that the JVM calls, with buffers of this process."""

    def __init__(self, path: Path) -> None:
        self._c = ctypes.CDLL(str(path))
        self._c.duramen_piece_open.restype = ctypes.c_void_p
        self._c.duramen_piece_next.restype = ctypes.c_int64
        self._c.duramen_piece_next.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._c.duramen_piece_close.argtypes = [ctypes.c_void_p]
        self._buffers = {name: ctypes.create_string_buffer(size) for name, size in self._sizes().items()}
        addresses = {name: ctypes.addressof(buffer) for name, buffer in self._buffers.items()}
        self._batch = Batch(capacity=ROWS, values_bytes=1 << 16, keys_bytes=1 << 16, wants_blocks=1, **addresses)

    @staticmethod
    def _sizes() -> dict[str, int]:
        wide = dict.fromkeys(("offset", "position", "timestamp"), 8 * ROWS)
        flags = {f"{name}_valid": ROWS for name in ("timestamp", "value", "key")}
        offsets = dict.fromkeys(("value_offsets", "key_offsets", "time_kind"), 4 * ROWS + 4)
        return {**wide, **flags, **offsets, "values": 1 << 16, "keys": 1 << 16}

    def values_of(self, path: str, packed: bytes) -> list[bytes] | None:
        """The values of a piece, None where Python must read it."""
        reader = self._c.duramen_piece_open(path.encode(), packed)
        if not reader:
            return None
        try:
            return self._read(reader)
        finally:
            self._c.duramen_piece_close(reader)

    def _read(self, reader: int) -> list[bytes] | None:
        found: list[bytes] = []
        while True:
            count = self._c.duramen_piece_next(reader, ctypes.byref(self._batch))
            if count <= 0:
                return None if count < 0 else found
            ends = (ctypes.c_int32 * (count + 1)).from_buffer(self._buffers["value_offsets"])
            found += [self._buffers["values"].raw[ends[row] : ends[row + 1]] for row in range(count)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(library_at(tmp_path_factory.mktemp("library")))


def pieces_of(log: Path, **options: Any) -> list[tuple[str, bytes]]:
    parsed = parse_options({"path": str(log), **options}, streaming=False)
    native = NativeSplits(NarrowedRead(str(log), wanted_of(schema_of(parsed), parsed), Narrowed()))
    described = [native.describe(split) for split in splits_of(log, **options)]
    return [
        (one["path"], base64.b64decode(one["piece"]))
        for split in described
        for one in (split or {"pieces": []})["pieces"]
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_files(library: Library, tmp_path: Path, name: str) -> None:
    """Whatever a file holds, the library reads what Python reads, or leaves it to Python."""
    log = tmp_path / "log"
    options = {"record_size": 40} if name == "fixed-slot" else {}
    with duramen.open(log, "a", format=name, **options) as writer:
        writer.append_batch(without_headers(name, 60))
    (path, packed), *_ = pieces_of(log)
    whole, chance = Path(path).read_bytes(), random.Random(name)
    expected = read_here(log).column("value").to_pylist()
    assert library.values_of(path, packed) == expected
    for _ in range(1000):
        content = damaged(whole, chance)
        Path(path).write_bytes(content)
        found = library.values_of(path, packed)
        assert found is None or content == whole
    for _ in range(500):  # a plan of other numbers, too
        wrong = bytearray(packed)
        wrong[chance.randrange(len(wrong))] ^= 1 << chance.randrange(8)
        Path(path).write_bytes(whole)
        library.values_of(path, bytes(wrong))


def damaged(whole: bytes, chance: random.Random) -> bytes:
    content = bytearray(whole)
    for _ in range(chance.choice([1, 1, 2, 8])):
        at = chance.randrange(len(content))
        content[at : at + chance.choice([1, 4])] = chance.choice([b"\xff", b"\0", b"\xff\xff\xff\xff", b"\x7f"])
    return bytes(content[: len(whole)] if chance.random() < 0.7 else content[: chance.randrange(len(content))])


@pytest.mark.parametrize("name", FORMATS)
def test_unverified_bytes_read_as_in_python(library: Library, tmp_path: Path, name: str) -> None:
    """Planned as they are, without checksums: everything that can be read is."""
    batch, options = without_headers(name, 40), {"record_size": 40} if name == "fixed-slot" else {}
    log = build_log(tmp_path / "log", name, [batch])
    path = Path(Log(str(log), **options).segments[-1].path)
    whole, chance, read = path.read_bytes(), random.Random(name), 0
    for _ in range(250):
        path.write_bytes(damaged(whole, chance))
        try:
            pieces = pieces_of(log, verify="false", columns="value", **options)
        except duramen.DuramenError:
            continue
        found = [library.values_of(*piece) for piece in pieces]
        if found and None not in found:
            values = [value for part in found for value in part or ()]
            assert values == [value or b"" for value in read_here(log, verify="false", **options)["value"].to_pylist()]
            read += 1
    assert read
