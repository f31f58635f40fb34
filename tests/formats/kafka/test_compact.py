"""Compaction of Kafka partitions: beside Kafka's own cleaner, and beside a model of what must stay."""

from __future__ import annotations

import shutil
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import duramen
from duramen import Compaction
from duramen.errors import CorruptionError, UsageError
from duramen.formats import make
from duramen.formats.kafka.batch import DELETE_HORIZON
from duramen.formats.kafka.encoder import EncodedFields, encode_batches
from duramen.formats.kafka.producers import Producers
from duramen.formats.kafka.segment import KafkaSegment, batches_of
from duramen.formats.kafka.transactions import Transactions
from duramen.kernel import BatchColumns, HeaderColumns, RecordColumns
from duramen.kernel.layout import NULL_LENGTH
from duramen.log import reindex
from duramen.log.maintain import CompactionReport, Compactor
from tests.formats.kafka_logs import DATA, batches, without_first_end
from tests.sampling import examples

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
TRANSACTIONAL, CONTROL = 16, 32
CLEANED = [("at-once-0", 1, 1795037730325), ("zstd-0", DAY_MS, 1795124093107 - DAY_MS)]
"""Fixtures, with the delay and the clock of the cleaner."""


def compact(path: Path, now_ms: int = NOW_MS, **how: Any) -> CompactionReport:
    with duramen.open(path, "a", format="kafka") as log:
        return Compactor(log, Compaction(**how), now_ms * 1000, writer=log).run()


def notes_only(path: Path) -> bool:
    return all(finding.severity == "note" for finding in duramen.verify(path).findings)


@pytest.mark.parametrize(("name", "delay_ms", "now_ms"), CLEANED)
def test_it_leaves_the_batches_that_kafkas_cleaner_leaves(
    tmp_path: Path, name: str, delay_ms: int, now_ms: int
) -> None:
    path = Path(shutil.copytree(DATA / "cleaned" / name, tmp_path / name))
    expected = list(batches((path / "cleaned.batches").read_bytes()))
    (path / "cleaned.batches").unlink()
    active = max(path.glob("*.log"))
    reindex(str(path))
    report = compact(path, now_ms, keyless="drop", tombstone_delay_ms=delay_ms)
    assert report.records_after < report.records_before
    found = without_first_end(path, expected)
    assert [one for one in found if one.base_offset < int(active.stem)] == expected
    assert notes_only(path)


# --- logs with producers and transactions, made batch by batch


class Batch(NamedTuple):
    """A batch of records (key, value), or the marker of a transaction (``commit`` is not None)."""

    producer: int = -1
    rows: Sequence[tuple[bytes | None, bytes | None]] = ()
    transactional: bool = False
    commit: bool | None = None
    codec: int = 0


def encoded(batch: Batch, offset: int, sequence: int, time_ms: int) -> bytes:
    rows = batch.rows
    if batch.commit is not None:
        rows = [(struct.pack(">hh", 0, int(batch.commit)), struct.pack(">hi", 0, 0))]
    buf, records, columns = bytearray(), RecordColumns.empty(len(rows)), BatchColumns.empty(1)
    for row, pair in enumerate(rows):
        for name, field in zip(("key", "value"), pair, strict=True):
            getattr(records, f"{name}_position")[row] = len(buf)
            getattr(records, f"{name}_length")[row] = NULL_LENGTH if field is None else len(field)
            buf += field or b""
        records.offset[row], records.timestamp[row], records.headers[row] = offset + row, time_ms + row, 0
    for column in vars(columns).values():
        column[:] = 0
    columns.base_offset[:], columns.last_offset[:] = offset, offset + len(rows) - 1
    columns.base_timestamp[:], columns.max_timestamp[:] = time_ms, time_ms + len(rows) - 1
    columns.producer_id[:], columns.records[:] = batch.producer, len(rows)
    columns.producer_epoch[:] = -1 if batch.producer < 0 else 0
    columns.base_sequence[:] = -1 if batch.producer < 0 or batch.commit is not None else sequence
    columns.attributes[:] = TRANSACTIONAL * (batch.transactional or batch.commit is not None)
    columns.attributes |= CONTROL * (batch.commit is not None)
    columns.attributes |= 0 if batch.commit is not None else batch.codec
    fields = EncodedFields(records, HeaderColumns.empty(0), (buf, buf, b"", b""))
    return bytes(encode_batches(columns, fields, len(buf) + 40 * len(rows), 0))


class Partition:
    """A partition on the disk, and what a reader of it must see."""

    def __init__(self, path: Path, segments: Sequence[Sequence[Batch]]) -> None:
        self.path, self.offset = path, 0
        self._sequences: dict[int, int] = {}
        path.mkdir()
        for segment in segments:
            base = self.offset
            (path / f"{base:020}.log").write_bytes(b"".join(map(self._next, segment)))
        reindex(str(path), format="kafka")

    def _next(self, batch: Batch) -> bytes:
        count = len(batch.rows) if batch.commit is None else 1
        sequence = self._sequences.get(batch.producer, 0)
        data = encoded(batch, self.offset, sequence, NOW_MS - 10**6 + self.offset)
        if batch.commit is None:
            self._sequences[batch.producer] = sequence + count
        self.offset += count
        return data


