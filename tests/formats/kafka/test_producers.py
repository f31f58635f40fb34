"""Named producers in Kafka's own fields: what the batches say is enough to know what a producer sent."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import duramen
from duramen.consumers.log import ConsumableWritableLog
from duramen.errors import CorruptionError
from duramen.formats import EncodedRecords, ScanPosition, make
from duramen.formats.kafka.kafka import Kafka
from duramen.formats.kafka.producers import NAMED, Producers, producer_id
from duramen.formats.kafka.segment import KafkaSegment, batches_of
from duramen.formats.kafka.state_files import ProducerEntry, parse_snapshot, snapshot_bytes
from duramen.kernel import BatchColumns
from duramen.log import GroupBatch, Request, SequenceClaim, batch_of
from duramen.log.repair import reindex
from duramen.log.transfer.convert import LossError
from tests.formats.kafka_logs import PARTITIONS
from tests.sampling import examples

LOG = "00000000000000000000.log"
TIME = pa.timestamp("us", "UTC")
GOLDEN = """
00000000000000000000003a00000000028e94d05c0000000000000000018bcfe568000000018bcfe568006d3ea3b03dded35d00007fffffff0000
000110000000010476300000000000000000010000003a0000000002ce4b10e90000000000000000018bcfe568000000018bcfe568006d3ea3b03d
ded35d0001000000000000000110000000010476310000000000000000020000003a00000000026cea98070000000000000000018bcfe568000000
018bcfe56800ffffffffffffffffffffffffffff000000011000000001047630000000000000000003000000430000000002f4caad330000000000
010000018bcfe568000000018bcfe5680058d6244d4e5d335600000000000700000002100000000104763000100000020104763100
"""
"""DumpLogSegments of Kafka 4.3.1 shows four valid batches: producerId 7871909176037790557 with producerEpoch 0 and
baseSequence 2147483647, with 1 and 0, then none, then 6401343834799551318 with 0 and 7."""


class Claimed(NamedTuple):
    """An append of some producer, or of none."""

    name: str
    first: int
    values: Sequence[bytes]


def open_log(path: Path, **options: Any) -> ConsumableWritableLog:
    log = duramen.open(path, "a", format="kafka", **options)
    assert isinstance(log, ConsumableWritableLog)
    return log


def commit(log: ConsumableWritableLog, appends: Sequence[Claimed]) -> None:
    """Commit the appends as one group."""
    log.sequences()
    group = []
    for name, first, values in appends:
        times = pa.array([1_700_000_000_000_000] * len(values), TIME)
        batch = batch_of(log.codec, pa.table({"value": pa.array(values, pa.binary()), "timestamp": times}))
        claim = SequenceClaim(name.encode(), first) if name else None
        group.append(Request(GroupBatch(batch, "write", claim), batch.nbytes, batch.num_rows))
    log.commit_group(group)
    for request in group:
        request.outcome()


def batches_in(path: Path) -> Iterator[tuple[KafkaSegment, BatchColumns]]:
    for file in sorted(path.glob("*.log")):
        segment = make("kafka").open_segment(file.read_bytes(), int(file.stem))
        assert isinstance(segment, KafkaSegment)
        for rows in segment.steps():
            yield segment, batches_of(rows)


def sequences_in(path: Path) -> dict[int, tuple[int, int]]:
    """By offset, the producer and the sequence of each record that has one, as the headers say."""
    found = {}
    for _, batches in batches_in(path):
        for row in np.flatnonzero(batches.producer_id >= 0).tolist():
            first, epoch = int(batches.base_sequence[row]), int(batches.producer_epoch[row])
            assert first + batches.last_offset[row] - batches.base_offset[row] < 2**31
            for n in range(int(batches.last_offset[row] - batches.base_offset[row]) + 1):
                number = int(batches.producer_id[row])
                found[int(batches.base_offset[row]) + n] = number, epoch * 2**31 + first + n
    return found


def test_the_bytes_of_a_group(tmp_path: Path) -> None:
    values = [b"v0", b"v1"]
    with open_log(tmp_path / "orders-0") as log:
        commit(log, [Claimed("till 4", 2**31 - 1, values), Claimed("", 0, values[:1]), Claimed("béta", 7, values)])
    assert (tmp_path / "orders-0" / LOG).read_bytes() == bytes.fromhex(GOLDEN)
    hashed = int(hashlib.sha256(b"till 4").hexdigest()[:16], 16)
    assert producer_id(b"till 4") == 2**62 + hashed // 4 == 7871909176037790557
    assert duramen.verify(tmp_path / "orders-0").findings == []


NAMES = ("", "a", "b", "c")
SIZES = st.integers(1, 9)
APPENDS = st.lists(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from([0, 0, 1, 2**31 - 4, 2**46 - 5]), SIZES), max_size=5)
    | st.sampled_from(["seal", "forget", "reopen", "no snapshots"]),
    max_size=10,
)  # fmt: skip


@given(APPENDS, st.sampled_from(["none", "zstd"]))
@settings(max_examples=examples(60))
def test_the_batches_say_what_a_model_says(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], compression: str
) -> None:
    path = tmp_path_factory.mktemp("log") / "orders-0"
    options: dict[str, Any] = {"compression": compression, "batch_max_bytes": 300, "segment_max_bytes": 2000}
    expected: dict[int, tuple[int, int]] = {}
    lasts: dict[str, int] = {}
    log = open_log(path, **options)
    for step in steps:
        if isinstance(step, list):
            _append(log, step, lasts, expected)
        elif step == "seal":
            log.seal()
        else:
            log.close()
            if step == "forget":
                shutil.rmtree(path / ".duramen")
                lasts = {name: min(last, 2**46 - 1) for name, last in lasts.items()}
            if step == "no snapshots":
                for file in path.glob("*.snapshot"):
                    file.unlink()
            log = open_log(path, **options)
        # A sequence that no batch can hold is known to the sidecar only.
        assert {name: log.producer(name).last_sequence for name in lasts} == lasts
    log.close()
    assert sequences_in(path) == expected
    assert duramen.verify(path).findings == []
    for _, batches in batches_in(path):
        assert (np.diff(batches.base_offset) == batches.last_offset[:-1] - batches.base_offset[:-1] + 1).all()


def _append(
    log: ConsumableWritableLog, step: list[Any], lasts: dict[str, int], expected: dict[int, tuple[int, int]]
) -> None:
    appends, offset = [], log.next_offset
    for name, jump, count in step:
        if not name:
            appends.append(Claimed("", 0, [b"plain"] * count))
            offset += count
            continue
        last = lasts.get(name, 0)
        first = max(last + 1, jump)
        back = min(2, last)  # repeats, before what is new
        values = [b"repeat"] * back + [b"%d" % n for n in range(count)]
        appends.append(Claimed(name, first - back if first == last + 1 else first, values))
        new = count if first == last + 1 else back + count
        for n in range(new):
            if first + n < 2**46:
                expected[offset + n] = producer_id(name.encode()), first + n
        offset += new
        lasts[name] = first + new - 1
    if appends:
        commit(log, appends)
    assert log.next_offset == offset


@pytest.mark.parametrize("snapshots", ["kept", "lost", "damaged", "last lost"])
def test_a_repeat_is_recognised_without_the_sidecar(tmp_path: Path, snapshots: str) -> None:
    path = tmp_path / "orders-0"
    with open_log(path, segment_max_bytes=1000) as log:
        log.producer("early").append(b"first", sequence=41)
        for n in range(1, 40):
            log.producer("a").append_batch([b"x" * 30] * 2, sequence=2 * n)
            log.append(b"plain")
    segments = sorted(path.glob("*.log"))
    files = sorted(path.glob("*.snapshot"))
    assert len(segments) > 4
    assert len(files) == len(segments) - 1
    for file in {"kept": [], "last lost": files[-1:]}.get(snapshots, files):
        if snapshots == "damaged":
            file.write_bytes(file.read_bytes()[:-1] + b"\xff")
        else:
            file.unlink()
    shutil.rmtree(path / ".duramen")
    assert duramen.open(path).producers() == [], "the batches have no names"
    with open_log(path) as log:
        before = log.next_offset
        assert log.producer("a").append_batch([b"x" * 30] * 2, sequence=78).is_duplicate
        assert log.producer("early").append(b"first", sequence=41).is_duplicate
        assert log.producer("other").last_sequence is None
        assert log.next_offset == before
        assert [(one.name, one.sequence) for one in log.producers()] == [("a", 79), ("early", 41)]
        assert log.producer("a").append_batch([b"last of before", b"new"], sequence=79) == (80, before, 1, 1)


def test_the_higher_sequence_counts(tmp_path: Path) -> None:
    """After an old sidecar was put back, and where the batches end before it."""
    path = tmp_path / "orders-0"
    with open_log(path) as log:
        log.producer("a").append(b"one", sequence=1)
    shutil.copytree(path / ".duramen", tmp_path / "old")
    with open_log(path) as log:
        log.producer("a").append(b"two", sequence=2)
        log.producer("b").append(b"large", sequence=2**46)
    shutil.copy(tmp_path / "old/producers", path / ".duramen/producers")
    assert [(one.name, one.sequence) for one in duramen.open(path).producers()] == [("a", 2)]
    with open_log(path) as log:
        assert log.producer("a").append(b"two", sequence=2).is_duplicate
        assert log.producer("b").last_sequence is None, "no batch can hold its sequence"


def test_producers_of_a_cluster_are_not_ours(tmp_path: Path) -> None:
    """Their ids count up from 0, and no name has one of them."""
    path = tmp_path / "orders-0"
    with open_log(path) as log:
        log.producer("a").append_batch([b"x"] * 3, sequence=1)
    file, number = path / LOG, producer_id(b"a")
    head = bytearray(file.read_bytes())
    head[43:51] = (number - NAMED).to_bytes(8, "big")
    _with_checksum(head)
    file.write_bytes(head)
    shutil.rmtree(path / ".duramen")
    with open_log(path) as log:
        assert log.producer("a").last_sequence is None
    assert all(producer_id(b"%d" % n) >= NAMED for n in range(100))


def _with_checksum(batch: bytearray) -> None:
    from duramen.kernel import crc32c

    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")


@pytest.mark.parametrize("at", [50, 52, 56])
def test_a_damaged_batch_with_a_last_sequence_is_refused(tmp_path: Path, at: int) -> None:
    """A sequence that is too high would make the producer's next records duplicates."""
    path = tmp_path / "orders-0"
    with open_log(path) as log:
        log.producer("a").append(b"x", sequence=1)
        log.seal()
        log.append(b"plain")
    (path / "00000000000000000001.snapshot").unlink()
    data = bytearray((path / LOG).read_bytes())
    data[at] ^= 0x40
    (path / LOG).write_bytes(data)
    with duramen.open(path) as reader, pytest.raises(CorruptionError, match="last sequence of producer") as caught:
        reader.producers()
    assert (Path(caught.value.path or "").name, caught.value.position) == (LOG, 0)


