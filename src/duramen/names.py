"""Names of groups and cursors, encoded as file names that cannot leave their directory.

Letters, digits, ``.`` and ``-`` stay; all other bytes are percent-encoded, so neither ``/`` nor NUL reaches the file
system. Invalid are the empty name, ``.`` and ``..``, control characters (which could forge terminal output), invalid
Unicode, and names whose encoded form is too long for a file name.
"""

from __future__ import annotations

import re
import unicodedata

from duramen.errors import UsageError

MAX_ENCODED_BYTES = 200
"""File systems allow 255 bytes; the rest is for prefixes and suffixes."""

_UNSAFE = re.compile(rb"[^A-Za-z0-9.-]")
_ENCODED = re.compile(r"(?:[A-Za-z0-9.-]|%[0-9A-F]{2})+")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")


def check_name(kind: str, name: str) -> str:
    """Return a valid name, otherwise raise `UsageError`; ``kind`` appears in the message.

    >>> check_name("group", "billing")
    'billing'
    >>> check_name("group", "..")
    Traceback (most recent call last):
    duramen.errors.UsageError: '..' cannot be the name of a group: it means a directory
    """
    if not isinstance(name, str):
        raise UsageError(f"the name of a {kind} must be str (got {type(name).__name__})")
    problem = _problem(name)
    if problem is not None:
        shown = name if len(name) <= 60 else name[:60] + "…"
        raise UsageError(f"{shown!r} cannot be the name of a {kind}: {problem}")
    return name


def _problem(name: str) -> str | None:
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return "it means a directory"
    if any(unicodedata.category(char) == "Cc" for char in name):
        return "it contains a control character"
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(_percent(raw)) > MAX_ENCODED_BYTES:
        return f"as a file name it has {len(_percent(raw))} bytes, more than {MAX_ENCODED_BYTES}"
    return None


def _percent(raw: bytes) -> str:
    return _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], raw).decode("ascii")


def encode_name(name: str) -> str:
    """Encode a name as part of a file name.

    >>> encode_name("../a b")
    '..%2Fa%20b'
    """
    return _percent(name.encode())


def decode_name(encoded: str) -> str | None:
    """Decode what `encode_name` returned; None for anything else.

    >>> decode_name("..%2Fa%20b")
    '../a b'
    >>> decode_name("a b") is None
    True
    """
    if not _ENCODED.fullmatch(encoded):
        return None
    try:
        name = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), encoded.encode()).decode()
    except UnicodeDecodeError:
        return None
    return name if encode_name(name) == encoded else None
