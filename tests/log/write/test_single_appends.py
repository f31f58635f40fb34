"""Single appends of many threads at ``fsync``, beside groups: a log that closes, and interrupts."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.errors import DuramenError, StorageError
from duramen.log import WritableLog
from duramen.log.write.single_appends import SingleAppends
from tests.log.writing import content

FAR_S = 60.0
"""No thread of these tests takes so long, unless it hangs."""
ENOUGH = 20_000
"""Appends that something else ends."""


@pytest.fixture
def failing_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn in which a log closes itself fails, as where no descriptor is left."""
    control = WritableLog._control

    def failing(log: WritableLog, name: str) -> None:
        if name == "close":
            raise StorageError("no descriptor is left", path=log.path)
        control(log, name)

    monkeypatch.setattr(WritableLog, "_control", failing)


@pytest.mark.usefixtures("failing_close")
def test_a_group_under_way_ends_before_the_lock_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = duramen.open(tmp_path / "log", "a")
    log.append(b"first")
    begun, released, order = threading.Event(), threading.Event(), []
    write, release = log.tail.write, log._sidecar.release

    def slow(*given: Any, **how: Any) -> Any:
        begun.set()
        released.wait(0.3)  # it does not come: the lock waits for this
        order.append("appended")
        return write(*given, **how)

    def noted() -> None:
        order.append("released")
        released.set()
        release()

    monkeypatch.setattr(log.tail, "write", slow)
    monkeypatch.setattr(log._sidecar, "release", noted)
    thread = threading.Thread(target=lambda: log.append_batch([b"second"] * 3))
    thread.start()
    begun.wait()
    with pytest.raises(StorageError, match="no descriptor is left"):
        log.close()
    thread.join()
    assert order == ["appended", "released"]
    assert content(tmp_path / "log") == [b"first", *[b"second"] * 3]


@pytest.mark.usefixtures("failing_close")
def test_nothing_is_written_after_a_close_that_failed(tmp_path: Path) -> None:
    for attempt in range(8):
        root = tmp_path / str(attempt)
        log = duramen.open(root, "a")
        log.append(b"first")
        told: list[int] = []

        def work(log: WritableLog = log, told: list[int] = told) -> None:
            try:
                while len(told) < ENOUGH:
                    told.append(log.append(b"v" * 1000))
            except DuramenError:
                pass

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        while len(told) < 40:
            pass
        with pytest.raises(StorageError):
            log.close()
        (segment,) = (root / "segments").glob("*.log")
        size_bytes = segment.stat().st_size
        for thread in threads:
            thread.join()
        assert segment.stat().st_size == size_bytes
        assert duramen.verify(root).ok
        with duramen.open(root) as reader:
            assert reader.next_offset > max(told)


@pytest.mark.parametrize("place", range(1, 7))
def test_an_interrupt_while_a_group_is_awaited_locks_nothing(tmp_path: Path, place: int) -> None:
    log = duramen.open(tmp_path / "log", "a")
    for _ in range(5):
        log.append(b"first")
    leads, ends, left = threading.Event(), threading.Event(), place

    def lead() -> None:
        leads.set()
        ends.wait()

    leader = threading.Thread(target=lambda: log.exclusively(lead))
    leader.start()
    leads.wait()

    def interrupt(_frame: FrameType, _event: str, _argument: object) -> Any:
        nonlocal left
        left -= 1
        if place - left == 2:
            ends.set()  # the group ends while this thread waits for it
        if left == 0:
            raise KeyboardInterrupt
        return interrupt

    def begin(frame: FrameType, _event: str, _argument: object) -> Any:
        return interrupt if frame.f_code is SingleAppends._await_leader.__code__ else None

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        log.append(b"second")
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
        ends.set()
    leader.join()
    for act in (lambda: log.append(b"third"), lambda: log.append_batch([b"x"] * 2), log.close):
        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        thread.join(FAR_S)
        assert not thread.is_alive()
    assert b"third" in content(tmp_path / "log")


@pytest.mark.skipif(sys.platform != "linux", reason="the native queue is Linux's")
def test_a_retired_writer_writes_nothing_that_was_queued(tmp_path: Path) -> None:
    """A log that is poisoned acknowledges nothing more, not even what waits in the queue."""
    log = WritableLog(str(tmp_path / "log"), disk=PosixDisk(), timer=False)
    log.append(b"first")
    told, errors = [], []

    def work() -> None:
        try:
            while len(told) < ENOUGH:
                told.append(log.append(b"v" * 1000))
        except DuramenError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    while len(told) < 40:
        pass
    log.tail.poison(StorageError("the disk is gone", path=log.path))
    for thread in threads:
        thread.join()
    assert len(errors) == 8
    log.close()
    with duramen.open(tmp_path / "log", "a") as again:
        assert again.next_offset >= max(told) + 1