class PartitionState(NamedTuple):
    """What compaction must not change, and what it is judged by."""

    committed: list[tuple[int, bytes | None, bytes | None]]
    producers: dict[int, tuple[int, ...]]
    open: dict[int, int]
    stable: int | None
    next_offset: int


def state_of(path: Path) -> PartitionState:
    transactions, producers = Transactions(), Producers()
    with duramen.open(path, format="kafka", isolation="settled") as log:
        committed = [(one.offset, one.key, one.value) for one in log]
        next_offset = log.next_offset
    for file in sorted(path.glob("*.log")):
        segment = make("kafka").open_segment(memoryview(file.read_bytes()), int(file.stem))
        assert isinstance(segment, KafkaSegment)
        for rows in segment.steps():
            transactions.add(segment, batches_of(rows))
            producers.add(segment, batches_of(rows))
    known = {key: one[1:5] for key, one in producers.entries.items() if one.last_offset >= 0}
    return PartitionState(committed, known, transactions.open, transactions.last_stable_offset, next_offset)


KEYS = st.sampled_from([b"a", b"b", b"c", None])
ROWS = st.lists(st.tuples(KEYS, st.sampled_from([b"one", b"", None])), min_size=1, max_size=3)
CODECS = st.sampled_from([0, 0, 2, 4])
BATCHES = st.one_of(
    st.builds(Batch, st.just(-1), ROWS, codec=CODECS),
    st.builds(Batch, st.sampled_from([1, 2]), ROWS, codec=CODECS),
    st.builds(Batch, st.sampled_from([3, 4]), ROWS, st.just(True), codec=CODECS),
    st.builds(Batch, st.sampled_from([3, 4]), commit=st.booleans()),
)
SEGMENTS = st.lists(st.lists(BATCHES, min_size=1, max_size=6), min_size=2, max_size=5)


