"""The store: topics come and go whole, records land where Kafka puts them, a bounded number of segments is open."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import duramen
from duramen import (
    CorruptionError,
    LockedError,
    OffsetError,
    StorageError,
    Store,
    UnknownTopicError,
    UnsupportedFieldError,
    UsageError,
)
from duramen.store import layout
from duramen.store.partitioner import partition_of
from duramen.store.topic import split
from duramen.testing.crash import CrashPattern, patterns
from duramen.testing.simulated_disk import SimulatedDisk
from tests.sampling import examples

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
OPTIONS: dict[str, dict[str, Any]] = {
    "durable-log": {}, "keratin": {}, "rustlog": {}, "osiris": {}, "fixed-slot": {"record_size": 8},
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store(tmp_path / "data") as store:
        yield store


# --- topics


@pytest.mark.parametrize("format", OPTIONS)
def test_a_topic_of_every_format(store: Store, format: str) -> None:
    topic = store.create("orders", 3, format, **OPTIONS[format])
    placed = [topic.append(b"%08d" % n, routing_key=b"key-%d" % n) for n in range(20)]
    assert [p.partition for p in placed] == [partition_of(b"key-%d" % n, 3) for n in range(20)]
    for n, (partition, offset) in enumerate(placed):
        assert topic.read(partition, offset).value == b"%08d" % n
    store.close()
    with Store(store.root) as again:
        topic = again.topic("orders")
        assert (topic.format, topic.partitions) == (format, 3)
        assert sorted(record.value for record in topic) == [b"%08d" % n for n in range(20)]
        assert topic.append(b"12345678", partition=1).offset == topic.offsets()[1][1] - 1
        for number in range(3):
            assert duramen.verify(layout.partition_path(again.root, "orders", number)).findings == []


def test_the_tree_is_rustlogs(store: Store) -> None:
    store.create("orders", 2, "rustlog").append(b"x", partition=1)
    root = Path(store.root) / "topics" / "orders"
    assert sorted(path.name for path in root.iterdir()) == [".duramen", "partitions"]
    assert sorted(path.name for path in (root / "partitions").iterdir()) == ["0", "1"]
    assert (root / "partitions" / "1" / "00000000000000000000.log").exists()
    tree = json.loads((root / ".duramen" / "topic.json").read_text())
    assert (tree["format"], tree["partitions"], tree["options"]) == ("rustlog", 2, {})


def test_create_list_describe_delete(store: Store) -> None:
    assert store.topics() == []
    store.create("b", 2, segment_max_bytes=5000)
    store.create("a")
    assert store.topics() == list(store) == ["a", "b"]
    assert "a" in store
    assert "c" not in store
    store.topic("b").append_batch([b"x" * 100] * 10, partition=1)
    info = store.describe("b")
    assert (info.format, info.options, info.records) == ("keratin", {"segment_max_bytes": 5000}, 10)
    assert [(part.number, part.first_offset, part.next_offset) for part in info.partitions] == [(0, 0, 0), (1, 0, 10)]
    with pytest.raises(UsageError, match="already exists"):
        store.create("a")
    store.delete("b")
    assert store.topics() == ["a"]
    assert sorted(path.name for path in (Path(store.root) / "topics").iterdir()) == ["a", "~lock"]
    with pytest.raises(UnknownTopicError, match="existing topics: a"):
        store.topic("b")
    store.create("b")
    assert store.describe("b").records == 0


def test_a_change_of_a_topic_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "typo") as store:
        for change in (store.delete, lambda name: store.add_partitions(name, 3)):
            with pytest.raises(UnknownTopicError, match="no such directory"):
                change("orders")
    assert not (tmp_path / "typo").exists()


def test_partitions_are_added_and_never_removed(store: Store) -> None:
    topic = store.create("t", 2)
    topic.append_batch([b"v"] * 50, routing_key=[b"%d" % n for n in range(50)])
    assert store.add_partitions("t", 5).partitions == 5
    topic.refresh()
    assert topic.partitions == 5
    assert topic.append(b"new", partition=4) == (4, 0)
    assert sum(1 for _ in topic) == 51
    with pytest.raises(UsageError, match="cannot decrease"):
        store.add_partitions("t", 4)
    for count in (0, -1, 100_001, True, "3"):
        with pytest.raises(UsageError, match="partitions"):
            store.add_partitions("t", count)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no partition 5"):
        topic.append(b"x", partition=5)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc", "a\0", "ä", "x" * 250, "~lock", "a~0", None, 3])
def test_hostile_names(store: Store, name: Any, tmp_path: Path) -> None:
    store.create("good")
    before = sorted(path for path in tmp_path.rglob("*"))
    for act in (store.create, store.topic, store.delete, store.describe, lambda n: store.add_partitions(n, 3)):
        with pytest.raises(UsageError, match="invalid topic name"):
            act(name)
    assert sorted(path for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["", ".", "..", "\n", "x" * 1000])
def test_hostile_groups(store: Store, name: str) -> None:
    topic = store.create("t")
    with pytest.raises(UsageError, match="group"):
        topic.group(name)
    topic.group("../../escape").fetch()
    assert not (Path(store.root).parent / "escape").exists()


def test_unknown_topics(store: Store) -> None:
    for act in (store.topic, store.delete, store.describe, lambda n: store.add_partitions(n, 3)):
        with pytest.raises(UnknownTopicError, match="the topic 'orders' does not exist"):
            act("orders")


def test_a_store_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="a store must be a directory"):
        Store(tmp_path / "file")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"{}", b'{"duramen":2}', b"\0" * 100, b"x" * (2 << 20),
     b'{"duramen":1,"format":"keratin","partitions":0,"options":{},"created_ms":0}',
     b'{"duramen":1,"format":"keratin","partitions":"many","options":{},"created_ms":0}'],
    ids=range(10),
)  # fmt: skip
def test_damaged_settings_raise(store: Store, content: bytes) -> None:
    store.create("t", 2)
    path = Path(store.root) / "topics" / "t" / ".duramen" / "topic.json"
    path.write_bytes(content)
    for act in (store.topic, store.describe, lambda n: store.add_partitions(n, 3)):
        with pytest.raises(CorruptionError) as caught:
            act("t")
        assert caught.value.path == str(path)
    path.unlink()
    assert store.topic("t").partitions == 2, "told from the directories"
    store.delete("t")


def test_a_lost_partition_is_damage(store: Store) -> None:
    topic = store.create("t", 3)
    store.close()
    shutil.rmtree(Path(store.root) / "topics" / "t" / "partitions" / "1")
    with Store(store.root) as again:
        topic = again.topic("t")
        with pytest.raises(CorruptionError, match="the directory of partition 1 is missing"):
            topic.append(b"x", partition=1)
        with pytest.raises(CorruptionError, match="the directory of partition 1 is missing"):
            list(topic)
        missing = "the directory of partition 1 is missing: the topic's settings list it"
        assert again.describe("t").partitions[1].problem == missing
        with pytest.raises(CorruptionError, match="the directory of partition 1 is missing"):
            again.add_partitions("t", 4)


# --- a tree that another program made


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """RustLog's own bytes, in its own tree, without a trace of ours."""
    root = tmp_path / "foreign"
    for number in range(2):
        shutil.copytree(
            GOLDEN / "rustlog" / "impl" / "records250", root / "topics" / "logs" / "partitions" / str(number)
        )
    return root


