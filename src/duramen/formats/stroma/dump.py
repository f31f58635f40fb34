"""What `dump` shows of a group's files, and what `verify` reports about them.

The program that these files come from writes other ones: SSNAP snapshots (`program_snapshot`), and STROMA events in an
ordinary Keratin log, which are recognized only."""

from __future__ import annotations

from collections.abc import Iterator

from duramen import kernel
from duramen.errors import CorruptionError
from duramen.formats.segment import SECTOR_BYTES, Problem, Severity
from duramen.formats.stroma.columns import (
    DELTA_HEADER,
    EVENT,
    EVENT_TYPES,
    INFLIGHT,
    LONGEST_EVENT,
    SNAP_END,
    SNAP_HEADER,
    SNAP_STATE,
    check_size,
    events_end,
    is_program_snapshot,
    next_event,
    open_snapshot,
    snapshot_end,
)
from duramen.formats.stroma.header import CRC, all_zero
from duramen.formats.stroma.program_snapshot import decode_program_snapshot, dump_program_snapshot
from duramen.formats.struct import Block, Buffer, Field
from duramen.kernel import NOT_FOUND, Stop


def dump_snapshot(buf: Buffer) -> Iterator[Block]:
    """Every structure of a ``.snap`` file."""
    view = memoryview(buf)
    if is_program_snapshot(view):
        yield from dump_program_snapshot(view)
        return
    try:
        start = SNAP_HEADER.parse(view).length
    except CorruptionError as error:
        yield SNAP_HEADER.dump(view, error.message)
        return
    yield SNAP_HEADER.dump(view)
    try:
        count, end = snapshot_end(view, start)
    except CorruptionError as error:
        yield Block("payload", start, list(SNAP_STATE.fields(view, start)), error.message)
        return
    yield Block("payload", start, list(SNAP_STATE.fields(view, start)))
    position = start + SNAP_STATE.size
    for row in range(count):
        yield Block(f"inflight{row}", position, list(INFLIGHT.fields(view, position)))
        position += INFLIGHT.size
    problem = None
    try:
        open_snapshot(view)
    except CorruptionError as error:
        problem = error.message
    yield Block("end", position, list(SNAP_END.fields(view, position)), problem)
    if end < len(view):
        yield _rest(view, end)


def _rest(view: memoryview, position: int) -> Block:
    rest = len(view) - position
    return Block("rest", position, [Field("bytes", position, rest, bytes(view[position : position + 64]))])


def dump_delta(buf: Buffer) -> Iterator[Block]:
    """Every event of a ``.delta`` file, then how they end."""
    view = memoryview(buf)
    if all_zero(view):
        if view:
            yield Block("zeros", 0, [Field("zeros", 0, len(view), f"{len(view)} zero bytes", "a clean end")])
        return
    try:
        position = DELTA_HEADER.parse(view).length
    except CorruptionError as error:
        yield DELTA_HEADER.dump(view, error.message)
        return
    yield DELTA_HEADER.dump(view)
    while True:
        try:
            step = next_event(view, position)
        except CorruptionError as error:
            yield Block("event", position, list(EVENT.fields(view, position)), error.message)
            return
        if not step.number:
            break
        fields = list(_event_fields(view, position, step.number, step.next))
        yield Block(EVENT_TYPES[step.number].name, position, fields)
        position = step.next
    rest = len(view) - position
    if step.stop == Stop.ZEROS:
        yield Block("zeros", position, [Field("zeros", position, rest, f"{rest} zero bytes", "a clean end")])
    elif rest:
        listed = list(EVENT.fields(view, position)) or list(_rest(view, position).fields)
        yield Block("event", position, listed, step.stop.meaning)


def _event_fields(view: memoryview, position: int, number: int, following: int) -> Iterator[Field]:
    yield from EVENT.fields(view, position)
    yield from EVENT_TYPES[number].payload.fields(view, position + EVENT.size)
    yield from CRC.fields(view, following - CRC.size)


# --- problems


def check_snapshot(buf: Buffer) -> Iterator[Problem]:
    try:
        if is_program_snapshot(buf):
            decode_program_snapshot(buf)
            note = "a snapshot of the Stroma program (SSNAP): decoded, but not used as the state of a group"
            yield Problem("foreign-snapshot", Severity.NOTE, note, 0)
        else:
            open_snapshot(buf)
    except CorruptionError as error:
        yield Problem("bad-snapshot", Severity.DAMAGE, error.message, error.position)


def check_delta(buf: Buffer) -> Iterator[Problem]:
    view = memoryview(buf)
    try:
        check_size(view)
        if all_zero(view):
            return
        _, end, stop, resumes_at = events_end(view, DELTA_HEADER.parse(view).length)
    except CorruptionError as error:
        yield Problem("bad-delta", Severity.DAMAGE, error.message, error.position)
        return
    missing: list[int] = []
    while resumes_at != NOT_FOUND:
        if not _did_not_arrive(view, end, resumes_at):
            message = f"{stop.meaning}, and complete events follow at byte {resumes_at}"
            yield Problem("bad-delta", Severity.DAMAGE, message, end)
            return
        missing.append(end)
        try:
            _, end, stop, resumes_at = events_end(view, resumes_at)
        except CorruptionError as error:
            yield Problem("bad-delta", Severity.DAMAGE, error.message, error.position)
            return
    if missing:
        message = f"sectors did not arrive before the power failed, in {len(missing)} places: events are missing there"
        action = "nothing: the complete events count, and the records of the others are delivered again"
        yield Problem("unsynced-delta", Severity.NOTE, message, missing[0], action=action)
    elif not stop.clean:
        yield Problem("torn-delta", Severity.WARNING, f"{stop.meaning}: the last event is torn", end)


def _did_not_arrive(view: memoryview, position: int, resumes_at: int) -> bool:
    """Whether the bytes between two complete events are what a power loss leaves of unsynced writes: sectors older than
    those after them. A delta only grows, by complete events, so an older sector holds the end of an event that began
    before it, then events, then zeros to its end."""
    boundary = (position // SECTOR_BYTES + 1) * SECTOR_BYTES
    if boundary > resumes_at:
        return False
    if not kernel.is_zero(view, position, boundary):  # an event begins here and continues in an older sector
        following, boundary = boundary, boundary + SECTOR_BYTES
        if following - position >= LONGEST_EVENT or not kernel.is_zero(view, following, min(boundary, len(view))):
            return False
    while resumes_at - boundary >= LONGEST_EVENT:
        if not kernel.is_zero(view, boundary + LONGEST_EVENT, min(boundary + SECTOR_BYTES, len(view))):
            return False
        boundary += SECTOR_BYTES
    return resumes_at >= boundary


# --- the files of the Stroma program

PROGRAM_EVENT_MAGIC = b"STROMA\0\0"


def is_program_event(payload: Buffer) -> bool:
    """Whether a record of a Keratin log is a state event of the Stroma program."""
    return bytes(memoryview(payload)[:8]) == PROGRAM_EVENT_MAGIC
