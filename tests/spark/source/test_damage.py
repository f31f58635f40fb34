"""``onDamage``: what a task does about bytes that are not whole any more, in every format."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duramen.errors import CorruptionError, DuramenError
from duramen.log.read.log import Log
from tests.conftest import DATA
from tests.spark.source_logs import FORMATS, START_MS, read_here, write_log
from tests.spark.stream_query import Query

CHECKED = tuple(name for name in FORMATS if name != "rustlog")
COUNT = 200


def flip(log: Path, text: bytes) -> tuple[Path, int]:
    """Change one bit of the payload that begins like this; answers where."""
    for info in Log(str(log)).segments:
        path = Path(info.path)
        content = bytearray(path.read_bytes())
        at = content.find(text)
        if at >= 0:
            content[at] ^= 1
            path.write_bytes(bytes(content))
            return path, at
    raise AssertionError(text)


@pytest.fixture(params=CHECKED)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_fail_names_file_position_and_offset(tmp_path: Path, name: str) -> None:
    log = write_log(tmp_path / "log", name, COUNT, step=5)
    path, at = flip(log, b"value 77.")
    with pytest.raises(CorruptionError) as caught:
        read_here(log)
    error = caught.value
    assert error.path == str(path)
    assert error.offset is not None
    assert 75 <= error.offset <= 77  # of a chunk, its first
    assert error.position is not None
    assert 0 <= at - error.position < 500


def test_skip_continues_after_damage(tmp_path: Path, name: str) -> None:
    log = write_log(tmp_path / "log", name, COUNT, step=5)
    flip(log, b"value 77.")
    flip(log, b"value 150.")
    for size in (1 << 20, 3000, 700):
        offsets = read_here(log, onDamage="skip", maxBytesPerPartition=size).column("offset").to_pylist()
        assert offsets == sorted(set(offsets))
        lost = set(range(COUNT)) - set(offsets)
        assert lost == {77, 150}, size


def test_report_shows_every_damaged_range_once(tmp_path: Path, name: str) -> None:
    log = write_log(tmp_path / "log", name, COUNT, step=5)
    path, at = flip(log, b"value 77.")
    for size in (1 << 20, 700):
        rows = read_here(log, onDamage="report", maxBytesPerPartition=size).to_pylist()
        assert [row["offset"] for row in rows] == sorted(row["offset"] for row in rows)
        damaged = [row for row in rows if row["_damage"] is not None]
        assert len(damaged) == 1
        damage = damaged[0]["_damage"]
        assert damage["path"] == str(path)
        assert damage["position"] <= at < damage["end_position"]
        assert damage["first_offset"] <= 77 <= damage["last_offset"]
        assert damage["reason"]
        assert damaged[0]["value"] is None
        lost = damage["last_offset"] - damage["first_offset"] + 1
        assert len(rows) - 1 == COUNT - lost


def test_a_damaged_length_loses_one_record(tmp_path: Path) -> None:
    """Nothing is known of a record whose length is wrong, but where the next one begins."""
    log = write_log(tmp_path / "log", "durable-log", COUNT, segment_bytes=1 << 20)
    segment = Path(Log(str(log)).segments[0].path)
    content = bytearray(segment.read_bytes())
    at = content.index(b"value 50.")
    start = at - 40
    content[start + 8 : start + 40] = b"\xff" * 32
    segment.write_bytes(bytes(content))
    offsets = read_here(log, onDamage="skip").column("offset").to_pylist()
    assert len(set(range(COUNT)) - set(offsets)) <= 2
    assert 199 in offsets


@pytest.mark.parametrize("name", ["keratin", "rustlog", "osiris"])
def test_a_search_by_time_does_not_skip_what_damage_hides(tmp_path: Path, name: str) -> None:
    """The search stops at the damage, and finds the next segment: the records between were lost without a word."""
    path = write_log(tmp_path / "log", name, COUNT, step=10)
    with Log(str(path)) as log:
        base = log.segments[1].base_offset
        at = log.locate(base + 2)
    content = bytearray(Path(at.path).read_bytes())
    content[at.position : at.position + 16] = b"\xff" * 16
    Path(at.path).write_bytes(bytes(content))
    begin = {"startingTimestamp": START_MS + (base + 5) * 1000}
    found = read_here(path, onDamage="skip", columns="offset", **begin).column(0).to_pylist()
    assert found == list(range(base + 5, COUNT))
    with pytest.raises(DuramenError, match=f"offset {base + 2}: "):
        read_here(path, **begin)
    query = Query()
    query.run(path, onDamage="skip", **begin)
    assert set(query.offsets()) >= set(range(base + 5, COUNT))
    if name != "osiris":  # there, any record may be of any time
        assert len(read_here(path, startingTimestamp=START_MS + COUNT * 1000)) == 0
    end = {"endingTimestamp": START_MS + (base + 5) * 1000, "onDamage": "skip", "columns": "offset"}
    assert read_here(path, **end).column(0).to_pylist() == [n for n in range(base + 5) if n != base + 2]


def test_a_broken_header_of_a_file_loses_that_file(tmp_path: Path) -> None:
    for name in ("keratin", "osiris"):
        log = write_log(tmp_path / name, name, COUNT)
        infos = Log(str(log)).segments
        segment = Path(infos[1].path)
        segment.write_bytes(b"\0" * 20 + segment.read_bytes()[20:])
        with pytest.raises(DuramenError, match=segment.name):
            read_here(log)
        assert read_here(log, onDamage="skip", minPartitions=40).num_rows < COUNT
        rows = read_here(log, onDamage="report").to_pylist()
        damage = [row["_damage"] for row in rows if row["_damage"]]
        assert [entry["path"] for entry in damage] == [str(segment)]
        assert damage[0]["first_offset"] == infos[1].base_offset
        kept = [row["offset"] for row in rows if not row["_damage"]]
        lost = set(range(infos[1].base_offset, infos[2].base_offset))
        assert set(kept) == set(range(COUNT)) - lost


def test_a_chunk_whose_content_cannot_be_read(tmp_path: Path) -> None:
    """A compressed batch of a real broker that cannot be inflated, although no checksum is asked for."""
    import shutil

    log = tmp_path / "log"
    shutil.copytree(DATA / "osiris" / "subbatch", log)
    whole = read_here(log, columns="offset,value").num_rows
    segment = min(log.glob("*.segment"))
    content = bytearray(segment.read_bytes())
    for at in range(len(content) // 2, len(content) // 2 + 200):
        content[at] ^= 0x55
    segment.write_bytes(bytes(content))
    rows = read_here(log, columns="offset,value", onDamage="report", verify="false").to_pylist()
    damage = [row["_damage"] for row in rows if row["_damage"]]
    assert damage
    offsets = [row["offset"] for row in rows if not row["_damage"]]
    assert offsets == sorted(set(offsets))
    lost = sum(entry["last_offset"] - entry["first_offset"] + 1 for entry in damage if entry["last_offset"])
    assert whole - 200 < len(offsets) + lost <= whole + 10


def test_damage_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", COUNT)
    path, _ = flip(log, b"value 77.")
    reader = spark.read.format("duramen")
    assert reader.option("onDamage", "skip").load(str(log)).count() == COUNT - 1
    frame = reader.option("onDamage", "report").load(str(log))
    assert frame.columns[-1] == "_damage"
    found = frame.where("_damage IS NOT NULL").select("offset", "_damage.*").collect()
    assert [(row.offset, row.path, row.first_offset, row.last_offset) for row in found] == [(77, str(path), 77, 77)]
    assert frame.where("_damage IS NULL").count() == COUNT - 1
