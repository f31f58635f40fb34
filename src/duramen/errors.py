"""The tree of errors. Each error states what is wrong, where (path, position, offset) and what to do next.

``position`` is a byte in a file, ``offset`` a logical record number. Every error can be pickled, because worker
processes raise errors that another process shows.
"""

from __future__ import annotations

import os
from typing import Any


def printable(what: object) -> str:
    """Text for a log message: any handler can write it, even if it names a path that is not UTF-8.

    >>> printable("caf\\udce9")
    'caf\\\\udce9'
    """
    return str(what).encode("utf-8", "backslashreplace").decode()


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
    """The caller passed something invalid: an unknown option, mode or format name."""

    exit_code = 2


class ReadOnlyError(UsageError, AttributeError):
    """The log is open for reading, and the call needs mode ``"a"``."""


class UnsupportedFieldError(UsageError):
    """A record holds a field that the format cannot store."""


class LateTimestampError(UsageError):
    """A record's time is before that of the previous record, in a format whose times must not decrease."""


class DetectionError(DuramenError):
    """The format of a path cannot be detected, or the path holds no log."""

    exit_code = 2


class UnknownTopicError(UsageError, LookupError):
    """The store has no topic of that name."""


class OffsetError(DuramenError, LookupError):
    """The log holds no record with that offset."""


class CorruptionError(DuramenError):
    """Stored bytes are damaged."""

    exit_code = 1


class IncompleteHeaderError(CorruptionError):
    """A file ends within its header: its writer stopped before it wrote a record."""


class UnknownVersionError(CorruptionError):
    """A version that this program does not know. Such data is never truncated and never skipped."""


class MalformedError(CorruptionError):
    """A value or key does not decode as asked for. The record itself is sound; ``offset`` names it."""


class LimitError(DuramenError):
    """A length in a file exceeds a limit that bounds memory. The limit is an option."""

    exit_code = 1


class StorageError(DuramenError, OSError):
    """The operating system reported an error: missing path, no permission, full disk."""

    exit_code = 3


class LockedError(StorageError):
    """Another writer holds the log. ``is_own``: in this process. ``is_foreign``: it is the format's own program."""

    def __init__(
        self, message: str, *, note: bytes = b"", is_own: bool = False, is_foreign: bool = False, **place: Any
    ) -> None:
        super().__init__(message, **place)
        self.note = note
        self.is_own = is_own
        self.is_foreign = is_foreign


class QueueTimeoutError(DuramenError, TimeoutError):
    """An append did not start in time; nothing of it is stored."""


class PoisonedError(DuramenError):
    """An earlier write or sync failed, so the on-disk state is unknown. Reopening the log runs recovery."""


class FencedError(PoisonedError):
    """The log's directory, its ``.duramen/`` or its active segment was deleted or replaced while it was open for
    writing. The writer acknowledges nothing more: another writer may have the log, or no path may lead to what is
    written. Close the log."""


class LeaseError(DuramenError, LookupError):
    """The consumer does not hold a record that it wants to acknowledge, return or extend: the lease has expired, or the
    record was delivered again or never. ``refused`` lists the offsets as (start, end, why)."""

    exit_code = 2

    def __init__(self, message: str, *, refused: tuple[tuple[int, int, str], ...] = (), **place: Any) -> None:
        super().__init__(message, **place)
        self.refused = refused
