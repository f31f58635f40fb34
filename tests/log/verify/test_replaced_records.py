"""Without a sidecar, an intact dense index is the only witness that other records took the place of a segment's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import duramen
from duramen.errors import CorruptionError

COUNT = 60


def written(path: Path, length: int) -> list[Path]:
    """Create a log of two segments without a sidecar, and return them."""
    with duramen.open(path, "a", format="durable-log", segment_max_bytes=4_400) as log:
        for number in range(COUNT):
            log.append(b"%05d" % number + bytes(length + number % 5))
    shutil.rmtree(path / ".duramen")
    return sorted(path.glob("*.log"))


@pytest.fixture
def replaced(tmp_path: Path) -> Path:
    """A log whose last segment was overwritten with whole records of another log, which have the same offsets."""
    mine, theirs = written(tmp_path / "log", 100), written(tmp_path / "other", 101)
    assert [file.name for file in mine] == [file.name for file in theirs]
    shutil.copyfile(theirs[-1], mine[-1])
    return tmp_path / "log"


def base_of(path: Path) -> int:
    return max(int(file.stem.partition("_")[2]) for file in path.glob("*.log"))


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def test_an_index_that_names_other_records_stops_verify_and_open(replaced: Path) -> None:
    before = files_of(replaced)
    (found,) = duramen.verify(replaced).findings
    assert found.code == "records-replaced"
    assert found.last_offset == COUNT - 1
    with pytest.raises(CorruptionError, match="other records took their place"):
        duramen.open(replaced, "a")
    assert files_of(replaced) == before


def test_a_repair_tells_of_the_records_that_the_index_names(replaced: Path) -> None:
    index = replaced / f"segment_{base_of(replaced):020}.idx"
    named = index.read_bytes()
    plan = duramen.repair(replaced)
    ((first, last),) = plan.replaced
    assert base_of(replaced) < first <= base_of(replaced) + 1  # the first record of both has the same position
    assert last == COUNT - 1
    assert plan.as_dict()["replaced"] == [{"first": first, "last": last}]
    done = duramen.repair(replaced, plan_only=False)
    assert done.quarantine is not None
    assert (replaced / done.quarantine / index.name).read_bytes() == named
    assert duramen.verify(replaced).ok


def test_one_wrong_entry_is_damage_of_the_index(tmp_path: Path) -> None:
    last = written(tmp_path / "log", 100)[-1].with_suffix(".idx")
    data = bytearray(last.read_bytes())
    data[24] ^= 1  # the position of the second entry
    last.write_bytes(data)
    assert {found.code for found in duramen.verify(tmp_path / "log").findings} == {"wrong-index-entry"}
