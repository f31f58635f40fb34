"""`verify` while retention removes segments, in this process and in another one: they are left out, and said to be.
And while compaction replaces some: the new files count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.errors import StorageError
from duramen.formats import Role, Severity, make
from duramen.log.maintain.compact import Compaction
from duramen.log.maintain.retention import Retention
from duramen.log.segments.listing import list_log
from duramen.log.transfer.update import copy
from duramen.log.verify import ranges, threads, verify
from duramen.log.write.writable_log import WritableLog
from duramen.sidecar import file_swap
from duramen.testing import CrashPattern, SimulatedDisk

COMPACTED = ("durable-log", "keratin", "rustlog")
SEGMENTED = ("durable-log", "keratin", "rustlog", "osiris")
WRITER = """
import sys, duramen
from duramen.log.maintain.retention import Retention
with duramen.open(sys.argv[1], "a", durability="write") as log:
    print("ready", flush=True)
    while True:
        for _ in range(12):
            log.append_batch([b"x" * 500] * 20)
            log.seal()
        log.retain(Retention(max_bytes=40_000))
"""


def filled(root: Path, name: str, segments: int = 6) -> duramen.WritableLog:
    log = duramen.open(root, "a", format=name, durability="write")
    for number in range(segments):
        log.append_batch([b"%d=" % key + b"%d" % number for key in range(50)])
        log.seal()
    return log


@pytest.mark.parametrize("name", SEGMENTED)
@pytest.mark.parametrize("in_threads", [False, True])
def test_segments_that_go_while_the_first_is_checked(
    tmp_path: Path, name: str, in_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "THREADS_FROM_BYTES", 1 if in_threads else 1 << 60)
    monkeypatch.setattr(threads, "_processors", lambda: 1)
    with filled(tmp_path / "log", name) as log:
        bases = [segment.base_offset for segment in log.segments]
        told: list[int] = []

        def removing(done_bytes: int) -> None:
            if not told:
                log.retain(Retention(before_offset=bases[3]))
            told.append(done_bytes)

        report = verify.verify_log(str(tmp_path / "log"), progress=removing)
        assert [segment.base_offset for segment in report.segments] == bases[3:]
        (note,) = [found for found in report.findings if found.code not in ("missing-index", "stale-manifest")]
        assert (note.code, note.message) == (
            "segments-removed",
            "3 segments were removed during the check, and left out",
        )
        assert (note.first_offset, note.last_offset) == (0, bases[3] - 1)


@pytest.mark.parametrize("name", SEGMENTED)
@pytest.mark.parametrize("in_threads", [False, True])
def test_all_segments_go_while_the_first_is_checked(
    tmp_path: Path, name: str, in_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "THREADS_FROM_BYTES", 1 if in_threads else 1 << 60)
    with filled(tmp_path / "log", name) as log:
        for rounds in (1, 3):
            left, first = [rounds], log.first_offset

            def removing(_done_bytes: int, left: list[int] = left) -> None:
                if left[0]:
                    left[0] -= 1
                    log.append_batch([b"new"] * 10)
                    log.seal()
                    log.retain(Retention(before_offset=log.next_offset))

            report = verify.verify_log(str(tmp_path / "log"), progress=removing)
            assert report.ok
            assert [segment.base_offset for segment in report.segments] == [s.base_offset for s in log.segments]
            notes = [found for found in report.findings if found.code == "segments-removed"]
            assert len(notes) == 1
            assert "removed during the check: all that were listed" in notes[0].message
            assert (notes[0].first_offset, notes[0].last_offset) == (first, log.first_offset - 1)


def test_a_log_that_never_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_ATTEMPTS", 3)
    with filled(tmp_path / "log", "keratin") as log:

        def removing(_done_bytes: int) -> None:
            log.append(b"new")
            log.seal()
            log.retain(Retention(before_offset=log.next_offset))

        with pytest.raises(StorageError, match=r"was removed during the check \(verify a copy"):
            verify.verify_log(str(tmp_path / "log"), progress=removing)


@pytest.mark.parametrize("name", SEGMENTED)
def test_an_index_that_goes_before_its_segment_is_cut(tmp_path: Path, name: str) -> None:
    """Where a segment is divided among threads, its index has to be looked at first."""
    with filled(tmp_path / "log", name) as log:
        fmt, path = log.codec, Path(log.segments[0].path)
    disk = PosixDisk()
    directory = list_log(disk, str(tmp_path / "log"), fmt)
    assert ranges.cut_ranges(disk, directory, directory.segments[0], fmt, 100)
    (tmp_path / "log" / directory.segments[0].derived[Role.INDEX].path).unlink()
    assert ranges.cut_ranges(disk, directory, directory.segments[0], fmt, 100) == []
    assert path.exists()


@pytest.mark.parametrize("name", SEGMENTED)
def test_a_segment_that_goes_from_the_middle_is_no_retention(tmp_path: Path, name: str) -> None:
    with filled(tmp_path / "log", name) as log:
        path = Path(log.segments[2].path)

    def removing(_done_bytes: int) -> None:
        path.unlink(missing_ok=True)

    with pytest.raises(StorageError, match=path.name):
        verify.verify_log(str(tmp_path / "log"), progress=removing)


@pytest.mark.parametrize("name", SEGMENTED)
def test_a_writer_in_another_process_that_rolls_and_removes(tmp_path: Path, name: str) -> None:
    root = tmp_path / "log"
    filled(root, name).close()
    with subprocess.Popen([sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        reports = [duramen.verify(root) for _ in range(60)]
        assert writer.poll() is None
        writer.kill()
    assert all(report.ok for report in reports), [f for report in reports for f in report.findings if not report.ok]


APPENDER = """
import sys, duramen
with duramen.open(sys.argv[1], "a", durability="write", segment_max_bytes=1_000_000) as log:
    print("ready", flush=True)
    while True:
        log.append_batch([b"x" * 50] * 30)
