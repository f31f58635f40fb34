"""The directory of a Kafka broker as a store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import duramen
from tests.formats.kafka_logs import DATA, truth

TOPICS = ("txn", "startmoved", "one", "empty", "mixed")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """What a broker would have in one of its log.dirs."""
    root = tmp_path / "kafka"
    shutil.copytree(DATA / "clean/checkpoints", root)
    for topic in TOPICS:
        shutil.copytree(DATA / f"clean/{topic}-0", root / f"{topic}-0")
    shutil.copytree(DATA / "clean/txn-0", root / "txn-2")
    (root / "txn-1.0123456789-delete").mkdir()
    return root


def test_topics_and_partitions_by_name(root: Path) -> None:
    with duramen.Store(root) as store:
        assert store.topics() == sorted(TOPICS)
        topic = store.topic("txn")
        assert (topic.format, topic.existing()) == ("kafka", [0, 2])
        assert topic.offsets() == {0: (0, 263), 2: (0, 263)}
        info = store.describe("mixed")
        assert (info.format, info.records) == ("kafka", 450)
        assert store.describe("empty").records == 0
        with pytest.raises(duramen.UnknownTopicError):
            store.topic("txn-0")


def test_records_start_where_the_checkpoint_says(root: Path) -> None:
    known = [row["offset"] for row in truth(DATA / "clean/startmoved-0", "read_uncommitted")]
    with duramen.Store(root) as store:
        assert [record.offset for record in store.topic("startmoved").scan()] == known
    (root / "log-start-offset-checkpoint").write_text("nonsense\n")
    with duramen.Store(root) as store, pytest.raises(duramen.CorruptionError, match="checkpoint"):
        list(store.topic("startmoved").scan())


def test_the_checkpoints_are_shown(root: Path) -> None:
    with duramen.Store(root) as store:
        found = store.checkpoints()
    assert found["meta.properties"]["cluster.id"] == "XU5m6Ry6QTuVCT_7Bhaz6Q"
    assert found["log-start-offset-checkpoint"] == {"startmoved-0": 234}
    assert found["replication-offset-checkpoint"]["txn-0"] == 263
    with duramen.Store(root.parent / "none") as other:
        assert other.checkpoints() == {}


def test_nothing_is_changed(root: Path) -> None:
    before = sorted(root.rglob("*"))
    with duramen.Store(root) as store:
        for change in (
            lambda: store.create("new"),
            lambda: store.delete("one"),
            lambda: store.configure("one"),
            lambda: store.topic("one").append(b"value"),
        ):
            with pytest.raises(duramen.UsageError, match="read-only"):
                change()
    assert sorted(root.rglob("*")) == before


def test_one_log_is_asked_for(root: Path) -> None:
    with pytest.raises(duramen.DetectionError, match="directory of a Kafka broker"):
        duramen.open(root)


def test_committed_records_of_a_topic(root: Path) -> None:
    known = [row["offset"] for row in truth(DATA / "clean/txn-0", "read_committed")]
    with duramen.Store(root, isolation="read_committed") as store:
        assert [record.offset for record in store.topic("txn").scan(partition=0)] == known
        assert store.describe("txn").partitions[0].next_offset == 263
    with duramen.open(f"{root}#txn", isolation="read_committed") as topic:
        assert [record.offset for record in topic.scan(partition=2)] == known
    with pytest.raises(duramen.UsageError, match="isolation must be one of read_uncommitted, read_committed, settled"):
        duramen.Store(root, isolation="dirty")


def test_isolation_has_no_meaning_without_transactions(tmp_path: Path) -> None:
    with duramen.Store(tmp_path / "store", isolation="read_committed") as store:
        store.create("orders").append(b"value")
        assert [record.value for record in store.topic("orders").scan()] == [b"value"]
    with duramen.Store(tmp_path / "store", isolation="read_committed") as store:
        assert [record.value for record in store.topic("orders").scan()] == [b"value"]


def test_an_address_starts_where_the_checkpoint_says(root: Path) -> None:
    known = [row["offset"] for row in truth(DATA / "clean/startmoved-0", "read_uncommitted")]
    with duramen.open(f"{root}#startmoved/0") as log:
        assert [record.offset for record in log] == known


def test_settled_goes_on_after_an_open_transaction(tmp_path: Path) -> None:
    path = DATA / "clean/txnopen-0"
    offsets = {}
    for isolation in ("read_uncommitted", "read_committed", "settled"):
        with duramen.open(path, isolation=isolation) as log:
            offsets[isolation] = [record.offset for record in log]
    committed, settled = offsets["read_committed"], offsets["settled"]
    assert settled[: len(committed)] == committed
    assert len(committed) < len(settled) < len(offsets["read_uncommitted"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"startmoved 0 {2**63}", "is not one"),
        ("startmoved 0 100000", "said to start at offset 100000, and ends before offset 400"),
        (None, "not a regular file"),
    ],
)
def test_a_checkpoint_that_contradicts_hides_nothing(root: Path, line: str | None, message: str) -> None:
    path = root / "log-start-offset-checkpoint"
    path.write_text(f"0\n1\n{line}\n")
    if line is None:
        path.unlink()
        path.symlink_to(root / "replication-offset-checkpoint")  # a link may lead anywhere
    with duramen.Store(root) as store, pytest.raises(duramen.DuramenError, match=message):
        list(store.topic("startmoved").scan())
    path.unlink()
    path.write_text("0\n1\nstartmoved 0 -5\n")  # as for Kafka, nothing was deleted then
    with duramen.Store(root) as store:
        assert store.topic("startmoved").offsets() == {0: (194, 400)}


def test_a_start_after_the_end_is_not_converted(root: Path) -> None:
    with pytest.raises(duramen.CorruptionError, match="said to start at offset 5, and ends before offset 1"):
        duramen.convert(root / "one-0", root.parent / "out", to="kafka", source_options={"log_start_offset": 5})


def test_copies_that_a_broker_marked_are_no_partitions(root: Path) -> None:
    copies = [f"txn-{n}.{n:032x}-{word}" for n, word in enumerate(("delete", "future", "stray"))]
    for name in copies:
        shutil.copytree(DATA / "clean/txn-0", root / name)
    with duramen.Store(root) as store:
        assert store.topics() == sorted(TOPICS)
        assert store.topic("txn").existing() == [0, 2]
        assert store.checkpoints()["copies"] == copies
    with duramen.open(root / copies[2]) as log:
        assert log.next_offset == 263
