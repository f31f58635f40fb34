"""The messages of Kafka's older formats 0 and 1, and those that a compressed message wraps.

A message has its offset before it. The offset of a wrapping message is that of the last one inside. Inside, messages of
format 0 have their own offsets; those of format 1 count from the first, and take the time of the wrapping message where
that is a LogAppendTime. See `batches.h` in the kernel for the bytes.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from duramen.errors import CorruptionError
from duramen.formats.struct import Struct
from duramen.kernel import CODEC, NULL_LENGTH, crc32

MESSAGE = {
    0: Struct(">", offset="q", size="i", crc="I", magic="b", attributes="B"),
    1: Struct(">", offset="q", size="i", crc="I", magic="b", attributes="B", timestamp="q"),
}
_PREFIX_BYTES = 12
_MAGIC_AT = 16


class Message(NamedTuple):
    """One message: where it starts, and the position and length of key and value."""

    offset: int
    timestamp: int
    position: int
    key: tuple[int, int]
    value: tuple[int, int]
    end: int


def _signed(view: memoryview, at: int, width: int) -> int:
    return int.from_bytes(view[at : at + width], "big", signed=True)


def _field(view: memoryview, at: int, end: int) -> tuple[tuple[int, int], int]:
    """The position and length of the bytes at ``at``, and where they end."""
    length = _signed(view, at, 4)
    if end - at < 4 or not -1 <= length <= end - at - 4:
        raise CorruptionError("a length exceeds its message", position=at)
    return (at + 4, NULL_LENGTH if length < 0 else length), at + 4 + max(length, 0)


def message_at(view: memoryview, position: int, end: int | None = None) -> Message:
    """The message at ``position``. Raises `CorruptionError` where the bytes up to ``end`` are not one."""
    end = len(view) if end is None else end
    if end - position <= _MAGIC_AT or view[position + _MAGIC_AT] > 1:
        raise CorruptionError("no message is here", position=position)
    head = MESSAGE[view[position + _MAGIC_AT]]
    size = _signed(view, position + 8, 4)
    stop = position + _PREFIX_BYTES + size
    if size < head.size - _PREFIX_BYTES + 8 or stop > end:
        raise CorruptionError("a message exceeds the data", position=position)
    key, at = _field(view, position + head.size, stop)
    value, at = _field(view, at, stop)
    if at != stop:
        raise CorruptionError("a message does not fill its size", position=position)
    timestamp = _signed(view, position + head.at("timestamp"), 8) if "timestamp" in head.names else -1
    return Message(_signed(view, position, 8), timestamp, position, key, value, stop)


def value_at(view: memoryview, start: int, stop: int) -> tuple[int, int]:
    """Position and length of the value of the message whose key length is at ``start``; no bytes where it is null."""
    _, at = _field(view, start, stop)
    (position, length), _ = _field(view, at, stop)
    return position, 0 if length == NULL_LENGTH else length


def _check_inner(view: memoryview, message: Message) -> None:
    """Raise where Kafka's consumer refuses a message inside of another one: a client checked neither."""
    head = MESSAGE[view[message.position + _MAGIC_AT]].unpack(view, message.position)
    if int(head["attributes"]) & CODEC:
        raise CorruptionError("one of them is compressed again", position=message.position)
    if crc32(view[message.position + _MAGIC_AT : message.end]) != head["crc"]:
        raise CorruptionError("checksum mismatch", position=message.position)


def wrapped(plain: memoryview, start: int, end: int, magic: int, last_offset: int, *, position: int) -> list[Message]:
    """The messages inside of a compressed one, with the offsets of the log. ``position`` is where that one lies."""
    found: list[Message] = []
    try:
        at = start
        while at < end:
            found.append(message_at(plain, at, end))
            _check_inner(plain, found[-1])
            at = found[-1].end
    except CorruptionError as error:
        raise CorruptionError(f"the messages inside are damaged: {error.message}", position=position) from None
    if not found:
        raise CorruptionError("the compressed message holds no message", position=position)
    if magic == 1:
        shift = last_offset - found[-1].offset
        found = [message._replace(offset=message.offset + shift) for message in found]
    offsets = [message.offset for message in found]
    if offsets[-1] != last_offset:  # a broker sets it, and no checksum covers it
        raise CorruptionError("its offset is not that of the last message inside", position=position)
    if offsets[0] < 0 or any(b <= a for a, b in itertools.pairwise(offsets)):
        raise CorruptionError("the offsets of the messages inside do not increase", position=position)
    return found
