"""Without a sidecar, an intact dense index is the only witness that other records took the place of a segment's own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import duramen
from duramen.errors import CorruptionError

COUNT = 60
Content = Callable[[bytes], bytes]


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


def stream(path: Path, value: bytes, clock: int, batch: int = 1) -> list[Path]:
    """Create an Osiris log without a sidecar, and return its segments."""
    times = iter(range(clock, clock + 10_000_000_000, 1_000_000))
    with duramen.open(path, "a", format="osiris", segment_max_bytes=4_000, clock=lambda: next(times)) as log:
        for _ in range(COUNT * 3 // batch):
            log.append_batch([value] * batch)
    shutil.rmtree(path / ".duramen")
    return sorted(path.glob("*.segment"))


@pytest.mark.parametrize("batch", [1, 2])
def test_chunks_that_all_differ_from_the_index_are_other_chunks(tmp_path: Path, batch: int) -> None:
    """Only their times differ: every entry repeats that of its chunk."""
    mine, theirs = (
        stream(tmp_path / name, name.encode(), clock * 10**15, batch) for clock, name in enumerate(("me", "it"), 1)
    )
    shutil.copyfile(theirs[-1], mine[-1])
    assert "records-replaced" in {found.code for found in duramen.verify(tmp_path / "me").findings}
    ((first, last),) = duramen.repair(tmp_path / "me").replaced
    assert (first, last) == (int(mine[-1].stem), COUNT * 3 - batch)


def noise(whole: bytes) -> bytes:
    return bytes(byte ^ 0xA5 for byte in whole)


@pytest.mark.parametrize(
    "content", [lambda whole: b"", lambda whole: whole[:4], lambda whole: bytes(len(whole)), noise]
)
def test_an_index_proves_the_records_of_a_segment_that_lost_even_its_header(tmp_path: Path, content: Content) -> None:
    segment = stream(tmp_path / "log", b"value", 10**15)[-1]
    segment.write_bytes(content(segment.read_bytes()))
    before = files_of(tmp_path / "log")
    assert not duramen.verify(tmp_path / "log").ok
    with pytest.raises(CorruptionError):
        duramen.open(tmp_path / "log", "a")
    assert files_of(tmp_path / "log") == before
    plan = duramen.repair(tmp_path / "log", plan_only=False)
    assert [(loss.first, loss.last) for loss in plan.losses] == [(int(segment.stem), COUNT * 3 - 1)]
    with duramen.open(tmp_path / "log", "a") as log:
        assert log.next_offset == COUNT * 3


def test_a_damaged_header_alone_loses_no_record(tmp_path: Path) -> None:
    segment = stream(tmp_path / "log", b"value", 10**15)[-1]
    data = segment.read_bytes()
    segment.write_bytes(noise(data[:8]) + data[8:])
    assert {found.code for found in duramen.verify(tmp_path / "log").findings} == {"bad-file-header"}
    assert not duramen.repair(tmp_path / "log").losses


@pytest.mark.parametrize("format_name", ["rustlog", "keratin"])
def test_a_file_of_other_offsets_does_not_free_those_of_its_name(tmp_path: Path, format_name: str) -> None:
    """RustLog's index, or Keratin's manifest, still names what the last file held."""
    for name, length, size_bytes in (("log", 10, 4_000), ("other", 2, 9_000)):
        with duramen.open(tmp_path / name, "a", format=format_name, segment_max_bytes=size_bytes) as log:
            log.append_batch([b"%05d" % number + bytes(length) for number in range(900)])
        shutil.rmtree(tmp_path / name / ".duramen")
    mine, theirs = (sorted((tmp_path / name).rglob("*.log")) for name in ("log", "other"))
    base = int("".join(filter(str.isdigit, mine[-1].name)))
    other = next(file for file in theirs[1:] if file.read_bytes())
    shutil.copyfile(other, mine[-1])
    plan = duramen.repair(tmp_path / "log")
    given_up = [*plan.replaced, *((loss.first, loss.last) for loss in plan.losses)]
    assert any(first <= base <= last for first, last in given_up)
    assert plan.next_offset > base


SEGMENTS, EACH = 5, 80


def partition(path: Path) -> list[Path]:
    """Create a Kafka partition without a sidecar, and return its segments. All batches have one size, and each its own
    time."""
    times = iter(range(10**15, 2 * 10**15, 1_000_000))
    with duramen.open(path, "a", format="kafka", clock=lambda: next(times)) as log:
        for number in range(SEGMENTS * EACH):
            if number % EACH == 0 and number:
                log.seal()
            log.append(b"%03d" % number * 40)
    shutil.rmtree(path / ".duramen")
    return sorted(path.glob("*.log"))


def overwrite(segments: list[Path], by: int = 1) -> None:
    """Rename each segment to the name of a later one, so that the contents of the last are missing."""
    contents = [segment.read_bytes() for segment in segments]
    for segment, content in zip(segments[by:], contents, strict=False):
        segment.write_bytes(content)
    for segment in segments[:by]:
        segment.unlink()


def judge(path: Path, first: int, last: int) -> None:
    """Every verb notices the damage, and a repair names the offsets that are lost and does not assign them again."""
    assert not duramen.verify(path).ok
    with pytest.raises(CorruptionError):
        duramen.open(path, "a")
    done = duramen.repair(path, plan_only=False)
    assert [(loss.first, loss.last) for loss in done.losses] == [(first, last)]
    assert done.kept_records == first
    assert duramen.verify(path).ok
    with duramen.open(path, "a") as log:
        assert log.append(b"x") == last + 1


def test_a_time_index_names_the_records_that_a_copy_replaced(tmp_path: Path) -> None:
    """Kafka: the repair said "nothing is lost", and released the offsets of the last segment."""
    segments = partition(tmp_path / "log")
    shutil.copyfile(segments[1], segments[-1])
    judge(tmp_path / "log", 4 * EACH, 5 * EACH - 1)


@pytest.mark.parametrize("by", [1, 2])
def test_a_time_index_names_the_records_that_a_shift_replaced(tmp_path: Path, by: int) -> None:
    overwrite(partition(tmp_path / "log"), by)
    judge(tmp_path / "log", (SEGMENTS - by) * EACH, 5 * EACH - 1)


def test_a_producer_snapshot_says_how_far_the_log_went(tmp_path: Path) -> None:
    overwrite(partition(tmp_path / "log"), 2)
    for index in tmp_path.glob("log/*index"):
        index.unlink()
    judge(tmp_path / "log", 3 * EACH, 4 * EACH - 1)


@pytest.mark.parametrize("order", [[0, 1, 2, 4, 3], [4, 3, 2, 1, 0]])
def test_indexes_that_moved_with_their_segments_name_nothing_else(tmp_path: Path, order: list[int]) -> None:
    segments = partition(tmp_path / "log")
    for suffix in (".log", ".index", ".timeindex"):
        contents = [segment.with_suffix(suffix).read_bytes() for segment in segments]
        for segment, number in zip(segments, order, strict=True):
            segment.with_suffix(suffix).write_bytes(contents[number])
    plan = duramen.repair(tmp_path / "log")
    assert (plan.losses, plan.next_offset) == ([], 5 * EACH)
