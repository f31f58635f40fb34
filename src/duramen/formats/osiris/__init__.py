"""Osiris, the log of RabbitMQ Streams: chunks of records, an index of chunks, tracking in the log itself.

- `osiris`: the format (`Osiris`), with the byte diagram of its files; `segment` scans and decodes one file.
- `chunk`: one chunk as bytes; `fillers` are chunks that occupy missing offsets, `bloom_filter` the filter in a chunk.
- `tracking`: positions of consumers and sequences of producers; `trailers` attaches them to chunks of records, and
  `recode` rewrites such chunks with other options.
- `dump`: what `duramen dump` shows.

A record has no key and no headers, and the time of its chunk.
"""

from __future__ import annotations

from duramen.formats.osiris.chunk import delta_chunk, encode_chunk
from duramen.formats.osiris.osiris import Osiris
from duramen.formats.osiris.tracking import TrackingBlock, TrackingKind
