"""Verbs on several logs at once: a topic, a store, a directory of logs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.store import find_logs
from tests.cli.running import Logs, Run, flip, segments


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    with duramen.Store(str(root)) as made:
        topic = made.create("orders", partitions=2)
        for number in range(6):
            topic.append(b"value %d" % number, key=b"key %d" % number, partition=number % 2)
    return root


def names(root: Path) -> list[str]:
    return [found.name for found in find_logs(PosixDisk(), str(root))]


def test_a_stream_folder_is_verified_log_by_log(call: Run, osiris: Path) -> None:
    result = call("verify", osiris)
    assert (result.code, result.err) == (0, "")
    lines = [line for line in result.text.splitlines() if not line.startswith(" ")]
    assert [line.split(":")[0] for line in lines[:-1]] == sorted(str(path) for path in osiris.iterdir())
    assert lines[-1].startswith("8 logs: 8 ok: 10,383 records")
    assert [report["ok"] for report in call("verify", osiris, "--json").json] == [True] * 8


def test_the_worst_code_of_a_directory_wins(call: Run, osiris: Path, tmp_path: Path) -> None:
    folder = tmp_path / "streams"
    shutil.copytree(osiris, folder)
    (folder / "notes.txt").write_text("not a log")
    flip(segments(folder / "plain")[2], 500)
    result = call("verify", folder)
    assert result.code == 1
    assert "8 logs: 7 ok, 1 damaged" in result.text
    assert call("info", folder).code == 1


def test_what_counts_as_a_log(logs: Logs, tmp_path: Path, store: Path) -> None:
    keratin = logs.copy("keratin", "nested/keratin")
    (tmp_path / "nested" / "empty").mkdir()
    (tmp_path / "nested" / "half.duramen-building").mkdir()
    found = [str(keratin), f"{store}#orders/0", f"{store}#orders/1"]
    assert sorted(names(keratin.parent)) == found[:1]
    assert names(keratin) == [str(keratin)]  # its directory `segments` is not a log
    assert names(store) == found[1:]
    assert names(tmp_path / "missing") == [str(tmp_path / "missing")]


def test_damage_does_not_turn_a_log_into_a_directory_of_logs(logs: Logs) -> None:
    log = logs.copy("keratin")
    shutil.rmtree(log / ".duramen", ignore_errors=True)
    for path in segments(log):
        path.write_bytes(b"")
    assert names(log) == [str(log)]


@pytest.mark.parametrize("place", ["{}", "{}#orders"])
def test_every_verb_takes_a_topic_and_a_store(call: Run, store: Path, place: str) -> None:
    path = place.format(store)
    for verb in (
        ["verify"], ["seal"], ["reindex"], ["repair"], ["compact"], ["retain", "--before-offset", "3"], ["lag"],
    ):  # fmt: skip
        result = call(verb[0], path, *verb[1:])
        assert (result.code, result.err) == (0, ""), verb
    assert len(call("retain", path, "--before-offset", "3", "--json").json) == 2
    assert len(call("verify", path, "--json").json) == 2
    assert call("verify", f"{store}#orders/1", "--json").json["records"] == 0  # retention removed the sealed segment


def test_info_of_a_store_is_a_table(call: Run, store: Path) -> None:
    result = call("info", store)
    assert [line.split()[:4] for line in result.text.splitlines()[1:]] == [
        [f"{store}#orders/{number}", "keratin", "0", "3"] for number in (0, 1)
    ]
    assert [one["next_offset"] for one in call("info", store, "--json").json] == [3, 3]


def test_a_copied_store_is_a_store(call: Run, store: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    assert "at most" in call("copy", store, backup, "--dry-run").text
    assert not backup.exists()
    assert call("copy", store, backup).code == 0
    with duramen.Store(str(backup)) as copied:
        assert [record.value for record in copied.topic("orders").scan(partition=1)] == [
            b"value 1", b"value 3", b"value 5",
        ]  # fmt: skip
        assert copied.topic("orders").append(b"more", partition=0).offset == 3
    assert call("copy", f"{store}#orders", backup).code == 2  # nothing is overwritten
    assert call("copy", f"{store}#orders", f"{backup}#old").code == 0
    assert call("verify", backup, "--json").json[2]["path"].endswith("orders/partitions/0")
    assert call("copy", f"{store}#orders", f"{backup}#old/1").fails(2, "cannot be copied to a partition")


def test_a_converted_topic_has_the_new_format(call: Run, store: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    refused = call("convert", f"{store}#orders", new, "--to", "rustlog")
    assert refused.fails(2, "cannot store key")
    assert not list(new.rglob("*.log"))
    assert call("convert", f"{store}#orders", new, "--to", "rustlog", "--allow-loss", "key").code == 0
    with duramen.Store(str(new)) as converted:
        assert converted.topic("orders").format == "rustlog"
        assert converted.describe("orders").records == 6


def test_an_empty_store_and_an_empty_directory_say_so(call: Run, tmp_path: Path) -> None:
    assert call("verify", tmp_path).fails(2, "the directory is empty")
    (tmp_path / "topics").mkdir()
    assert call("verify", tmp_path).fails(2, "the store has no topics")