def surviving(before: PartitionState, until: int) -> list[tuple[int, bytes | None, bytes | None]]:
    """The newest record of each key below ``until``, what has no key, and everything from there on."""
    newest = {key: offset for offset, key, _ in before.committed if offset < until}
    return [row for row in before.committed if row[0] >= until or row[1] is None or newest[row[1]] == row[0]]


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.too_slow])
@given(SEGMENTS)
def test_it_keeps_what_readers_and_producers_need(segments: list[list[Batch]]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "log-0"
        Partition(path, segments)
        before = state_of(path)
        bases = sorted(int(file.stem) for file in path.glob("*.log"))
        until = max(base for base in bases if before.stable is None or base <= before.stable)
        compact(path)
        after = state_of(path)
        assert after.committed == surviving(before, until)
        assert after[1:3] == before[1:3]
        assert after.next_offset == before.next_offset
        assert min(int(file.stem) for file in path.glob("*.log")) == bases[0]
        for later in (DAY_MS, 3 * DAY_MS, 6 * DAY_MS):
            compact(path, NOW_MS + later)
            assert notes_only(path), duramen.verify(path).findings
        last = state_of(path)
        gone = [row for row in after.committed if row not in last.committed]
        assert all(value is None and key is not None and offset < until for offset, key, value in gone)
        assert all(row[2] is not None or row[1] is None or row[0] >= until for row in last.committed)
        assert last[1:3] == before[1:3]
        assert not compact(path, NOW_MS + 6 * DAY_MS + 1).changed


def rows(*keys: bytes, value: bytes | None = b"v") -> list[tuple[bytes | None, bytes | None]]:
    return [(key, value) for key in keys]


def test_a_tombstone_gets_a_horizon_and_goes_after_it(tmp_path: Path) -> None:
    path = tmp_path / "log-0"
    Partition(path, [[Batch(rows=rows(b"a", b"b")), Batch(rows=rows(b"a", value=None))], [Batch(rows=rows(b"c"))]])
    assert compact(path, tombstone_delay_ms=1000).tombstones_removed == 0
    marked = next(batch for batch in batches((path / f"{0:020}.log").read_bytes()) if batch.base_offset == 2)
    assert marked.header[22] & DELETE_HORIZON
    assert int.from_bytes(marked.header[27:35], "big") == NOW_MS + 1000
    assert not compact(path, NOW_MS + 999, tombstone_delay_ms=1000).changed
    assert compact(path, NOW_MS + 1000, tombstone_delay_ms=1000).tombstones_removed == 1
    assert [row[0] for row in state_of(path).committed] == [1, 3]


def test_nothing_from_an_open_transaction_on_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "log-0"
    begun = Batch(3, rows(b"a"), transactional=True)
    Partition(path, [[Batch(rows=rows(b"a", b"a"))], [Batch(rows=rows(b"b")), begun], [Batch(rows=rows(b"b"))], []])
    kept = {file.name: file.read_bytes() for file in path.glob("*.log") if int(file.stem)}
    assert compact(path).segments == 1
    assert {file.name: file.read_bytes() for file in path.glob("*.log") if int(file.stem)} == kept
    assert [row[0] for row in state_of(path).committed] == [1, 2, 4]


def test_aborted_records_go_and_their_marker_waits(tmp_path: Path) -> None:
    path = tmp_path / "log-0"
    aborted = [Batch(3, rows(b"a", b"b"), transactional=True), Batch(3, rows(b"c"), transactional=True)]
    Partition(path, [[Batch(rows=rows(b"a")), *aborted, Batch(3, commit=False)], [Batch(rows=rows(b"d"))]])
    compact(path)
    assert [one.base_offset for one in batches((path / f"{0:020}.log").read_bytes())] == [0, 3, 4]
    entry = struct.unpack(">hqqqq", (path / f"{0:020}.txnindex").read_bytes())
    assert entry == (0, 3, 1, 4, 5)  # as the cleaner keeps it, although the batch at 1 is gone
    assert notes_only(path)
    with duramen.open(path, isolation="read_uncommitted") as log:
        assert [record.offset for record in log] == [0, 5]


def test_old_messages_are_not_compacted(tmp_path: Path) -> None:
    path = Path(shutil.copytree(DATA / "old/v012-0", tmp_path / "v012-0"))
    files = {file.name: file.read_bytes() for file in path.glob("*.log")}
    with pytest.raises(UsageError, match="messages of format v0, which are only read"):
        compact(path)
    assert {name: (path / name).read_bytes() for name in files} == files


def test_damage_stops_it_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log-0"
    Partition(path, [[Batch(rows=rows(b"a"))] * 3, [Batch(rows=rows(b"a"))] * 3, [Batch(rows=rows(b"a"))]])
    first = path / f"{0:020}.log"
    raw = bytearray(first.read_bytes())
    raw[-1] ^= 1
    first.write_bytes(raw)
    files = {file.name: file.read_bytes() for file in path.glob("*.log")}
    with pytest.raises(CorruptionError):
        compact(path)
    assert {name: (path / name).read_bytes() for name in files} == files


def test_what_describes_batches_that_the_cleaner_removed_is_not_wrong(tmp_path: Path) -> None:
    """The snapshot between two segments says where a transaction began whose batches are gone."""
    path = tmp_path / "log-0"
    begun, later = Batch(3, rows(b"b"), transactional=True), Batch(3, rows(b"d"), transactional=True)
    ends = [Batch(3, commit=False), later, Batch(3, commit=True)]
    Partition(path, [[Batch(rows=rows(b"a")), begun, Batch(rows=rows(b"c"))], ends, [Batch(rows=rows(b"e"))]])
    snapshot = (path / f"{3:020}.snapshot").read_bytes()
    compact(path)
    assert [one.base_offset for one in batches((path / f"{0:020}.log").read_bytes())] == [0, 2]
    assert (path / f"{3:020}.snapshot").read_bytes() == snapshot
    assert notes_only(path)


def test_repair_keeps_the_name_of_a_compacted_segment(tmp_path: Path) -> None:
    path = tmp_path / "log-0"
    Partition(path, [[Batch(rows=rows(b"a"))] * 3 + [Batch(rows=rows(b"b", b"c"))] * 2, [Batch(rows=rows(b"a"))]])
    compact(path)
    shutil.rmtree(path / ".duramen")
    first = path / f"{0:020}.log"
    data = first.read_bytes()
    kept = [one.base_offset for one in batches(data)]
    assert kept[0] > 0
    first.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    duramen.repair(path, plan_only=False)
    assert [one.base_offset for one in batches(first.read_bytes())] == kept[:-1]
    assert duramen.verify(path).ok


@pytest.mark.parametrize("at", [12, 70], ids=["an epoch that no checksum covers", "a marker"])
def test_damage_after_what_is_compacted_stops_it_too(tmp_path: Path, at: int) -> None:
    """A marker in the active segment decides about the records of the others."""
    path = tmp_path / "log-0"
    begun = Batch(3, rows(b"a"), transactional=True)
    Partition(path, [[Batch(rows=rows(b"a", b"a")), begun], [Batch(3, commit=True), Batch(rows=rows(b"b"))]])
    last = path / f"{3:020}.log"
    raw = bytearray(last.read_bytes())
    raw[at] ^= 0x80
    last.write_bytes(raw)
    files = {file.name: file.read_bytes() for file in path.glob("*.log")}
    with pytest.raises(CorruptionError):
        compact(path)
    assert {name: (path / name).read_bytes() for name in files} == files