def test_a_foreign_tree_is_read_without_a_trace(foreign: Path) -> None:
    before = sorted(foreign.rglob("*"))
    with Store(foreign) as store:
        topic = store.topic("logs")
        assert (topic.format, topic.partitions) == ("rustlog", 2)
        records = list(topic.scan(0))
        assert records
        assert store.describe("logs").partitions[1].next_offset == records[-1].offset + 1
    assert sorted(foreign.rglob("*")) == before


def test_a_foreign_tree_is_appended_to_in_its_own_dialect(foreign: Path) -> None:
    with Store(foreign) as store:
        topic = store.topic("logs")
        before = list(topic.scan(0))
        assert topic.append(b"ours", partition=0).offset == before[-1].offset + 1
        assert [record[1:] for record in topic.scan(0)][: len(before)] == [record[1:] for record in before]
        with topic.log(0) as log:
            assert log.codec.options["header_bytes"] == 12
        store.add_partitions("logs", 4)
    with Store(foreign) as store:
        assert store.topic("logs").partitions == 4
        assert store.topic("logs").append(b"new", partition=3) == (3, 0)


def test_empty_partitions_of_a_foreign_tree(tmp_path: Path) -> None:
    (tmp_path / "topics" / "t" / "partitions" / "2").mkdir(parents=True)
    with Store(tmp_path) as store:
        topic = store.topic("t")
        assert (topic.format, topic.partitions) == ("rustlog", 3)
        assert [part.problem for part in store.describe("t").partitions] == ["not created yet", "not created yet", None]
        assert topic.append(b"x", partition=1) == (1, 0)
        assert [record.value for record in topic] == [b"x"]


