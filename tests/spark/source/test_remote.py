"""Logs on other filesystems: the same rows, only the bytes of a split fetched, and no write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs
from pyspark.sql import SparkSession

import duramen
from duramen.disk.object_store import ArrowDisk, Sparse, open_address
from duramen.disk.uri import disk_for, is_address
from duramen.disk.vfs import Kind
from duramen.errors import DuramenError, StorageError
from duramen.log.read.log import Log
from tests.spark.s3_server import S3, serving
from tests.spark.source_logs import FORMATS, START_MS, assert_same, expected, read_here, splits_of, write_log
from tests.spark.stream_query import Query

NEUTRAL = ("offset", "timestamp", "key", "value")


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3]:
    (tmp_path / "bucket").mkdir()
    with serving(tmp_path) as server:
        yield server


@pytest.mark.parametrize("name", FORMATS)
def test_a_log_on_s3(s3: S3, name: str) -> None:
    log = write_log(s3.root / "bucket" / "deep" / name, name, 300)
    address = s3.address(f"bucket/deep/{name}")
    assert_same(read_here(address, columns=",".join(NEUTRAL)), expected(log, NEUTRAL))
    found = read_here(address, columns="offset", startingOffsets=120, endingOffsets=-20)
    assert found.column(0).to_pylist() == list(range(120, 280))


def test_only_the_bytes_of_a_split_are_fetched(s3: S3) -> None:
    log = write_log(s3.root / "bucket" / "log", "durable-log", 20_000, step=2000, segment_bytes=1 << 30)
    segment = Path(Log(str(log)).segments[0].path)
    size = segment.stat().st_size
    assert size > 1_000_000
    address = s3.address("bucket/log")
    splits = splits_of(address, maxBytesPerPartition=size // 10, columns="offset")
    assert len(splits) >= 9

    def fetched() -> int:
        total = sum(count for name, count in s3.sent if name.endswith(segment.name))
        s3.sent.clear()
        return total

    assert fetched() < 250_000  # planning: the file's header and a record's at each cut
    rows = read_here(address, splits[4:5], columns="offset,value")
    assert fetched() < size // 10 + 150_000
    offsets = rows.column("offset").to_pylist()
    assert offsets == list(range(offsets[0], offsets[-1] + 1))
    assert_same(read_here(address, splits, columns="offset"), expected(log, ["offset"]))


def test_times_and_topics_on_s3(s3: S3) -> None:
    root = s3.root / "bucket" / "store"
    for number in range(2):
        path = root / "topics" / "orders" / "partitions" / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_log(path, "keratin", 100)
    address = s3.address("bucket/store")
    found = read_here(address, subscribe="orders", columns="partition,offset", startingTimestamp=START_MS + 97_000)
    assert found.to_pylist() == [{"partition": n, "offset": o} for n in range(2) for o in (97, 98, 99)]
    with pytest.raises(DuramenError, match="the topic 'x' does not exist"):
        read_here(address, subscribe="x")


def test_wildcards_and_small_tasks_on_s3(s3: S3) -> None:
    for host in ("h1", "h2"):
        write_log(s3.root / "bucket" / "hosts" / host / "log", "keratin", 100)
    found = read_here(s3.address("bucket/hosts/*/log"), columns="topic,offset", startingOffsets=90)
    wanted = [{"topic": f"{host}/log", "offset": offset} for host in ("h1", "h2") for offset in range(90, 100)]
    assert found.to_pylist() == wanted
    splits = splits_of(s3.address("bucket/hosts/*/log"), columns="offset", maxRecordsPerPartition=30)
    assert len(splits) >= 6, "as far as segments and their indexes tell"
    assert read_here(s3.address("bucket/hosts/h1/log"), splits, columns="offset").num_rows == 200
    with pytest.raises(DuramenError, match="no directory matches"):
        read_here(s3.address("bucket/hosts/*/other"))


def test_damage_on_s3_names_the_address(s3: S3) -> None:
    log = write_log(s3.root / "bucket" / "log", "keratin", 200, segment_bytes=1 << 20)
    segment = Path(Log(str(log)).segments[0].path)
    segment.write_bytes(segment.read_bytes().replace(b"value 50.", b"value 51."))
    with pytest.raises(DuramenError) as caught:
        read_here(s3.address("bucket/log"), minPartitions=3)
    assert str(caught.value.path).startswith("s3://")
    assert "secret" not in str(caught.value)
    assert caught.value.offset == 50
    rows = read_here(s3.address("bucket/log"), minPartitions=3, onDamage="skip")
    assert rows.num_rows == 199


@pytest.mark.parametrize("name", ["keratin", "osiris"])
def test_a_search_by_time_on_s3_does_not_skip_what_damage_hides(s3: S3, name: str) -> None:
    path = write_log(s3.root / "bucket" / "log", name, 100, step=10)
    with Log(str(path)) as log:
        base = log.segments[1].base_offset
        at = log.locate(base + 2)
    content = bytearray(Path(at.path).read_bytes())
    content[at.position : at.position + 16] = b"\xff" * 16
    Path(at.path).write_bytes(bytes(content))
    query = Query()
    query.run(s3.address("bucket/log"), onDamage="skip", startingTimestamp=START_MS + (base + 5) * 1000)
    assert set(query.offsets()) >= set(range(base + 5, 100))


def test_errors_of_a_filesystem(s3: S3) -> None:
    with pytest.raises(StorageError, match="no such file or directory"):
        read_here(s3.address("bucket/nothing"))
    with pytest.raises(StorageError, match="cannot be used"):
        read_here("nosuchscheme://host/path")


def test_open_reads_an_address(s3: S3) -> None:
    log = write_log(s3.root / "bucket" / "log", "osiris", 100)
    with duramen.open(s3.address("bucket/log")) as remote:
        assert remote.next_offset == 100
        assert remote.read(42).value == duramen.open(log).read(42).value
    with duramen.open(log.as_uri()) as local:
        assert local.next_offset == 100
    with pytest.raises(StorageError, match="can only be read"):
        duramen.open(s3.address("bucket/log"), "a")


def test_file_addresses_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "a log", "keratin", 100)
    reader = spark.read.format("duramen").option("columns", ",".join(NEUTRAL))
    assert_same(reader.load(log.as_uri()).toArrow(), expected(log, NEUTRAL))
    assert_same(reader.load(f"local://{log}").toArrow(), expected(log, NEUTRAL))  # by fsspec, in the executors


# --- the disk itself


def test_the_disk_over_a_local_filesystem(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "rustlog", 100)
    disk = ArrowDisk(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()))
    assert disk.kind("log") == Kind.DIRECTORY
    assert disk.kind("nothing") == Kind.MISSING
    assert disk.directories("log") == [".duramen"]
    names = [name for name, _ in disk.list("log", (".duramen",))]
    assert names == sorted(str(p.relative_to(log)) for p in log.rglob("*") if p.is_file())
    values = [record.value for record in Log("log", disk=disk).scan()]
    assert values == [record.value for record in Log(str(log)).scan()]
    for refuse in (disk.create, disk.open, disk.remove, disk.make_directory, disk.sync_directory):
        with pytest.raises(StorageError, match="can only be read"):
            refuse("log/x")
    with pytest.raises(StorageError, match="log/none: no such file"):
        disk.map("log/none")


def test_parts_of_a_file_are_fetched_once(tmp_path: Path) -> None:
    content = bytes(range(256)) * 100
    (tmp_path / "file").write_bytes(content)

    class Counting:
        def __init__(self) -> None:
            self.asked: list[tuple[int, int]] = []

        def size(self) -> int:
            return len(content)

        def read_at(self, size: int, position: int) -> bytes:
            self.asked.append((position, position + size))
            return content[position : position + size]

    source = Counting()
    sparse = Sparse(source, "file")
    sparse.fetch(100, 200)
    sparse.fetch(150, 300)
    sparse.fetch(0, 400)
    sparse.fetch(120, 130)
    sparse.fetch(25_000, 99_999)
    assert source.asked == [(100, 200), (200, 300), (0, 100), (300, 400), (25_000, 25_600)]
    assert bytes(sparse.data[:400]) == content[:400]
    assert not any(sparse.data[400:25_000])
    assert bytes(sparse.data[25_000:]) == content[25_000:]


def test_what_is_an_address() -> None:
    assert is_address("s3://bucket/log")
    assert is_address("hdfs://name:8020/log")
    assert not is_address("/data/a:b//c")
    assert not is_address("relative/path")
    assert disk_for("file:/data/x")[1] == disk_for("file:///data/x")[1] == disk_for("/data/x")[1] == "/data/x"
    with pytest.raises(DuramenError):
        open_address("/data/log")
