"""The hot loops in C: checksum, scan, gather, encode. Stateless functions over buffers, without the GIL.

- A scan (`scan_frames`, `scan_chunks`, `scan_batches`, `scan_slots`) walks records and fills columns (`FrameColumns`,
  `ChunkColumns`, `BatchColumns`); it returns a `ScanEnd` with the `Stop` that explains why it ended. An encoder fills
  the same columns.
- `scan_amqp` walks messages of AMQP 1.0 and fills `AmqpSpans`: which fields each value has, and where;
  `fill_amqp_texts` shows values of any type as text.
- A `FrameLayout` is a table of positions that describes a record format: the kernel itself knows no format.
- `reference` is the same in plain Python, one module per C file: the executable specification, and the oracle of the
  tests. ``DURAMEN_PUREPYTHON=1`` selects it.
- `guard` lets a mapping survive the loss of its pages, for a check.
- `DescriptorRecordWriter` is the one object with state and the one that writes: single appends, between limits that the
  log sets. Its twin is in `duramen.disk`, because it goes through the disk interface.

The kernel has no policy, and apart from that object does no I/O. If the compiled kernel cannot be loaded, the import
raises: falling back to Python silently would make a program a hundred times slower without explanation.
"""

# mypy: implicit-reexport

from __future__ import annotations

import os

from duramen.kernel.layout import (
    AMQP_DESCRIBED,
    APPENDED_BYTES,
    APPENDED_ROWS,
    BAD_TRACKING,
    CODEC,
    CONTROL,
    GAVE_UP,
    NOT_DONE,
    NOT_FOUND,
    NULL_LENGTH,
    AmqpFault,
    AmqpField,
    AmqpSpans,
    AppendLimits,
    AppendNotes,
    AppendOutcome,
    AppendSeen,
    AppendState,
    BatchColumns,
    BodyFault,
    Checksum,
    ChunkColumns,
    Columns,
    Const,
    EntryColumns,
    EntryHit,
    FrameColumns,
    FrameLayout,
    HeaderColumns,
    Int64s,
    RecordColumns,
    RecordKind,
    RecordRanges,
    RecordShape,
    ScanEnd,
    Stop,
    UInt32s,
    column,
)

PURE_PYTHON = os.environ.get("DURAMEN_PUREPYTHON", "") not in ("", "0")

if PURE_PYTHON:
    from duramen.kernel.reference import (
        bound_bodies,
        crc32,
        crc32c,
        digest,
        encode_batches,
        encode_chunks,
        encode_entries,
        encode_frames,
        encode_record,
        encode_run,
        encode_slots,
        fill_amqp_names,
        fill_amqp_texts,
        find_batch,
        find_chunk,
        find_frame,
        find_slot,
        gather,
        guard,
        infer_slot,
        is_zero,
        keep_newest,
        lost_at,
        measure_amqp_texts,
        measure_values,
        murmur2,
        pick_strides,
        scan_amqp,
        scan_amqp_pairs,
        scan_batches,
        scan_chunks,
        scan_entries,
        scan_frames,
        scan_headers,
        scan_prefixed,
        scan_records,
        scan_slots,
        seek_chunk,
        seek_frame,
        siphash,
        split_chunks,
        take_batches,
        unguard,
    )
else:
    try:
        from duramen.kernel._amqp import (
            fill_amqp_names,
            fill_amqp_texts,
            measure_amqp_texts,
            scan_amqp,
            scan_amqp_pairs,
        )
        from duramen.kernel._append import DescriptorRecordWriter
        from duramen.kernel._batches import (
            encode_batches,
            encode_record,
            find_batch,
            scan_batches,
            scan_headers,
            scan_records,
            take_batches,
        )
        from duramen.kernel._bodies import bound_bodies
        from duramen.kernel._chunks import (
            encode_chunks,
            encode_entries,
            find_chunk,
            scan_chunks,
            scan_entries,
            scan_prefixed,
            seek_chunk,
            split_chunks,
        )
        from duramen.kernel._columns import gather, is_zero
        from duramen.kernel._crc import crc32, crc32c, digest
        from duramen.kernel._events import encode_run
        from duramen.kernel._frames import (
            encode_frames,
            find_frame,
            measure_values,
            pick_strides,
            scan_frames,
            seek_frame,
        )
        from duramen.kernel._hashes import murmur2
        from duramen.kernel._keys import keep_newest, siphash
        from duramen.kernel._mappings import guard, lost_at, unguard
        from duramen.kernel._slots import encode_slots, find_slot, infer_slot, scan_slots
    except ImportError as error:
        raise ImportError(
            f"the compiled kernel of duramen cannot be loaded: {error}. Reinstall duramen on this machine "
            "(`pip install --force-reinstall duramen`), or set DURAMEN_PUREPYTHON=1 to run the slow Python twin"
        ) from error
