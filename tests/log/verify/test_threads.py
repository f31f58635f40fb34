"""Verify in threads and ranges reports what one thread reports; the check of a segment can run in another process."""

from __future__ import annotations

import pickle
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.formats import Format, Role, ScanPosition
from duramen.log.segments import seals, witness
from duramen.log.segments.listing import list_log
from duramen.log.verify import ranges, threads, verify
from tests.log.conftest import START_US, batch, codec, options, value
from tests.sampling import examples

Write = Callable[..., Path]


@pytest.mark.parametrize("damage", ["none", "byte", "cut", "index"])
def test_threads_and_pieces_give_the_same_report(
    write: Write, format_name: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(format_name, 3000, 2000, 500)
    path = root / codec(format_name).segment_path(0)
    raw = bytearray(path.read_bytes())
    if damage == "byte":
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    elif damage == "cut":
        path.write_bytes(raw[:-5])
    elif damage == "index":
        for index in root.rglob("*.i*x"):
            index.write_bytes(index.read_bytes()[:-40])
    alone = duramen.verify(root, format=format_name, **options(format_name))
    monkeypatch.setattr(verify, "THREADS_FROM_BYTES", 1)
    monkeypatch.setattr(threads, "PIECE_BYTES", 16 << 10)
    counted: list[int] = []
    together = verify.verify_log(str(root), format=format_name, progress=counted.append, **options(format_name))
    assert together == alone
    assert sum(counted) == sum(segment.size_bytes for segment in alone.segments), "every byte is counted once"


def written(root: Path, name: str, records: int = 3000) -> Path:
    """A log of the engine: its sealed segments have digests."""
    limits = {"segment_max_bytes": 40_000} if codec(name).capabilities.segments else {}
    with duramen.open(root, "a", format=name, **options(name), **limits) as log:
        for first in range(0, records, 50):
            log.append_batch([value(offset) for offset in range(first, first + 50)])
    return root


@pytest.mark.parametrize("damage", ["none", "first", "middle", "last", "longer", "shorter", "unlisted"])
def test_digests_in_pieces(tmp_path: Path, format_name: str, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = written(tmp_path / "log", format_name)
    path = root / codec(format_name).segment_path(0)
    raw = bytearray(path.read_bytes())
    if damage in ("first", "middle", "last"):
        raw[{"first": 200, "middle": len(raw) // 2, "last": -3}[damage]] ^= 0x10
    elif damage == "longer":
        raw += bytes(64)
    elif damage == "shorter":
        raw = raw[: len(raw) * 2 // 3]
    elif damage == "unlisted":
        for sidecar in root.rglob("sealed*"):
            sidecar.unlink()
    path.write_bytes(raw)
    alone = duramen.verify(root, format=format_name, **options(format_name))
    monkeypatch.setattr(verify, "THREADS_FROM_BYTES", 1)
    for piece_bytes in (3_000, 11_000, 1 << 20):
        monkeypatch.setattr(threads, "PIECE_BYTES", piece_bytes)
        together = duramen.verify(root, format=format_name, **options(format_name))
        assert together == alone
    assert alone.ok == (damage in ("none", "unlisted") or (damage == "longer" and alone.ok))


@pytest.mark.parametrize("entries", [slice(0, 64), slice(-64, None), slice(600, 664)])
def test_zeros_in_an_index(write: Write, format_name: str, entries: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such entries are out of order, and name the first record of the log: it depends on who asks whether they are
    wrong."""
    root = write(format_name, 3000, 2000)
    for index in root.rglob("*.i*x"):
        raw = bytearray(index.read_bytes())
        raw[entries] = bytes(len(raw[entries]))
        index.write_bytes(raw)
    same_in_pieces(root, format_name, monkeypatch)


def same_in_pieces(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "THREADS_FROM_BYTES", 1 << 60)
    alone = duramen.verify(root, format=name, **options(name))
    monkeypatch.setattr(verify, "THREADS_FROM_BYTES", 1)
    for piece_bytes, step_bytes in ((4_000, 1 << 20), (1 << 20, 3_000)):
        monkeypatch.setattr(threads, "PIECE_BYTES", piece_bytes)
        monkeypatch.setattr(ranges, "STEP_BYTES", step_bytes)
        assert duramen.verify(root, format=name, **options(name)) == alone


def test_any_damage(tmp_path: Path, format_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits, cuts, zeros, repeated and swapped blocks, in any file of the log."""
    source = written(tmp_path / "source", format_name)
    files = [path.relative_to(source) for path in sorted(source.rglob("*")) if path.is_file() and path.stat().st_size]
    files = [path for path in files if path.name != "log.json"]
    for seed in range(examples(60)):
        chance = random.Random(seed)
        root = tmp_path / str(seed)
        shutil.copytree(source, root)
        for _ in range(chance.choice((1, 1, 2, 3))):
            path = root / chance.choice(files)
            path.write_bytes(damaged(bytearray(path.read_bytes()), chance))
        same_in_pieces(root, format_name, monkeypatch)
        shutil.rmtree(root)


def damaged(raw: bytearray, chance: random.Random) -> bytearray:
    at, size = chance.randrange(len(raw) + 1), chance.choice((1, 16, 29, 64, 512))
    kind = chance.choice(("bit", "bit", "cut", "zeros", "longer", "again", "swap"))
    if kind == "bit" and at < len(raw):
        raw[at] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del raw[at:]
    elif kind == "zeros":
        raw[at : at + size] = bytes(len(raw[at : at + size]))
    elif kind == "longer":
        raw += bytes(chance.choice((0, 255)) for _ in range(size))
    elif kind == "again":
        raw[at:at] = raw[at : at + size]
    elif kind == "swap" and at >= size and at + size <= len(raw):
        raw[at - size : at], raw[at : at + size] = raw[at : at + size], raw[at - size : at]
    return raw


def test_old_records_after_a_bad_one(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a checksum the verdict on the end of a segment rests on the last record but one: a piece of a single
    record does not have it."""
    root = write("rustlog", 1500, 500)
    fmt = codec("rustlog")
    path = root / fmt.segment_path(0)
    raw = path.read_bytes()
    segment = fmt.open_segment(raw, 0)
    positions = segment.scan(segment.start).columns.position
    index = fmt.open_index(Role.INDEX, (root / fmt.path_of(Role.INDEX, 0)).read_bytes(), 0)
    assert index is not None
    assert index.positions is not None
    named = [int(position) for position in index.positions if len(raw) // 4 < position < len(raw) // 2]
    assert len(named) > 2
    for before, start in pairwise(named[:4]):
        stop = int(positions[positions > start][0])
        path.write_bytes(raw[:stop] + b"\xff" * 24 + raw[int(positions[5]) : start])
        monkeypatch.setattr(verify, "THREADS_FROM_BYTES", 1 << 60)
        alone = duramen.verify(root, format="rustlog")
        monkeypatch.setattr(verify, "THREADS_FROM_BYTES", 1)
        monkeypatch.setattr(threads, "PIECE_BYTES", before + 1)
        assert duramen.verify(root, format="rustlog") == alone


def test_no_byte_is_read_twice_for_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges bring their digests: the segment is not read again."""
    root = written(tmp_path / "log", "keratin")
    monkeypatch.setattr(verify, "THREADS_FROM_BYTES", 1)
    monkeypatch.setattr(threads, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(seals, "kernel", None)
    monkeypatch.setattr(witness, "kernel", None)
    assert duramen.verify(root).ok


@pytest.mark.parametrize("name", ["keratin", "rustlog"])
def test_times_that_go_backwards_give_the_same_error(write: Write, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One finding for each step of the scan: steps that begin elsewhere would tell it otherwise."""
    fmt = codec(name)
    root = write(name, 4000)
    path = root / fmt.segment_path(0)
    raw = bytearray(fmt.segment_header(0, START_US // 1000))
    builder = fmt.index_builder(0, START_US // 1000)
    for first in (*range(0, 3000, 100), *range(3900, 2900, -100)):  # the times of the last ones, not their offsets
        cursor = ScanPosition(len(raw), builder_offset(raw, fmt) - 1)
        records = batch(fmt, first, 100)
        at = records.schema.get_field_index("offset")
        following = cursor.previous_offset + 1
        renumbered = records.set_column(at, "offset", pa.array(range(following, following + 100), pa.int64()))
        encoded = fmt.encode(renumbered, cursor)
        raw += encoded.data
        builder.add(encoded.rows)
    path.write_bytes(raw)
    for role, content in builder.build().items():
        (root / fmt.path_of(role, 0)).write_bytes(content)
    alone = duramen.verify(root, format=name)
    assert "time-goes-backwards" in {finding.code for finding in alone.findings}
    monkeypatch.setattr(verify, "THREADS_FROM_BYTES", 1)
    for piece_bytes in (20_000, 90_000, 1 << 30):
        monkeypatch.setattr(threads, "PIECE_BYTES", piece_bytes)
        for step_bytes in (5_000, 1 << 20):
            monkeypatch.setattr(ranges, "STEP_BYTES", step_bytes)
            assert duramen.verify(root, format=name) == alone


def builder_offset(raw: bytearray, fmt: Format) -> int:
    segment = fmt.open_segment(bytes(raw), 0)
    return segment.scan(segment.start).end.last_offset + 1


def test_an_interrupt_waits_for_a_step_only(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments that cannot be cut would otherwise be checked to their end."""
    root = write("durable-log", *[10_000] * 8)
    monkeypatch.setattr(verify, "THREADS_FROM_BYTES", 1)
    monkeypatch.setattr(ranges, "STEP_BYTES", 4_000)
    steps: list[int] = []

    def interrupted(_done_bytes: int) -> None:
        steps.append(_done_bytes)
        if len(steps) == 3:
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.005)

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        verify.verify_log(str(root), progress=interrupted)
    assert len(steps) < 400, "of 800"
    deadline = time.monotonic() + 5
    while threading.active_count() != before:  # a thread that has nothing left to do may need a moment to end
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_segment_by_itself(write: Write, format_name: str) -> None:
    root = write(format_name, 30, 20)
    fmt, disk = codec(format_name), PosixDisk()
    listed = list_log(disk, str(root), fmt)
    verifier = verify.Verifier(disk, str(root), fmt, lambda _bytes: None)
    checked = [verifier.check(files, is_last=files is listed.segments[-1]) for files in listed.segments]
    travelled = pickle.loads(pickle.dumps(checked))
    whole = verify.Verifier(disk, str(root), fmt, lambda _bytes: None).conclude(travelled)
    assert whole == duramen.verify(root, format=format_name, **options(format_name))


def test_the_advice_is_a_command_that_can_be_run(write: Write, tmp_path: Path) -> None:
    root = write("durable-log", 30)
    spaced = tmp_path / "my log"
    root.rename(spaced)
    path = spaced / codec("durable-log").segment_path(0)
    path.write_bytes(path.read_bytes()[:100] + b"x" + path.read_bytes()[101:])
    actions = [finding.action for finding in duramen.verify(spaced).findings]
    assert any(f"`duramen repair '{spaced}'`" in action for action in actions)
