"""What a topic keeps with it (retention, compaction, options), its producers, and its durable name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen import Compaction, Retention, Store, UsageError
from duramen.errors import CorruptionError
from duramen.testing.crash import CrashPattern
from duramen.testing.simulated_disk import SimulatedDisk


def fill(topic: duramen.Topic, records: int = 400) -> None:
    for _ in range(4):
        topic.append_batch([(b"key %d" % (n % 5), b"v" * 50) for n in range(records // 4)])


def test_the_retention_of_a_topic_is_stored_and_applied(tmp_path: Path) -> None:
    rules = Retention(max_bytes=3000)
    with Store(tmp_path) as store:
        store.create("orders", partitions=2, retention=rules, segment_max_bytes=1500)
    with Store(tmp_path) as store:
        topic = store.topic("orders")
        assert topic.retention == rules
        fill(topic)
        assert topic.retain().keys() == {0, 1}
        for number in (0, 1):
            assert topic.offsets()[number][0] > 0
            with topic.log_for_append(number) as log:
                assert log._retention == rules, "the writer's timer applies it, too"
                assert log.codec.options["segment_max_bytes"] == 1500


def test_the_compaction_of_a_topic_is_stored_and_applied(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        topic = store.create(
            "orders", compaction=Compaction(keyless="drop", spill="/elsewhere"), segment_max_bytes=1500
        )
        fill(topic)
        kept = topic.compaction
    with Store(tmp_path) as store:
        topic = store.topic("orders")
        assert topic.compaction == Compaction(keyless="drop"), "memory and temporary files belong to the process"
        assert kept is not None
        (report,) = topic.compact().values()
        assert report.records_after < report.records_before
        assert "spill" not in (tmp_path / "topics/orders/.duramen/topic.json").read_text()


def test_configure_replaces_the_settings_of_a_topic(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.create("orders", partitions=2, retention=Retention(max_bytes=1))
        topic = store.configure("orders", retention=Retention(max_age_ms=5))
        assert topic.retention == Retention(max_age_ms=5)
        assert store.add_partitions("orders", 3).retention == Retention(max_age_ms=5)
        assert store.configure("orders").retention is None
        with pytest.raises(UsageError, match="has no retention"):
            store.topic("orders").retain()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retention": 3600}, "retention must be a duramen.Retention"),
        ({"compaction": "key"}, "compaction must be a duramen.Compaction"),
        ({"compaction": Compaction(key=lambda record: record)}, "a function cannot be stored"),
        ({"segment_max_byte": 1}, "segment_max_byte"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with Store(tmp_path) as store, pytest.raises(UsageError, match=said):
        store.create("orders", **options)


def test_damaged_rules_raise(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.create("orders", retention=Retention(max_bytes=1))
        path = tmp_path / "topics/orders/.duramen/topic.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "retention": {"max_bytes": -1}}))
        with pytest.raises(CorruptionError, match="settings cannot be read"):
            store.topic("orders")


def test_a_store_refuses_unknown_options_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a store has no option 'durabillity'"):
        Store(tmp_path, durabillity="write")  # type: ignore[call-arg]


def test_the_producer_of_a_topic(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        topic = store.create("orders", partitions=4)
        till = topic.producer("till")
        first = till.append(b"a", key=b"k", sequence=1)
        assert till.append(b"a", key=b"k", sequence=1).confirmed.is_duplicate
        assert till.append(b"b", partition=first.partition, sequence=2).confirmed.base_offset == 1
        assert till.append(b"c").confirmed.stored == 1
        with pytest.raises(UsageError, match="a sequence needs a key"):
            till.append(b"d", sequence=9)
        assert sorted(record.value for record in topic.scan()) == [b"a", b"b", b"c"]


def test_a_topic_is_consumed_by_name(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        topic = store.create("orders", partitions=2)
        topic.append_batch([b"a", b"b", b"c"], routing_key=[b"1", b"2", b"3"])
        assert sorted(delivery.value for delivery in topic.consume("billing", timeout_s=0)) == [b"a", b"b", b"c"]
        assert topic.group("billing").lag == 0


def test_a_record_keeps_the_name_of_its_topic_over_a_power_loss() -> None:
    """The process that created the topic was killed before it synced the directory of topics."""

    class KilledError(Exception):
        pass

    disk = SimulatedDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    creating = Store("/data", disk=disk)
    sync, renamed = disk.sync_directory, []

    def killed(path: str) -> None:
        if path == "/data/topics" and disk.kind("/data/topics/orders") == "directory":
            renamed.append(path)
            raise KilledError
        sync(path)

    disk.sync_directory = killed  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        creating.create("orders", partitions=2)
    assert renamed
    disk.sync_directory = sync  # type: ignore[method-assign]
    with Store("/data", disk=disk) as store:
        placed = store.topic("orders").append(b"one beer")
        after = disk.crash(CrashPattern("lost", "lost"))
    with Store("/data", disk=after) as store:
        assert store.topic("orders").read(*placed).value == b"one beer"
