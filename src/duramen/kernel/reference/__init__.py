"""The kernel in plain Python: the executable spec of every kernel function, and the oracle of the tests.

One module per C file. Slow on purpose: one loop, no cleverness, nothing shared with the C code but the tables of
`layout`. The compiled functions have the same names, arguments, results and errors. Every function checks a length
against the bytes that remain before it reads.
"""

from duramen.kernel.reference.amqp import (
    fill_amqp_names,
    fill_amqp_texts,
    measure_amqp_texts,
    scan_amqp,
    scan_amqp_pairs,
)
from duramen.kernel.reference.batches import find_batch, scan_batches, scan_headers, scan_records, take_batches
from duramen.kernel.reference.bodies import bound_bodies
from duramen.kernel.reference.chunks import (
    encode_chunks,
    encode_entries,
    find_chunk,
    scan_chunks,
    scan_entries,
    scan_prefixed,
    seek_chunk,
    split_chunks,
)
from duramen.kernel.reference.columns import Buffer, gather, is_zero, measure_values
from duramen.kernel.reference.crc import crc32, crc32c, digest
from duramen.kernel.reference.events import encode_run
from duramen.kernel.reference.frames import encode_frames, find_frame, pick_strides, scan_frames, seek_frame
from duramen.kernel.reference.hashes import murmur2
from duramen.kernel.reference.keys import keep_newest, siphash
from duramen.kernel.reference.mappings import guard, lost_at, unguard
from duramen.kernel.reference.records import encode_batches, encode_record
from duramen.kernel.reference.slots import encode_slots, find_slot, infer_slot, scan_slots
