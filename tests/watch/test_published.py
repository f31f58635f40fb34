"""What writers and checks of other processes publish reaches ``/metrics``, ``top`` and the alerts."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import duramen
from duramen.cli.watch.top import _row
from duramen.disk import PosixDisk
from duramen.log import verify_log
from duramen.metrics import exposition
from duramen.sidecar import read_verification, read_writer_metrics
from duramen.testing import FaultyDisk
from duramen.watch import Observer, WatchedPath

KILLED = """
import os, signal, sys, duramen
log = duramen.open(sys.argv[1], "a")
log.append(b"x")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        log.append_batch([b"value %d" % number for number in range(100)])
    return tmp_path / "log"


def observed(path: Path) -> tuple[Observer, str]:
    observer = Observer(PosixDisk(), WatchedPath("events", str(path)))
    observer.observe()
    observer.close()
    return observer, exposition(observer.samples())


def damage(path: Path) -> None:
    segment = next(path.rglob("*.log"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)


def files(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_the_recovery_of_a_writer_in_another_process(path: Path) -> None:
    (path / ".duramen" / "metrics.json").unlink()
    assert 'duramen_index_rebuilds_total{log="events"} 0\n' in observed(path)[1]
    for rebuilt in (1, 2):
        next(path.rglob("*.idx")).unlink()
        killed = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
        assert killed.returncode == -signal.SIGKILL
        text = observed(path)[1]
        assert f'duramen_index_rebuilds_total{{log="events"}} {rebuilt}\n' in text
        assert f'duramen_recoveries_total{{log="events"}} {rebuilt}\n' in text
        assert 'duramen_minor_page_faults_total{log="events"}' in text
        assert 'duramen_mapped_bytes{log="events"}' not in text, "the process is dead"


def test_a_writer_publishes_what_its_process_has_mapped(path: Path) -> None:
    seconds = itertools.count(time.time_ns(), 2 * 10**9)
    with duramen.open(path, "a", clock=lambda: next(seconds)) as log:
        log.append(b"x" * 5000)
        log.read(100)
        log.append(b"y")
        text = observed(path)[1]
    mapped = re.search(r'^duramen_mapped_bytes\{log="events"\} (\d+)$', text, re.MULTILINE)
    assert mapped is not None
    assert int(mapped[1]) > 5000


def test_a_check_in_another_process(path: Path) -> None:
    assert "duramen_verify_ok" not in observed(path)[1]
    for expected in (0, 1):
        done = subprocess.run([sys.executable, "-m", "duramen", "verify", path], check=False, capture_output=True)
        assert done.returncode == expected
        observer, text = observed(path)
        assert f'duramen_verify_ok{{log="events"}} {1 - expected}\n' in text
        assert f'duramen_verify_findings{{log="events",severity="damage"}} {expected}\n' in text
        assert 'duramen_verify_timestamp_seconds{log="events"} 1' in text
        assert ("damage, verified 2" in str(_row(observer)[-1])) == (expected == 1)
        damage(path)


def test_a_check_that_cannot_finish_is_published_as_not_ok(path: Path) -> None:
    disk = FaultyDisk(PosixDisk(), "map *.log: EIO")
    with pytest.raises(duramen.DuramenError) as caught:
        verify_log(str(path), disk=disk, publish=True)
    found = read_verification(PosixDisk(), str(path))
    assert found is not None
    assert not found.is_ok
    assert found.problem == str(caught.value)


@pytest.mark.parametrize("how", ["no sidecar", "not wanted", "refused", "one file"])
def test_where_a_check_leaves_no_trace(path: Path, how: str) -> None:
    target, publish = path, how != "not wanted"
    if how == "no sidecar":
        shutil.rmtree(path / ".duramen")
    if how == "refused":  # not by permissions, which root ignores
        (path / ".duramen" / "verified.json.new").mkdir()
    if how == "one file":
        target = next(path.rglob("*.log"))
    before = files(path)
    assert duramen.verify(target, publish=publish).records == 100
    assert files(path) == before


def test_the_counters_of_a_log_go_on_from_those_of_the_writer_before(path: Path) -> None:
    for records in (101, 102):
        with duramen.open(path, "a") as log:
            log.append(b"x")
        found = read_writer_metrics(PosixDisk(), str(path))
        assert found is not None
        assert found.counters["records"] == records
        assert found.counters["recoveries"] == records - 99
        assert found.histogram("append_seconds").count == found.counters["appends"] == records - 99
    metrics = path / ".duramen" / "metrics.json"
    metrics.write_bytes(b"[1, 2]".ljust(8192))
    with duramen.open(path, "a") as log:
        log.append(b"x")
    assert (found := read_writer_metrics(PosixDisk(), str(path))) is not None
    assert found.counters["records"] == 1


def test_a_published_result_of_a_stranger_is_ignored(path: Path) -> None:
    for content in (b"", b"{}", b"[]", b'{"duramen": 1, "findings": 7}', os.urandom(100_000)):
        (path / ".duramen" / "verified.json").write_bytes(content)
        assert read_verification(PosixDisk(), str(path)) is None
        assert "duramen_verify_ok" not in observed(path)[1]
