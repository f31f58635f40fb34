"""How a log may be called, and what becomes of a relative name when the program goes elsewhere."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import duramen
import duramen.aio


@pytest.mark.parametrize("format", ["durable-log", "keratin", "rustlog", "osiris"])
def test_a_program_that_changes_its_directory_keeps_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """A daemon opens its log and then goes to ``/``. What lies there under the same name is not its log."""
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    duramen.open(elsewhere / "events", "a", format=format).close()
    before = sorted(elsewhere.rglob("*"))
    log = duramen.open("events", "a", format=format)
    reader = duramen.open("events")
    log.append(b"0")
    os.chdir(elsewhere)
    log.append(b"1")
    log.seal()
    assert log.append(b"2") == 2
    log.cursor("c").store(1)
    group = log.group("g")
    assert group.ack_many(group.fetch(1)) == 1
    reader.refresh()
    assert [record.value for record in reader] == [record.value for record in log] == [b"0", b"1", b"2"]
    assert log.verify().ok
    log.close()
    assert sorted(elsewhere.rglob("*")) == before
    assert (reader.cursor("c").load(), reader.group("g").acked_until) == (1, 1)
    assert [record.value for record in duramen.open(tmp_path / "events")] == [b"0", b"1", b"2"]


def test_an_error_names_the_path_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = duramen.open("events", "a")
    with pytest.raises(duramen.LockedError, match=r"^events: "):
        duramen.open("events", "a")
    os.chdir("/")
    with pytest.raises(duramen.OffsetError, match=r"^events: "):
        log.read(5)
    log.close()


def test_a_missing_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(duramen.StorageError, match="no such file"):
        duramen.open("events", "a")
    duramen.open(tmp_path / "events", "a").close()


NAMES = ["plain", "mit Leerzeichen", "ёлка 🌲", "new\nline", "caf\udce9", "-o", "#1", "100%"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As text, as bytes (also such as are not UTF-8), as a path; for everything that takes one."""
    monkeypatch.chdir(tmp_path)
    with duramen.open(os.fsencode(name), "a") as log:
        log.append(b"x")
        group = log.group("g")
        assert group.ack_many(group.fetch(1)) == 1
    for path in (name, os.fsencode(name), Path(name), os.fsencode(tmp_path / name)):
        assert duramen.detect(path).format == "keratin"
        assert duramen.verify(path).ok
        assert not duramen.repair(path).steps
        with duramen.open(path) as reader:
            assert reader.read(0).value == b"x"
            assert reader.group("g").acked_until == 1

    async def follow() -> bytes:
        async with duramen.aio.open(os.fsencode(name)) as log:
            return (await log.read(0)).value

    assert asyncio.run(follow()) == b"x"
    new = os.fsencode(name + " 2")
    assert duramen.convert(os.fsencode(name), new, to="osiris", allow_loss=["groups"]).records == 1
    assert duramen.copy(os.fsencode(name), os.fsencode(name + " 3")).records == 1
    with duramen.Store(os.fsencode(name + " store")) as store:
        assert store.create("topic").append(b"x") == (0, 0)


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_path_that_no_file_can_have(mode: str) -> None:
    with pytest.raises(duramen.UsageError, match="null character"):
        duramen.open("a\0b", mode)  # type: ignore[call-overload]
    with pytest.raises(duramen.StorageError, match="no such file"):
        duramen.open("", mode)  # type: ignore[call-overload]
