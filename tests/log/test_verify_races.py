"""`verify` while retention removes segments, in this process and in another one: they are left out, and said to be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import duramen
from duramen.errors import StorageError
from duramen.log import parallel, verify
from duramen.log.retention import Retention

SEGMENTED = ("durable-log", "keratin", "rustlog", "osiris")
WRITER = """
import sys, duramen
from duramen.log.retention import Retention
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
        log.append_batch([b"%d" % number] * 50)
        log.seal()
    return log


@pytest.mark.parametrize("name", SEGMENTED)
@pytest.mark.parametrize("in_threads", [False, True])
def test_segments_that_go_while_the_first_is_checked(
    tmp_path: Path, name: str, in_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "THREADS_FROM_BYTES", 1 if in_threads else 1 << 60)
    monkeypatch.setattr(parallel, "_processors", lambda: 1)
    with filled(tmp_path / "log", name) as log:
        bases = [segment.base_offset for segment in log.segments]
        told: list[int] = []

        def removing(done_bytes: int) -> None:
            if not told:
                log.retain(Retention(before_offset=bases[3]))
            told.append(done_bytes)

        report = verify.verify(str(tmp_path / "log"), progress=removing)
        assert [segment.base_offset for segment in report.segments] == bases[3:]
        (note,) = [found for found in report.findings if found.code not in ("missing-index", "stale-manifest")]
        assert (note.code, note.message) == ("segments-removed", "3 segments were removed meanwhile, and left out")
        assert (note.first_offset, note.last_offset) == (0, bases[3] - 1)


@pytest.mark.parametrize("name", SEGMENTED)
def test_a_segment_that_goes_from_the_middle_is_no_retention(tmp_path: Path, name: str) -> None:
    with filled(tmp_path / "log", name) as log:
        path = Path(log.segments[2].path)

    def removing(_done_bytes: int) -> None:
        path.unlink(missing_ok=True)

    with pytest.raises(StorageError, match=path.name):
        verify.verify(str(tmp_path / "log"), progress=removing)


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
