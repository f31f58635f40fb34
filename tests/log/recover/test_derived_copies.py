"""An index or a manifest that contradicts the records is replaced only after a copy of it is in the quarantine."""

from __future__ import annotations

from pathlib import Path

import pytest

import duramen
from duramen.errors import CorruptionError

INDEXES = {
    "durable-log": f"segment_{0:020}.idx",
    "keratin": f"segments/{0:020}.idx",
    "rustlog": f"{0:020}.index",
    "osiris": f"{0:020}.index",
}


def make(path: Path, format: str) -> None:
    options = {"keratin": {"index_stride_bytes": 1}, "rustlog": {"index_interval_records": 1}}.get(format, {})
    with duramen.open(path, "a", format=format, **options) as log:
        for number in range(5):
            log.append(b"%d" % number)


def flip(file: Path, position: int) -> bytes:
    raw = bytearray(file.read_bytes())
    raw[position] ^= 1
    file.write_bytes(raw)
    return bytes(raw)


def copies(path: Path) -> list[bytes]:
    return [file.read_bytes() for file in (path / ".duramen").glob("quarantine/*")]


@pytest.mark.parametrize("format", INDEXES)
def test_an_index_that_contradicts_the_records_is_kept(format: str, tmp_path: Path) -> None:
    make(tmp_path / "log", format)
    index = tmp_path / "log" / INDEXES[format]
    damaged = flip(index, index.stat().st_size - 2)  # in the position of the last entry
    with duramen.open(tmp_path / "log", "a") as log:
        assert [record.value for record in log.scan()] == [b"%d" % number for number in range(5)]
    assert index.read_bytes() != damaged
    assert damaged in copies(tmp_path / "log")


@pytest.mark.parametrize("format", INDEXES)
def test_an_index_that_is_short_leaves_no_copy(format: str, tmp_path: Path) -> None:
    make(tmp_path / "log", format)
    index = tmp_path / "log" / INDEXES[format]
    whole = index.read_bytes()
    index.write_bytes(whole[: -29 if format == "osiris" else -16])
    with duramen.open(tmp_path / "log", "a") as log:
        log.append(b"more")
    assert index.read_bytes().startswith(whole)
    assert copies(tmp_path / "log") == []


@pytest.mark.parametrize("position", [30, -1])
def test_a_manifest_that_is_damaged_is_kept(position: int, tmp_path: Path) -> None:
    make(tmp_path / "log", "keratin")
    manifest = tmp_path / "log" / "manifest.bin"
    damaged = flip(manifest, position)
    duramen.open(tmp_path / "log", "a").close()
    assert manifest.read_bytes() != damaged
    assert damaged in copies(tmp_path / "log")


def test_a_manifest_of_an_unknown_version_is_refused_and_stays(tmp_path: Path) -> None:
    make(tmp_path / "log", "keratin")
    manifest = tmp_path / "log" / "manifest.bin"
    damaged = flip(manifest, 9)
    with pytest.raises(CorruptionError, match="unknown version"):
        duramen.open(tmp_path / "log", "a")
    assert manifest.read_bytes() == damaged


def test_an_outdated_manifest_leaves_no_copy(tmp_path: Path) -> None:
    make(tmp_path / "log", "keratin")
    manifest = tmp_path / "log" / "manifest.bin"
    behind = manifest.read_bytes()
    with duramen.open(tmp_path / "log", "a") as log:
        log.append(b"more")
        log.seal()
        log.append(b"and more")
    manifest.write_bytes(behind)
    duramen.open(tmp_path / "log", "a").close()
    assert manifest.read_bytes() != behind
    assert copies(tmp_path / "log") == []
