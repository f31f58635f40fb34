"""The cases of recovery, and the step that a log reports for each case that recovery met."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Self


class RecoveryCase(StrEnum):
    """What recovery met. ``action`` is what it does then, for people."""

    action: str

    def __new__(cls, name: str, action: str) -> Self:
        case = str.__new__(cls, name)
        case._value_ = name
        case.action = action
        return case

    FRESH = "fresh", "create the first segment"
    CLEAN = "clean", "append after them"
    ZEROS = "zeros", "cut the zeros"
    TORN = "torn tail", "copy the bytes aside, cut them"
    UNSYNCED = "unsynced pieces", "copy the bytes aside, cut them: none of them was acknowledged as durable"
    UNPROVEN = "unproven tail", "copy the bytes aside, cut them"
    NEVER_BEGUN = "never begun", "recreate it"
    SEALED = "sealed", "create a new segment after it"
    CONTINUED = "continued", "make it the active segment"
    INDEX = "index", "copy it aside if it exists, rebuild it from the records"
    LEFTOVER = "leftover", "remove it"
    CHANGE = "unfinished change", "finish it"
    UNCOMMITTED = "uncommitted transaction", "roll back its rows without a copy: they were never acknowledged"
    COMMITTED = "committed transaction", "show its rows to readers"
    CUT = "damage, cut on request", "copy the bytes and the watermark that they contradict aside, cut them"
    DAMAGE = "damage", "raise, change nothing"


CUTS = frozenset({RecoveryCase.TORN, RecoveryCase.UNSYNCED, RecoveryCase.UNPROVEN, RecoveryCase.CUT})
"""The cases in which recovery cuts bytes."""


class RecoveryStep(NamedTuple):
    """One case that recovery met: where, and what it found there."""

    case: RecoveryCase
    path: str
    detail: str = ""
    position: int | None = None

    def __str__(self) -> str:
        where = self.path if self.position is None else f"{self.path}, byte {self.position}"
        return f"{self.case}: {where}: {self.case.action}{f' ({self.detail})' if self.detail else ''}"
