"""The five formats, pure bytes: one module each, plus the registry and `detect`.

`make` turns a name and options into a `Format`; `detect` says which format a directory or a file holds, and why.
No file is opened here: whoever asks brings the names and the bytes.
"""

from __future__ import annotations

from duramen.formats.base import Format
from duramen.formats.registry import FORMATS, make, names

__all__ = ["FORMATS", "Format", "make", "names"]
