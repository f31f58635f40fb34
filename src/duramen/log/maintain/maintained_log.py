"""What retention and compaction need of a log: `PlannedLog` to plan, `MaintainedLog` to execute.

`Log` and `WritableLog` provide it. Maintenance is below both, so that a writer can run it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from duramen.disk import Disk
from duramen.formats import Format, SegmentSummary
from duramen.log.segments import ActiveSegment, Directory
from duramen.metrics import LogCounters
from duramen.sidecar import Need, Sidecar


class PlannedLog(Protocol):
    """A log that is open for reading or writing. `Log` describes the methods."""

    disk: Disk
    path: str

    @property
    def codec(self) -> Format: ...
    @property
    def durable_offset(self) -> int: ...
    def needs(self) -> list[Need]: ...
    def committed_directory(self) -> Directory: ...
    def check_going_on(self) -> None: ...


class MaintainedTail(Protocol):
    """The end of a log that is open for writing. `Appender` describes the methods."""

    active: ActiveSegment
    earlier: list[SegmentSummary]
    sidecar: Sidecar

    def log_files(self, earlier: list[SegmentSummary]) -> dict[str, bytes]: ...
    def poison(self, error: BaseException) -> None: ...


class MaintainedLog(PlannedLog, Protocol):
    """A log that is open for writing. `WritableLog` describes the methods."""

    counters: LogCounters

    @property
    def tail(self) -> MaintainedTail: ...
    @property
    def is_poisoned(self) -> bool: ...
    def exclusively(self, work: Callable[[], None]) -> None: ...
    def look_again(self) -> None: ...
    def seal(self) -> None: ...