def test_encoded_batches_get_their_producer(tmp_path: Path) -> None:
    """Batches that were encoded before their offsets were known."""
    codec = make("kafka", compression="lz4", batch_max_bytes=200)
    times = pa.array([1_700_000_000_000_000] * 40, TIME)
    table = pa.record_batch({"value": [b"%d" % n * 9 for n in range(40)], "timestamp": times})
    encoded = codec.encode(table, ScanPosition(0, -1))
    records = EncodedRecords(codec, encoded.data, 40, len(encoded.rows.columns), has_times=True)
    path = tmp_path / "orders-0"
    with open_log(path) as log:
        log.append(b"plain")
        assert log.producer("a").append_batch(records, sequence=5) == (44, 1, 40, 0)
        assert log.producer("a").append_batch(records, sequence=2**31 - 20).stored == 40
        assert log.producer("a").append_batch(records, sequence=2**31).stored == 20
    number = producer_id(b"a")
    wanted = [*range(5, 45), *range(2**31 - 20, 2**31 + 40)]
    assert sequences_in(path) == {offset: (number, sequence) for offset, sequence in enumerate(wanted, 1)}
    assert sum(len(batches) for _, batches in batches_in(path)) > len(encoded.rows.columns) > 2
    assert duramen.verify(path).findings == []


