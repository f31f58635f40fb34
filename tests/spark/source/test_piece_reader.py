"""The library by which Spark's JVM reads, without a JVM: it reads what Python reads, or leaves it to Python."""

from __future__ import annotations

import base64
import ctypes
import random
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import cramjam
import pyarrow as pa
import pytest

import duramen
from duramen.formats.kafka.codec import UNFOLD
from duramen.formats.keratin.header_block import MARKER, TOMBSTONE, decode_block, encode_block
from duramen.log.read.log import Log
from duramen.record import HEADER, HEADERS
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
CODECS = ("snappy", "lz4", "zstd")
KINDS = (*FORMATS, *(f"kafka {codec}" for codec in CODECS))


def options_of(kind: str) -> tuple[str, dict[str, Any]]:
    """The format, and the options that it is written with."""
    name, _, codec = kind.partition(" ")
    return name, {"compression": codec} if codec else {"record_size": 40} if name == "fixed-slot" else {}


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


pytestmark = pytest.mark.skipif(not has_library(), reason="built without a JDK")


class Values(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_int64), *((name, ctypes.c_void_p) for name in ("offsets", "data", "valid")))


class Batch(ctypes.Structure):
    _fields_ = (
        ("capacity", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("offset", "position", "timestamp", "timestamp_valid", "time_kind")),
        ("values", Values),
        ("keys", Values),
        ("headers", ctypes.c_int64),
        ("list_offsets", ctypes.c_void_p),
        ("list_valid", ctypes.c_void_p),
        ("header_keys", Values),
        ("header_values", Values),
        ("first_offset", ctypes.c_int64),
        ("last_offset", ctypes.c_int64),
    )


ROWS, PAIRS, BYTES, PYTHON = 1000, 8000, 1 << 16, -1
Buffer = ctypes.Array[ctypes.c_char]
Rows = list[tuple[Any, ...]]


class Column:
    """Arrow's buffers of a column of bytes."""

    def __init__(self, rows: int) -> None:
        sizes = {"offsets": 4 * rows + 4, "data": BYTES, "valid": rows}
        self._buffers = {name: ctypes.create_string_buffer(size) for name, size in sizes.items()}

    def address(self) -> Values:
        return Values(BYTES, **{name: ctypes.addressof(buffer) for name, buffer in self._buffers.items()})

    def array(self, count: int, kind: pa.DataType) -> pa.Array:
        parts = [pa.py_buffer(self._buffers[name].raw) for name in ("valid", "offsets", "data")]
        return pa.Array.from_buffers(kind, count, parts)


Unfold = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64
)


class Codecs(ctypes.Structure):
    _fields_ = (("unfold", Unfold), ("context", ctypes.c_void_p))


def unfold(_: int, codec: int, body: int, size: int, out: int, room: int) -> int:
    """As `Codecs.java`: bytes, or a number below 0."""
    folded, plain = ((ctypes.c_ubyte * size).from_address(at) for at, size in ((body, size), (out, room)))
    try:
        return UNFOLD[codec](memoryview(folded).cast("B"), memoryview(plain).cast("B"))
    except cramjam.DecompressionError:
        return -1


class Library:
    """The C functions that the JVM calls, with buffers of this process."""

    def __init__(self, path: Path) -> None:
        self._c = ctypes.CDLL(str(path))
        self._c.duramen_piece_open.restype = ctypes.c_void_p
        self._c.duramen_piece_next.restype = ctypes.c_int64
        self._c.duramen_piece_next.argtypes = [ctypes.c_void_p] * 3
        self._c.duramen_piece_close.argtypes = [ctypes.c_void_p]
        numbers = ("offset", "position", "timestamp", "timestamp_valid", "time_kind")
        self._numbers = {name: ctypes.create_string_buffer(8 * ROWS) for name in numbers}
        self._lists = {name: ctypes.create_string_buffer(4 * ROWS + 4) for name in ("list_valid", "list_offsets")}
        self._columns = {name: Column(ROWS) for name in ("values", "keys")}
        self._columns |= {name: Column(PAIRS) for name in ("header_keys", "header_values")}
        self._codecs = Codecs(Unfold(unfold))
        self._batch = Batch(
            capacity=ROWS, headers=PAIRS,
            **{name: ctypes.addressof(buffer) for name, buffer in (self._numbers | self._lists).items()},
            **{name: column.address() for name, column in self._columns.items()},
        )  # fmt: skip

    def rows_of(self, path: str, packed: bytes) -> Rows | None:
        """Value, key and headers of the records of a piece, None where Python must read it."""
        reader = self._c.duramen_piece_open(path.encode(), packed)
        if not reader:
            return None
        try:
            return self._read(reader)
        finally:
            self._c.duramen_piece_close(reader)

    def _read(self, reader: int) -> Rows | None:
        found: Rows = []
        while True:
            count = self._c.duramen_piece_next(reader, ctypes.byref(self._batch), ctypes.byref(self._codecs))
            if count <= 0:
                return None if count < 0 else found
            found += zip(*(array.to_pylist() for array in self._arrays(count)), strict=True)

    def _arrays(self, count: int) -> list[pa.Array]:
        ends = pa.py_buffer(self._lists["list_offsets"].raw)
        pairs = pa.Array.from_buffers(pa.int32(), count + 1, [None, ends])[count].as_py()
        names, contents = (self._columns[name] for name in ("header_keys", "header_values"))
        children = [names.array(pairs, pa.string()), contents.array(pairs, pa.binary())]
        headers = pa.Array.from_buffers(
            HEADERS.type, count, [pa.py_buffer(self._lists["list_valid"].raw), ends],
            children=[pa.StructArray.from_arrays(children, fields=list(HEADER))],
        )  # fmt: skip
        headers.validate(full=True)
        return [*(self._columns[name].array(count, pa.binary()) for name in ("values", "keys")), headers]


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


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_files(library: Library, tmp_path: Path, kind: str) -> None:
    """Whatever a file holds, the library reads what Python reads, or leaves it to Python."""
    log = tmp_path / "log"
    name, options = options_of(kind)
    with duramen.open(log, "a", format=name, **options) as writer:
        writer.append_batch(batch_of(name, 0, 60))
    (path, packed), *_ = pieces_of(log, includeHeaders="true")
    whole, chance = Path(path).read_bytes(), random.Random(kind)
    assert library.rows_of(path, packed) == rows_here(log)
    for _ in range(1000):
        content = damaged(whole, chance)
        Path(path).write_bytes(content)
        found = library.rows_of(path, packed)
        assert found is None or content == whole
    for _ in range(500):  # a plan of other numbers, too
        wrong = bytearray(packed)
        wrong[chance.randrange(len(wrong))] ^= 1 << chance.randrange(8)
        Path(path).write_bytes(whole)
        library.rows_of(path, bytes(wrong))


