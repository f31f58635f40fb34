"""The on-disk formats, as pure bytes.

- `make` turns a name and options into a `Format`: file names, encoding, derived files, and `Format.capabilities`.
- `Format.open_segment` gives a `Segment`: its `scan` walks the records step by step and returns `Rows`, its `decode`
  turns rows into Arrow. An encoder returns the same `Rows`, so that an `IndexBuilder` serves readers and writers.
- What only some formats have (tracking, a manifest, fillers, a cleaner checkpoint, slots) is a class of `extensions`;
  callers ask for it with ``isinstance``. No caller asks for a format by name.
- `detect_directory` and `detect_file` find out which format some bytes are in, and why.

A new format is one module and one line in `registry`. The durable-log format is the smallest example. Nothing here
opens a file, knows the sidecar or decides when to sync: the caller brings names and bytes."""

from __future__ import annotations

from duramen.formats.arrow import Values, binary_buffers
from duramen.formats.detect import Detected, detect_directory, detect_file
from duramen.formats.dump import SHOWN_BYTES
from duramen.formats.extensions import (
    ConsumerPositions,
    SequenceRun,
    SlotSegment,
    StoredChunk,
    SupportsCheckpoint,
    SupportsChunks,
    SupportsGapFill,
    SupportsManifest,
    SupportsStateFiles,
    SupportsTracking,
)
from duramen.formats.format import (
    DOCUMENT,
    PROGRAM,
    Capabilities,
    CommittedView,
    FileName,
    Format,
    SegmentSource,
    SupportsIsolation,
    columns_for,
    schema_for,
)
from duramen.formats.index import Index, IndexBuilder, Places, dump_index, position_near, rows_after
from duramen.formats.kafka import PartitionOffset, parse_offsets, parse_properties
from duramen.formats.keys import KeyOf, extractor, murmur2, siphash
from duramen.formats.osiris import TrackingBlock, TrackingKind, delta_chunk, encode_chunk
from duramen.formats.registry import FORMATS, WRITABLE, FormatOptions, make, names
from duramen.formats.rustlog import Checkpoint
from duramen.formats.segment import (
    SCAN_BYTES,
    SCAN_RECORDS,
    SECTOR_BYTES,
    Encoded,
    Problem,
    Role,
    Rows,
    ScanPosition,
    Segment,
    SegmentSummary,
    Severity,
)
from duramen.formats.stroma import (
    ACK,
    BUMP,
    CLEAR,
    CRC,
    GROUP_BYTES,
    INFLIGHT,
    MARK,
    RESET,
    Acked,
    Bumped,
    Cleared,
    Events,
    GroupName,
    Marked,
    Run,
    SnapshotColumns,
    WasReset,
    check_delta,
    check_snapshot,
    decode_events,
    decode_snapshot,
    delta_header,
    delta_start,
    encode_runs,
    encode_snapshot,
    with_crc,
)
from duramen.formats.struct import Block, Buffer, Field, Struct
from duramen.kernel import Stop

__all__ = [
    "ACK",
    "BUMP",
    "CLEAR",
    "CRC",
    "DOCUMENT",
    "FORMATS",
    "GROUP_BYTES",
    "INFLIGHT",
    "MARK",
    "PROGRAM",
    "RESET",
    "SCAN_BYTES",
    "SCAN_RECORDS",
    "SECTOR_BYTES",
    "SHOWN_BYTES",
    "WRITABLE",
    "Acked",
    "Block",
    "Buffer",
    "Bumped",
    "Capabilities",
    "Checkpoint",
    "Cleared",
    "CommittedView",
    "ConsumerPositions",
    "Detected",
    "Encoded",
    "Events",
    "Field",
    "FileName",
    "Format",
    "FormatOptions",
    "GroupName",
    "Index",
    "IndexBuilder",
    "KeyOf",
    "Marked",
    "PartitionOffset",
    "Places",
    "Problem",
    "Role",
    "Rows",
    "Run",
    "ScanPosition",
    "Segment",
    "SegmentSource",
    "SegmentSummary",
    "SequenceRun",
    "Severity",
    "SlotSegment",
    "SnapshotColumns",
    "Stop",
    "StoredChunk",
    "Struct",
    "SupportsCheckpoint",
    "SupportsChunks",
    "SupportsGapFill",
    "SupportsIsolation",
    "SupportsManifest",
    "SupportsStateFiles",
    "SupportsTracking",
    "TrackingBlock",
    "TrackingKind",
    "Values",
    "WasReset",
    "binary_buffers",
    "check_delta",
    "check_snapshot",
    "columns_for",
    "decode_events",
    "decode_snapshot",
    "delta_chunk",
    "delta_header",
    "delta_start",
    "detect_directory",
    "detect_file",
    "dump_index",
    "encode_chunk",
    "encode_runs",
    "encode_snapshot",
    "extractor",
    "make",
    "murmur2",
    "names",
    "parse_offsets",
    "parse_properties",
    "position_near",
    "rows_after",
    "schema_for",
    "siphash",
    "with_crc",
]
