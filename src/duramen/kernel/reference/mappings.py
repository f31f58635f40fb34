"""Mappings whose pages may be lost: Python has no handler that could help, so nothing is guarded."""

from __future__ import annotations

from duramen.kernel.reference.columns import Buffer


def guard(mapping: Buffer) -> int:
    """Guard a mapping of a file: a page that is lost, because the file was shortened or cannot be read, reads as zeros,
    and so does all after it, instead of ending the process. Returns the number of the guard, -1 if there is none."""
    return -1


def lost_at(number: int) -> int:
    """Where the first lost page begins in the mapping; -1 if none was lost."""
    return -1


def unguard(number: int) -> None:
    """End a guard, before its mapping ends."""