def rows_here(log: Path, **options: Any) -> Rows:
    columns = read_here(log, columns="value,key,headers", **options).columns
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def damaged(whole: bytes, chance: random.Random) -> bytes:
    content = bytearray(whole)
    for _ in range(chance.choice([1, 1, 2, 8])):
        at = chance.randrange(len(content))
        content[at : at + chance.choice([1, 4])] = chance.choice([b"\xff", b"\0", b"\xff\xff\xff\xff", b"\x7f"])
    return bytes(content[: len(whole)] if chance.random() < 0.7 else content[: chance.randrange(len(content))])


@pytest.mark.parametrize("kind", KINDS)
def test_unverified_bytes_read_as_in_python(library: Library, tmp_path: Path, kind: str) -> None:
    """Planned as they are, without checksums: everything that can be read is."""
    name, options = options_of(kind)
    log = build_log(tmp_path / "log", name, [batch_of(name, 0, 40)], **options)
    given = {"record_size": 40} if name == "fixed-slot" else {}
    path = Path(Log(str(log), **given).segments[-1].path)
    whole, chance, read = path.read_bytes(), random.Random(kind), 0
    for _ in range(250):
        path.write_bytes(damaged(whole, chance))
        try:
            pieces = pieces_of(log, verify="false", columns="value,key,headers", **given)
        except duramen.DuramenError:
            continue
        found = [library.rows_of(*piece) for piece in pieces]
        if found and None not in found:
            assert [row for part in found for row in part or ()] == rows_here(log, verify="false", **given)
            read += 1
    assert read


def test_blocks_of_headers_read_as_in_python(library: Library, tmp_path: Path) -> None:
    """Whatever bytes Keratin's user headers are: a block is written for what it decodes to."""
    chance, log = random.Random(7), tmp_path / "log"
    records = [(chance.choice([b"", b"v"]), block) for block in random_blocks(chance, 6000)]
    fields = [(value, *decode_block(block, bool(value))) for value, block in records]
    columns = {
        "value": pa.array([None if is_null else value for value, _, _, is_null in fields], pa.binary()),
        "key": pa.array([key for _, key, _, _ in fields], pa.binary()),
        "headers": pa.array(
            [[{"key": name, "value": value} for name, value in headers or ()] or None for _, _, headers, _ in fields],
            HEADERS.type,
        ),
    }  # fmt: skip
    with duramen.open(log, "a", format="keratin") as writer:
        writer.append_batch(pa.RecordBatch.from_pydict(columns))
    whole = b"".join(Path(info.path).read_bytes() for info in Log(str(log)).segments)
    assert all(block in whole for _, block in records)
    pieces = pieces_of(log, columns="value,key,headers")
    assert [row for piece in pieces for row in library.rows_of(*piece) or ()] == rows_here(log)


def random_blocks(chance: random.Random, count: int) -> Iterator[bytes]:
    parts = [MARKER, TOMBSTONE, b"\xff" * 4, b"a", "\xe9".encode(), b"\xff", b"\xed\xa0\x80"]
    parts += [bytes([0, 0, 0, number]) for number in (0, 0, 1, 2, 12, 16)]
    for _ in range(count):
        block = b"".join(chance.choices(parts, k=chance.randrange(9)))
        for _ in range(chance.choice([0, 0, 0, 1, 2])):
            name = chance.choice(["", "", "h", "\xe9"])
            headers = [(name, chance.choice([None, b"", b"x", block, block]))] * chance.choice([0, 1, 1, 1, 2])
            block = encode_block(chance.choice([None, None, b"", b"k"]), headers, chance.random() < 0.2)
        yield block
