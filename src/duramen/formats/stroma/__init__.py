"""Stroma: the state of Keratin's consumer groups, as two files per group.

A snapshot (``.snap``) holds what is acknowledged and in flight at one moment; a delta (``.delta``) holds the events
since.

- `decode_snapshot` and `decode_events` read them into columns; `encode_snapshot` and `encode_runs` write them from runs
  of offsets. There is one codec, and it works on many events at once.
- `GroupName` maps a topic, partition and group to the files' name.
- `FileHeader` is the header that all of Keratin's files share.
- `dump_snapshot`, `dump_delta`, `check_snapshot` and `check_delta` serve `duramen dump` and `duramen verify`.

It does not know what the events mean, and opens no file: that is the job of `duramen.consumers`.
"""

from __future__ import annotations

from duramen.formats.stroma.columns import (
    ACK,
    BUMP,
    CLEAR,
    DELTA_HEADER,
    EVENT,
    EVENT_MAGIC,
    EVENT_TYPES,
    GROUP_BYTES,
    INFLIGHT,
    MARK,
    PROGRAM_SNAPSHOT_MAGIC,
    RESET,
    SNAP_END,
    SNAP_HEADER,
    SNAP_STATE,
    Acked,
    Bumped,
    Cleared,
    Events,
    Marked,
    Run,
    SnapshotColumns,
    WasReset,
    check_size,
    decode_events,
    decode_snapshot,
    delta_header,
    delta_start,
    encode_runs,
    encode_snapshot,
    events_end,
    find_event,
    is_program_snapshot,
    open_snapshot,
)
from duramen.formats.stroma.dump import check_delta, check_snapshot, dump_delta, dump_snapshot, is_program_event
from duramen.formats.stroma.group_name import GroupName, fnv1a
from duramen.formats.stroma.header import CRC, START, VERSION, FileHeader, all_zero, with_crc
from duramen.formats.stroma.program_snapshot import ProgramSnapshot, decode_program_snapshot
