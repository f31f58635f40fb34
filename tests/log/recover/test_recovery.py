"""Closing a log and opening it again, with the sidecar or without it."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import duramen
from tests.log.conftest import FORMATS, RECORD_SIZE, options, value
from tests.log.writing import SEGMENTED, Open, codes, content, sizes, snapshot, values

# --- closing and opening again


def test_reopening_goes_on(create: Open, root: Path, format_name: str) -> None:
    more = {"segment_max_bytes": 700} if format_name in SEGMENTED else {}
    with create(format_name, **more) as log:
        log.append_batch(values(0, 30))
    for start in range(30, 60, 10):
        with duramen.open(root, "a") as log:
            assert log.format == format_name
            assert log.codec.options.items() >= {**options(format_name), **more}.items(), "as the sidecar remembers"
            assert log.next_offset == log.durable_offset == start
            assert log.append_batch(values(start, 10)) == (start, 10)
            assert log.read(0).value == value(0)
    assert content(root) == values(0, 60)
    assert codes(root) == []
    if more and format_name != "osiris":
        assert max(sizes(root, format_name)) <= 700


def test_options_may_change_where_the_bytes_do_not_depend_on_them(create: Open, root: Path) -> None:
    create("keratin", segment_max_bytes=1000).close()
    with duramen.open(root, "a", segment_max_bytes=2000) as log:
        log.append_batch(values(0, 100))
    assert 1000 < max(sizes(root, "keratin")) <= 2000
    config = json.loads((root / ".duramen/log.json").read_text())
    assert config["options"]["segment_max_bytes"] == 2000


@pytest.mark.parametrize(
    ("name", "first", "then", "message"),
    [
        ("fixed-slot", {}, {"record_size": RECORD_SIZE + 1}, "record_size is 16 in this log and cannot become 17"),
        ("osiris", {"chunk_version": 0}, {"chunk_version": 1}, "chunk_version is 0 in this log"),
        ("rustlog", {"header_bytes": 12}, {"header_bytes": 20}, "header_bytes is 12 in this log"),
        ("keratin", {}, {"format": "osiris"}, "the log is keratin, not osiris"),
    ],
)
def test_what_the_bytes_depend_on_cannot_change(
    create: Open, root: Path, name: str, first: dict[str, Any], then: dict[str, Any], message: str
) -> None:
    with create(name, **first) as log:
        log.append(value(0))
    before = snapshot(root)
    with pytest.raises(duramen.UsageError, match=message):
        duramen.open(root, "a", **then)
    assert snapshot(root) == before


@pytest.mark.parametrize("name", FORMATS)
def test_another_format_s_files_are_not_appended_to(create: Open, root: Path, name: str) -> None:
    with create(name) as log:
        log.append(value(0))
    shutil.rmtree(root / ".duramen")
    before = snapshot(root)
    other = "keratin" if name != "keratin" else "rustlog"
    with pytest.raises(duramen.DuramenError, match=name):
        duramen.open(root, "a", format=other)
    assert snapshot(root) == before


def test_closing_twice_and_using_a_closed_log(create: Open, root: Path, format_name: str) -> None:
    log = create(format_name)
    log.append(value(0))
    log.close()
    log.close()
    before = snapshot(root)
    for act in (
        lambda: log.append(value(1)),
        lambda: log.append_batch(values(1, 2)),
        lambda: log.append_batch([]),
        log.sync,
        log.seal,
        lambda: log.read(0),
        lambda: list(log.scan()),
    ):
        with pytest.raises(duramen.UsageError, match=r"closed|one file only"):
            act()
    assert snapshot(root) == before


def test_the_end_of_a_block_closes_the_log_even_after_an_error(root: Path) -> None:
    def fail() -> None:
        with duramen.open(root, "a") as log:
            log.append(b"before", durability="write")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with duramen.open(root, "a") as log:
        assert log.read(0).value == b"before"


def test_closing_while_others_append(create: Open, root: Path, format_name: str) -> None:
    """Every append is answered and stored, or refused and not stored: nothing happens behind the end."""
    for _ in range(5):
        log = create(format_name)
        first = log.next_offset
        stored: list[int] = []
        refused: list[duramen.DuramenError] = []
        threads = [threading.Thread(target=append_until_refused, args=(log, stored, refused)) for _ in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        log.close()
        for thread in threads:
            thread.join(30)
        assert {type(error) for error in refused} == {duramen.UsageError}, refused
        assert sorted(stored) == list(range(first, first + len(stored)))
        assert len(content(root)) == first + len(stored)
        assert codes(root) == []


def append_until_refused(log: duramen.WritableLog, stored: list[int], refused: list[duramen.DuramenError]) -> None:
    while True:
        try:
            stored.append(log.append(value(0), durability="write"))
        except duramen.DuramenError as error:
            refused.append(error)
            return


def test_an_empty_log(create: Open, root: Path, format_name: str) -> None:
    with create(format_name) as log:
        assert (log.first_offset, log.next_offset, log.durable_offset) == (0, 0, 0)
        assert list(log.scan()) == []
    assert content(root) == []
    with duramen.open(root, "a") as log:
        assert log.append(value(0)) == 0
    assert content(root) == values(0, 1)
    assert codes(root) == []


# --- the sidecar can be lost


def filled(create: Open, name: str) -> None:
    with create(name, segment_max_bytes=800) if name in SEGMENTED else create(name) as log:
        log.append_batch(values(0, 40))
        log.append_batch(values(40, 5))


def test_a_lost_sidecar_loses_no_record(create: Open, root: Path, format_name: str) -> None:
    filled(create, format_name)
    shutil.rmtree(root / ".duramen")
    assert content(root, **options(format_name)) == values(0, 45)
    with duramen.open(root, "a", **options(format_name)) as log:
        assert log.append(value(45)) == 45
    assert content(root) == values(0, 46)
    assert codes(root) == []


@pytest.mark.parametrize("file", ["log.json", "lock", "watermark", "sealed.jsonl"])
def test_a_broken_sidecar_loses_no_record(create: Open, root: Path, format_name: str, file: str) -> None:
    filled(create, format_name)
    path = root / ".duramen" / file
    if not path.exists():
        pytest.skip("this format has no such file")
    good = snapshot(root)
    for broken in (None, b"", good[f".duramen/{file}"][:-9]):
        for name, raw in good.items():
            (root / name).write_bytes(raw)
        path.unlink() if broken is None else path.write_bytes(broken)
        if file == "log.json" and broken is not None:
            with pytest.raises(duramen.CorruptionError, match="delete the file"):
                duramen.open(root, "a", **options(format_name))
            path.unlink()
        with duramen.open(root, "a", **options(format_name)) as log:
            assert log.append(value(45)) == 45
        assert content(root) == values(0, 46)
        is_missed = file == "sealed.jsonl" and broken is not None  # a warning: that segment has no digest any more
        assert codes(root) == (["bad-sidecar"] if is_missed else [])


def test_a_sidecar_from_a_backup_loses_no_record(create: Open, root: Path, tmp_path: Path, format_name: str) -> None:
    """The records are newer than the sidecar: it is behind, not right."""
    with create(format_name, segment_max_bytes=700) if format_name in SEGMENTED else create(format_name) as log:
        log.append_batch(values(0, 10))
    shutil.copytree(root / ".duramen", tmp_path / "old")
    with duramen.open(root, "a") as log:
        for number in range(10, 45, 5):
            log.append_batch(values(number, 5))
    shutil.rmtree(root / ".duramen")
    shutil.copytree(tmp_path / "old", root / ".duramen")
    assert content(root) == values(0, 45)
    with duramen.open(root, "a") as log:
        assert log.append(value(45)) == 45
    assert content(root) == values(0, 46)
    assert codes(root) == []


def test_indexes_and_manifest_can_be_deleted(create: Open, root: Path, format_name: str) -> None:
    filled(create, format_name)
    for path in list(root.rglob("*")):
        if path.suffix in (".idx", ".tidx", ".index", ".bin"):
            path.unlink()
    with duramen.open(root, "a") as log:
        assert log.append(value(45)) == 45
        assert log.read(3).value == value(3)
    assert content(root) == values(0, 46)
    assert duramen.verify(root).ok
