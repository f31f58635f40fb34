"""Verify in threads and in pieces says what one thread says; a segment can be checked alone, and its answer travels."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.log import parallel, verify
from duramen.log.directory import list_log
from tests.log.conftest import codec, options

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
    monkeypatch.setattr(parallel, "PIECE_BYTES", 16 << 10)
    counted: list[int] = []
    together = verify.verify(str(root), format=format_name, progress=counted.append, **options(format_name))
    assert together == alone
    if damage == "none":
        assert sum(counted) >= alone.bytes - 200, "every byte is counted, but for file headers"


def test_one_segment_by_itself(write: Write, format_name: str) -> None:
    root = write(format_name, 30, 20)
    fmt, disk = codec(format_name), PosixDisk()
    listed = list_log(disk, str(root), fmt)
    checked = [
        verify.verify_segment(disk, str(root), fmt, files, is_last=files is listed.segments[-1])
        for files in listed.segments
    ]
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
