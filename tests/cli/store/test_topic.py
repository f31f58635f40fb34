"""`duramen topic`, and ``PATH#topic[/partition]`` wherever a log is named."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import duramen
from duramen.store.partitioner import partition_of
from tests import warm
from tests.cli.running import Logs, Result, Run
from tests.formats.kafka_logs import DATA

Feed = Callable[..., Result]
LINES = b"".join(b"k%d:value %d\n" % (n % 5, n) for n in range(20))


@pytest.fixture
def feed(call: Run, tmp_path: Path) -> Callable[..., Result]:
    """`duramen append` with a file of these bytes."""

    def run(given: bytes, verb: str, target: str | Path, *words: str | Path) -> Result:
        file = tmp_path / "given"
        file.write_bytes(given)
        return call(verb, target, file, *words)

    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with duramen.Store(tmp_path / "data") as store:
        store.create("orders", 3)
        store.create("logs", 2, "rustlog")
    return tmp_path / "data"


def values(result: Result) -> list[str]:
    return sorted(result.text.splitlines())


def test_the_life_of_a_topic(call: Run, tmp_path: Path) -> None:
    root = tmp_path / "data"
    would = call("topic", root, "create", "orders", "--partitions", "4", "--dry-run")
    assert would.text == f"{root}#orders: would create a keratin topic with 4 partitions\n"
    assert not root.exists()
    made = call("topic", root, "create", "orders", "-p", "4", "--option", "segment_max_bytes=100000")
    assert made.text == f"{root}#orders: created a keratin topic with 4 partitions\n"
    assert call("topic", root, "create", "orders").fails(2, "already exists")
    assert call("topic", root, "add-partitions", "orders", "-p", "6", "--dry-run").text.endswith("2 of them new\n")
    assert call("topic", root, "add-partitions", "orders", "-p", "6").code == 0
    assert call("topic", root, "add-partitions", "orders", "-p", "5").fails(2, "cannot decrease")
    tree = call("topic", root, "describe", "orders", "--json").json
    assert (tree["format"], tree["options"]["segment_max_bytes"], len(tree["partitions"])) == ("keratin", 100000, 6)
    listed = call("topic", root, "list").text.splitlines()
    assert [line.split() for line in listed] == [
        ["topic", "format", "partitions", "offsets", "size"], ["orders", "keratin", "6", "0", "408", "B"],
    ]  # fmt: skip
    assert "would remove" in call("topic", root, "delete", "orders", "--dry-run").text
    assert call("topic", root, "delete", "orders", "--json").json["topic"] == "orders"
    assert call("topic", root, "list", "--json").json == []
    assert call("topic", root).text == f"{root}: no topics\n"


def test_a_path_that_is_no_store(call: Run, logs: Logs, tmp_path: Path) -> None:
    """Somebody who mistypes a path must not read that all topics are gone."""
    typo, empty, log = tmp_path / "dtaa", tmp_path / "empty", logs.copy("keratin")
    empty.mkdir()
    for words in ((), ("list",), ("list", "--json")):
        assert call("topic", typo, *words).fails(3, f"{typo}: no such directory", "check the path")
        assert call("topic", empty, *words).fails(3, f"{empty}: not a store", "'topics'")
        assert call("topic", log, *words).fails(3, f"{log}: not a store", "'topics'")
    for action in ("describe", "delete", "add-partitions"):
        assert call("topic", typo, action, "orders", "-p", "3").fails(2, "'orders'", "no such directory")
        assert call("topic", empty, action, "orders", "-p", "3").fails(2, "'orders'", "the store is empty")
    assert call("cat", f"{typo}#orders").fails(2, "'orders'", "no such directory")
    assert not typo.exists()
    assert not list(empty.iterdir())


def test_keyed_lines_land_where_kafka_puts_them(root: Path, call: Run, feed: Feed) -> None:
    done = feed(LINES, "append", f"{root}#orders", "--key-separator", ":")
    assert done.text.startswith(f"{root}#orders: appended 20 records, to ")
    records = call("cat", f"{root}#orders", "--output", "jsonl").json_lines
    assert len(records) == 20
    for record in records:
        assert record["partition"] == partition_of(record["key"].encode(), 3)
    for number in range(3):
        own = call("cat", f"{root}#orders/{number}").text.splitlines()
        assert own == [record["value"] for record in records if record["partition"] == number]
    assert values(call("cat", f"{root}#orders")) == sorted(f"value {n}" for n in range(20))
    assert len(call("cat", f"{root}#orders", "-c", "7").text.splitlines()) == 7
    assert len(call("cat", f"{root}#orders", "-o", "-1").text.splitlines()) == len({r["partition"] for r in records})


def test_what_cat_prints_append_takes(root: Path, call: Run, feed: Feed) -> None:
    feed(LINES, "append", f"{root}#orders", "--key-separator", ":")
    call("topic", root, "create", "copy", "-p", "3")
    printed = call("cat", f"{root}#orders", "--output", "jsonl").out
    done = feed(printed, "append", f"{root}#copy", "--jsonl", "--json")
    assert done.json["records"] == 20
    assert call("cat", f"{root}#copy", "--output", "jsonl").out == printed
    stream = call("cat", f"{root}#copy", "--output", "arrow").out
    table = pa.ipc.open_stream(io.BytesIO(stream)).read_all()
    assert table.schema.names == ["partition", "offset", "timestamp", "key", "value", "headers"]
    assert table.num_rows == 20


def test_formats_without_keys(root: Path, call: Run, feed: Feed) -> None:
    assert feed(LINES, "append", f"{root}#logs", "--key-separator", ":").fails(
        2, "cannot store the field 'key'", "--routing"
    )
    assert call("cat", f"{root}#logs").out == b""
    done = feed(LINES, "append", f"{root}#logs", "--key-separator", ":", "--routing", "--json")
    assert done.json["records"] == 20
    assert values(call("cat", f"{root}#logs")) == sorted(f"value {n}" for n in range(20))
    assert feed(b"keyless\n", "append", f"{root}#logs").code == 0


def test_dry_runs_store_nothing(root: Path, call: Run, feed: Feed) -> None:
    done = feed(LINES, "append", f"{root}#orders", "--key-separator", ":", "--dry-run", "--json")
    assert (done.json["records"], done.json["dry_run"]) == (20, True)
    assert feed(LINES, "append", f"{root}#logs", "--key-separator", ":", "--dry-run").fails(2, "'key'")
    assert call("cat", f"{root}#orders").out == b""


def test_other_verbs_take_a_partition(root: Path, call: Run, feed: Feed) -> None:
    feed(b"a\nb\n", "append", f"{root}#orders/1")
    assert call("verify", f"{root}#orders/1").code == 0
    assert call("info", f"{root}#orders/1", "--json").json["next_offset"] == 2
    assert call("seal", f"{root}#orders/1").code == 0
    whole = call("info", f"{root}#orders", "--json").json
    assert [part["next_offset"] for part in whole["partitions"]] == [0, 2, 0]
    assert "offsets 0 to 1" in call("info", f"{root}#orders").text
    assert call("cursor", f"{root}#orders").fails(2, "needs one partition", "#orders/0")


def test_keyed_lines_into_a_log(tmp_path: Path, call: Run, feed: Feed) -> None:
    assert feed(b"k=v=w\n", "append", tmp_path / "log", "--key-separator", "=").code == 0
    record = call("cat", tmp_path / "log", "--json").json_lines[0]
    assert (record["key"], record["value"]) == ("k", "v=w")
    assert feed(b"x\n", "append", tmp_path / "log", "--routing").fails(2, "--routing works with topics only")


def test_a_directory_with_a_hash_is_a_log(tmp_path: Path, call: Run) -> None:
    (tmp_path / "a#b").mkdir()
    with duramen.open(tmp_path / "a#b", "a") as log:
        log.append(b"x")
    assert call("cat", tmp_path / "a#b").text == "x\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["cat", "{}#nope"], 2, "'nope' does not exist"),
        (["cat", "{}#../orders"], 2, "invalid topic name"),
        (["cat", "{}#"], 2, "invalid topic name"),
        (["cat", "{}#orders/7"], 2, "no partition 7"),
        (["cat", "{}#orders/x"], 2, "invalid partition number"),
        (["cat", "{}/none#orders"], 2, "does not exist"),
        (["append", "{}#nope"], 2, "does not exist"),
        (["append", "{}#orders", "--jsonl", "--key-separator", ":"], 2, "cannot be used together"),
        (["append", "{}#orders", "--key-separator", ""], 2, "empty"),
        (["topic", "{}", "create"], 2, "needs the name"),
        (["topic", "{}", "create", "../x"], 2, "invalid topic name"),
        (["topic", "{}", "create", "x", "-p", "0"], 2, "partitions must be a number from 1 to 100000"),
        (["topic", "{}", "create", "x", "--format", "nope"], 2, "nope"),
        (["topic", "{}", "create", "x", "--format", "fixed-slot"], 2, "record_size"),
        (["topic", "{}", "delete", "nope"], 2, "does not exist"),
        (["topic", "{}", "add-partitions", "orders"], 2, "--partitions"),
        (["topic", "{}", "explode"], 2, "explode"),
    ],
)
def test_wrong_usage(root: Path, call: Run, words: list[str], code: int, said: str) -> None:
    assert call(*(word.format(root) for word in words)).fails(code, said)


def test_damaged_settings_are_reported(root: Path, call: Run) -> None:
    (root / "topics" / "orders" / ".duramen" / "topic.json").write_text("{")
    assert call("topic", root, "describe", "orders").fails(1, "settings cannot be read", "topic.json")
    assert call("cat", f"{root}#orders").fails(1, "settings cannot be read")
    assert call("cat", f"{root}#orders/0").code == 0, "a partition is a log by itself"


def test_a_line_without_a_key(root: Path, feed: Feed) -> None:
    assert feed(b"k:v\nno key\n", "append", f"{root}#orders", "--key-separator", ":").fails(
        2, "line 2 does not contain the key separator ':'"
    )
    assert feed(b'{"value":"v","partition":9}\n', "append", f"{root}#orders", "--jsonl").fails(2, "no partition 9")
    assert feed(b'{"value":"v","partition":"x"}\n', "append", f"{root}#orders", "--jsonl").fails(2, "line 1")


@pytest.mark.slow
def test_in_processes_of_their_own(root: Path, cli: Run) -> None:
    """Piped in, and followed: the real command."""
    duramen_ = [sys.executable, "-m", "duramen"]
    following = [*duramen_, "cat", f"{root}#orders", "--follow", "--json"]
    with subprocess.Popen(following, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        append = [*warm.duramen(), "append", f"{root}#orders", "--key-separator", ":"]
        assert subprocess.run(append, input=b"k:1\n", capture_output=True, timeout=60, check=True).stdout
        found: Any = json.loads(process.stdout.readline())
        process.terminate()
    assert (found["key"], found["value"]) == ("k", "1")
    assert cli("topic", root, "describe", "nope", timeout_s=60).fails(2, "does not exist")


def test_a_broker_shows_its_checkpoints(tmp_path: Path, call: Run) -> None:
    root = tmp_path / "kafka"
    shutil.copytree(DATA / "clean/checkpoints", root)
    shutil.copytree(DATA / "clean/startmoved-0", root / "startmoved-0")
    (root / f"startmoved-1.{7:032x}-stray").mkdir()
    listed = call("topic", str(root), "list").text
    assert "cluster.id" in listed
    assert f"startmoved-1.{7:032x}-stray" in listed
    described = call("topic", str(root), "describe", "startmoved", "--json").json
    assert described["checkpoints"]["log-start-offset-checkpoint"] == {"0": 234}
    assert "replication-offset-checkpoint" in call("topic", str(root), "describe", "startmoved").text
