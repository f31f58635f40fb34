"""Splits that the JVM reads itself, through the kernel: Python's rows and errors, and what is left to Python."""

from __future__ import annotations

import base64
import ctypes
import random
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import duramen
from duramen.log.read.log import Log
from duramen.spark import jar
from duramen.spark.source.narrowed import Narrowed, NarrowedRead
from duramen.spark.source.native import NativeSplits
from duramen.spark.source.options import parse_options
from duramen.spark.source.schema import schema_of, wanted_of
from tests.conftest import DATA
from tests.spark.source.test_engine import load, outcome, rows
from tests.spark.source_logs import (
    START_MS,
    START_US,
    batch_of,
    build_log,
    read_here,
    splits_of,
    with_offsets,
    write_log,
)

LIBRARY = "duramen/spark/native/libduramen_spark.so"


def has_library() -> bool:
    found = jar()
    if found is None:
        return False
    with zipfile.ZipFile(found) as archive:
        return LIBRARY in archive.namelist()


BROKERS = sorted(path.parent for path in (DATA / "kafka").glob("*/*/truth.read_committed.jsonl"))
BROKERS += [DATA / "osiris" / name for name in ("subbatch", "tracked", "crash")]
pytestmark = pytest.mark.skipif(not has_library(), reason="built without a JDK")

FORMATS = ("durable-log", "keratin", "rustlog", "fixed-slot", "osiris", "kafka")
COLUMNS = "value,offset,timestamp,key,topic,partition,segment,position,timestampType"
HEADED = f"{COLUMNS},headers"


def metrics_of(frame: DataFrame) -> dict[str, int]:
    """Batches read in the JVM and by Python, and splits handed over, of the action that ran on this DataFrame."""
    todo, found = [frame._jdf.queryExecution().executedPlan()], {}
    while todo:
        plan = todo.pop()
        todo += [plan.children().apply(number) for number in range(plan.children().size())]
        for name in ("duramenNativeBatches", "duramenPythonBatches", "duramenHandedOver"):
            if plan.metrics().contains(name):
                found[name.removeprefix("duramen")] = plan.metrics().apply(name).value()
    return found


def is_native(frame: DataFrame) -> bool:
    found = metrics_of(frame)
    return found["NativeBatches"] > 0 and not found["PythonBatches"] and not found["HandedOver"]


def same(spark: SparkSession, log: Path, *selected: str, where: str = "true", **options: Any) -> DataFrame:
    """The DataFrame of the JVM, whose rows are those of Python."""
    frames = []
    for engine in ("python", "jvm"):
        frame = load(spark, log, engine, **options).where(where)
        frames.append(frame.selectExpr(*selected) if selected else frame)
    python, jvm = (frame.toArrow() for frame in frames)
    assert jvm.equals(python)
    return frames[1]


def without_headers(name: str, count: int) -> pa.RecordBatch:
    batch = batch_of(name, 0, count)
    return batch.drop_columns(["headers"]) if "headers" in batch.schema.names else batch


@pytest.mark.parametrize("name", FORMATS)
def test_rows(spark: SparkSession, tmp_path: Path, name: str) -> None:
    log = tmp_path / "log"
    options = {"record_size": 40} if name == "fixed-slot" else {"segment_max_bytes": 4096}
    with duramen.open(log, "a", format=name, **options) as writer:
        writer.append_batch(without_headers(name, 500))
    whole = same(spark, log, columns=COLUMNS if name == "kafka" else HEADED, maxBytesPerPartition=3000)
    assert is_native(whole)
    for where in ("offset BETWEEN 77 AND 178", "offset = 499"):
        assert is_native(same(spark, log, where=where, maxBytesPerPartition=3000))
        assert is_native(same(spark, log, "count(*)", "min(offset)", "max(offset)", where=where))
    for where in (f"timestamp >= timestamp_millis({START_MS + 60_000})", "offset < 99"):
        same(spark, log, where=where)
        same(spark, log, "count(*)", where=where)


def test_a_record_of_every_shape(spark: SparkSession, tmp_path: Path) -> None:
    values = [b"", b"x", None, b"", None, b"v" * 3_000_000, b"y" * 700, None, b"w" * 2_500_000, b"z"]
    keys = [b"k", None, b"gone", b"", None, b"big", b"K" * 300_000, b"", None, b"q"]
    columns = {
        "offset": pa.array([0, 1, 5, 6, 7, 2**40, 2**40 + 1, 2**50, 2**62, 2**62 + 5]),
        "value": pa.array(values, pa.binary()), "key": pa.array(keys, pa.binary()),
        "timestamp": pa.array([START_US] * 9 + [None], pa.timestamp("us", "UTC")),
    }  # fmt: skip
    log = tmp_path / "log"
    with duramen.open(log, "a", format="keratin") as writer:
        writer.append_batch(pa.RecordBatch.from_pydict(columns))
    assert is_native(same(spark, log, columns=HEADED))
    for name in ("key", "value", "headers", "offset"):
        assert is_native(same(spark, log, name, columns=HEADED))
    with duramen.open(log, "a") as writer:
        writer.append(b"last", headers=[("h", b"1")])
        writer.append(None, headers=[("h", None)], key=b"a")
    assert metrics_of(same(spark, log, columns=HEADED))["HandedOver"] == 1
    assert is_native(same(spark, log, "offset", "timestamp"))


