from typing import Any, Protocol

from duramen.kernel.layout import (
    AppendLimits,
    AppendNotes,
    AppendOutcome,
    AppendSeen,
    AppendState,
    Columns,
    RecordShape,
)

class _Word(Protocol):
    @property
    def address(self) -> int: ...

class DescriptorRecordWriter:
    """A record writer over open files, whose descriptors it duplicates: see `duramen.disk.RecordWriter`.

    ``index`` is the open index of chunks, if each gets its entry at once. ``word`` has the address of the page's
    counter, None without futex. ``places`` are absolute paths that must lead to the files with these devices and
    inodes, that of the lock first. ``rows`` are filled as an encoder does."""

    def __init__(
        self,
        file: int,
        index: int | None,
        page: int,
        word: _Word | None,
        places: tuple[tuple[bytes, int, int], ...],
        shape: RecordShape,
        rows: Columns,
        notes: AppendNotes,
    ) -> None: ...
    def arm(self, state: AppendState, limits: AppendLimits, slot: bytes, mark: Any) -> None: ...
    def append(
        self, value: bytes, headers: bytes | None, us: int, now_us: int, began_s: float, is_timed: bool
    ) -> int: ...
    def append_durably(self, value: bytes, headers: bytes | None, us: int, now_us: int, began_s: float) -> int: ...
    is_shared: bool
    can_publish: bool
    @property
    def is_idle(self) -> bool: ...
    @property
    def is_armed(self) -> bool: ...
    def publish(self, content: bytes, syncs: int) -> int: ...
    def seen(self) -> AppendSeen | None: ...
    def stop(self) -> None: ...
    def disarm(self) -> AppendOutcome: ...
    def retire(self) -> None: ...
