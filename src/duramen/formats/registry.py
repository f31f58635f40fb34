"""The formats by name. A new format is one module and one line here."""

from __future__ import annotations

from typing import Any

from duramen.errors import UsageError
from duramen.formats.durable_log import DurableLog
from duramen.formats.fixed_slot import FixedSlot
from duramen.formats.format import Format
from duramen.formats.keratin import Keratin
from duramen.formats.osiris import Osiris
from duramen.formats.rustlog import RustLog

FORMATS: dict[str, type[Format]] = {kind.name: kind for kind in (DurableLog, Keratin, RustLog, Osiris, FixedSlot)}


def names() -> tuple[str, ...]:
    """The format names, in the order of the documentation."""
    return tuple(FORMATS)


def make(name: str, **options: Any) -> Format:
    """The format with that name and these options.

    >>> make("keratin").name
    'keratin'
    """
    try:
        kind = FORMATS[name]
    except KeyError:
        raise UsageError(f"unknown format {name!r}", hint=f"the formats: {', '.join(FORMATS)}") from None
    return kind(**options)
