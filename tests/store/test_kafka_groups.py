"""The groups of a Kafka broker. ``committed.json`` is what Kafka's own admin client returned for the directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import duramen
from tests.formats.kafka_logs import DATA

GROUPS = DATA / "groups"
FIELDS = ("group", "topic", "partition", "offset", "metadata")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GROUPS, tmp_path / "kafka"))


def test_committed_offsets_are_what_kafka_returned() -> None:
    with duramen.Store(GROUPS) as store:
        found = store.groups()
    rows = [{name: getattr(one.committed, name) for name in FIELDS} for one in found.offsets]
    assert rows == json.loads((GROUPS / "committed.json").read_text())
    assert [(one.next_offset, one.lag) for one in found.offsets] == [
        (44, 37), (None, None), (44, 40), (44, 43), (None, None),
    ]  # fmt: skip
    assert [(one.name, one.protocol) for one in found.groups] == [
        ("classic", "classic"), ("modern", "consumer"), ("partly", "classic"),
    ]  # fmt: skip
    assert not found.skipped
    assert not found.failed


def test_damage_leaves_the_groups_of_other_partitions(root: Path) -> None:
    path = next((root / "__consumer_offsets-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with duramen.Store(root) as store:
        found = store.groups()
    assert len(found.failed) == 1
    assert found.failed[0].path is not None
    assert "__consumer_offsets-0" in found.failed[0].path
    assert {one.committed.group for one in found.offsets} < {"classic", "in-transaction", "modern", "partly"}


def test_other_stores_have_none(tmp_path: Path) -> None:
    with duramen.Store(tmp_path / "store") as store:
        store.create("orders")
        assert store.groups().offsets == []
