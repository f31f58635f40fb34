"""The commands on a Kafka partition."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import duramen
from duramen.formats import WRITABLE
from tests.cli.running import Run
from tests.formats.kafka_logs import DATA, truth

TXN = DATA / "clean/txn-0"
COMMITTED = ("--source-option", "isolation=read_committed")


def test_info_shows_topic_epochs_and_segments(call: Run) -> None:
    result = call("info", TXN, "--json")
    assert result.code == 0
    found = json.loads(result.out)
    assert (found["format"], found["records"], found["next_offset"]) == ("kafka", 235, 263)
    assert "leader_epochs" in result.out.decode()
    assert "5d7SAz9KSs6vwAX" in result.out.decode()


def test_cat_prints_committed_records(call: Run) -> None:
    result = call("cat", TXN, "--json", "--option", "isolation=read_committed")
    assert [row["offset"] for row in result.json_lines] == [row["offset"] for row in truth(TXN, "read_committed")]


@pytest.mark.parametrize("path", sorted(TXN.glob("00000000000000000017.*")), ids=lambda path: path.suffix)
def test_dump_shows_every_byte_of_a_file(call: Run, path: Path) -> None:
    result = call("dump", path, "--json")
    assert (result.code, result.err) == (0, "")
    data = path.read_bytes()
    fields = [field for block in result.json_lines for field in block.get("fields", [])]
    assert fields
    for field in fields:
        assert field["position"] + field["length"] <= len(data)
        if field["length"] <= 64:
            assert field["hex"] == data[field["position"] : field["position"] + field["length"]].hex()


def test_dump_shows_control_records_and_compressed_ones(call: Run) -> None:
    text = call("dump", TXN / "00000000000000000017.log").out.decode()
    assert "(commit)" in text
    assert "(abort)" in text
    compressed = call("dump", min((DATA / "clean/mixed-0").glob("*.log")), "--json")
    records = [block for block in compressed.json_lines if ".record" in block.get("title", "")]
    assert len(records) > 100


def test_verify_names_what_rebuilds_an_index(call: Run) -> None:
    assert call("verify", TXN).code == 0
    text = call("verify", DATA / "damaged/dmg-badindex-0").out.decode()
    assert "`duramen reindex" in text


def test_convert_keeps_offsets_keys_and_headers(call: Run, tmp_path: Path) -> None:
    allowed = ("--allow-loss", "timestamp-order", "--allow-loss", "tracking")  # the sequences of its producers
    result = call("convert", TXN, tmp_path / "new", "--to", "keratin", *allowed, *COMMITTED)
    assert result.code == 0, result.err
    rows = call("cat", tmp_path / "new", "--json").json_lines
    known = truth(TXN, "read_committed")
    assert [row["offset"] for row in rows] == [row["offset"] for row in known]
    assert call("verify", tmp_path / "new").code == 0


def test_cat_prints_committed_records_of_a_topic(call: Run, tmp_path: Path) -> None:
    root = tmp_path / "kafka"
    shutil.copytree(DATA / "clean/checkpoints", root)
    for topic in ("txn", "startmoved"):
        shutil.copytree(DATA / f"clean/{topic}-0", root / f"{topic}-0")
    result = call("cat", f"{root}#txn", "--json", "--option", "isolation=read_committed")
    assert [row["offset"] for row in result.json_lines] == [row["offset"] for row in truth(TXN, "read_committed")]
    known = [row["offset"] for row in truth(DATA / "clean/startmoved-0", "read_uncommitted")]
    for address in ("startmoved", "startmoved/0"):
        assert [row["offset"] for row in call("cat", f"{root}#{address}", "--json").json_lines] == known
    assert "has no meaning for a topic" in call("cat", f"{root}#txn", "--option", "record_size=8").err


def test_dump_shows_what_internal_records_mean(call: Run) -> None:
    for path, words in (
        ("__cluster_metadata-0", ("TopicRecord", "value.topic_id")),
        ("__transaction_state-0", ("TransactionLog", "key.transactional_id", "txngzip-a")),
        ("groups/__consumer_offsets-0", ("OffsetCommit", "key.group", "value.offset")),
    ):
        result = call("dump", DATA / path / "00000000000000000000.log")
        assert result.code == 0
        for word in words:
            assert word.removesuffix("Record") in result.text


TRANSFERS = [("convert", "--to", "keratin"), *([("copy",)] if "kafka" in WRITABLE else [])]


@pytest.mark.parametrize("verb", TRANSFERS, ids=lambda verb: verb[0])
def test_a_broker_becomes_a_store(call: Run, tmp_path: Path, verb: tuple[str, ...]) -> None:
    root = tmp_path / "kafka"
    shutil.copytree(DATA / "clean/checkpoints", root)
    for topic in ("one", "headers"):
        shutil.copytree(DATA / f"clean/{topic}-0", root / f"{topic}-0")
    for source, topics in ((root, ["headers", "one"]), (f"{root}#one", ["one"])):
        target = tmp_path / str(len(topics))
        result = call(verb[0], source, target, *verb[1:])
        assert result.code == 0, result.err
        with duramen.Store(target) as store:
            assert store.topics() == topics
            assert len(list(store.topic("one").scan())) == 1
