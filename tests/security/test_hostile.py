"""A slice of the matrix of hostile directories, and the cases that were found first; `python -m tests.security` runs
all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import duramen
from duramen.cli.main import main
from duramen.errors import StorageError
from tests.security.hostile import build
from tests.security.things import CANARY, LINKS, Outside, may_make_devices

ROOT = Path(__file__).parent.parent.parent


def _matrix(*options: str) -> None:
    """In a process of its own, because it forks."""
    command = [sys.executable, "-m", "tests.security", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=390)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " 0 broken promises" in done.stdout


@pytest.mark.slow
def test_a_slice_of_the_matrix() -> None:
    _matrix("--slice", "11")


@pytest.mark.slow
def test_huge_files_take_little_memory() -> None:
    cases = (
        "durable-log .duramen/sealed.jsonl huge-zeros verify",
        "osiris .duramen/sealed.jsonl huge append",
        "rustlog .duramen/log.json huge cat",
        "fixed-slot .duramen/groups/fixed-slot-0_group.delta huge group-show",
        "keratin manifest.bin huge-zeros reindex",
        "rustlog 00000000000000000000.index huge-zeros verify",
        "fixed-slot 00000000.log huge verify",
        "osiris 00000000000000000000.index huge verify",
        "kafka 00000000000000000000.index huge verify",
        "kafka 00000000000000000090.timeindex huge seal",
        "fixed-slot .duramen/log.json fifo verify",
    )
    _matrix("--case", ",".join(cases))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    root = tmp_path / "log"
    build(root, "keratin")
    return root


@pytest.mark.parametrize("verb", [["repair", "--apply"], ["seal"], ["reindex"], ["retain", "--before-offset", "20"]])
def test_a_lock_that_is_a_link_truncates_nothing(
    log: Path, tmp_path: Path, verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    outside = Outside(tmp_path)
    lock = log / ".duramen" / "lock"
    lock.unlink()
    lock.symlink_to(outside.file)
    assert main([verb[0], str(log), *verb[1:]]) in (1, 3)
    said = capsys.readouterr()
    assert str(lock) in "".join((said.out + said.err).split())
    assert outside.changes() == []
    assert outside.file.read_bytes() == CANARY


@pytest.mark.parametrize("thing", LINKS)
@pytest.mark.parametrize("place", [".duramen/watermark", "segments/00000000000000000000.idx", "manifest.bin"])
def test_verify_names_what_is_no_file(log: Path, tmp_path: Path, thing: str, place: str) -> None:
    if thing == "device" and not may_make_devices(tmp_path):
        pytest.skip("this process cannot create a device")
    outside = Outside(tmp_path)
    LINKS[thing](log / place, outside)
    report = duramen.verify(str(log))
    [found] = [finding for finding in report.findings if finding.code == "not-a-file"]
    assert found.path == str(log / place)
    assert not report.ok
    with pytest.raises(StorageError, match="regular files"):
        duramen.open(str(log), "a")
    assert outside.changes() == []


def test_a_link_that_is_none_of_the_logs_is_a_note(log: Path, tmp_path: Path) -> None:
    (log / "README").symlink_to(tmp_path / "elsewhere")
    report = duramen.verify(str(log))
    assert [(found.code, os.path.basename(found.path)) for found in report.findings] == [("special-file", "README")]
    assert report.ok
    with duramen.open(str(log), "a") as opened:
        opened.append(b"goes on")


def test_the_path_that_is_named_may_be_a_link(log: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(log)
    with duramen.open(str(link), "a") as opened:
        opened.append(b"through a link")
    assert duramen.verify(str(link)).ok
