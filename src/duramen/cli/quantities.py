"""Parse sizes, durations and percentages given on the command line."""

from __future__ import annotations

import re

from duramen.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d|w)?", re.IGNORECASE)
_AGE_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def parse_bytes(name: str, text: str) -> int:
    """
    >>> parse_bytes("--max-bytes", "1.5GiB"), parse_bytes("--max-bytes", "10 MB"), parse_bytes("--max-bytes", "42")
    (1610612736, 10000000, 42)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{name} must be a size (got {text!r})", hint="for example 500MB, 1.5GiB or 1048576")
    step = " kmgt".index(found[2].lower() or " ")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** step)


def parse_age_ms(name: str, text: str) -> int:
    """
    >>> parse_age_ms("--max-age", "7d"), parse_age_ms("--max-age", "90 min"), parse_age_ms("--max-age", "30")
    (604800000, 5400000, 30000)
    """
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{name} must be a duration (got {text!r})", hint="for example 7d, 12h, 30min or 45s")
    return int(float(found[1]) * _AGE_MS[(found[2] or "s").lower()])


def parse_percent(name: str, text: str) -> float:
    """
    >>> parse_percent("--keep-free", "15%")
    15.0
    """
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise UsageError(f"{name} must be a percentage from 0 to 100 (got {text!r})", hint="for example 15%")
    return value
