"""The log that people open: the engine's log, with its cursors, groups and producers on it.

The engine knows nothing of what stands above it, so these hang on subclasses; `duramen.open` answers one of them.
Nothing is read or written for them before they are asked for.
"""

from __future__ import annotations

from duramen.groups.cursors import Cursor, CursorState, cursors
from duramen.groups.producers import Producer, ProducerState, producers
from duramen.log.reader import Log
from duramen.log.writer import WritableLog


class ConsumableLog(Log):
    """A log opened for reading, with what its consumers keep beside it."""

    def cursor(self, name: str) -> Cursor:
        """A position under a name: ``load()``, ``store(offset)``, ``delete()``."""
        self._check_open()
        return Cursor(self, name)

    def cursors(self) -> list[CursorState]:
        """Every cursor of this log."""
        self._check_open()
        return cursors(self)

    def producers(self) -> list[ProducerState]:
        """Every producer that this log knows, with its last sequence."""
        self._check_open()
        return producers(self)


class ConsumableWritableLog(ConsumableLog, WritableLog):
    """A log opened for append, likewise."""

    def producer(self, name: str) -> Producer:
        """A sender whose appends can be repeated without being stored twice: ``append(value, sequence=n)``."""
        self._check_open()
        return Producer(self, name)
