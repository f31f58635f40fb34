"""Repair on a real disk: broken streams of a real broker, strategies, names, versions, reindex."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.errors import UsageError
from duramen.formats import Role, Severity
from duramen.log.repair import RepairAction, Strategy, repair_log, undo_repair
from duramen.log.repair.reindex import reindex
from tests.log.conftest import batch, codec, options, value

Write = Callable[..., Path]


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file but those that say who repaired."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock" and "quarantine" not in path.parts and path.name != "repair.json"
    }


def values(root: Path, name: str) -> dict[int, bytes]:
    known = {} if (root / ".duramen" / "log.json").exists() else options(name)
    with duramen.open(root, format=name, **known) as log:
        return {record.offset: record.value for record in log.scan()}


# --- the streams of a real broker


@pytest.fixture
def stream(osiris: Path, tmp_path: Path) -> Path:
    root = tmp_path / "stream"
    shutil.copytree(osiris / "tracked", root)
    return root


def last(root: Path, suffix: str) -> Path:
    return max(root.glob(f"*.{suffix}"))


def cut_trailer(root: Path) -> None:
    """The last chunk that has tracking after its data ends in the middle of it, and the file with it."""
    for path in sorted(root.glob("*.segment"), reverse=True):
        segment = codec("osiris").open_segment(path.read_bytes(), int(path.stem))
        chunks = segment.scan(segment.start).columns
        with_trailer = [row for row in range(len(chunks)) if chunks.trailer_length[row]]  # type: ignore[attr-defined]
        if with_trailer:
            row = with_trailer[-1]
            data_end = int(chunks.data_position[row]) + int(chunks.data_length[row])  # type: ignore[attr-defined]
            path.write_bytes(path.read_bytes()[: data_end + 5])
            for later in root.glob("*.*"):
                if later.stem.isdigit() and int(later.stem) > int(path.stem):
                    later.unlink()
            return
    raise AssertionError("no chunk has a trailer")


def empty_pair(root: Path) -> None:
    with duramen.open(root) as log:
        base = log.next_offset
    (root / f"{base:020}.segment").write_bytes(b"")
    (root / f"{base:020}.index").write_bytes(b"")


BROKEN: dict[str, Callable[[Path], object]] = {
    "last index deleted": lambda root: last(root, "index").unlink(),
    "last index cut": lambda root: last(root, "index").write_bytes(last(root, "index").read_bytes()[:-11]),
    "torn trailer": cut_trailer,
    "empty last pair": empty_pair,
    "orphan segment": lambda root: [path.unlink() for path in sorted(root.glob("*.index"))[1:3]],
    "orphan index": lambda root: (root / "00000000000000099999.index").write_bytes(b"OSII\0\0\0\1"),
    "stray file": lambda root: (root / "00000000000000000000.segment~").write_bytes(b"editor"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_stream_of_a_broker_keeps_every_whole_chunk(stream: Path, what: str) -> None:
    BROKEN[what](stream)
    whole = {
        offset
        for path in stream.glob("*.segment")
        for offset in _whole_offsets(path)
    }  # fmt: skip
    before = snapshot(stream)
    plan = duramen.repair(stream)
    assert snapshot(stream) == before
    done = duramen.repair(stream, plan_only=False)
    assert done.ok, done
    assert set(values(stream, "osiris")) == whole
    assert duramen.verify(stream).ok
    with duramen.open(stream, "a") as log:
        offset = log.append(b"after the repair")
        assert offset >= max(whole) + 1
        assert log.read(offset).value == b"after the repair"
    assert set(values(stream, "osiris")) == whole | {offset}
    assert (what == "stray file") == (not plan.steps)


def _chunk_ids(root: Path) -> list[tuple[int, int]]:
    """Id and number of records of every chunk of a stream."""
    found = []
    for path in sorted(root.glob("*.segment")):
        segment = codec("osiris").open_segment(path.read_bytes(), int(path.stem))
        columns = segment.scan(segment.start).columns
        found += list(zip(columns.first_offsets.tolist(), (columns.last_offsets + 1).tolist(), strict=True))
    return found


@pytest.mark.parametrize(
    "what", ["first chunk", "middle chunk", "last chunk", "middle segment", "last segment", "all segments"]
)
def test_a_repaired_stream_has_no_gap_in_its_chunk_ids(tmp_path: Path, what: str) -> None:
    """RabbitMQ's readers stop at a chunk that does not start where the last one ended."""
    root = tmp_path / "log"
    options: dict[str, Any] = {"format": "osiris", "chunk_version": 0, "segment_max_bytes": 900}
    with duramen.open(root, "a", **options) as log:
        for number in range(60):
            log.append(b"record %d" % number)
    before = _chunk_ids(root)
    segments = sorted(root.glob("*.segment"))
    assert len(segments) > 3
    kind, unit = what.split()
    path = segments[{"first": 1, "middle": 1, "last": -1, "all": 0}[kind]]
    lost = _whole_offsets(path)
    if kind == "all":
        lost = set(range(60))
        for path in root.glob("0*"):
            path.unlink()
    elif unit == "segment":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        inside = {"first": 0, "middle": len(lost) // 2, "last": len(lost) - 1}[kind]
        data[data.index(b"record %d" % (min(lost) + inside))] ^= 1
        path.write_bytes(data)
        lost = {min(lost) + inside}
    image = snapshot(root)
    done = duramen.repair(root, plan_only=False)
    assert done.ok, done
    assert sum(loss.count for loss in done.losses) == len(lost)
    assert set(values(root, "osiris")) == {first for first, _ in before} - lost
    ids = _chunk_ids(root)
    assert all(end == following for (_, end), (following, _) in pairwise(ids)), ids
    assert (ids[0][0], ids[-1][1]) == (0, 60)
    assert duramen.verify(root).findings == []
    assert duramen.repair(root).steps == []
    with duramen.open(root) as log:
        assert [r.offset for r in log.scan(min(lost))] == [n for n in range(min(lost), 60) if n not in lost]
    undo_repair(str(root))
    assert snapshot(root) == image
    duramen.repair(root, plan_only=False)
    with duramen.open(root, "a") as log:
        assert log.append(b"after the repair") == 60
    assert all(end == following for (_, end), (following, _) in pairwise(_chunk_ids(root)))


def _whole_offsets(path: Path) -> set[int]:
    """What a walk over the file finds, chunk by chunk."""
    if not path.stat().st_size:
        return set()
    segment = codec("osiris").open_segment(path.read_bytes(), int(path.stem))
    return set(segment.decode(segment.scan(segment.start), ["offset"]).column(0).to_pylist())


def test_a_stream_whose_broker_was_killed(osiris: Path, tmp_path: Path) -> None:
    root = tmp_path / "crash"
    shutil.copytree(osiris / "crash", root)
    plan = duramen.repair(root)
    assert plan.ok, "a torn tail is not damage"
    assert [step.action for step in plan.steps][:1] == [RepairAction.CUT]
    before = snapshot(root)
    assert duramen.repair(root, plan_only=False).report.findings == []
    undo_repair(str(root))
    assert snapshot(root) == before


def test_all_streams_are_sound(osiris: Path) -> None:
    for name in ("plain", "subbatch", "dedup", "retention", "tracked", "golden_1_3_1"):
        assert duramen.repair(osiris / name).steps == []


# --- strategies


def test_truncate_cuts_at_the_first_bad_record(write: Write, format_name: str) -> None:
    if not codec(format_name).capabilities.record_checksum:
        pytest.skip("the format has no checksum")
    root = write(format_name, 30)
    path = root / codec(format_name).segment_path(0)
    raw = bytearray(path.read_bytes())
    raw[raw.index(value(20)) + 3] ^= 1
    path.write_bytes(raw)
    before = snapshot(root)
    salvaged = repair_log(str(root), format=format_name, **options(format_name))
    plan = repair_log(str(root), format=format_name, strategy="truncate", plan_only=False, **options(format_name))
    assert plan.ok
    kept = values(root, format_name)
    assert all(content == value(offset) for offset, content in kept.items())
    if format_name != "osiris":
        assert sorted(kept) == list(range(20))
        assert salvaged.kept_records == 29
    undo_repair(str(root), format=format_name, **options(format_name))
    assert snapshot(root) == before


def test_a_strategy_that_is_none(write: Write) -> None:
    with pytest.raises(UsageError, match="salvage, truncate"):
        repair_log(str(write("keratin", 3)), strategy="hope")


# --- what repair refuses


def test_a_version_that_is_really_unknown_is_left_alone(write: Write) -> None:
    """Every record from a place on has another version, and none of their checksums fits."""
    root = write("durable-log", 20)
    path = root / codec("durable-log").segment_path(0)
    raw = bytearray(path.read_bytes())
    record = len(raw) // 20
    for number in range(10, 20):
        raw[number * record + 4] = 9
        raw[number * record + 24] ^= 0x55  # the new version counts its checksum differently
    path.write_bytes(raw)
    before = snapshot(root)
    plan = duramen.repair(root)
    assert plan.refused
    assert "unknown version" in plan.refused[0]
    assert not plan.ok
    done = duramen.repair(root, plan_only=False)
    assert not done.ok
    assert {name: content for name, content in snapshot(root).items() if not name.startswith(".duramen")} == before
    cut = duramen.repair(root, plan_only=False, strategy=Strategy.TRUNCATE)
    assert cut.ok
    assert sorted(values(root, "durable-log")) == list(range(10))


def test_a_single_file_cannot_be_repaired(write: Write) -> None:
    root = write("durable-log", 3)
    with pytest.raises(UsageError, match="single file"):
        duramen.repair(root / codec("durable-log").segment_path(0))


# --- doubt


def test_a_record_that_only_zeros_speak_for_is_not_believed(tmp_path: Path) -> None:
    """A lost sector may leave a header whose length and checksum read 0: that proves nothing."""
    root = tmp_path / "log"
    root.mkdir()
    fmt = codec("durable-log")
    for relative, content in fmt.build([batch(fmt, 0, 60)]):
        (root / relative).write_bytes(content)
    path = root / fmt.segment_path(0)
    raw = bytearray(path.read_bytes())
    size = len(raw) // 60
    start = next(
        n * size for n in range(60) if (n * size + 16) % 512 <= 4 and n * size > 512 and (n * size) % 512 > 400
    )
    sector = start // 512 * 512 + 512
    raw[sector : sector + 512] = bytes(512)
    path.write_bytes(raw)
    assert duramen.repair(root, plan_only=False).ok
    kept = values(root, "durable-log")
    assert all(content == value(offset) for offset, content in kept.items())
    untouched = {n for n in range(60) if (n + 1) * size <= sector or n * size >= sector + 512}
    assert untouched <= set(kept)


# --- lost slots


def test_a_lost_slot_keeps_its_place_and_is_no_record(write: Write) -> None:
    root = write("fixed-slot", 10)
    path = root / "00000000.log"
    raw = bytearray(path.read_bytes())
    raw[4 * 20 + 9] ^= 3
    path.write_bytes(raw)
    assert duramen.repair(root, plan_only=False, record_size=16).ok
    assert sorted(values(root, "fixed-slot")) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    with duramen.open(root, "a") as log:
        assert log.append(value(10)) == 10
        with pytest.raises(duramen.OffsetError):
            log.read(4)
        assert log.read(5).value == value(5)
    foreign = duramen.open(path, format="fixed-slot", record_size=16)
    assert [record.offset for record in foreign.scan()] == list(range(11)), "every program reads on after it"
    assert foreign.read(4).value == bytes(16)


# --- group state


def test_group_state_that_is_damaged_goes_and_the_rest_stays(tmp_path: Path) -> None:
    from duramen.cli.demo.samples import write_samples

    sample = next(s for s in write_samples(str(tmp_path)) if s.format == "keratin")
    root = Path(sample.path)
    (delta,) = root.glob("groups/*.delta")
    (snap,) = root.glob("groups/*.snap")
    raw = bytearray(delta.read_bytes())
    raw[-3] ^= 1
    delta.write_bytes(raw)
    damaged = bytearray(snap.read_bytes())
    damaged[80] ^= 1
    snap.write_bytes(damaged)
    before = snapshot(root)
    codes = {finding.code for finding in duramen.verify(root).findings}
    assert "bad-snapshot" in codes
    plan = duramen.repair(root, plan_only=False)
    assert plan.ok, plan
    assert not snap.exists()
    assert delta.stat().st_size < len(raw)
    undo_repair(str(root))
    assert snapshot(root) == before


# --- reindex


def test_reindex_makes_what_is_derived_and_nothing_else(write: Write, format_name: str) -> None:
    fmt = codec(format_name)
    root = write(format_name, 300, 300, 50)
    before = snapshot(root)
    assert reindex(str(root), format=format_name, dry_run=True, **options(format_name)).changed == 0
    derived = [path for path in before if (known := fmt.classify(path)) and known.role != Role.SEGMENT]
    for number, path in enumerate(derived):
        if number % 2:
            (root / path).unlink()
        else:
            (root / path).write_bytes(b"wrong")
    planned = reindex(str(root), format=format_name, dry_run=True, **options(format_name))
    assert planned.changed == len(derived)
    done = reindex(str(root), format=format_name, **options(format_name))
    assert {file.change for file in done.files if file.path in derived} <= {"made", "replaced"}
    left = {path: content for path, content in snapshot(root).items() if not path.startswith(".duramen")}
    for path, content in before.items():
        if path != "manifest.bin":
            assert left[path] == content, path
    report = duramen.verify(root, format=format_name, **options(format_name))
    assert [f for f in report.findings if f.severity != Severity.NOTE] == []


# --- the sidecar


def test_an_unreadable_sidecar_is_recreated(tmp_path: Path) -> None:
    root = tmp_path / "log"
    with duramen.open(root, "a", format="keratin") as log:
        log.append_batch([b"a", b"b"])
    (root / ".duramen" / "log.json").write_bytes(b"{ half")
    report = duramen.verify(root)
    assert {finding.code for finding in report.findings} == {"bad-sidecar"}
    assert duramen.repair(root, plan_only=False).ok
    with duramen.open(root, "a") as log:
        assert log.append(b"c") == 2


def test_the_copy_of_a_sparse_file_is_sparse(tmp_path: Path) -> None:
    """A hole of any size costs a sender nothing: a copy that fills it would fill the disk."""
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        log.append(b"value")
    delta = tmp_path / "log" / "groups" / "log-0_billing.delta"
    delta.parent.mkdir(exist_ok=True)
    with delta.open("wb") as file:
        file.truncate(96 << 20)
    done = duramen.repair(tmp_path / "log", plan_only=False)
    assert done.quarantine is not None
    (copy,) = (tmp_path / "log" / done.quarantine).glob("*.delta")
    assert copy.stat().st_size == (96 << 20) - delta.stat().st_size
    assert copy.stat().st_blocks * 512 < 1 << 20
