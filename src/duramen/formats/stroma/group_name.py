"""Whose state a file of a consumer group holds: its name, and the hashes that a snapshot stores of it."""

from __future__ import annotations

import re
from typing import NamedTuple

from duramen.errors import UsageError


class GroupName(NamedTuple):
    """The topic, partition and group of a state file.

    >>> GroupName("orders", 0, "billing").stem
    'orders-0_billing'
    >>> GroupName.parse("a%5Fb-12_x-1")
    GroupName(topic='a_b', partition=12, group='x-1')
    """

    topic: str
    partition: int
    group: str

    @property
    def stem(self) -> str:
        """The file name without its suffix: names percent-encoded outside of ``[A-Za-z0-9.-]``."""
        if self.partition < 0:
            raise UsageError(f"partition must be at least 0 (got {self.partition})")
        return f"{_percent(self.topic)}-{self.partition}_{_percent(self.group)}"

    @classmethod
    def parse(cls, stem: str) -> GroupName | None:
        """The names in a stem; None for a stem that no group has."""
        match = _STEM.fullmatch(stem)
        if match is None:
            return None
        try:
            topic, group = (_unpercent(match[number]) for number in (1, 3))
        except UnicodeDecodeError:
            return None
        name = cls(topic, int(match[2]), group)
        return name if name.stem == stem else None

    @property
    def tp_hash(self) -> int:
        """Hash of "topic-partition"."""
        return fnv1a(f"{self.topic}-{self.partition}".encode())

    @property
    def group_hash(self) -> int:
        return fnv1a(self.group.encode())


_TEXT = r"((?:[A-Za-z0-9.-]|%[0-9A-F]{2})+)"
_STEM = re.compile(rf"{_TEXT}-(0|[1-9][0-9]{{0,18}})_{_TEXT}")
_UNSAFE = re.compile(rb"[^A-Za-z0-9.-]")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")


def _percent(text: str) -> str:
    if not text:
        raise UsageError("a topic or group must have a name")
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the name {text!r} is not Unicode text") from error
    return _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], raw).decode("ascii")


def _unpercent(text: str) -> str:
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode()).decode()


def fnv1a(data: bytes) -> int:
    """The 64-bit FNV-1a hash.

    >>> hex(fnv1a(b"billing"))
    '0x4005570295afd25c'
    """
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value
