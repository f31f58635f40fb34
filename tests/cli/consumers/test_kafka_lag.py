"""`duramen lag` on the directory of a Kafka broker."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.running import Run
from tests.formats.kafka_logs import DATA


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "groups", tmp_path / "kafka"))


def test_lag_shows_the_groups(call: Run, root: Path) -> None:
    result = call("lag", root, "--json")
    assert [(row["log"], row["name"], row["offset"], row["next_offset"], row["lag"]) for row in result.json] == [
        (f"{root}#fresh/0", name, offset, 44, 44 - offset)
        for name, offset in (("classic", 7), ("in-transaction", 4), ("modern", 1))
    ]
    assert result.code == 0
    for path in (f"{root}#fresh", root / "fresh-0"):
        assert "in-transaction" in call("lag", path).text


def test_damage_is_reported_beside_what_is_known(call: Run, root: Path) -> None:
    path = next((root / "__consumer_offsets-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    result = call("lag", root, "--json")
    assert result.code == 1
    assert {"modern", "classic"} & {row["name"] for row in result.json if "name" in row}
    assert any("__consumer_offsets-0" in row["log"] for row in result.json if "problem" in row and "name" not in row)


def test_records_that_are_not_understood_are_counted(call: Run, root: Path) -> None:
    """Kafka's schemas grow: an unknown version is said, and not guessed."""
    from duramen.kernel import crc32c

    path = next((root / "__consumer_offsets-1").glob("*.log"))
    data = bytearray(path.read_bytes())
    at = data.index(b"\x00\x01\x00\x06modern")  # the key of the last commit: what the record is
    data[at + 1] = 99
    start, end = 0, 0
    while end <= at:
        start, end = end, end + 12 + int.from_bytes(data[end + 8 : end + 12], "big")
    data[start + 17 : start + 21] = crc32c(bytes(data[start + 21 : end])).to_bytes(4, "big")
    path.write_bytes(data)
    result = call("lag", root)
    assert "1 record not decoded: the key has the unknown type 99" in result.text
    assert "modern" not in result.text
