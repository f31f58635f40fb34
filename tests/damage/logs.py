"""The logs that are damaged: one of every format, small, with and without a sidecar, always the same bytes."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa

from duramen.errors import CorruptionError
from duramen.formats import Format, Role, ScanPosition, make
from duramen.formats.osiris.chunk import Chunk, SimpleEntry, encode_chunk
from duramen.formats.osiris.tracking import TrackingBlock, TrackingKind
from duramen.kernel.layout import Stop
from duramen.log.read.log import Log
from duramen.log.write.writable_log import WritableLog
from duramen.record import SCHEMA
from duramen.sidecar.layout import read_config
from duramen.testing.run import clocked, disk_of
from duramen.testing.simulated_disk import SimulatedDisk

ROOT = "/log"
FORMATS = ("durable-log", "keratin", "rustlog", "osiris", "fixed-slot", "kafka")
RECORD_SIZE = 90
SEGMENTS = (7, 6, 8)
START_MS = 1_700_000_000_000
OPTIONS: Mapping[str, dict[str, Any]] = {
    "durable-log": {},
    "keratin": {"index_stride_bytes": 100},
    "rustlog": {"index_interval_records": 2},
    "osiris": {"chunk_max_records": 2},
    "fixed-slot": {"record_size": RECORD_SIZE},
    "kafka": {"index_stride_bytes": 100, "batch_max_bytes": 300},
}


class Stored(NamedTuple):
    offset: int
    value: bytes


class Place(NamedTuple):
    """A record, or a chunk of them, in a segment's file."""

    path: str
    start: int
    end: int
    first: int
    last: int


@dataclass(frozen=True)
class Base:
    """A sound log."""

    format: str
    sidecar: bool
    files: Mapping[str, bytes]
    """By path relative to the log, directories of the sidecar included."""
    records: Mapping[int, bytes] = field(default_factory=dict)
    places: tuple[Place, ...] = ()

    @property
    def codec(self) -> Format:
        return make(self.format, **OPTIONS[self.format])

    @property
    def segments(self) -> list[str]:
        return sorted({place.path for place in self.places})

    def role(self, path: str) -> Role | None:
        known = self.codec.classify(path)
        return None if known is None else known.role

    def base_of(self, path: str) -> int:
        known = self.codec.classify(path)
        return 0 if known is None or known.base is None else known.base


OURS = "the log"


def value(offset: int, owner: str = OURS) -> bytes:
    return f"record {offset:04} of {owner}".encode().ljust(RECORD_SIZE, b".")[:RECORD_SIZE]


def batch(fmt: Format, first: int, count: int, owner: str = OURS) -> pa.RecordBatch:
    able = fmt.capabilities
    rows = [
        {
            "offset": offset,
            "timestamp": (START_MS + offset) * 1000 if able.timestamps else None,
            "key": b"k%d" % (offset % 3) if able.key and offset % 2 else None,
            "value": value(offset, owner),
            "headers": None,
        }
        for offset in range(first, first + count)
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


@cache
def base_log(name: str, sidecar: bool, counts: tuple[int, ...] = SEGMENTS, owner: str = OURS) -> Base:
    """The sound log of a format, with so many records in its segments."""
    files = _appended(name, counts, owner) if sidecar else _built(name, counts, owner)
    disk = disk_of({posixpath.join(ROOT, path): content for path, content in files.items()})
    return Base(name, sidecar, files, read(disk, name), tuple(places(name, files)))


def _built(name: str, counts: tuple[int, ...], owner: str) -> dict[str, bytes]:
    """As another program leaves it."""
    fmt = make(name, **OPTIONS[name])
    if name == "osiris":
        return _osiris(fmt, counts, owner)
    counts = counts if fmt.capabilities.segments else (sum(counts),)
    firsts = [sum(counts[:number]) for number in range(len(counts))]
    batches = [batch(fmt, first, count, owner) for first, count in zip(firsts, counts, strict=True)]
    return dict(fmt.build(batches, START_MS))


def _osiris(fmt: Format, counts: tuple[int, ...], owner: str) -> dict[str, bytes]:
    """With tracking in trailers, which no checksum covers."""
    files: dict[str, bytes] = {}
    first = 0
    for count in counts:
        data, base = fmt.segment_header(first, START_MS), first
        for chunk_id in range(first, first + count, 2):
            entries = tuple(SimpleEntry(value(o, owner)) for o in range(chunk_id, min(chunk_id + 2, first + count)))
            blocks = (TrackingBlock(TrackingKind.SEQUENCE, b"writer-1", chunk_id),)
            chunk = Chunk(chunk_id, START_MS + chunk_id, 1, entries, trailer=blocks if chunk_id % 4 == 0 else ())
            data += encode_chunk(chunk)
        segment = fmt.open_segment(data, base)
        builder = fmt.index_builder(base, START_MS)
        builder.add(segment.scan(segment.start))
        files[fmt.segment_path(base)] = data
        files |= {fmt.path_of(role, base): content for role, content in builder.build().items()}
        first += count
    return files


def _appended(name: str, counts: tuple[int, ...], owner: str) -> dict[str, bytes]:
    """As Duramen leaves it; an Osiris log of a broker that Duramen went on with."""
    start = _osiris(make(name), counts, owner) if name == "osiris" else {}
    disk = disk_of({posixpath.join(ROOT, path): content for path, content in start.items()} | {ROOT + "/": b""})
    with clocked():
        log = WritableLog(ROOT, format=name, disk=disk, **OPTIONS[name])
        done = log.next_offset
        for number, count in enumerate(counts):
            if number and log.codec.capabilities.segments:
                log.seal()
            log.append_batch([value(o, owner) for o in range(done, done + count)])
            done += count
        log.close()
    return tree(disk)


def tree(disk: SimulatedDisk) -> dict[str, bytes]:
    """The files of the log, without what says which process had it open."""
    found = {posixpath.relpath(p, ROOT): content for p, content in disk.tree().items() if not p.endswith("/")}
    return {path: content for path, content in found.items() if path != ".duramen/lock"}


def read(disk: SimulatedDisk, name: str) -> dict[int, bytes]:
    """Every record that a reader is given, by offset."""
    found: dict[int, bytes] = {}
    with Log(ROOT, format=name, disk=disk, **options_for(disk, name)) as log:
        for records in log.batches(columns=("offset", "value")):
            for offset, content in zip(*(column.to_pylist() for column in records.columns), strict=True):
                assert offset not in found, f"offset {offset} comes twice"
                found[offset] = content
    return found


def options_for(disk: SimulatedDisk, name: str) -> dict[str, Any]:
    """What has to be said when the log does not say it itself."""
    try:
        held = read_config(disk, ROOT)
    except CorruptionError:
        held = None
    return {} if held is not None else dict(OPTIONS[name])


def places(name: str, files: Mapping[str, bytes]) -> list[Place]:
    fmt = make(name, **OPTIONS[name])
    places = []
    for path, content in sorted(files.items()):
        known = fmt.classify(path)
        if known is None or known.role != Role.SEGMENT:
            continue
        segment = fmt.open_segment(content, known.base)
        cursor: ScanPosition = segment.start
        while True:
            rows = segment.scan(cursor, max_records=1)
            if len(rows.columns):
                first, last = int(rows.columns.first_offsets[0]), int(rows.columns.last_offsets[0])
                places.append(Place(path, int(rows.columns.position[0]), rows.end.position, first, last))
            cursor = rows.cursor
            if rows.stop != Stop.LIMIT:
                break
    return places
