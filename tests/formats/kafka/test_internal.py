"""The records of Kafka's internal topics, against what Kafka's own tool prints, and from bytes made by hand."""

from __future__ import annotations

import json
import re
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import duramen
from duramen.errors import CorruptionError
from duramen.formats.kafka.internal import CONSUMER_OFFSETS, INTERNAL_TOPICS, GroupTable, decode_record
from tests.formats.kafka_logs import DATA


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def compact(value: str) -> bytes:
    return bytes([len(value) + 1]) + value.encode()


def offset_key(group: str, topic: str, partition: int, version: int = 1) -> bytes:
    return struct.pack(">h", version) + text(group) + text(topic) + struct.pack(">i", partition)


VALUES = {
    0: struct.pack(">hq", 0, 17) + text("note") + struct.pack(">q", 1000),
    1: struct.pack(">hq", 1, 17) + text("note") + struct.pack(">qq", 1000, 2000),
    2: struct.pack(">hq", 2, 17) + text("note") + struct.pack(">q", 1000),
    3: struct.pack(">hqi", 3, 17, 5) + text("note") + struct.pack(">q", 1000),
    4: struct.pack(">hqi", 4, 17, 5) + compact("note") + struct.pack(">q", 1000) + b"\x00",
}


def camel(found: Any) -> Any:
    """Names as Kafka's tool prints them."""
    if isinstance(found, dict):
        return {re.sub(r"_(.)", lambda match: match[1].upper(), name): camel(one) for name, one in found.items()}
    return [camel(one) for one in found] if isinstance(found, list) else found


def test_cluster_metadata_is_what_kafkas_tool_prints() -> None:
    path = DATA / "__cluster_metadata-0"
    with (path / "dump.jsonl").open() as lines:
        printed = {row["offset"]: row for row in map(json.loads, lines)}
    compared, notes = 0, set()
    with duramen.open(path) as log:
        for one in log:
            record = decode_record("__cluster_metadata", one.key, one.value)
            if one.offset not in printed:
                assert record.kind == "NoOp"
                continue
            known = printed[one.offset]
            assert record.version == known["version"]
            if record.note:
                notes.add((known["type"], known["version"]))
                continue
            assert f"{record.kind}record".lower() == known["type"].replace("_", "").lower()
            assert record.value is not None
            assert known["data"].items() >= camel(dict(record.value)).items()
            compared += 1
    # Versions and types of a Kafka newer than the schemas: named, not guessed.
    assert notes == {
        ("REGISTER_BROKER_RECORD", 4),
        ("BROKER_REGISTRATION_CHANGE_RECORD", 3),
        ("CLEAR_ELR_RECORD", 0),
    }
    assert compared == len(printed) - len(notes)


def test_transaction_state() -> None:
    with duramen.open(DATA / "__transaction_state-0") as log:
        found = [decode_record("__transaction_state", one.key, one.value) for one in log]
    names = {"txn-a", "txngzip-a", "compacttxnct0", "compacttxnct2", "open-a"}
    assert {one.key["transactional_id"] for one in found} == names
    assert all(one.value is not None and one.value["producer_id"] >= 0 and not one.note for one in found)
    partitions = [one.value["partitions"] for one in found if one.value and one.value["partitions"]]
    assert partitions[0] == [{"topic": "txn", "partition_ids": [1]}]


@pytest.mark.parametrize("version", VALUES)
def test_every_version_of_a_committed_offset(version: int) -> None:
    table = GroupTable()
    table.add(offset_key("billing", "orders", 3), VALUES[version])
    [found] = table.offsets.values()
    assert found[:4] == ("billing", "orders", 3, 17)
    assert found.leader_epoch == (5 if version >= 3 else -1)
    assert (found.metadata, found.committed_ms) == ("note", 1000)


