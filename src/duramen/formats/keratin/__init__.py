"""Keratin: segments with checked headers and user headers, two sparse indexes, a manifest, consumer groups.

- `keratin`: the format (`Keratin`), with the byte diagram of segments and indexes.
- `header_block`: the user headers of a record, which hold its key and headers.
- `manifest`: ``manifest.bin`` in the layouts of the document and of Keratin's program.

The state of consumer groups, also part of a Keratin log, is the package `stroma`.
"""

from __future__ import annotations

from duramen.formats.keratin.keratin import Keratin
