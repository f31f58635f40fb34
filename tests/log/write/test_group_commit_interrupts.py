"""An exception from outside, as ctrl-C is one, wherever the interpreter looks for signals in the group commit. Whoever
is hit is gone; nobody else may wait for it."""

from __future__ import annotations

import dis
import sys
import threading
import time
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

import pytest

from duramen.errors import PoisonedError
from duramen.log.write import group_commit as module
from duramen.log.write.group_commit import GroupCommit, GroupLimits, Request

PATIENCE_S = 10
OTHERS = 3
_LOOKS_BEHIND, _LOOKS_AT = ("CALL", "RESUME"), ("JUMP_BACKWARD",)
"""Behind these instructions, or at them, the interpreter runs the handlers of signals."""


class Interrupted(BaseException):
    pass


class Interrupter:
    """Traces one thread, and raises at the n-th place in the module, or in those whose path ends so."""

    def __init__(self, places: int, modules: str | tuple[str, ...] = module.__file__) -> None:
        self.left = places
        self._modules = modules
        self._points: dict[CodeType, set[int]] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(self._modules):
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode" and frame.f_lasti in self._points_of(frame.f_code):
            self.left -= 1
            if not self.left:
                raise Interrupted
        return self._step

    def _points_of(self, code: CodeType) -> set[int]:
        found = self._points.get(code)
        if found is None:
            found = self._points[code] = set()
            for step, after in pairwise(dis.get_instructions(code)):
                if step.opname.startswith(_LOOKS_BEHIND):
                    found.add(after.offset)
                elif step.opname.startswith(_LOOKS_AT):
                    found.add(step.offset)
        return found


def commit_slowly(group: list[Request]) -> None:
    time.sleep(0.0002)
    for request in group:
        request.result = "done"


def others(commit: GroupCommit, wrong: list[BaseException]) -> list[threading.Thread]:
    def work() -> None:
        try:
            for _ in range(4):
                try:
                    assert commit.submit(Request("other", 1, 1)) == "done"
                except PoisonedError:
                    pass  # its leader was interrupted
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(OTHERS)]
    for thread in threads:
        thread.start()
    return threads


def interrupt(commit: GroupCommit, place: int) -> bool:
    """Submit, and be interrupted on the way; False where that took fewer places."""
    sys.settrace(interrupter := Interrupter(place))
    try:
        for _ in range(2):
            commit.submit(Request("victim", 1, 1))
    except Interrupted:
        pass
    except PoisonedError:
        return True
    finally:
        sys.settrace(None)
    return interrupter.left <= 0


@pytest.mark.parametrize("limits", [GroupLimits(), GroupLimits(linger_ms=1), GroupLimits(queue_bytes=2)], ids=str)
def test_no_append_waits_for_an_interrupted_one(limits: GroupLimits) -> None:
    wrong: list[BaseException] = []
    hits = 0
    before = sys.gettrace()
    try:
        for place in 3 * list(range(1, 80)):
            commit = GroupCommit(commit_slowly, limits)
            commit._crowd, commit._patience_s = place % 5, 0.001
            threads = others(commit, wrong)
            hits += interrupt(commit, place)
            for thread in threads:
                thread.join(PATIENCE_S)
            assert not any(thread.is_alive() for thread in threads), f"place {place}"
            assert not wrong, f"place {place}: {wrong}"
            assert (commit._leader, len(commit._queue), commit._patient) == (None, 0, None), f"place {place}"
            assert commit._queued_bytes == commit._queued_records == commit._waiting == 0, f"place {place}"
            assert commit.submit(Request("afterwards", 1, 1)) == "done"
    finally:
        sys.settrace(before)
    least = 60 if sys.version_info < (3, 12) else 20  # later versions trace fewer places
    assert hits > least, "it was interrupted in many places"
