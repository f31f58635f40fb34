"""The log that people open: the engine's log, with its cursors, groups and producers on it.

The engine knows nothing of what stands above it, so these hang on subclasses; `duramen.open` answers one of them.
Nothing is read or written for them before they are asked for, with one exception: a log that is opened for append looks
whether its groups know of records that a power loss took.
"""

from __future__ import annotations

from typing import Any

from duramen.errors import CorruptionError, UsageError
from duramen.groups.cursors import Cursor, CursorState, cursors
from duramen.groups.group import Group
from duramen.groups.journal import load
from duramen.groups.overview import needed_from
from duramen.groups.places import places
from duramen.groups.producers import Producer, ProducerState, producers
from duramen.log.holds import Need
from duramen.log.reader import Log
from duramen.log.writer import WritableLog


class ConsumableLog(Log):
    """A log opened for reading, with what its consumers keep beside it."""

    _groups: dict[str, tuple[Group, dict[str, Any]]] | None = None

    def cursor(self, name: str) -> Cursor:
        """A position under a name: ``load()``, ``store(offset)``, ``delete()``."""
        self._check_open()
        return Cursor(self, name)

    def cursors(self) -> list[CursorState]:
        """Every cursor of this log."""
        self._check_open()
        return cursors(self)

    def group(self, name: str, **options: Any) -> Group:
        """The consumer group of that name: ``fetch(max, lease)``, ``ack``, ``nack``, ``extend``. See `Group` for the
        options. Threads that ask for the same name share one object, and with it the cost of syncing."""
        self._check_open()
        with self._guard:
            if self._groups is None:
                self._groups = {}
            known = self._groups.get(name)
            if known is None or not known[0].is_usable:
                group = Group(self, name, **options)
                if known is not None and known[0].is_poisoned:
                    group.distrust()
                self._groups[name] = known = (group, options)
            elif options and options != known[1]:
                raise UsageError(f"the group {name!r} is in use with other options: {known[1]}", path=self.path)
            return known[0]

    def producers(self) -> list[ProducerState]:
        """Every producer that this log knows, with its last sequence."""
        self._check_open()
        return producers(self)

    def needs(self) -> list[Need]:
        return needed_from(self)

    def close(self) -> None:
        """Let go of all files."""
        for group, _ in (self._groups or {}).values():
            group.close()
        super().close()


class ConsumableWritableLog(ConsumableLog, WritableLog):
    """A log opened for append, likewise."""

    def producer(self, name: str) -> Producer:
        """A sender whose appends can be repeated without being stored twice: ``append(value, sequence=n)``."""
        self._check_open()
        return Producer(self, name)


def rewind_groups(log: WritableLog) -> None:
    """Have groups forget what a power loss took, before other records get its offsets."""
    for place in places(log) if log.is_directory else ():
        try:
            if load(log.disk, place).machine.top() > log.next_offset:
                Group(log, place.name.group).rewind()
        except (CorruptionError, UsageError):
            continue  # whoever uses that group is told; the log itself is whole


WritableLog.after_opening.append(rewind_groups)
