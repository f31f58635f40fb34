"""`duramen cursor`: list, show, store and delete the cursors of a log."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from duramen.cli.arguments import DryRun, FormatName, FormatOptions, Job, Json, LogDirectory, Target
from duramen.cli.consumers.group import open_log
from duramen.cli.output import Cell, Column, Output, to_json
from duramen.consumers import ConsumableLog, ConsumableWritableLog, CursorState
from duramen.errors import UsageError
from duramen.record import checked_us, from_us


class CursorAction(StrEnum):
    SHOW = "show"
    STORE = "store"
    DELETE = "delete"


def command(
    path: LogDirectory,
    name: Annotated[str, typer.Argument(metavar="NAME|list", help="The cursor, or `list` for all cursors.")] = "list",
    word: Annotated[str | None, typer.Argument(metavar="ACTION", help="Action from the list (default: show).")] = None,
    offset: Annotated[int | None, typer.Argument(metavar="OFFSET", help="Offset to store.", min=0)] = None,
    tracking: Annotated[
        bool, typer.Option("--tracking", help="Store it in the log itself, as RabbitMQ does (osiris).")
    ] = False,
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", metavar="TIME", help="For `store`: a time, not an offset (osiris).")
    ] = None,
    format: FormatName = None,
    option: FormatOptions = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> Job:
    """Show and change the cursors of a log: positions that readers store by name.

    \b
    list                  all cursors
    NAME show             its offset, and its time if the log stores one
    NAME store OFFSET     create or change a cursor
    NAME delete           delete a cursor
    """
    target = Target.of(path, format, option)
    if name == "list" and word is None:
        return partial(show_all, target, json)
    name, action = _in_order(name, word)
    if timestamp is not None:
        if action != CursorAction.STORE or offset is not None:
            raise UsageError("--timestamp works with `NAME store`, in place of OFFSET")
        return partial(store_timestamp, target, name, timestamp, dry_run, json)
    if (offset is None) == (action == CursorAction.STORE):
        raise UsageError(
            "`cursor … store` needs an offset: NAME store OFFSET" if offset is None else f"`{action}` takes no offset"
        )
    return partial(run, target, action, name, offset, tracking, dry_run, json)


def _in_order(name: str, action: str | None) -> tuple[str, CursorAction]:
    """The name and the action. The first version took the action first, which still works.

    >>> _in_order("report", "store") == _in_order("store", "report")
    True
    """
    known = list(CursorAction)
    if action is not None and action not in known and name in known:
        name, action = action, name
    if action is not None and action not in known:
        raise UsageError(f"a cursor has no action {action!r}", hint=f"its actions are {', '.join(known)}")
    return name, CursorAction(action or "show")


def show_all(target: Target, json: bool) -> int:
    with open_log(target) as log:
        found, following = log.cursors(), log.next_offset
    damaged = int(any(one.problem for one in found))
    if json:
        print(to_json([one._asdict() for one in found], indent=2))
        return damaged
    out = Output()
    if not found:
        out.line(f"{target.path}: no cursors")
        return 0
    has_times = any(one.timestamp_ms is not None for one in found)
    columns = [Column("cursor"), Column("offset", True), Column("lag", True), Column("stored"), Column("problem")]
    columns += [Column("time")] if has_times else []
    out.table(columns, [_row(one, following)[: len(columns)] for one in found], indent=0)
    return damaged


def _row(one: CursorState, next_offset: int) -> list[str | Cell]:
    known = one.offset is not None
    unknown = "?" if one.problem else ""
    lag = f"{max(next_offset - (one.offset or 0), 0):,}" if known else unknown
    stored = "in the log" if one.stored_ms is None and not one.problem else _when(one.stored_ms, "seconds")
    offset = f"{one.offset:,}" if known else unknown
    time = _when(one.timestamp_ms, "milliseconds")
    return [Cell(one.name, "name"), offset, lag, stored, Cell(one.problem or "", "damage"), time]


def _when(ms: int | None, precision: str) -> str:
    when = None if ms is None else from_us(ms * 1000)
    return "" if when is None else when.isoformat(sep=" ", timespec=precision)


def store_timestamp(target: Target, name: str, timestamp: str, dry_run: bool, json: bool) -> int:
    when = from_us(checked_us(timestamp))
    if not target.codec.capabilities.tracking:
        raise UsageError(f"--timestamp works with an osiris log only (got a {target.codec.name} log)")
    with _open(target, not dry_run) as log:
        cursor = log.cursor(name)
        before = cursor.load_timestamp()
        if not dry_run:
            cursor.store_timestamp(timestamp)
    if json:
        told = {"action": CursorAction.STORE, "timestamp": when, "dry_run": dry_run}
        print(to_json({"path": target.path, "cursor": name, **told}))
        return 0
    was = "" if before is None else f", was {before.isoformat()}"
    said = f"{'would be ' if dry_run else ''}stored at time {when.isoformat() if when else timestamp}{was}"
    Output().line(f"{target.path}: cursor {name}: {said}")
    return 0


def run(
    target: Target, action: CursorAction, name: str, offset: int | None, tracking: bool, dry_run: bool, json: bool
) -> int:
    if tracking and (action != CursorAction.STORE or not target.codec.capabilities.tracking):
        raise UsageError(
            f"--tracking works with `store` on an osiris log only (got `{action}` on a {target.codec.name} log)"
        )
    with _open(target, tracking and not dry_run) as log:
        cursor = log.cursor(name)
        before, when = cursor.load(), cursor.load_timestamp()
        if before is None and (action == CursorAction.DELETE or (when is None and action == CursorAction.SHOW)):
            raise UsageError(
                f"the log has no cursor {name!r}", path=log.path, hint="`duramen cursor PATH list` lists the cursors"
            )
        would = "would be " if dry_run else ""
        said = f"{before}"
        if action == CursorAction.STORE:
            assert offset is not None
            if not dry_run:
                cursor.store(offset)
            said = f"{would}stored at {offset:,}" + (f", was {before:,}" if before is not None else "")
        elif action == CursorAction.DELETE:
            if not dry_run:
                cursor.delete()
            said = f"{would}deleted, was {before:,}"
    if json:
        now = offset if action == CursorAction.STORE else before
        told = {"path": target.path, "cursor": name, "action": action, "offset": now, "dry_run": dry_run}
        print(to_json(told if when is None else {**told, "timestamp": when}))
    elif action == CursorAction.SHOW:
        print(*([] if before is None else [before]), *([] if when is None else [when.isoformat()]))
    else:
        Output().line(f"{target.path}: cursor {name}: {said}")
    return 0


def _open(target: Target, tracking: bool) -> ConsumableLog:
    if tracking:
        return ConsumableWritableLog(target.path, format=target.codec.name, **target.options)
    return open_log(target)