def test_maintenance_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    with open_log(path, segment_max_bytes=900) as log:
        for n in range(1, 30):
            log.producer("a").append(b"x" * 30, sequence=n, key=b"%d" % (n % 3))
        log.producer("once").append(b"y", sequence=7, key=b"0")
        for n in range(30, 60):
            log.producer("a").append(b"x" * 30, sequence=n, key=b"%d" % (n % 3))
        log.compact(duramen.Compaction())
        log.retain(duramen.Retention(max_bytes=500))
        assert log.first_offset > 0
    assert duramen.verify(path).findings == []
    duramen.copy(path, tmp_path / "copy-0")
    duramen.convert(path, tmp_path / "same-0", to="kafka")
    with pytest.raises(LossError, match="cannot store tracking"):
        duramen.convert(path, tmp_path / "folded-0", to="kafka", compression="zstd")
    duramen.convert(path, tmp_path / "folded-0", to="kafka", compression="zstd", allow_loss=["tracking"])
    with open_log(tmp_path / "folded-0") as log:
        assert log.producer("a").last_sequence == 59, "the sidecar is copied"
    assert sequences_in(tmp_path / "folded-0") == {}, "batches that are encoded again have no producer"
    for kept in (path, tmp_path / "copy-0", tmp_path / "same-0"):
        shutil.rmtree(kept / ".duramen", ignore_errors=True)
        with open_log(kept) as log:
            assert (log.producer("a").last_sequence, log.producer("once").last_sequence) == (59, 7)
        assert duramen.verify(kept).findings == []


