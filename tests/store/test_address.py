"""``PATH#topic[/partition]`` in Python: the same as on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import duramen
from duramen import Store, Topic, UnknownTopicError, UsageError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store(tmp_path / "data") as store:
        store.create("orders", partitions=3).append(b"one beer", partition=2)
    return tmp_path / "data"


def test_a_partition_is_a_log(root: Path, tmp_path: Path) -> None:
    address = f"{root}#orders/2"
    with duramen.open(address, "a") as log:
        assert log.path == str(root / "topics/orders/partitions/2")
        assert log.append(b"a tea") == 1
    with duramen.open(Path(address)) as log:
        assert [record.value for record in log] == [b"one beer", b"a tea"]
    assert duramen.verify(address).records == 2
    assert duramen.detect(address).format == "keratin"
    assert duramen.convert(address, tmp_path / "out", to="rustlog", allow_loss=["timestamp"]).records == 2
    assert not duramen.repair(address).steps


def test_a_topic_is_opened_as_a_topic(root: Path) -> None:
    with duramen.open(f"{root}#orders", "a", durability="write") as opened:
        topic: object = opened
        assert isinstance(topic, Topic)
        assert topic.append(b"a tea", partition=0) == (0, 0)
    with pytest.raises(UsageError, match="the store is closed"):
        topic.append(b"late")
    reader: object = duramen.open(f"{root}#orders")
    assert isinstance(reader, Topic)
    assert len(list(reader)) == 2
    with pytest.raises(UsageError, match="the topic 'orders' is open for reading"):
        reader.append(b"x")
    reader.close()


def test_wrong_addresses(root: Path) -> None:
    with pytest.raises(UnknownTopicError, match="existing topics: orders"):
        duramen.open(f"{root}#nope", "a")
    with pytest.raises(UsageError, match="has no partition 7"):
        duramen.open(f"{root}#orders/7", "a")
    with pytest.raises(UsageError, match="needs one partition, and 'orders' is a topic with 3 partitions"):
        duramen.verify(f"{root}#orders")
    with pytest.raises(UsageError, match="a store has no option 'record_size'"):
        duramen.open(f"{root}#orders", "a", record_size=4)
    with pytest.raises(UsageError, match="mode must be 'r' or 'a'"):
        duramen.open(f"{root}#orders", "w")  # type: ignore[call-overload]


def test_a_directory_with_that_name_is_a_plain_path(root: Path) -> None:
    plain = root.with_name("data#orders")
    plain.mkdir()
    with duramen.open(plain, "a") as log:
        assert log.path == str(plain)
