"""The sink: ``df.write.format("duramen")`` and ``writeStream``, each batch exactly once.

`options` parses the options, `router` sends rows to logs, topics and partitions, `staging` holds the files that tasks
write, `sink` commits them: one transaction per batch, together with a ledger entry (query, batch). A task never opens a
log.
"""

from __future__ import annotations

from duramen.spark.sink.sink import make_stream_writer, make_writer
