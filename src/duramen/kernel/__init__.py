"""The hot loops: checksum, scan, gather, encode. Stateless functions over buffers, without the GIL.

No policy, no I/O and no format is here. `reference` holds the plain Python twin of every function;
``DURAMEN_PUREPYTHON=1`` selects it. A kernel that does not import is an error, never silently replaced: a program
that is a hundred times slower than yesterday should say why.
"""

from __future__ import annotations

import os

PURE_PYTHON = os.environ.get("DURAMEN_PUREPYTHON", "") not in ("", "0")

if PURE_PYTHON:
    from duramen.kernel.reference import (
        crc32,
        crc32c,
        digest,
        encode_chunks,
        encode_entries,
        encode_frames,
        encode_run,
        encode_slots,
        find_chunk,
        find_frame,
        find_slot,
        gather,
        infer_slot,
        is_zero,
        keep_newest,
        measure_values,
        murmur2,
        pick_strides,
        scan_chunks,
        scan_entries,
        scan_frames,
        scan_prefixed,
        scan_slots,
        seek_chunk,
        seek_frame,
        siphash,
        split_chunks,
    )
else:
    try:
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
        from duramen.kernel._slots import encode_slots, find_slot, infer_slot, scan_slots
    except ImportError as error:
        raise ImportError(
            f"the compiled kernel of duramen cannot be loaded: {error}. Reinstall duramen on this machine "
            "(`pip install --force-reinstall duramen`), or set DURAMEN_PUREPYTHON=1 to run the slow Python twin"
        ) from error

__all__ = [
    "PURE_PYTHON",
    "crc32",
    "crc32c",
    "digest",
    "encode_chunks",
    "encode_entries",
    "encode_frames",
    "encode_run",
    "encode_slots",
    "find_chunk",
    "find_frame",
    "find_slot",
    "gather",
    "infer_slot",
    "is_zero",
    "keep_newest",
    "measure_values",
    "murmur2",
    "pick_strides",
    "scan_chunks",
    "scan_entries",
    "scan_frames",
    "scan_prefixed",
    "scan_slots",
    "seek_chunk",
    "seek_frame",
    "siphash",
    "split_chunks",
]
