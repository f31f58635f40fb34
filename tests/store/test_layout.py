"""Names and the tree: what is a topic, what is a partition, and that no name leaves its directory."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.errors import StorageError, UnknownTopicError, UsageError
from duramen.store import layout
from duramen.store.names import Address, check_partition, check_topic, is_topic
from duramen.testing.simulated_disk import SimulatedDisk

HOSTILE = ["", ".", "..", "/", "a/b", "../x", "a\0b", "a b", "ä", "a\n", "x" * 250, "~", "a~0", "\ud800", "*", "C:\\x"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_topics_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="invalid topic name"):
        layout.topic_path("/root", name)


@pytest.mark.parametrize("name", [None, 3, b"orders", ["a"]])
def test_a_topic_is_text(name: object) -> None:
    with pytest.raises(UsageError, match="invalid topic name"):
        check_topic(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a", "...", "-", "_", "x" * 249, "orders.eu-1_A", "0"])
def test_what_kafka_allows_is_allowed(name: str) -> None:
    assert check_topic(name) == name


@given(st.text(max_size=12))
def test_no_accepted_name_leaves_its_directory(name: str) -> None:
    if is_topic(name):
        path = posixpath.normpath(layout.partition_path("/root", name, 0))
        assert path == f"/root/topics/{name}/partitions/0"


@pytest.mark.parametrize("number", [-1, 100_000, True, "1", None, 1.0])
def test_partitions_are_numbers(number: object) -> None:
    with pytest.raises(UsageError, match="a partition must be a number"):
        check_partition(number)  # type: ignore[arg-type]


def test_addresses() -> None:
    assert Address.parse("orders/12") == ("orders", 12)
    assert str(Address.parse("orders/12")) == "orders/12"
    assert str(Address.parse("orders")) == "orders"
    for text in ("orders/", "orders/x", "orders/01", "orders/-1", "orders/1/2", "/1", "", "orders/100000"):
        with pytest.raises(UsageError):
            Address.parse(text)


def test_the_tree_is_listed_and_strangers_are_left_alone() -> None:
    disk = SimulatedDisk()
    for name in (
        "b/partitions/0",
        "b/partitions/10",
        "b/partitions/2",
        "b/partitions/02",
        "b/partitions/x",
        "a",
        "a~0",
    ):
        disk.make_directory(f"/data/topics/{name}")
    disk.create("/data/topics/file").close()
    disk.create("/data/topics/b/partitions/3").close()
    assert layout.list_topics(disk, "/data") == ["a", "b"]
    assert layout.list_partitions(disk, "/data", "a") == []
    found = layout.list_partitions(disk, "/data", "b")
    assert [partition.number for partition in found] == [0, 2, 10]
    assert found[2] == ("b", 10, "/data/topics/b/partitions/10")


def test_what_is_not_there_is_named() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    assert not layout.is_store(disk, "/data")
    with pytest.raises(StorageError, match="not a store"):
        layout.list_topics(disk, "/data")
    with pytest.raises(StorageError, match="no such directory"):
        layout.list_topics(disk, "/nothing")
    with pytest.raises(UnknownTopicError, match="the store is empty"):
        layout.list_partitions(disk, "/data", "orders")
    disk.make_directory("/data/topics/other")
    with pytest.raises(UnknownTopicError, match="existing topics: other"):
        layout.list_partitions(disk, "/data", "orders")