# --- appending and reading


def test_keys_and_keyless_rows(store: Store) -> None:
    topic = store.create("t", 4)
    rows = 5000
    keys = [None if n % 3 == 0 else b"k%d" % (n % 50) for n in range(rows)]
    values = [b"%d" % n for n in range(rows)]
    done = topic.append_batch(pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}))
    assert sum(appended.count for appended in done.values()) == rows
    seen = []
    for record in topic:
        n = int(record.value)
        seen.append(n)
        assert record.key == keys[n]
        assert keys[n] is None or record.partition == partition_of(keys[n], 4)
    assert sorted(seen) == list(range(rows))
    for number in range(4):
        order = [int(record.value) for record in topic.scan(number)]
        assert order == sorted(order), "rows of one partition keep their order"


def test_what_batches_gives_append_takes(store: Store) -> None:
    one, two = store.create("one", 3), store.create("two", 3)
    one.append_batch([b"%d" % n for n in range(100)], routing_key=[b"%d" % n for n in range(100)])
    for batch in one.batches():
        assert batch.schema.names == ["partition", "offset", "timestamp", "key", "value", "headers"]
        two.append_batch(batch)
    assert [record[:2] + record[4:5] for record in two] == [record[:2] + record[4:5] for record in one]
    assert next(one.batches(columns=["value"])).schema.names == ["partition", "value"]
    assert [record.offset for record in one.scan(0, from_offset=2, max_records=2)] == [2, 3]
    with pytest.raises(OffsetError):
        one.read(0, 1000)


def test_formats_without_keys_say_what_to_do(store: Store) -> None:
    topic = store.create("t", 2, "rustlog")
    for act in (
        lambda: topic.append(b"v", key=b"k"),
        lambda: topic.append_batch(pa.table({"key": [b"a", b"b"], "value": [b"1", b"2"]})),
    ):
        with pytest.raises(UnsupportedFieldError, match="routing_key"):
            act()
    assert list(topic) == []


@pytest.mark.parametrize(
    "wrong",
    [
        lambda t: t.append(3),
        lambda t: t.append(b"v", key=3),
        lambda t: t.append(b"v", partition=0, routing_key=b"k"),
        lambda t: t.append(b"v", partition=9),
        lambda t: t.append_batch(b"bytes"),
        lambda t: t.append_batch([1, 2]),
        lambda t: t.append_batch([b"a"], routing_key=[b"a", b"b"]),
        lambda t: t.append_batch(pa.table({"key": [b"a"]})),
        lambda t: t.append_batch(pa.table({"value": [b"a"], "partition": [7]})),
        lambda t: t.append_batch(pa.table({"value": [b"a"], "partition": [-7]})),
        lambda t: t.read(2, 0),
        lambda t: next(t.batches(follow=True, max_records=3)),
        lambda t: Store(t._partitions.root, max_open_segments=0),
    ],
)
def test_wrong_usage(store: Store, wrong: Any) -> None:
    topic = store.create("t", 2)
    with pytest.raises(UsageError):
        wrong(topic)
    assert list(topic) == []


