"""What a converted log remembers of the logs it was made from: ``.duramen/origin.json`` and ``origin.chunks``.

A format has no place for where another one's segments and chunks began, when they were made and with which options.
Kept beside the records, it lets a conversion back give the same files again. The chunks are a list of their first
offsets, int64 little-endian, which is read where it lies. Derived, like all of the sidecar: without it the way
back keeps every record and may cut segments elsewhere.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from duramen.disk import Disk
from duramen.disk.base import Kind, write_all
from duramen.kernel.layout import Int64s
from duramen.log.sidecar import DIRECTORY, VERSION

PATH = posixpath.join(DIRECTORY, "origin.json")
CHUNKS_PATH = posixpath.join(DIRECTORY, "origin.chunks")
CHUNK_ID = "chunk_id"


class Boundary(NamedTuple):
    """Where a segment begins: its base, its first record (None: it is empty), and when it was made."""

    base: int
    first_offset: int | None
    created_ms: int


@dataclass(frozen=True)
class Origin:
    """A log of one format, as it was when it was converted."""

    options: Mapping[str, Any]
    next_offset: int
    segments: tuple[Boundary, ...]


def read(disk: Disk, root: str) -> dict[str, Origin]:
    """By format. Empty where there is none, or none that can be read: nothing depends on it."""
    path = posixpath.join(root, PATH)
    if disk.kind(path) != Kind.FILE:
        return {}
    try:
        tree = json.loads(bytes(disk.map(path).data))
        if tree["duramen"] != VERSION:
            return {}
        return {
            str(name): Origin(
                dict(entry["options"]),
                int(entry["next_offset"]),
                tuple(Boundary(int(b), None if f is None else int(f), int(c)) for b, f, c in entry["segments"]),
            )
            for name, entry in tree["origins"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def encode(origins: Mapping[str, Origin]) -> bytes:
    tree = {"duramen": VERSION, "origins": {name: asdict(origin) for name, origin in origins.items()}}
    return json.dumps(tree, sort_keys=True).encode() + b"\n"


class ChunkList:
    """Writes down where chunks begin, as batches with their ``chunk_id`` go by."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._file = disk.create(posixpath.join(root, CHUNKS_PATH))
        self._size_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """A chunk never goes on in the next batch."""
        starts = np.unique(batch.column(CHUNK_ID).to_numpy()).astype("<i8").tobytes()
        write_all(self._file, self._size_bytes, starts)
        self._size_bytes += len(starts)

    def finish(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class KnownChunks:
    """Where the chunks of the original log began."""

    def __init__(self, starts: Int64s, next_offset: int) -> None:
        self._starts = starts
        self._next_offset = next_offset

    @classmethod
    def read(cls, disk: Disk, root: str, next_offset: int) -> KnownChunks | None:
        path = posixpath.join(root, CHUNKS_PATH)
        if disk.kind(path) != Kind.FILE or disk.size(path) % 8:
            return None
        return cls(np.frombuffer(disk.map(path).data, "<i8").astype(np.int64, copy=False), next_offset)

    def mark(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the ``chunk_id`` that each row had; what came later has none."""
        offsets = batch.column("offset").to_numpy()
        low, high = (int(np.searchsorted(self._starts, o, side="right")) for o in (offsets[0], offsets[-1]))
        near = np.concatenate(([-1], self._starts[max(low - 1, 0) : high]))
        known = near[np.searchsorted(near, offsets, side="right") - 1]
        known = np.where(offsets < self._next_offset, known, -1)
        return batch.append_column(pa.field(CHUNK_ID, pa.int64(), nullable=False), pa.array(known))