def test_the_last_commit_counts_and_a_tombstone_removes() -> None:
    table = GroupTable()
    for offset in (1, 2, 3):
        table.add(offset_key("g", "t", 0), struct.pack(">hqi", 3, offset, -1) + text("") + struct.pack(">q", 0))
    table.add(offset_key("g", "t", 1, version=0), VALUES[0])
    assert [one.offset for one in table.offsets.values()] == [3, 17]
    table.add(offset_key("g", "t", 0), None)
    assert list(table.offsets) == [("g", "t", 1)]


def test_groups_of_both_protocols() -> None:
    table = GroupTable()
    member = text("id") + struct.pack(">h", -1) + text("client") + text("/host") + struct.pack(">ii", 1, 2)
    member += struct.pack(">i", 1) + b"s" + struct.pack(">i", -1)
    value = struct.pack(">h", 3) + text("consumer") + struct.pack(">i", 7) + text("range") + struct.pack(">h", -1)
    value += struct.pack(">qi", 99, 1) + member
    table.add(struct.pack(">h", 2) + text("old"), value)
    table.add(struct.pack(">h", 3) + text("new"), struct.pack(">hi", 0, 4) + b"\x00")
    table.add(struct.pack(">h", 5) + text("new") + text("m1"), b"\x00\x09whatever")
    assert table.groups["old"] == ("old", "classic", 7, ("client",))
    assert table.groups["new"][:3] == ("new", "consumer", 4)
    table.add(struct.pack(">h", 2) + text("old"), None)
    assert list(table.groups) == ["new"]


def test_unknown_versions_are_counted_and_not_guessed() -> None:
    table = GroupTable()
    table.add(offset_key("g", "t", 0), b"\x00\x05" + VALUES[4][2:])
    table.add(struct.pack(">h", 40) + text("g"), b"\x00\x00")
    assert not table.offsets
    assert dict(table.skipped) == {
        "OffsetCommitValue has version 5; up to 4 is known": 1,
        "the key has the unknown type 40": 1,
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, VALUES[3]),
        (b"", VALUES[3]),
        (b"\x00", VALUES[3]),
        (offset_key("g", "t", 0)[:-1], VALUES[3]),
        (offset_key("g", "t", 0) + b"x", VALUES[3]),
        (b"\x00\x01\x7f\xff" + b"g" * 40, VALUES[3]),
        (b"\x00\x01\xff\xfe" + b"g" * 40, VALUES[3]),
        (b"\x00\x01\x00\x02\xff\xfe" + text("t") + b"\x00" * 4, VALUES[3]),
        (offset_key("g", "t", 0), b""),
        (offset_key("g", "t", 0), VALUES[3][:-1]),
        (offset_key("g", "t", 0), VALUES[4][:-1] + b"\xff\xff\xff\xff\xff\xff"),
        (offset_key("g", "t", 0), VALUES[4][:-1] + b"\xff\xff\xff\xff\x0f"),
        (struct.pack(">h", 2) + text("g"), b"\x00\x00" + text("c") + b"\x00" * 8 + b"\x7f\xff\xff\xff"),
    ],
)
def test_damaged_records_are_refused(key: bytes | None, value: bytes) -> None:
    with pytest.raises(CorruptionError):
        GroupTable().add(key, value)


@given(st.sampled_from(INTERNAL_TOPICS), st.binary(max_size=80), st.none() | st.binary(max_size=200))
def test_no_bytes_raise_anything_else(topic: str, key: bytes, value: bytes | None) -> None:
    for start in (b"", b"\x00\x01", b"\x00\x02", b"\x01\x03\x02"):
        try:
            decode_record(topic, start + key, None if value is None else start + value)
        except CorruptionError:
            pass


@given(st.integers(0, len(VALUES[4]) - 1), st.integers(1, 255))
def test_a_flipped_byte_of_a_value_is_decoded_or_refused(position: int, mask: int) -> None:
    value = bytearray(VALUES[4])
    value[position] ^= mask
    try:
        decode_record(CONSUMER_OFFSETS, offset_key("g", "t", 0), bytes(value))
    except CorruptionError:
        pass
