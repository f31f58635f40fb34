"""What becomes of groups and cursors when their log is replaced as a whole, or loses records that they have seen."""

from __future__ import annotations

from pathlib import Path

import pytest

import duramen
from duramen.consumers.groups.dead_letters import DeadLetters
from duramen.consumers.log import ConsumableLog, ConsumableWritableLog
from duramen.errors import StorageError
from duramen.log.write.transaction import TransactionPart, commit_batch
from duramen.sidecar.tx_ledger import BatchKey
from duramen.testing.crash import CrashPattern
from duramen.testing.simulated_disk import SimulatedDisk
from tests.consumers.logs import FORMATS, make_log, options, value

ROOT = "/log"


def overwrite(root: Path, format_name: str, records: int) -> None:
    rows = [value(1000 + number) for number in range(records)]
    part = TransactionPart("", lambda: [rows], {"format": format_name, **options(format_name)}, replaces=True)
    commit_batch(str(root), BatchKey("job", 0, "a"), [part])


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_consumer_past_lost_records_gets_their_replacements(tmp_path: Path, format_name: str) -> None:
    root = make_log(tmp_path / "log", format_name, 10)
    with duramen.open(root) as log:
        log.cursor("c").store(7)
        log.group("g").ack_many(log.group("g").fetch(8))
        log.group("g").fetch(1)
    overwrite(root, format_name, 20)
    with duramen.open(root) as log:
        assert log.cursor("c").load() is None
        deliveries = log.group("g").fetch(100)
        assert [(each.offset, each.epoch) for each in deliveries] == [(offset, 1) for offset in range(20)]
        assert deliveries[0].value == value(1000)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_consumer_of_a_log_that_is_replaced_gets_an_error(tmp_path: Path, format_name: str) -> None:
    """His acks are of other records than those that have the offsets now."""
    root = make_log(tmp_path / "log", format_name, 10)
    with duramen.open(root) as log:
        group = log.group("g")
        held = group.fetch(8)
        overwrite(root, format_name, 20)
        for use in (lambda: group.ack_many(held), lambda: group.fetch(1), group.compact):
            with pytest.raises(StorageError, match="recreated after it was opened"):
                use()
    with duramen.open(root) as log:
        assert [each.offset for each in log.group("g").fetch(3)] == [0, 1, 2]


@pytest.mark.parametrize("opener", ["transaction", "dead letters"])
def test_the_first_append_after_a_power_loss_rewinds_groups(opener: str) -> None:
    """Otherwise the records that get the lost offsets would count as acknowledged."""
    disk = SimulatedDisk()
    with ConsumableWritableLog(ROOT, format="keratin", disk=disk) as log:
        log.append_batch([b"kept"] * 5)
        log.append_batch([b"lost"] * 5, durability="write")
        log.group("g").ack_many(log.group("g").fetch(10))
        after = disk.crash(CrashPattern("lost", "lost"))
    with ConsumableLog(ROOT, disk=after) as reading:
        assert reading.next_offset == 5
    if opener == "transaction":
        commit_batch(ROOT, BatchKey("job", 0, "a"), [TransactionPart("", lambda: [[b"new"] * 10], {})], disk=after)
    else:
        with ConsumableWritableLog("/other", disk=after) as source:
            source.append(b"new")
            DeadLetters(ROOT, "g", source).move([source.read(0)] * 10, [1] * 10, ["no"] * 10)
    with ConsumableLog(ROOT, disk=after) as reading:
        assert [each.offset for each in reading.group("g").fetch(100)] == list(range(5, 15))
