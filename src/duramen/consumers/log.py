"""The logs that `duramen.open` returns: the engine's log with methods for cursors, groups and producers.

The engine does not know its consumers, so these are subclasses. They read and write consumer state on demand, with one
exception: opening a log for append rewinds groups that refer to records lost in a power failure.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from duramen.consumers.cursors import Cursor, CursorState, cursors
from duramen.consumers.files import group_files
from duramen.consumers.groups import Group, GroupOptions, check_group_options, load
from duramen.consumers.lag import ConsumerLag, consumer_lags, needed_from
from duramen.consumers.producers import Producer, ProducerState, producers
from duramen.errors import CorruptionError, ReadOnlyError, UsageError
from duramen.log import Log, WritableLog
from duramen.names import check_name
from duramen.sidecar import Need


class ConsumableLog(Log):
    """A log opened for reading, with its cursors and groups."""

    _groups: dict[str, tuple[Group, GroupOptions]] | None = None

    if not TYPE_CHECKING:

        @wraps(Log.__init__)
        def __new__(cls, *_args: Any, **_options: Any) -> ConsumableLog:
            return super().__new__(ReadOnlyLog if cls is ConsumableLog else cls)

    def cursor(self, name: str) -> Cursor:
        """The cursor with this name: ``load()``, ``store(offset)``, ``delete()``."""
        self._check_open()
        return Cursor(self, name)

    def cursors(self) -> list[CursorState]:
        """Every cursor of this log."""
        self._check_open()
        return cursors(self)

    def groups(self) -> list[ConsumerLag]:
        """Every consumer group with its lag."""
        self._check_open()
        return [one for one in consumer_lags(self) if one.kind == "group"]

    def group(self, /, name: str, *, consumer: str | None = None, **options: Unpack[GroupOptions]) -> Group:
        """The consumer group with this name: ``consume()``, ``fetch(max, lease)``, ``ack``, ``nack``, ``extend``. See
        `Group` for the options. ``consumer`` is the name that `Group.members` shows for this handle (default: host and
        process). Threads that use the same group share its state, and thereby the cost of syncing."""
        check_group_options(options)
        if consumer is not None:
            check_name("consumer", consumer)
        group = self._group(name, options)
        return group if consumer is None else group.as_consumer(consumer)

    def _group(self, name: str, options: GroupOptions) -> Group:
        self._check_open()
        check_name("group", name)
        with self._guard:
            if self._groups is None:
                self._groups = {}
            known = self._groups.get(name)
            is_changed = known is not None and bool(options) and options != known[1]
            if known is not None and is_changed and options.get("update_policy"):
                known[0].close()  # it has the policy of before
            if known is None or not known[0].is_usable:
                group = Group(self, name, **options)
                if known is not None and known[0].is_poisoned:
                    group.distrust()
                self._groups[name] = known = (group, options)
            elif is_changed:
                raise UsageError(
                    f"the group {name!r} is already open with other options: {known[1]}", path=self.path,
                    hint="use the same options or none, or change them for all with update_policy=True",
                )  # fmt: skip
            return known[0]

    def producers(self) -> list[ProducerState]:
        """Every known producer with its last sequence."""
        self._check_open()
        return producers(self)

    def needs(self) -> list[Need]:
        return needed_from(self)

    def close(self) -> None:
        """Close the groups and the log's files."""
        for group, _ in (self._groups or {}).values():
            group.close()
        super().close()


class ConsumableWritableLog(ConsumableLog, WritableLog):
    """A log opened for append, with its cursors, groups and producers."""

    __init__ = WritableLog.__init__  # its signature, instead of that of the reader

    def producer(self, name: str) -> Producer:
        """The producer with this name; the log stores a repeated ``append(value, sequence=n)`` once."""
        self._check_open()
        return Producer(self, name)


class ReadOnlyLog(ConsumableLog):
    """What ``ConsumableLog(path)`` makes: it refuses the methods of a writer by name. The writer's class must not have
    a ``__getattr__``: Python would then take a slow way to every attribute of every append."""

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(ConsumableWritableLog, name):
            raise ReadOnlyError(
                f"{name} needs a log that is open for append, and this one is open for reading", path=self.path,
                hint='open it with mode "a"',
            )  # fmt: skip
        raise AttributeError(f"{ConsumableLog.__name__!r} object has no attribute {name!r}", name=name, obj=self)


def rewind_groups(log: WritableLog) -> None:
    """Make groups forget records lost in a power failure, before new records reuse their offsets."""
    for place in group_files(log) if log.is_directory else ():
        try:
            if load(log.disk, place).machine.top() > log.next_offset:
                Group(log, place.name.group).rewind()
        except (CorruptionError, UsageError):
            continue  # the group itself raises this error on use; the log is intact


WritableLog.after_opening.append(rewind_groups)
