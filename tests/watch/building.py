"""Logs to look at, made cheaply."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import duramen
from duramen.formats import ScanPosition, make
from duramen.store.layout import partition_path


def many_segments(root: Path, count: int) -> Path:
    """A log of so many segments of one record each, written as another program would: no index, no sidecar."""
    fmt = make("durable-log")
    root.mkdir(parents=True)
    values = pa.array([b"record %d" % offset for offset in range(count)])
    batch = pa.record_batch({"offset": pa.array(range(count)), "value": values})
    header = fmt.segment_header(0, 0)
    for offset in range(count):
        encoded = fmt.encode(batch.slice(offset, 1), ScanPosition(len(header), offset - 1))
        (root / fmt.segment_path(offset)).write_bytes(fmt.segment_header(offset, 0) + bytes(encoded.data))
    return root


def many_topics(root: Path, count: int) -> Path:
    """A store of so many topics with one partition each: one log, copied file by file."""
    first = Path(partition_path(str(root), "topic-0000", 0))
    with duramen.open(first, "a", format="durable-log") as log:
        log.append_batch([b"a", b"b", b"c"])
    files = {path.relative_to(first): path.read_bytes() for path in first.rglob("*") if path.is_file()}
    for number in range(1, count):
        place = Path(partition_path(str(root), f"topic-{number:04}", 0))
        (place / ".duramen").mkdir(parents=True)
        for name, content in files.items():
            (place / name).write_bytes(content)
    return root
