"""A log that is as it was closed is opened without a walk over its records; one that changed is walked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import duramen
from duramen.formats import make
from duramen.log.recover import evidence
from duramen.log.segments import clean_close
from duramen.testing import SimulatedDisk
from tests.log.conftest import options

SMALL = {"rustlog": {"index_interval_records": 3}, "keratin": {"index_stride_bytes": 100}}


def given(name: str) -> dict[str, object]:
    return {**options(name), **SMALL.get(name, {})}


def value(n: int) -> bytes:
    return b"record %09d" % n


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each walk of recovery over the active segment."""
    counted: list[int] = []

    class Counted(evidence.TailScan):
        def __init__(self, *arguments: object) -> None:
            counted.append(1)
            super().__init__(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(evidence, "TailScan", Counted)
    return counted


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".duramen" not in path.parts and path.name != "manifest.bin"
    }


def test_a_log_that_is_closed_after_each_record_is_the_same(tmp_path: Path, format_name: str, walks: list[int]) -> None:
    """Segment and indexes, byte for byte: what the next writer goes on with is what the last one knew."""
    again, once = tmp_path / "again", tmp_path / "once"
    settings = {"format": format_name, "clock": lambda: 1_700_000_000_000_000_000, **given(format_name)}
    for n in range(40):
        with duramen.open(again, "a", **settings) as log:
            log.append(value(n))
    assert not walks
    with duramen.open(once, "a", **settings) as log:
        for n in range(40):
            log.append(value(n))
    assert files(again) == files(once)
    report = duramen.verify(again)
    assert report.ok
    assert not report.findings


def test_a_changed_file_is_walked(tmp_path: Path, format_name: str, walks: list[int]) -> None:
    root = tmp_path / "log"
    with duramen.open(root, "a", format=format_name, **given(format_name)) as log:
        for n in range(10):
            log.append(value(n))
    for path in [root / name for name in files(root)]:
        os.utime(path)
        with duramen.open(root, "a") as log:
            assert log.next_offset == 10
        assert walks.pop()
        assert not walks
        with duramen.open(root, "a"):
            assert not walks, "the next close says it again"


def test_a_copy_is_walked(tmp_path: Path, walks: list[int]) -> None:
    root = tmp_path / "log"
    with duramen.open(root, "a") as log:
        log.append(b"value")
    shutil.copytree(root, tmp_path / "copy")
    with duramen.open(tmp_path / "copy", "a"):
        assert walks


def test_a_change_within_the_tick_of_the_clock_shows(tmp_path: Path, walks: list[int]) -> None:
    """File systems count time in milliseconds, and a closed log can be changed within one of them."""
    for n in range(20):
        root = tmp_path / f"log-{n}"
        with duramen.open(root, "a", format="rustlog") as log:
            log.append(b"value")
        path = root / make("rustlog").segment_path(0)
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"E")
        with pytest.raises(duramen.CorruptionError):
            duramen.open(root, "a")


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 5000, b'{"mark": 1} 00000000\n', bytes(range(100, 200))])
def test_a_file_that_says_nothing(tmp_path: Path, walks: list[int], content: bytes) -> None:
    root = tmp_path / "log"
    with duramen.open(root, "a") as log:
        log.append(b"value")
    (root / ".duramen" / clean_close.CLEAN_CLOSE_NAME).write_bytes(content)
    with duramen.open(root, "a") as log:
        assert walks
        assert log.append(b"next") == 1


def test_a_byte_that_changes_without_a_trace_is_still_found(tmp_path: Path, walks: list[int]) -> None:
    """The digest is carried on, not taken again: bits that rot show in `verify`, and when the segment is sealed."""
    root = tmp_path / "log"
    with duramen.open(root, "a", format="rustlog") as log:
        for n in range(10):
            log.append(value(n))
    path = root / make("rustlog").segment_path(0)
    was = path.stat()
    with path.open("r+b") as file:
        file.seek(60)
        byte = file.read(1)[0]
        file.seek(60)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    with duramen.open(root, "a") as log:
        assert not walks
        log.append(b"more")
    assert [finding.code for finding in duramen.verify(root).findings] == ["digest-mismatch"]
    with duramen.open(root, "a") as log, pytest.raises(duramen.CorruptionError, match="does not hold what was written"):
        log.seal()
    assert not duramen.verify(root).ok


def test_a_full_disk_costs_a_walk_and_nothing_else() -> None:
    disk = SimulatedDisk()
    log = duramen.open("/log", "a", disk=disk)
    log.append(b"value")
    original = disk.create

    def create(path: str) -> object:
        if path.endswith("closed.json"):
            raise duramen.StorageError("no space left on device", path=path)
        return original(path)

    disk.create = create  # type: ignore[assignment, method-assign]
    log.close()
    disk.create = original  # type: ignore[method-assign]
    with duramen.open("/log", "a", disk=disk) as log:
        assert log.append(b"next") == 1