"""


@pytest.mark.parametrize("name", SEGMENTED)
def test_a_writer_in_another_process_that_appends(tmp_path: Path, name: str) -> None:
    """Entries that come between two looks, a segment whose index is not begun, half of a write: none is news."""
    root = tmp_path / "log"
    more = {"index_stride_bytes": 512} if name == "keratin" else {}
    duramen.open(root, "a", format=name, **more).close()
    with subprocess.Popen([sys.executable, "-c", APPENDER, str(root)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        found = [finding for _ in range(40) for finding in duramen.verify(root).findings]
        assert writer.poll() is None
        writer.kill()
    assert not found


@pytest.mark.parametrize("name", COMPACTED)
@pytest.mark.parametrize("in_threads", [False, True])
@pytest.mark.parametrize("when", [1, 3])
def test_segments_that_compaction_replaces_and_empties(
    tmp_path: Path, name: str, in_threads: bool, when: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their digests were read before, and what had taken their place was called damage."""
    monkeypatch.setattr(verify, "THREADS_FROM_BYTES", 1 if in_threads else 1 << 60)
    monkeypatch.setattr(threads, "_processors", lambda: 1)
    with duramen.open(tmp_path / "log", "a", format=name, durability="write") as log:
        for number in range(8):  # every other one keeps a record
            log.append_batch([b"k%d=%d" % (number, number) if number % 2 == 0 else b"a=", *[b"a=%d" % number] * 50])
            log.seal()
        told: list[int] = []

        def compacting(done_bytes: int) -> None:
            told.append(done_bytes)
            if len(told) == when:
                report = log.compact(Compaction(key="delimiter:="))
                assert (report.rewritten, report.removed) == (5, 3)

        report = verify.verify_log(str(tmp_path / "log"), progress=compacting)
        assert [(found.code, found.message) for found in report.findings if found.severity != Severity.NOTE] == []
        assert len(told) >= when
        assert [segment.base_offset for segment in report.segments] == [s.base_offset for s in log.segments]
        assert report.records == sum(1 for _ in log.scan())


@pytest.mark.parametrize("name", COMPACTED)
def test_a_compaction_that_was_not_finished(name: str) -> None:
    """Committed, and the process died: the log is sound at every moment, and so is a copy of it."""
    disk = SimulatedDisk()
    log = WritableLog("/log", disk=disk, format=name)
    for _ in range(3):
        log.append_batch([b"a=1", b"b=2", b"a=3"])
        log.seal()
    moments: list[SimulatedDisk] = []
    disk.on_operation = lambda _number, _operation: moments.append(disk.clone())
    log.compact(Compaction(key="delimiter:="))
    assert any(file_swap.read_file_swap(moment, "/log") is not None for moment in moments)
    for moment in moments:
        left = moment.crash(CrashPattern("kept", "kept"))
        report = verify.verify_log("/log", disk=left)
        assert [found for found in report.findings if found.severity != Severity.NOTE] == []
        assert 2 <= copy("/log", "/copy", disk=left).records <= 9


def test_a_log_that_is_deleted_during_the_check(tmp_path: Path) -> None:
    with filled(tmp_path / "log", "rustlog") as log:
        paths = [Path(segment.path) for segment in log.segments]

    def removing(_done_bytes: int) -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    with pytest.raises(StorageError, match="no such file"):
        verify.verify_log(str(tmp_path / "log"), progress=removing)


@pytest.mark.parametrize("name", SEGMENTED)
@pytest.mark.parametrize("in_threads", [False, True])
def test_space_that_a_writer_frees_while_the_segment_is_checked(
    tmp_path: Path, name: str, in_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading it would end the process by SIGBUS: it was reserved after the log was listed, and is mapped."""
    monkeypatch.setattr(verify, "THREADS_FROM_BYTES", 1 if in_threads else 1 << 60)
    root = tmp_path / "log"
    with duramen.open(root, "a", format=name) as log:
        log.append(b"one")
    segment = list_log(PosixDisk(), str(root), make(name)).segments[-1].segment.path
    map_file = PosixDisk.map

    def beside_writer(disk: PosixDisk, path: str) -> object:
        if not path.endswith(segment):
            return map_file(disk, path)
        monkeypatch.setattr(PosixDisk, "map", map_file)
        with duramen.open(root, "a", preallocate_bytes=1 << 20) as writer:
            writer.append(b"two")
            mapped = map_file(disk, path)
            assert len(mapped.data) > 1 << 19
        return mapped

    monkeypatch.setattr(PosixDisk, "map", beside_writer)
    report = verify.verify_log(str(root))
    assert (report.ok, report.segments[0].records, report.findings) == (True, 1, [])
