"""Null values, where a format can store them: written, read, compacted, converted, consumed and shown as null."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

import duramen
from duramen.errors import UnsupportedFieldError
from duramen.log import Compaction
from duramen.watch import browser
from tests.log.conftest import options

DAY_US = 86_400_000_000
VALUES = [b"one", None, b"", None]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A Keratin log with VALUES; the second has a key and headers, the last neither."""
    target = str(tmp_path / "log")
    with duramen.open(target, "a", format="keratin") as log:
        log.append(b"one", key=b"k", timestamp=1)
        log.append(None, key=b"k", headers=[("h", b"v")])
        log.append_batch(pa.table({"key": [b"e", None], "value": pa.array([b"", None])}))
    return target


def test_a_null_value_is_read_as_null(path: str) -> None:
    with duramen.open(path) as log:
        assert [record.value for record in log.scan()] == VALUES
        assert [log.read(offset).value for offset in range(4)] == VALUES
        assert [record.key for record in log.scan()] == [b"k", b"k", b"e", None]
        assert (log.read(1).key, log.read(1).headers) == (b"k", [("h", b"v")])
        assert pa.table(log).column("value").to_pylist() == VALUES
        for columns in (["value"], ["value", "key"], ["headers", "value"]):
            table = pa.Table.from_batches(log.batches(columns=columns))
            assert table.column("value").to_pylist() == VALUES
            table.validate(full=True)
        assert [record.value for record in log.scan(max_bytes=3)] == VALUES
    assert duramen.verify(path).ok


@pytest.mark.parametrize("data", [[b"a", None], pa.array([b"a", None]), pa.table({"value": [b"a", None]})])
def test_nulls_in_a_batch(tmp_path: Path, data: object) -> None:
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        log.append_batch(data)
        assert [record.value for record in log] == [b"a", None]


def test_bytes_under_a_null_are_not_stored(tmp_path: Path) -> None:
    """Arrow allows any bytes in the place of a null."""
    hidden = pa.array([b"abc", b"secret"])
    masked = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\1"), *hidden.buffers()[1:]])
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        log.append_batch(masked)
        log.producer("p").append_batch(masked)
        assert [record.value for record in log] == [b"abc", None] * 2
    assert b"secret" not in next((tmp_path / "log" / "segments").glob("*.log")).read_bytes()


@pytest.mark.parametrize("name", ["durable-log", "rustlog", "osiris", "fixed-slot"])
def test_formats_without_null_values_refuse_them_by_name(tmp_path: Path, name: str) -> None:
    with duramen.open(tmp_path / "log", "a", format=name, **options(name)) as log:
        with pytest.raises(UnsupportedFieldError, match=f"{name} cannot store a null value"):
            log.append(None)
        with pytest.raises(UnsupportedFieldError, match=f"{name} cannot store a null value"):
            log.append_batch([None])
        assert log.next_offset == 0


def test_a_block_that_says_null_beside_a_payload_is_opaque(tmp_path: Path) -> None:
    """Another program may store such bytes as headers: they and the payload stay as they are."""
    block = b"\xc1DH\x03\xff\xff\xff\xff"
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        log.append(b"payload", headers=block)
        log.append(b"", headers=block)
        assert [(record.value, record.headers) for record in log] == [
            (b"payload", [("", block)]), (b"", [("", block)]),
        ]  # fmt: skip
        assert [log.read(offset).value for offset in (0, 1)] == [b"payload", b""]


def test_compaction_keeps_a_tombstone_for_its_delay(tmp_path: Path) -> None:
    now_us = time.time_ns() // 1000
    times = pa.array([now_us - 3 * DAY_US] * 3 + [now_us], pa.timestamp("us", "UTC"))
    table = pa.table({"key": [b"a", b"b", b"a", b"b"], "value": [b"1", b"2", None, None], "timestamp": times})
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        log.append_batch(table)
        log.seal()
        assert log.compact(Compaction(tombstone_delay_ms=86_400_000)).tombstones_removed == 1
        assert [(record.key, record.value) for record in log] == [(b"b", None)]
        assert log.compact(Compaction(tombstone_delay_ms=0)).tombstones_removed == 1


def test_compaction_by_a_part_of_the_value_passes_over_nulls(path: str) -> None:
    with duramen.open(path, "a") as log:
        log.seal()
        for key in ("prefix:1", "delimiter:=", "json:a", lambda value: value):
            log.compact(Compaction(key=key, tombstone_delay_ms=0))
        assert [record.value for record in log] == [b"one", None, None]  # the empty value was its own key


@pytest.mark.parametrize("target", ["durable-log", "rustlog", "osiris"])
def test_conversion_lists_null_values_as_a_loss(path: str, tmp_path: Path, target: str) -> None:
    lost = ["key", "headers", *(["timestamp"] if target == "durable-log" else [])]
    with pytest.raises(UnsupportedFieldError, match="tombstone"):
        duramen.convert(path, tmp_path / "new", to=target, allow_loss=lost)
    duramen.convert(path, tmp_path / "new", to=target, allow_loss=(*lost, "tombstone"))
    with duramen.open(tmp_path / "new") as log:
        assert [record.value for record in log] == [b"one", b"", b"", b""]


def test_conversion_and_copy_keep_null_values(path: str, tmp_path: Path) -> None:
    duramen.convert(path, tmp_path / "new", to="keratin", dialect="program")
    duramen.copy(path, tmp_path / "copy")
    for made in ("new", "copy"):
        with duramen.open(tmp_path / made) as log:
            assert [record.value for record in log] == VALUES


def test_groups_producers_and_dead_letters_carry_null_values(path: str, tmp_path: Path) -> None:
    with duramen.open(path, "a") as log, duramen.open(tmp_path / "dead", "a", format="keratin") as dead:
        group = log.group("g", max_attempts=1, dead_letter=dead)
        taken = list(group.fetch(4))
        assert [delivery.value for delivery in taken] == VALUES
        group.nack(taken[1:2])
        list(group.fetch(1))
        assert [record.value for record in dead] == [None]
        assert log.producer("p").append(None, key=b"k", sequence=1).base_offset == 4
        assert log.producer("p").append(None, key=b"k", sequence=1).base_offset is None


def test_a_topic_carries_null_values(tmp_path: Path) -> None:
    with duramen.Store(tmp_path / "store") as store:
        topic = store.create("t", partitions=2, format="keratin")
        topic.append(None, key=b"k")
        assert [record.value for record in topic.scan()] == [None]


def test_the_page_shows_null_values(path: str) -> None:
    with duramen.open(path) as log:
        shown = [record["preview"] for record in browser.records(log, {}, 10)["records"]]
        assert shown == ["one", browser.NULL, "", browser.NULL]
        assert browser.one(log, 1)["value_text"] == browser.NULL
        assert [record["offset"] for record in browser.records(log, {"q": "one"}, 10)["records"]] == [0]
