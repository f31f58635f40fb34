"""Addresses: ``PATH#topic`` and ``PATH#topic/partition`` beside plain paths, for every verb that takes a log.

A partition is a log like any other, so its address is turned into its path, and no verb knows more. A whole topic is
something that only some verbs can work on. A file or directory whose own name holds a ``#`` is what it is.
"""

from __future__ import annotations

from typing import NamedTuple

from duramen.disk import PosixDisk
from duramen.disk.base import Kind
from duramen.errors import UsageError
from duramen.store import layout
from duramen.store.names import Address


class TopicAddress(NamedTuple):
    """A topic as the user named it."""

    root: str
    topic: str

    def __str__(self) -> str:
        return f"{self.root}#{self.topic}"


def parse(text: str) -> tuple[str, Address] | None:
    """The root, and the topic with its partition; None for a plain path.

    >>> parse("data#orders/3")
    ('data', Address(topic='orders', partition=3))
    >>> parse("data") is None
    True
    """
    root, hash_, rest = text.rpartition("#")
    if not hash_ or not root or PosixDisk().kind(text) != Kind.MISSING:
        return None
    return root, Address.parse(rest)


def topic_of(text: str) -> TopicAddress | None:
    """The topic that is meant as a whole; None for a plain path and for one partition. It has to be there."""
    found = parse(text)
    if found is None or found[1].partition is not None:
        return None
    root, address = found
    layout.check_there(PosixDisk(), root, address.topic)
    return TopicAddress(root, address.topic)


def path_of(text: str) -> str:
    """The path of a log: of a partition where the text is an address. Refuses a whole topic."""
    found = parse(text)
    if found is None:
        return text
    root, (topic, number) = found
    parts = layout.list_partitions(PosixDisk(), root, topic)
    if number is None:
        raise UsageError(
            f"{topic!r} is a topic with {len(parts)} partitions, and one is needed", path=root,
            hint=f"write {root}#{topic}/0",
        )  # fmt: skip
    if number not in [part.number for part in parts]:
        known = ", ".join(str(part.number) for part in parts[:8]) or "none"
        raise UsageError(f"the topic {topic!r} has no partition {number}", path=root, hint=f"there are {known}")
    return layout.partition_path(root, topic, number)
