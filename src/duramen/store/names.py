"""Valid names of topics and partitions, and addresses of the form ``topic[/partition]``.

A topic's name is the name of its directory. Kafka's rules apply, so no name can lead out of the store.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from duramen.errors import UsageError

MAX_PARTITIONS = 100_000

MAX_TOPIC_BYTES = 249

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,5}")


def is_topic(name: str) -> bool:
    """Whether a name is valid for a topic.

    >>> is_topic("orders.eu-1"), is_topic(".."), is_topic("a/b")
    (True, False, False)
    """
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def check_topic(name: object) -> str:
    """Return a valid name: 1 to 249 of ``A-Z a-z 0-9 . _ -``, but not ``.`` or ``..``. Otherwise `UsageError`."""
    if not isinstance(name, str) or not is_topic(name):
        shown = repr(name)
        raise UsageError(
            f"invalid topic name: {shown if len(shown) <= 60 else shown[:60] + '…'}",
            hint=f"use 1 to {MAX_TOPIC_BYTES} letters, digits, dots, dashes and underscores, but not '.' or '..'",
        )
    return name


class Address(NamedTuple):
    """A topic, or one of its partitions.

    >>> Address.parse("orders/3")
    Address(topic='orders', partition=3)
    >>> Address.parse("orders").partition is None
    True
    """

    topic: str
    partition: int | None = None

    @classmethod
    def parse(cls, text: str) -> Address:
        topic, slash, partition = text.partition("/")
        check_topic(topic)
        number = parse_partition(partition)
        if slash and number is None:
            raise UsageError(f"invalid partition number: {partition!r}", hint="write TOPIC or TOPIC/NUMBER")
        return cls(topic, number)

    def __str__(self) -> str:
        return self.topic if self.partition is None else f"{self.topic}/{self.partition}"


def parse_partition(name: str) -> int | None:
    """The partition's number for a directory name; None for other directories."""
    if _NUMBER.fullmatch(name) is None or int(name) >= MAX_PARTITIONS:
        return None
    return int(name)


def check_partition(number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < MAX_PARTITIONS:
        raise UsageError(f"a partition must be a number from 0 to {MAX_PARTITIONS - 1} (got {number!r})")
    return number
