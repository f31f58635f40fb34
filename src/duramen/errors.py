"""One tree of errors. Each says what, where (path, position, offset) and what to do next.

``position`` is a byte in a file, ``offset`` a logical record number. Every error survives pickling, because
errors are raised in worker processes and shown in another one. Nothing here knows a format or opens a file.
"""

from __future__ import annotations

import os
from typing import Any


class DuramenError(Exception):
    """Base of every error that Duramen raises on purpose.

    >>> str(CorruptionError("checksum mismatch", path="00.log", position=68, offset=3, hint="run `duramen verify`"))
    '00.log: byte 68: offset 3: checksum mismatch (run `duramen verify`)'
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        position: int | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else os.fspath(path)
        self.position = position
        self.offset = offset
        self.hint = hint

    def __str__(self) -> str:
        parts = []
        if self.path is not None:
            parts.append(f"{self.path}: ")
        if self.position is not None:
            parts.append(f"byte {self.position}: ")
        if self.offset is not None:
            parts.append(f"offset {self.offset}: ")
        parts.append(self.message)
        if self.hint is not None:
            parts.append(f" ({self.hint})")
        return "".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, dict(self.__dict__), getattr(self, "errno", None)))


def _rebuild(kind: type[DuramenError], message: str, state: dict[str, Any], errno: int | None) -> DuramenError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    if errno is not None and isinstance(error, OSError):
        error.errno = errno
    return error


class UsageError(DuramenError, ValueError):
    """The caller asked for something that makes no sense: an unknown option, mode or format name."""

    exit_code = 2


class UnsupportedFieldError(UsageError):
    """A record holds a field that the format has no place for."""


class LateTimestampError(UsageError):
    """A record's time is before that of the record that precedes it, in a format whose times never go back."""


class DetectionError(DuramenError):
    """Which format a path holds cannot be told, or it holds none."""

    exit_code = 2


class UnknownTopicError(UsageError, LookupError):
    """A store has no topic of that name."""


class OffsetError(DuramenError, LookupError):
    """No record with that offset is in the log."""


class CorruptionError(DuramenError):
    """Bytes that once were whole are not any more."""

    exit_code = 1


class IncompleteHeaderError(CorruptionError):
    """A file ends inside its own header: the program that made it was stopped before it wrote a record."""


class UnknownVersionError(CorruptionError):
    """A version that this program does not know. Never truncated away and never skipped."""


class LimitError(DuramenError):
    """A length in a file exceeds a bound that keeps memory flat. The bound is an option."""

    exit_code = 1


class StorageError(DuramenError, OSError):
    """The operating system refused: missing path, no permission, full disk."""

    exit_code = 3


class LockedError(StorageError):
    """Another writer holds the log."""

    def __init__(self, message: str, *, note: bytes = b"", **place: Any) -> None:
        super().__init__(message, **place)
        self.note = note


class QueueTimeoutError(DuramenError, TimeoutError):
    """An append was not begun in time; nothing of it is stored."""


class PoisonedError(DuramenError):
    """A write or a sync failed before, so nothing can be promised any more. Reopening runs recovery."""


class LeaseError(DuramenError, LookupError):
    """A record is not held by whoever wants to acknowledge, return or extend it: its lease has expired, it was
    delivered again since, or it never was. ``refused`` names the offsets: (start, end, why) each."""

    exit_code = 2

    def __init__(self, message: str, *, refused: tuple[tuple[int, int, str], ...] = (), **place: Any) -> None:
        super().__init__(message, **place)
        self.refused = refused
