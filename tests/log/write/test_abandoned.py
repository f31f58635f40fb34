"""A log that its owner drops without closing it: the lock ends, a warning says so, and nothing waits."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

import duramen


def descriptors_below(path: Path) -> list[str]:
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return [link for link in links if link.startswith(str(path))]


def use(log: duramen.Log) -> None:
    """Everything that opens files and starts threads."""
    assert next(log.scan()).value == b"first"
    group = log.group("g")
    group.ack_many(group.fetch(1))
    log.cursor("c").store(1)
    log.wait()
    if isinstance(log, duramen.WritableLog):
        log.producer("p").append(b"again")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with duramen.open(tmp_path / "log", "a") as log:
        log.append(b"first")
    return tmp_path / "log"


RETENTION = duramen.Retention(max_bytes=1 << 20)


@pytest.mark.parametrize("options", [{}, {"retention": RETENTION, "retention_interval_s": 3600.0}], ids=["", "timer"])
def test_a_dropped_writer_releases_its_lock_with_a_warning(path: Path, options: Any) -> None:
    log = duramen.open(path, "a", **options)
    use(log)
    with pytest.warns(ResourceWarning, match=r"\.duramen/lock: this lock was dropped and not released"):  # noqa: PT031
        del log
        gc.collect()
    assert descriptors_below(path) == []
    for thread in threading.enumerate():
        if thread.name.startswith("duramen retention") and str(path) in thread.name:
            thread.join()
    with duramen.open(path, "a") as again:
        assert again.append(b"third") == 2


def test_opening_again_does_not_wait_for_the_collector(path: Path) -> None:
    gc.disable()
    try:
        log = duramen.open(path, "a")
        log.append(b"second")
        with pytest.warns(ResourceWarning):  # noqa: PT031
            log = duramen.open(path.parent / "other", "a")
            duramen.open(path, "a").close()
        log.close()
    finally:
        gc.enable()


def test_a_dropped_reader_leaves_nothing_open_and_warns_of_nothing(path: Path) -> None:
    log = duramen.open(path)
    use(log)
    del log
    gc.collect()
    assert descriptors_below(path) == []


def test_the_timer_may_hold_the_last_reference(path: Path) -> None:
    """Retention runs while the owner drops the log: the thread that ends is the timer's own."""
    entered, dropped = threading.Event(), threading.Event()

    class Waiting(duramen.WritableLog):
        def needs(self) -> list[duramen.Need]:
            entered.set()
            dropped.wait()
            return super().needs()

    log = Waiting(str(path), retention=duramen.Retention(max_bytes=0), segment_max_bytes=1, retention_interval_s=0.001)
    log.append(b"second")
    assert entered.wait(60)
    alive = weakref.ref(log)
    (timer,) = [thread for thread in threading.enumerate() if thread.name.startswith(f"duramen retention {path}")]
    with pytest.warns(ResourceWarning):  # noqa: PT031
        del log
        dropped.set()
        while alive() is not None:
            gc.collect()
        timer.join()
    duramen.open(path, "a").close()


def test_a_second_open_in_this_process_says_so(path: Path) -> None:
    with duramen.open(path, "a"), pytest.raises(duramen.LockedError) as caught:
        duramen.open(path, "a")
    assert str(caught.value) == (
        f"{path}: the log is already open for writing in this process "
        "(use that log: threads may share it; or close it first)"
    )
    assert caught.value.is_own


def test_a_note_with_our_process_id_is_not_a_proof(path: Path) -> None:
    """In another container a writer may have the same process id."""
    lock = path / ".duramen" / "lock"
    code = f"""import fcntl, os, sys
file = os.open({str(lock)!r}, os.O_RDWR)
fcntl.flock(file, fcntl.LOCK_EX)
os.pwrite(file, b"pid {os.getpid()}\\n", 0)
print("held", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(duramen.LockedError, match="open for writing elsewhere") as caught:
            duramen.open(path, "a")
        assert not caught.value.is_own
        other.communicate()