def test_kafka_nulls_and_kinds_of_time(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    columns = {
        "value": pa.array([b"", None, b"x"] * 200, pa.binary()), "key": pa.array([None, b"k", b""] * 200, pa.binary()),
        "timestamp": pa.array([START_US, None, START_US + 5000] * 200, pa.timestamp("us", "UTC")),
    }  # fmt: skip
    with duramen.open(log, "a", format="kafka") as writer:
        writer.append_batch(pa.RecordBatch.from_pydict(columns))
        writer.append(b"headed", headers=[("h", b"1")])
    assert is_native(same(spark, log, columns=COLUMNS))
    assert not metrics_of(same(spark, log, columns=HEADED))["NativeBatches"]


@pytest.mark.parametrize("path", BROKERS, ids=lambda path: path.name)
def test_what_brokers_wrote(spark: SparkSession, path: Path) -> None:
    same(spark, path, columns=COLUMNS)
    if "kafka" in path.parts:
        same(spark, path, columns=COLUMNS, isolation="read_committed")


@pytest.mark.parametrize("name", FORMATS)
def test_python_goes_on_where_an_end_is_in_doubt(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Files alone, whose last one ends in zeros, or in the middle of a record."""
    log = build_log(tmp_path / "log", name, [without_headers(name, 60_000)])
    path = Path(Log(str(log), **({"record_size": 40} if name == "fixed-slot" else {})).segments[-1].path)
    whole = path.read_bytes()
    options = {"record_size": 40} if name == "fixed-slot" else {}
    selected = ("offset", "value")
    for content in (whole + bytes(5000), whole[:-3], whole + whole[:10]):
        path.write_bytes(content)
        found = metrics_of(same(spark, log, *selected, **options))
        assert found["NativeBatches"]
        assert found["HandedOver"] == 1
    same(spark, log, "count(*)", **options)


@pytest.mark.parametrize("name", FORMATS)
def test_damage_has_pythons_words(spark: SparkSession, tmp_path: Path, name: str) -> None:
    log, chance = write_log(tmp_path / "log", name, 200, step=5), random.Random(name)
    paths = [Path(info.path) for info in Log(str(log)).segments]
    wrong = 0
    for _ in range(2):
        path = chance.choice(paths)
        content = path.read_bytes()
        at = chance.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :])
        for selected in (["offset", "value"], ["count(*)"]):
            texts = [
                outcome(lambda e=e, s=selected: rows(load(spark, log, e).selectExpr(*s))) for e in ("python", "jvm")
            ]
            assert texts[0] == texts[1]
            wrong += isinstance(texts[0], list) and "duramen.errors" in str(texts[0])
        path.write_bytes(content)
    assert wrong


def test_a_file_that_changes_after_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    for change in ("cut", "removed", "replaced", "grown"):
        log = write_log(tmp_path / change, "keratin", 300)
        frames = {engine: load(spark, log, engine).select("offset", "value") for engine in ("python", "jvm")}
        assert [len(rows(frame)) for frame in frames.values()] == [300, 300]
        path = Path(Log(str(log)).segments[2].path)
        if change == "cut":
            path.write_bytes(path.read_bytes()[:-50])
        elif change == "removed":
            path.unlink()
        elif change == "grown":
            path.write_bytes(path.read_bytes() + bytes(100))
        else:
            shutil.rmtree(log)
            write_log(log, "keratin", 300)
        texts = {engine: outcome(lambda f=frame: rows(f)) for engine, frame in frames.items()}
        assert texts["jvm"] == texts["python"], change


def test_what_python_reads(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 100)
    for options in ({"onDamage": "skip"}, {"summary": "true"}, {"decode": "utf8"}):
        frame = same(spark, log, **options)
        assert not metrics_of(frame)["NativeBatches"], options
    frame = load(spark, log, "arrow").select("offset")
    assert len(rows(frame)) == 100
    assert not metrics_of(frame)["NativeBatches"]
    long = tmp_path / "long"
    with duramen.open(long, "a", format="durable-log") as writer:
        writer.append_batch([b"v" * 20_000] * 300)
    assert not metrics_of(same(spark, long, columns="offset"))["NativeBatches"], "it jumps over the values"
    assert is_native(same(spark, long))
    native = load(spark, log).select("offset")
    native.collect()
    assert "native=" in native._jdf.queryExecution().toString()


def test_a_stream_is_read_natively(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with duramen.open(log, "a", format="durable-log") as writer:
        writer.append_batch([b"%d" % number for number in range(1000)])
    stream = spark.readStream.format("duramen").options(engine="jvm", maxOffsetsPerTrigger=300).load(str(log))
    found: list[Any] = []
    query = stream.writeStream.foreachBatch(lambda batch, _: found.extend(rows(batch.select("offset", "value"))))
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert found == [{"offset": number, "value": b"%d" % number} for number in range(1000)]


# --- the library by itself


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
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with zipfile.ZipFile(str(jar())) as archive:
        yield Library(Path(archive.extract(LIBRARY, tmp_path_factory.mktemp("library"))))


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


def test_offsets_that_belong_to_the_next_segment(spark: SparkSession, tmp_path: Path) -> None:
    batches = [with_offsets(batch_of("durable-log", 0, 20), range(first, first + 20)) for first in (0, 10)]
    log = tmp_path / "log"
    for number, batch in enumerate(batches):
        built = build_log(tmp_path / str(number), "durable-log", [batch])
        log.mkdir(exist_ok=True)
        for path in built.iterdir():
            path.rename(log / path.name)
    texts = [outcome(lambda e=e: rows(load(spark, log, e))) for e in ("python", "jvm")]
    assert texts[0] == texts[1]
    assert "lies in the next segment" in str(texts[0])
