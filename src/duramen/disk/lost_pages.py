"""Pages that were lost under the mappings of one check.

If a file is shortened while it is mapped, or the device cannot read it, the operating system ends the process that
reads the missing pages (`SIGBUS`). A check must survive both: another program, or the recovery of the next writer, may
cut what it reads, and a device that fails is a reason to run it. So `Disk.surviving` maps files whose lost pages read
as zeros, and `LostPages` lists them. The caller repeats a check that lost pages: it must not use what it read.

Verbs that write keep the plain mapping, and end: a copy of zeros would pass for the contents of the file.
"""

from __future__ import annotations

import mmap
import weakref

from duramen import kernel


class GuardedMap(mmap.mmap):
    """A mapping that survives the loss of its pages."""

    _number = -1

    def guard(self, path: str, lost: LostPages) -> None:
        self._path, self._lost = path, lost
        self._number = kernel.guard(memoryview(self))
        lost.live.add(self)

    def lost_at(self) -> tuple[str, int] | None:
        position = kernel.lost_at(self._number)
        return None if position < 0 else (self._path, position)

    def __del__(self) -> None:
        if self._number >= 0:
            found = self.lost_at()
            kernel.unguard(self._number)
            if found is not None:
                self._lost.ended.append(found)


class LostPages:
    """Where pages were lost: of mappings that ended, and of those that still exist."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, int]] = []
        self.live: weakref.WeakSet[GuardedMap] = weakref.WeakSet()

    def found(self) -> list[tuple[str, int]]:
        """The files that lost pages, and the position of the first lost page of each."""
        first: dict[str, int] = {}
        for path, position in [*self.ended, *filter(None, [mapping.lost_at() for mapping in list(self.live)])]:
            first[path] = min(position, first.get(path, position))
        return sorted(first.items())
