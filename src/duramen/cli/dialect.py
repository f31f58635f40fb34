"""The line that names the dialect of a new log and the option that selects the other one."""

from __future__ import annotations

from duramen.cli.output import Cell, Output
from duramen.formats import DOCUMENT, FORMATS, PROGRAM


def dialect_line(format_name: str, dialect: str) -> str:
    """The dialect of a new log, and the option for the other dialect.

    >>> dialect_line("rustlog", "program")
    'dialect: program (12-byte record headers without a time); `dialect=document`: 20-byte record headers with a time'
    """
    meanings = FORMATS[format_name].dialects
    if not meanings:
        return f"dialect: {DOCUMENT} and {PROGRAM} are the same in {format_name}"
    other = DOCUMENT if dialect == PROGRAM else PROGRAM
    return f"dialect: {dialect} ({meanings[dialect]}); `dialect={other}`: {meanings[other]}"


def show_dialect(out: Output, format_name: str, dialect: str) -> None:
    out.line(Cell(f"  {dialect_line(format_name, dialect)}", "note"))
