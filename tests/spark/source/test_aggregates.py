"""Count, first and last offset: from what the sidecar knows of a segment, or else from the records."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.errors import CorruptionError
from duramen.log.maintain.compact import Compaction
from duramen.log.read.log import Log
from duramen.log.write.writable_log import WritableLog
from duramen.sidecar import SEALED_PATH, SealedList, sealed_lines
from duramen.spark.source.narrowed import Narrowed, NarrowedRead, Seen
from duramen.spark.source.options import parse_options
from duramen.spark.source.plan import plan_narrowed
from duramen.spark.source.schema import schema_of, wanted_of
from duramen.spark.source.splits import Range
from tests.spark.source_logs import FORMATS, RECORD_SIZE, batch_of, read_here, write_log

ALL = (*FORMATS, "kafka")
NAMES = ("count", "min", "max")


def aggregates(path: Path, offsets: Range = Range(), **options: Any) -> tuple[tuple[int, ...], int]:
    """Count, smallest and largest offset, as the tasks add them up, and how many segments the tasks read."""
    given = {"verify": "false", **{name: str(value) for name, value in options.items()}}
    parsed = parse_options({"path": str(path), **given}, streaming=False)
    wanted, narrowed = wanted_of(schema_of(parsed), parsed), Narrowed(aggregates=NAMES, offsets=offsets)
    read = NarrowedRead(str(path), wanted, narrowed)
    splits = plan_narrowed(parsed, narrowed, Seen(), payload=wanted.payload, counts_unread=read.counts_unread)
    rows = [row for split in splits or [None] for batch in read.batches(split) for row in batch.to_pylist()]
    lows, highs = ([row[name] for row in rows if row[name] is not None] for name in ("min1", "max2"))
    found = (sum(row["count0"] for row in rows), min(lows, default=-1), max(highs, default=-1))
    return found, len({piece.path for split in splits for piece in split.pieces})


def expected(path: Path, offsets: Range = Range()) -> tuple[int, ...]:
    table = read_here(path, columns="offset", startingOffsets=offsets.from_offset, endingOffsets=offsets.to_offset)
    found = table.column("offset").to_pylist()
    return len(found), min(found, default=-1), max(found, default=-1)


@pytest.mark.parametrize("name", ALL)
def test_no_segment_is_read_where_the_sidecar_knows(tmp_path: Path, name: str) -> None:
    path = write_log(tmp_path / "log", name, 300)
    assert len(Log(str(path)).segments) > 2 or name == "fixed-slot"
    for offsets in (Range(), Range(31), Range(60, 171), Range(299, 301), Range(300, 400), Range(0, 1)):
        assert aggregates(path, offsets) == (expected(path, offsets), 0)


@pytest.mark.parametrize("name", ALL)
def test_segments_are_read_where_something_else_is_asked(tmp_path: Path, name: str) -> None:
    path = write_log(tmp_path / "log", name, 300)
    segments = len(Log(str(path)).segments)
    assert aggregates(path, verify="true") == (expected(path), segments)
    assert aggregates(path, onDamage="skip") == (expected(path), segments)
    shutil.rmtree(path / ".duramen")
    options = {"record_size": RECORD_SIZE} if name == "fixed-slot" else {}
    assert aggregates(path, **options) == ((300, 0, 299), segments)


@pytest.mark.parametrize("name", ALL)
def test_the_active_segment_is_read_while_a_writer_is_there(tmp_path: Path, name: str) -> None:
    path = write_log(tmp_path / "log", name, 300)
    with duramen.open(path, "a") as log:
        log.append_batch(batch_of(name, 300, 3))
        assert aggregates(path) == ((303, 0, 302), 1)
    assert aggregates(path) == ((303, 0, 302), 0)


def test_a_changed_file_is_read(tmp_path: Path) -> None:
    """By its size where it is sealed, by its times, too, where it was active."""
    path = write_log(tmp_path / "log", "keratin", 300)
    sealed, active = (Path(Log(str(path)).segments[number].path) for number in (0, -1))
    active.write_bytes(active.read_bytes())
    assert aggregates(path) == ((300, 0, 299), 1)
    sealed.write_bytes(sealed.read_bytes()[:-1])
    with pytest.raises(CorruptionError):
        aggregates(path)


def test_verify_finds_damage_that_a_count_does_not_read(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "keratin", 300)
    sealed = Path(Log(str(path)).segments[0].path)
    content = bytearray(sealed.read_bytes())
    content[-3] ^= 1
    sealed.write_bytes(content)
    assert aggregates(path) == ((300, 0, 299), 0)
    with pytest.raises(CorruptionError):
        aggregates(path, verify="true")


def test_gaps_are_read(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "keratin", 300)
    with duramen.open(path, "a") as log:
        log.compact(Compaction())
    found, read = aggregates(path)
    assert (found, read > 0) == (expected(path), True)
    assert found[0] < 300


def test_lines_without_a_count_are_read(tmp_path: Path) -> None:
    """As an earlier version wrote them; or with the count of another version, which no offsets agree with."""
    path = write_log(tmp_path / "log", "keratin", 300)
    entries = SealedList(PosixDisk(), str(path)).added_entries().values()
    for wrong in (None, 1):
        (path / SEALED_PATH).write_bytes(sealed_lines(replace(entry, records=wrong) for entry in entries))
        assert aggregates(path) == ((300, 0, 299), len(entries))


def test_hidden_transactions_are_read(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "kafka", 300)
    segments = len(Log(str(path)).segments)
    assert aggregates(path, isolation="read_committed") == ((300, 0, 299), segments)


class History:
    """Random appends, closes, crashes, rolls, compactions, repairs and copies of one log."""

    def __init__(self, path: Path, name: str, chance: random.Random) -> None:
        self.path, self.name, self.chance = path, name, chance
        write_log(path, name, 30)

    def step(self) -> None:
        self.chance.choice((self.append, self.append_one, self.crash, self.seal, self.compact, self.update))()

    def batch(self, first: int) -> pa.RecordBatch:
        """Without times, which would go back in formats that forbid that."""
        batch = batch_of(self.name, first, self.chance.randrange(1, 60))
        return batch.select([name for name in batch.schema.names if name != "timestamp"])

    def append(self) -> None:
        with duramen.open(self.path, "a") as log:
            log.append_batch(self.batch(log.next_offset))

    def append_one(self) -> None:
        with duramen.open(self.path, "a") as log:
            for _ in range(self.chance.randrange(1, 9)):
                log.append(b"one".ljust(RECORD_SIZE, b"."), durability="write")

    def crash(self) -> None:
        """A writer that was killed: its watermark is open, and a torn record follows."""
        log = WritableLog(str(self.path))
        log.append_batch(self.batch(log.next_offset))
        active = Path(log.segments[-1].path)
        log.tail.poison(RuntimeError("the test ends here"))
        log.close()
        if self.chance.random() < 0.5:
            with active.open("ab") as file:
                file.write(b"\x01" * self.chance.randrange(1, 8))

    def seal(self) -> None:
        if self.name != "fixed-slot":
            with duramen.open(self.path, "a") as log:
                log.seal()

    def compact(self) -> None:
        if self.name in ("keratin", "kafka") and self.chance.random() < 0.3:
            with duramen.open(self.path, "a") as log:
                log.compact(Compaction())

    def update(self) -> None:
        """The log becomes its own copy, brought up to date in two steps."""
        copy = self.path.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        duramen.copy(self.path, copy)
        self.append()
        duramen.copy(self.path, copy, update=True)
        shutil.rmtree(self.path)
        copy.rename(self.path)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", range(4))
def test_any_history_counts_as_a_read(tmp_path: Path, name: str, seed: int) -> None:
    chance = random.Random(f"{name} {seed}")
    history = History(tmp_path / "log", name, chance)
    for _ in range(8):
        history.step()
        found, _ = aggregates(history.path)
        assert found == expected(history.path)
        first = chance.randrange(found[2] + 2)
        offsets = Range(first, first + chance.randrange(1, 80))
        assert aggregates(history.path, offsets)[0] == expected(history.path, offsets)
        check_counts(history.path)


def check_counts(path: Path) -> None:
    """Every count in the sealed list is that of the records."""
    entries = SealedList(PosixDisk(), str(path)).added_entries()
    with Log(str(path)) as log:
        for base, entry in entries.items():
            if entry.records is not None and entry.last_offset >= base:
                batches = log.batches(base, entry.last_offset + 1, columns=["offset"])
                assert entry.records == sum(batch.num_rows for batch in batches)


def test_a_row_of_nothing(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a"):
        pass
    assert aggregates(tmp_path / "log") == ((0, -1, -1), 0)
    assert pa.int64() == NarrowedRead("", read_wanted(), Narrowed(aggregates=NAMES)).schema.types[0]


def read_wanted() -> Any:
    parsed = parse_options({"path": "/"}, streaming=False)
    return wanted_of(schema_of(parsed), parsed)
