"""A check that retention overtakes: of all segments that were listed, none is there any more when they are looked at.

That is no damage and no error: what has taken their place is checked instead, and the report says so. Gives up where it
happens again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from duramen.errors import StorageError
from duramen.formats.base import Severity
from duramen.log.report import Finding, Report, counted

ATTEMPTS = 10


class OvertakenError(StorageError):
    """Of all segments that were listed none is there any more: others have taken their place."""

    def __init__(self, message: str, *, count: int = 0, **place: Any) -> None:
        super().__init__(message, **place)
        self.count = count


def until_it_holds(check: Callable[[], Report]) -> Report:
    """Check again what is there by now, where retention removed everything that was listed. Says so in the report."""
    overtaken: list[OvertakenError] = []
    while True:
        try:
            report = check()
        except OvertakenError as error:
            overtaken.append(error)
            if len(overtaken) == ATTEMPTS:
                raise
            continue
        if overtaken:
            report.findings.insert(0, _all_removed(overtaken, report))
        return report


def _all_removed(overtaken: Sequence[OvertakenError], report: Report) -> Finding:
    """The note that what was listed first is not what was checked."""
    last = min((segment.base_offset for segment in report.segments), default=0) - 1
    first = overtaken[0].offset
    return Finding(
        "segments-removed", Severity.NOTE, report.path,
        counted(sum(error.count for error in overtaken), "segment was removed", "segments were removed")
        + " meanwhile: all that were listed. What has taken their place was checked",
        "nothing: retention removes from the beginning", first_offset=first,
        last_offset=last if first is not None and last >= first else None,
    )  # fmt: skip
