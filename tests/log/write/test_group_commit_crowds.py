"""Group commit under crowds that nobody would write down: limits, patience, timeouts, interrupts and requests that must
be alone, drawn at random. Whatever happens, one leads at a time, everybody is answered once, and nothing is left."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from duramen.errors import QueueTimeoutError
from duramen.log.write.group_commit import GroupCommit, GroupLimits, Request

PATIENCE_S = 30.0
ROUNDS = 50


class Interrupted(BaseException):
    pass


class Scene:
    """One queue, and threads that use it."""

    def __init__(self, seed: str) -> None:
        self.random = draw = random.Random(seed)
        self.commit = GroupCommit(
            self._act,
            GroupLimits(
                max_bytes=draw.choice([15, 50, 10**6]),
                max_records=draw.choice([2, 100]),
                linger_ms=draw.choice([0, 0, 0.1]),
                queue_bytes=draw.choice([25, 100, 10**6]),
            ),
        )
        self.interrupts = draw.choice([0.0, 0.0, 0.02])
        self._delay_s = draw.choice([0.0, 0.0, 1e-4, 5e-4])
        self._busy = threading.Lock()
        self.committed: list[Any] = []
        self.answered: list[Any] = []
        self.late: list[Any] = []
        self.failures: list[BaseException] = []

    def _act(self, group: list[Request]) -> None:
        assert self._busy.acquire(blocking=False), "two lead at once"
        try:
            assert len(group) == 1 or not any(request.alone for request in group)
            time.sleep(self._delay_s)
            for request in group:
                self.committed.append(request.work)
                request.result = ("done", request.work)
        finally:
            self._busy.release()

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._appender, args=(name, self.random.random()), daemon=True)
            for name in range(self.random.choice([2, 4, 8, 16]))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "somebody was never woken"

    def _appender(self, name: int, seed: float) -> None:
        draw = random.Random(seed)

        class Interruptible(Request):
            def sleep(inner, deadline: float | None) -> bool:  # noqa: N805
                answer = super().sleep(deadline)
                if draw.random() < self.interrupts:
                    raise Interrupted
                return answer

        for number in range(20):
            work = (name, number)
            request = Interruptible(work, draw.choice([1, 10, 20, 30]), 1, draw.random() < 0.1)
            try:
                assert self.commit.submit(request, draw.choice([None, None, 0.0005, 0.01])) == ("done", work)
                self.answered.append(work)
            except QueueTimeoutError:
                self.late.append(work)
            except Interrupted:
                pass
            except BaseException as error:  # noqa: BLE001
                self.failures.append(error)


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads change places far more often than they would."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("patience", [0.5, 20.0])
def test_any_crowd_is_acknowledged(patience: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.log.write.group_commit.PATIENCE", patience)
    first = random.randrange(10**9)
    for seed in range(first, first + ROUNDS):
        scene = Scene(f"{seed}")
        scene.run()
        about = f"seed {seed}"
        assert not scene.failures, about
        assert len(set(scene.committed)) == len(scene.committed), about
        assert set(scene.answered) <= set(scene.committed), about
        assert not set(scene.late) & set(scene.committed), about
        commit = scene.commit
        assert (commit._leader, len(commit._queue), commit._patient) == (None, 0, None), about
        assert commit._queued_bytes == commit._queued_records == commit._queued_alone == commit._waiting == 0, about