def test_a_producer_outlives_all_records(tmp_path: Path) -> None:
    """Retention left an empty segment, and the snapshot at its start."""
    path = tmp_path / "orders-0"
    with open_log(path) as log:
        log.producer("a").append(b"x", sequence=5)
        log.seal()
        log.retain(duramen.Retention(max_bytes=1))
        assert log.first_offset == log.next_offset == 1
    shutil.rmtree(path / ".duramen")
    with open_log(path) as log:
        assert log.producer("a").append(b"x", sequence=5).is_duplicate


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_a_producer_outlives_its_records(tmp_path: Path, is_rebuilt: bool) -> None:
    """Retention left one segment: the next snapshot holds the producers before it, too."""
    path, snapshot = tmp_path / "orders-0", tmp_path / "orders-0/00000000000000000002.snapshot"
    with open_log(path) as log:
        log.producer("a").append(b"x", sequence=5)
        log.seal()
        log.append(b"plain")
        log.retain(duramen.Retention(max_bytes=1))
        assert log.first_offset == 1
        log.seal()
        log.append(b"plain")
    if is_rebuilt:
        snapshot.write_bytes(snapshot.read_bytes()[:-1] + b"?")
        assert [finding.code for finding in duramen.verify(path).findings] == ["bad-producer-snapshot"]
        reindex(str(path))
    with open_log(path) as log:
        log.retain(duramen.Retention(max_bytes=1))
        assert log.first_offset == 2
    shutil.rmtree(path / ".duramen")
    with open_log(path) as log:
        assert log.producer("a").append(b"x", sequence=5).is_duplicate
    assert duramen.verify(path).findings == []


def test_a_repair_keeps_what_the_batches_still_say(tmp_path: Path) -> None:
    path = tmp_path / "orders-0"
    with open_log(path) as log:
        for n in range(1, 6):
            log.producer("a").append(b"record %d" % n, sequence=n)
    data = bytearray((path / LOG).read_bytes())
    data[data.index(b"record 3")] ^= 1
    (path / LOG).write_bytes(data)
    duramen.repair(path, plan_only=False)
    shutil.rmtree(path / ".duramen")
    with open_log(path) as log:
        assert log.producer("a").last_sequence == 5
        assert [record.value for record in log] == [b"record %d" % n for n in (1, 2, 4, 5)]


def test_a_snapshot_keeps_the_youngest_names() -> None:
    names = [ProducerEntry(NAMED + n, 0, 5, n + 100, 0, 0, -1, -1) for n in range(10_020)]
    cluster = [ProducerEntry(n, 0, 5, n, 0, 0, -1, -1) for n in range(50)]
    kept = parse_snapshot(Producers([*names, *cluster]).snapshot())
    assert {one.producer_id for one in kept} == {*range(50), *range(NAMED + 20, NAMED + 10_020)}


@pytest.mark.parametrize("path", PARTITIONS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_whole_steps_and_single_batches_add_up_to_the_same(path: Path) -> None:
    whole, single = Producers(), Producers()
    for segment, batches in batches_in(path):
        whole.add(segment, batches)
        for row in range(len(batches)):
            single.add(segment, batches.slice(row, row + 1))
    assert list(whole.entries.values()) == list(single.entries.values())


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 2), st.integers(0, 5)), max_size=30))
def test_the_order_of_producers_is_that_of_their_first_batches(rows: list[tuple[int, int, int]]) -> None:
    batches = BatchColumns.empty(len(rows))
    for name in vars(batches):
        getattr(batches, name)[:] = 0
    batches.magic[:], batches.base_offset[:] = 2, np.arange(len(rows))
    batches.last_offset[:] = batches.base_offset
    for row, (number, epoch, sequence) in enumerate(rows):
        batches.producer_id[row], batches.producer_epoch[row], batches.base_sequence[row] = number, epoch, sequence
    segment = Kafka().open_segment(b"", 0)
    whole, single = Producers(), Producers()
    whole.add(segment, batches)
    for row in range(len(rows)):
        single.add(segment, batches.slice(row, row + 1))
    assert list(whole.entries.values()) == list(single.entries.values())
    assert snapshot_bytes(list(whole.entries.values())) == snapshot_bytes(list(single.entries.values()))
