"""What a converted log remembers of the logs it was made from: ``.duramen/origin.json`` and ``origin.chunks``.

No format can store where the segments and chunks of another one began, when they were created and with which options.
With these files a conversion back restores the original files byte for byte; without them it keeps every record and
may cut segments elsewhere. ``origin.chunks`` is an array of first offsets, int64 little-endian, which is memory-mapped.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from duramen.disk import Disk, Kind, write_all
from duramen.kernel import Int64s
from duramen.sidecar import DIRECTORY, ORIGIN_CHUNKS_NAME, ORIGIN_NAME, JsonFile, sidecar_path

ORIGIN_PATH = posixpath.join(DIRECTORY, ORIGIN_NAME)
ORIGIN_CHUNKS_PATH = posixpath.join(DIRECTORY, ORIGIN_CHUNKS_NAME)
_ORIGINS = JsonFile()
CHUNK_ID = "chunk_id"


class Boundary(NamedTuple):
    """Where a segment begins: its base, its first offset (None: it is empty), and when it was created."""

    base: int
    first_offset: int | None
    created_ms: int


@dataclass(frozen=True)
class ConversionOrigin:
    """A log of one format, as it was when it was converted."""

    options: Mapping[str, Any]
    next_offset: int
    segments: tuple[Boundary, ...]


def read_origins(disk: Disk, root: str) -> dict[str, ConversionOrigin]:
    """The origins by format; empty if the file is missing or cannot be read."""
    return _ORIGINS.read_if_sound(disk, sidecar_path(root, ORIGIN_NAME), _parse) or {}


def _parse(tree: dict[str, Any]) -> dict[str, ConversionOrigin]:
    return {
        str(name): ConversionOrigin(
            dict(entry["options"]),
            int(entry["next_offset"]),
            tuple(Boundary(int(b), None if f is None else int(f), int(c)) for b, f, c in entry["segments"]),
        )
        for name, entry in tree["origins"].items()
    }


def encode_origins(origins: Mapping[str, ConversionOrigin]) -> bytes:
    return _ORIGINS.encode({"origins": {name: asdict(origin) for name, origin in origins.items()}})


class ChunkList:
    """Writes ``origin.chunks`` from batches that have a ``chunk_id`` column."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._file = disk.create(posixpath.join(root, ORIGIN_CHUNKS_PATH))
        self._size_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Append the chunks of a batch. A chunk must not continue in the next batch."""
        starts = np.unique(batch.column(CHUNK_ID).to_numpy()).astype("<i8").tobytes()
        write_all(self._file, self._size_bytes, starts)
        self._size_bytes += len(starts)

    def finish(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class KnownChunks:
    def __init__(self, starts: Int64s, next_offset: int) -> None:
        self._starts = starts
        self._next_offset = next_offset

    @classmethod
    def read(cls, disk: Disk, root: str, next_offset: int) -> KnownChunks | None:
        path = posixpath.join(root, ORIGIN_CHUNKS_PATH)
        if disk.kind(path) != Kind.FILE or disk.size(path) % 8:
            return None
        return cls(np.frombuffer(disk.map(path).data, "<i8").astype(np.int64, copy=False), next_offset)

    def mark(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """``batch`` with the ``chunk_id`` of each row; -1 for rows that were appended after the conversion."""
        offsets = batch.column("offset").to_numpy()
        low, high = (int(np.searchsorted(self._starts, o, side="right")) for o in (offsets[0], offsets[-1]))
        near = np.concatenate(([-1], self._starts[max(low - 1, 0) : high]))
        known = near[np.searchsorted(near, offsets, side="right") - 1]
        known = np.where(offsets < self._next_offset, known, -1)
        return batch.append_column(pa.field(CHUNK_ID, pa.int64(), nullable=False), pa.array(known))