def test_a_failure_says_what_was_stored(store: Store) -> None:
    topic = store.create("t", 2)
    rows = pa.table({"value": [b"a", b"b"], "partition": [0, 1]})
    with duramen.open(layout.partition_path(store.root, "t", 1), "a"), pytest.raises(LockedError) as caught:
        topic.append_batch(rows)
    assert caught.value.__notes__ == ["other partitions stored their records: {0: Appended(base_offset=0, count=1)}"]
    assert [record[:2] for record in topic] == [(0, 0)]


@given(st.lists(st.integers(0, 5), max_size=60))
@settings(max_examples=examples(50))
def test_split_keeps_every_row_once_and_in_order(partitions: list[int]) -> None:
    batch = pa.RecordBatch.from_pydict({"value": pa.array(range(len(partitions)), pa.int64())})
    parts = split(batch, np.array(partitions, np.int64))
    expected = {p: [n for n, q in enumerate(partitions) if q == p] for p in sorted(set(partitions))}
    assert {p: rows.column(0).to_pylist() for p, rows in parts.items()} == expected


def test_follow_sees_what_comes_and_partitions_that_are_added(store: Store) -> None:
    topic = store.create("t", 2)
    topic.append(b"0", partition=0)
    records = topic.scan(follow=True)
    assert next(records).value == b"0"

    def later() -> None:
        topic.append(b"1", partition=1)
        store.add_partitions("t", 3).append(b"2", partition=2)
        topic.refresh()

    thread = threading.Thread(target=later)
    thread.start()
    assert {next(records).value, next(records).value} == {b"1", b"2"}
    thread.join()
    records.close()


# --- how many are open


def test_a_bounded_number_of_segments_is_open(tmp_path: Path) -> None:
    with Store(tmp_path, max_open_segments=6) as store:
        topic = store.create("t", 20, segment_max_bytes=400)
        for n in range(60):
            topic.append(b"x" * 50, partition=n % 20)
            assert store.open_segments <= 6
        assert sum(1 for _ in topic) == 60
        assert store.open_segments <= 6
    assert store.open_segments == 0
    with pytest.raises(UsageError, match="closed"):
        topic.append(b"x")


def test_a_poisoned_partition_is_opened_again(store: Store) -> None:
    topic = store.create("t")
    topic.append(b"a")
    with topic.log_for_append(0) as log:
        log.tail.poison(OSError("the disk is gone"))
    assert topic.append(b"b").offset == 1


def test_a_topic_in_use_is_not_deleted(store: Store) -> None:
    topic = store.create("t")
    topic.append(b"a")
    reading = topic.scan()
    next(reading)
    with pytest.raises(UsageError, match="in use"):
        store.delete("t")
    reading.close()
    store._pool.forget(layout.topic_path(store.root, "t"))
    with (
        duramen.open(layout.partition_path(store.root, "t", 0), "a"),
        pytest.raises(
            LockedError, match=r"partition 0 of the topic 't' is open for append \(pid \d+\).*close it there"
        ),
    ):
        store.delete("t")
    store.delete("t")


@pytest.mark.parametrize("linked", ["topics/t", "topics/t/partitions/1"])
def test_a_topic_that_lies_elsewhere_is_not_deleted(store: Store, linked: str, tmp_path: Path) -> None:
    store.create("t", 2).append(b"a", partition=1)
    store.close()
    place = Path(store.root) / linked
    shutil.move(place, tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with Store(store.root) as again:
        with pytest.raises(UsageError, match=r"is not deleted: this is a link"):
            again.delete("t")
        assert again.topic("t").read(1, 0).value == b"a"


def test_what_cannot_be_removed_blocks_no_later_topic(store: Store, tmp_path: Path) -> None:
    store.create("t").append(b"a")
    odd = Path(layout.partition_path(store.root, "t", 0)) / "odd"
    odd.symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="not empty"):
        store.delete("t")
    assert store.topics() == []
    store.create("t").append(b"b")
    assert [record.value for record in store.topic("t")] == [b"b"]
    odd.symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="not empty"):
        store.delete("t")
    for left in Path(store.root).glob("topics/t~*"):
        (left / "partitions" / "0" / "odd").unlink()
    store.create("u")
    assert sorted(path.name for path in Path(store.root, "topics").iterdir()) == ["u", "~lock"]


