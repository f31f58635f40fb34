"""Without a sidecar, the files beside the segments are the only witnesses of records that are missing at the end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import duramen
from duramen.errors import CorruptionError
from duramen.formats import Role, make
from tests.log.conftest import FORMATS

SEGMENTS, EACH = 3, 6
COUNT = SEGMENTS * EACH
SPARSE = ("rustlog", "kafka")
LOSSES = ("key", "headers", "timestamp")
INDEXED = [name for name in FORMATS if make(name).capabilities.index]


def written(path: Path, name: str, *, stride_bytes: int = 0) -> list[Path]:
    """Create a log of three segments without a sidecar, and return them."""
    more = {"index_stride_bytes": stride_bytes} if name == "kafka" else {}
    with duramen.open(path, "a", format=name, **more) as log:
        for number in range(COUNT):
            if number % EACH == 0 and number:
                log.seal()
            log.append(b"%03d" % number * 40)
    shutil.rmtree(path / ".duramen")
    return files_of(path, name, Role.SEGMENT)


def files_of(path: Path, name: str, role: Role) -> list[Path]:
    known = {file: make(name).classify(str(file.relative_to(path))) for file in path.rglob("*") if file.is_file()}
    return sorted(file for file, found in known.items() if found is not None and found.role == role)


def content(path: Path) -> dict[str, bytes]:
    found = {str(file.relative_to(path)): file for file in path.rglob("*") if file.is_file()}
    return {name: file.read_bytes() for name, file in found.items() if not name.startswith(".duramen/")}


def judge(path: Path, first: int, last: int) -> None:
    """Verify calls it damage, no verb goes on, and a repair names what is lost and does not assign it again. A sparse
    index may not know the last offsets."""
    before = content(path)
    report = duramen.verify(path)
    assert not report.ok, report.findings
    with pytest.raises(CorruptionError):
        duramen.open(path, "a")
    target = "durable-log" if report.format != "durable-log" else "keratin"
    with pytest.raises(CorruptionError):
        duramen.convert(path, path.with_name("converted"), target, allow_loss=LOSSES)
    with pytest.raises(CorruptionError):
        duramen.copy(path, path.with_name("copied"))
    assert content(path) == before
    skipped = duramen.convert(path, path.with_name("converted"), target, allow_loss=LOSSES, on_damage="skip")
    assert skipped.skipped
    if report.format in SPARSE:
        last = max(found.last_offset or 0 for found in report.findings)
        assert last >= first
    plan = duramen.repair(path)
    assert [(loss.first, loss.last) for loss in plan.losses] == [(first, last)]
    done = duramen.repair(path, plan_only=False)
    assert done.quarantine is not None
    assert duramen.verify(path).ok
    with duramen.open(path, "a") as log:
        assert log.next_offset == last + 1
        assert log.append(b"x") == last + 1


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", INDEXED)
def test_the_last_segments_are_deleted_and_an_index_stays(tmp_path: Path, name: str, count: int) -> None:
    """It opened, and assigned their offsets again."""
    segments = written(tmp_path / "log", name)
    for segment in segments[-count:]:
        segment.unlink()
    judge(tmp_path / "log", COUNT - count * EACH, COUNT - 1)


@pytest.mark.parametrize("name", INDEXED)
def test_the_last_segment_is_emptied(tmp_path: Path, name: str) -> None:
    written(tmp_path / "log", name)[-1].write_bytes(b"")
    judge(tmp_path / "log", COUNT - EACH, COUNT - 1)


def test_a_time_index_names_them(tmp_path: Path) -> None:
    """Kafka: a short segment has no entry in its offset index. It opened, and the entry was cut without a copy."""
    written(tmp_path / "log", "kafka", stride_bytes=4096)[-1].write_bytes(b"")
    judge(tmp_path / "log", COUNT - EACH, COUNT - 1)


def test_a_producer_snapshot_is_of_a_later_offset(tmp_path: Path) -> None:
    path = tmp_path / "log"
    written(path, "kafka")
    for base in (EACH, 2 * EACH):
        for suffix in ("log", "index", "timeindex"):
            (path / f"{base:020}.{suffix}").unlink()
    judge(path, EACH, 2 * EACH - 1)


def test_a_leader_began_at_a_later_offset(tmp_path: Path) -> None:
    """An append removed that line from the file."""
    path = tmp_path / "log"
    written(path, "kafka")
    (path / "leader-epoch-checkpoint").write_text(f"0\n2\n0 0\n1 {COUNT + 5}\n")
    judge(path, COUNT, COUNT + 4)


def test_a_leader_that_begins_at_the_end_is_none_of_that(tmp_path: Path) -> None:
    written(tmp_path / "log", "kafka")
    (tmp_path / "log/leader-epoch-checkpoint").write_text(f"0\n2\n0 0\n1 {COUNT}\n")
    assert duramen.verify(tmp_path / "log").ok
    with duramen.open(tmp_path / "log", "a") as log:
        assert log.append(b"x") == COUNT


@pytest.mark.parametrize("name", INDEXED)
def test_all_segments_are_deleted_and_an_index_stays(tmp_path: Path, name: str) -> None:
    """A new log was begun at offset 0."""
    path = tmp_path / "log"
    for segment in written(path, name):
        segment.unlink()
    before = content(path)
    with pytest.raises(CorruptionError):
        duramen.open(path, "a", format=name)
    assert content(path) == before
    with pytest.raises(CorruptionError):
        duramen.copy(path, tmp_path / "copied", format=name)
