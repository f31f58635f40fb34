"""Checks of arguments. Each returns a valid argument; for any other it raises `UsageError` with the value and what is
allowed, so that no wrong argument surfaces as a raw TypeError from somewhere below."""

from __future__ import annotations

import os
from collections.abc import Collection
from numbers import Real
from typing import Any, SupportsIndex

from duramen.errors import UsageError

MOST = 2**63 - 1
LONGEST_S = 10 * 365 * 86_400
"""Longest time to wait, in seconds: ten years."""


def check_int(name: str, value: SupportsIndex, least: int = 0, most: int = MOST) -> int:
    """A whole number.

    >>> check_int("max_records", 5, least=1)
    5
    >>> check_int("max_records", "5")
    Traceback (most recent call last):
    duramen.errors.UsageError: max_records must be a whole number (got '5')
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise UsageError(f"{name} must be a whole number (got {value!r:.80})")
    number = value.__index__()
    if not least <= number <= most:
        raise UsageError(f"{name} must be {_range(least, most, number)} (got {number})")
    return number


def check_number(name: str, value: float, least: float = 0.0, most: float = MOST) -> float:
    """A number, whole or not.

    >>> check_number("linger_ms", float("nan"))
    Traceback (most recent call last):
    duramen.errors.UsageError: linger_ms must be a number (got nan)
    """
    if isinstance(value, bool) or not isinstance(value, Real) or value != value:
        raise UsageError(f"{name} must be a number (got {value!r:.80})")
    if not least <= value <= most:
        raise UsageError(f"{name} must be {_range(least, most, value)} (got {value!r:.80})")
    return float(value)


def check_timeout(timeout_s: float, name: str = "timeout_s") -> float:
    """Seconds to wait: none if negative, at most ten years.

    >>> check_timeout(-1), check_timeout(float("inf")) == LONGEST_S
    (0.0, True)
    """
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, Real) or timeout_s != timeout_s:
        raise UsageError(f"{name} must be a number of seconds (got {timeout_s!r:.80})")
    return float(min(max(timeout_s, 0), LONGEST_S))


def _range(least: float, most: float, value: float) -> str:
    shown = [int(bound) if bound == int(bound) else bound for bound in (least, most)]
    return f"at least {shown[0]}" if most == MOST and value < least else f"{shown[0]} to {shown[1]}"


def check_kind(name: str, value: Any, kind: type, hint: str | None = None) -> None:
    """An object of a class; None is allowed where the caller does not ask."""
    if not isinstance(value, kind):
        raise UsageError(f"{name} must be of type {kind.__name__} (got {value!r:.80})", hint=hint)


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """One of several words.

    >>> check_choice("on_damage", "ignore", ("raise", "truncate"))
    Traceback (most recent call last):
    duramen.errors.UsageError: on_damage must be 'raise' or 'truncate' (got 'ignore')
    """
    if not isinstance(value, str) or value not in choices:
        allowed = " or ".join(filter(None, (", ".join(map(repr, [*choices][:-1])), repr([*choices][-1]))))
        raise UsageError(f"{name} must be {allowed} (got {value!r:.80})")
    return value


def check_path(path: str | bytes | os.PathLike[str]) -> str:
    """A path as text.

    >>> check_path(b"events")
    'events'
    """
    try:
        text = os.fsdecode(path)
    except TypeError as error:
        raise UsageError(f"a path is text, bytes or a path object, not {path!r:.80}") from error
    if "\0" in text:
        raise UsageError(f"a path cannot contain a null character (got {text!r:.80})")
    return text
