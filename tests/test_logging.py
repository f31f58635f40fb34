"""What the library logs, with which attributes, and that it prints nothing by itself."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.testing import FaultyDisk, SimulatedDisk


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "duramen")
    return caplog


def the_one(logged: pytest.LogCaptureFixture, logger: str, level: int, **attributes: Any) -> logging.LogRecord:
    (record,) = logged.records
    assert (record.name, record.levelno) == (logger, level)
    assert {name: getattr(record, name) for name in attributes} == attributes
    assert record.getMessage()
    logged.clear()
    return record


def torn(path: Path) -> Path:
    """A log whose last bytes are half a record; returns its segment."""
    with duramen.open(path, "a", format="keratin") as log:
        log.append(b"whole")
    (segment,) = (path / "segments").glob("*.log")
    with segment.open("ab") as file:
        file.write(b"\1\2\3")
    (path / ".duramen/closed.json").unlink(missing_ok=True)
    return segment


def test_a_cut(tmp_path: Path, logged: pytest.LogCaptureFixture) -> None:
    segment = torn(tmp_path / "log")
    size = segment.stat().st_size
    assert logged.records == []  # a new log, appended to and closed
    duramen.open(tmp_path / "log", "a").close()
    the_one(
        logged, "duramen.log.recover", logging.WARNING, path=str(tmp_path / "log"), case="torn tail",
        file="segments/00000000000000000000.log", position=size - 3,
    )  # fmt: skip
    duramen.open(tmp_path / "log", "a").close()
    assert logged.records == []


def test_a_poisoned_writer(logged: pytest.LogCaptureFixture) -> None:
    log = duramen.open("/log", "a", disk=FaultyDisk(SimulatedDisk(), "sync#3 *.log: EIO"))
    log.append(b"first")
    for _ in range(3):
        with pytest.raises(duramen.DuramenError):
            log.append(b"second")
    the_one(logged, "duramen.log.write", logging.ERROR, path="/log", error="StorageError", offset=1)


def test_a_fenced_writer(tmp_path: Path, logged: pytest.LogCaptureFixture) -> None:
    log = duramen.open(tmp_path / "log", "a")
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(duramen.FencedError):
        log.append(b"value")
    log.close()
    the_one(logged, "duramen.log.write", logging.ERROR, path=str(tmp_path / "log"), error="FencedError", offset=0)


def test_retention_and_compaction(logged: pytest.LogCaptureFixture) -> None:
    with duramen.open("/log", "a", disk=SimulatedDisk(), segment_max_bytes=100, durability="write") as log:
        for _ in range(10):
            log.append(b"value", key=b"key")
        log.compact()
        the_one(logged, "duramen.log.maintain", logging.INFO, path="/log", records=10 - len(list(log)))
        log.append_batch([b"0123456789" * 9] * 5)
        plan = log.retain(duramen.Retention(max_bytes=0))
        the_one(
            logged, "duramen.log.maintain", logging.INFO, path="/log", offset=plan.first_offset,
            segments=len(plan.removed), bytes=plan.removed_bytes,
        )  # fmt: skip
        log.retain(duramen.Retention(max_bytes=1 << 30))
        assert logged.records == []  # nothing was removed


def test_a_repair(tmp_path: Path, logged: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log"
    with duramen.open(path, "a", format="keratin") as log:
        log.append_batch([b"first", b"second"])
    (segment,) = (path / "segments").glob("*.log")
    raw = bytearray(segment.read_bytes())
    raw[-1] ^= 1
    segment.write_bytes(raw)
    duramen.repair(path)
    assert logged.records == []  # a plan
    plan = duramen.repair(path, plan_only=False)
    the_one(logged, "duramen.log.repair", logging.WARNING, path=str(path), steps=len(plan.steps))


def test_dead_letters(logged: pytest.LogCaptureFixture) -> None:
    with duramen.open("/log", "a", disk=SimulatedDisk()) as log:
        log.append(b"bad")
        group = log.group("g", max_attempts=1, dead_letter="/dead")
        group.nack(group.fetch(1), reason="it is bad")
    the_one(
        logged, "duramen.consumers", logging.WARNING, path="/log", group="g", offset=0, records=1, dead_letter="/dead",
        reason="it is bad",
    )  # fmt: skip


def test_nothing_is_printed_by_default(tmp_path: Path) -> None:
    torn(tmp_path / "log")
    code = f"import duramen; print(duramen.open({str(tmp_path / 'log')!r}, 'a').recovery[0].case)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("torn tail\n", "")


def test_a_path_that_is_not_utf8(tmp_path: Path, logged: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "caf\udce9"
    torn(path)
    duramen.open(path, "a").close()
    (record,) = logged.records
    assert "caf\\udce9" in record.getMessage()
    assert record.getMessage().encode()
    logged.clear()