def test_a_topic_that_another_process_deletes_is_unknown_and_not_damaged(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duramen.store.partitions.REFRESH_S", 3600.0)
    topic = store.create("t", 2)
    topic.append(b"a", partition=0)
    with Store(store.root) as reading, Store(store.root) as deleting:
        there = reading.topic("t")
        assert [record.value for record in there] == [b"a"]
        store.close()
        deleting.delete("t")
        for use in (lambda: list(there), lambda: there.append(b"b", partition=0), there.offsets):
            with pytest.raises(UnknownTopicError, match="the topic 't' does not exist"):
                use()
        deleting.create("t").append(b"new")
        for use in (lambda: list(there), lambda: there.append(b"b", partition=1), lambda: there.read(1, 0)):
            with pytest.raises(UnknownTopicError, match="'t' was deleted and recreated"):
                use()
        there.refresh()
        assert [record.value for record in there] == [b"new"]


def _append_elsewhere(root: str, partition: int, pipe: Any) -> None:
    with Store(root) as store:
        topic = store.topic("t")
        topic.append(b"theirs", partition=partition)
        pipe.send("appended")
        pipe.recv()


def test_several_processes_have_a_partition_each(store: Store) -> None:
    topic = store.create("t", 2)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_append_elsewhere, args=(store.root, 1, theirs))
    process.start()
    try:
        assert ours.recv() == "appended"
        topic.append(b"ours", partition=0)
        with pytest.raises(LockedError, match="open for writing elsewhere"):
            topic.append(b"ours", partition=1)
        assert [record.value for record in topic] == [b"ours", b"theirs"]
        with pytest.raises(LockedError):
            store.delete("t")
    finally:
        ours.send("end")
        process.join(20)
    assert topic.append(b"ours", partition=1).offset == 1


# --- crashes


@pytest.mark.parametrize("change", ["create", "add", "delete"])
def test_a_topic_is_whole_or_not_there_after_a_crash(change: str) -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    with Store("/data", disk=disk) as store:
        store.create("other").append(b"stays")
        if change != "create":
            store.create("t", 2).append_batch([b"a", b"b"], partition=1)
    disk = disk.crash(CrashPattern("kept", "kept"))
    clones: list[tuple[str, SimulatedDisk]] = []
    disk.on_operation = lambda _number, operation: clones.append((operation, disk.clone()))
    store = Store("/data", disk=disk)
    {
        "create": lambda: store.create("t", 2),
        "add": lambda: store.add_partitions("t", 4),
        "delete": lambda: store.delete("t"),
    }[change]()
    assert len(clones) > 5
    for number, (operation, clone) in list(enumerate(clones))[:: max(len(clones) // 25, 1)]:
        for pattern in (None, patterns(number, 0)[number % 18]):
            left = clone.clone() if pattern is None else clone.crash(pattern)
            with Store("/data", disk=left) as again:
                _check_after_crash(again, change, f"{operation}, {pattern}")
                assert set(left.directories("/data/topics")) == {"other", "t"}


def _check_after_crash(store: Store, change: str, where: str) -> None:
    assert [record.value for record in store.topic("other")] == [b"stays"], where
    if "t" in store:
        topic = store.topic("t")
        assert topic.partitions in ((2, 3, 4) if change == "add" else (2,)), where
        assert [record.value for record in topic] == ([] if change == "create" else [b"a", b"b"]), where
        store.delete("t")
    else:
        assert change != "add", where
    store.create("t", 1).append(b"anew")
    assert [record.value for record in store.topic("t")] == [b"anew"], where
