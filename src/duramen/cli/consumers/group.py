"""`duramen group`: list, show, reset, ack, nack, compact, repair and delete the consumer groups of a log.

Showing takes no lock. Changes take the group's lock as a consumer does, so consumers may run at the same time.
"""

from __future__ import annotations

import time
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import numpy as np
import typer

from duramen.cli.arguments import DryRun, FormatName, FormatOptions, Job, Json, LogDirectory, Target
from duramen.cli.log.cat import LogPosition
from duramen.cli.output import Cell, Column, Output, duration, number, to_json
from duramen.consumers import ConsumableLog, ConsumerLag, Group, consumer_lags
from duramen.errors import UsageError

MAX_OFFSETS = 10_000_000


class GroupAction(StrEnum):
    SHOW = "show"
    RESET = "reset"
    ACK = "ack"
    NACK = "nack"
    COMPACT = "compact"
    REPAIR = "repair"
    DELETE = "delete"


def command(
    path: LogDirectory,
    name: Annotated[str, typer.Argument(metavar="NAME|list", help="The group, or `list` for all groups.")] = "list",
    action: Annotated[
        GroupAction | None, typer.Argument(metavar="ACTION", help="One of the actions below (default: show).")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="TO|OFFSET…", help="Target of a reset, or offsets to ack or nack.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TO", help="Target of a reset; needed for -N, the last N records.")
    ] = None,
    format: FormatName = None,
    option: FormatOptions = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> Job:
    """Show and change the consumer groups of a log.

    \b
    list                   all groups
    NAME show              state of the group
    NAME reset TO          move to an offset, beginning, end or @TIME
    NAME reset --to -N     move to the last N records
    NAME ack OFFSET…       acknowledge, for any holder; 7-9 means 7, 8, 9
    NAME nack OFFSET…      deliver again now
    NAME compact           write a new snapshot and an empty delta
    NAME repair            keep the readable state, redeliver the rest
    NAME delete            delete the group's state
    """
    target = Target.of(path, format, option)
    if name == "list" and action is None:
        return partial(show_all, target, json)
    words = [*(arguments or []), *([] if to is None else [to])]
    return partial(run, target, name, action or GroupAction.SHOW, words, dry_run, json)


def open_log(target: Target) -> ConsumableLog:
    return ConsumableLog(target.path, format=target.codec.name, **target.options)


def show_all(target: Target, json: bool) -> int:
    with open_log(target) as log:
        found = [one for one in consumer_lags(log) if one.kind == "group"]
    if json:
        print(to_json([one._asdict() for one in found], indent=2))
        return int(any(one.offset is None for one in found))
    out = Output()
    if not found:
        out.line(f"{target.path}: no groups")
        return 0
    out.table(COLUMNS[1:], [row(one)[1:] for one in found], indent=0)
    return int(any(one.offset is None for one in found))


COLUMNS = [
    Column("kind"), Column("name"), Column("acked until", True), Column("log ends at", True), Column("lag", True),
    Column("in flight", True), Column("expired", True), Column("acked ahead", True), Column("problem"),
]  # fmt: skip


def row(one: ConsumerLag) -> list[str | Cell]:
    counts = [f"{count:,}" if one.kind == "group" else "" for count in (one.in_flight, one.expired, one.acked_ahead)]
    return [
        one.kind, Cell(one.name, "name"), "?" if one.offset is None else f"{one.offset:,}", f"{one.next_offset:,}",
        "?" if one.lag is None else f"{one.lag:,}", *counts, Cell(one.problem or "", "damage"),
    ]  # fmt: skip


def run(target: Target, name: str, action: GroupAction, arguments: list[str], dry_run: bool, json: bool) -> int:
    if arguments and action not in (GroupAction.RESET, GroupAction.ACK, GroupAction.NACK):
        raise UsageError(f"`group … {action}` takes no argument (got {arguments[0]!r})")
    with open_log(target) as log:
        standing = _standing(log, name)
        if action == GroupAction.SHOW:
            _show(target, standing, json)
            return int(standing.offset is None)
        said = _change(log, name, standing, action, arguments, dry_run)
    if json:
        tree = {"path": target.path, "group": name, "action": action, "dry_run": dry_run, **said}
        print(to_json(tree))
    else:
        Output().line(f"{target.path}: group {name}: {said['said']}")
    return 0


def _standing(log: ConsumableLog, name: str) -> ConsumerLag:
    found = [one for one in consumer_lags(log) if one.kind == "group"]
    for one in found:
        if one.name == name:
            return one
    names = ", ".join(one.name for one in found[:10])
    raise UsageError(
        f"the log has no group {name!r}", path=log.path, hint=f"its groups: {names}" if names else "it has no groups"
    )


def _show(target: Target, standing: ConsumerLag, json: bool) -> None:
    if json:
        print(to_json(standing._asdict(), indent=2))
        return
    out = Output()
    out.heading(f"{target.path}: group {standing.name}")
    known = standing.offset is not None
    pairs: list[tuple[str, str | Cell]] = [
        ("acked until", f"{standing.offset:,}" if known else "?"),
        ("log ends at", f"{standing.next_offset:,}"),
        ("lag", number(standing.lag, "offset") if standing.lag is not None else "?"),
        ("in flight", f"{standing.in_flight:,}, {standing.expired:,} of them expired"),
        ("acked ahead", f"{standing.acked_ahead:,}, after a record that is not acknowledged"),
    ]
    if standing.next_deadline_ms is not None:
        left_s = standing.next_deadline_ms / 1000 - time.time()
        when = f"in {duration(left_s)}" if left_s > 0 else f"{duration(-left_s)} ago"
        pairs.append(("next deadline", when))
    pairs += [("state", path) for path in standing.paths]
    if standing.problem:
        pairs.append(("problem", Cell(standing.problem, "damage")))
    out.pairs(pairs)


def _change(
    log: ConsumableLog, name: str, standing: ConsumerLag, action: GroupAction, arguments: list[str], dry_run: bool
) -> dict[str, Any]:
    # Reset and repair must work on damaged state.
    mends = action in (GroupAction.RESET, GroupAction.REPAIR)
    group = log.group(name, create=False, on_damage="redeliver" if mends else "raise")
    would = "would be " if dry_run else ""
    if action == GroupAction.RESET:
        offset = _place(log, arguments)
        if not dry_run:
            group.reset(offset)
        before = "?" if standing.offset is None else f"{standing.offset:,}"
        return {"said": f"{would}reset from {before} to {offset:,}", "offset": offset}
    if action in (GroupAction.ACK, GroupAction.NACK):
        return _settle(group, action, _offsets(arguments), dry_run)
    if action == GroupAction.DELETE:
        if not dry_run:
            group.delete()
        return {"said": f"{would}deleted"}
    if not dry_run:
        group.compact()
    if action == GroupAction.COMPACT:
        return {"said": f"{would}compacted: {', '.join(standing.paths)}"}
    return {"said": f"{would}repaired: {standing.problem or 'nothing was wrong'}", "problem": standing.problem}


def _settle(group: Group, action: GroupAction, offsets: np.ndarray[Any, Any], dry_run: bool) -> dict[str, Any]:
    verb = "acknowledged" if action == GroupAction.ACK else "given back"
    if dry_run:
        return {"said": f"{number(len(offsets), 'offset')} would be {verb}", "offsets": len(offsets)}
    done = group.ack_many(offsets) if action == GroupAction.ACK else group.nack(offsets)
    return {"said": f"{number(done, 'offset')} {verb}", "offsets": done}


def _place(log: ConsumableLog, arguments: list[str]) -> int:
    if len(arguments) != 1:
        raise UsageError("`group … reset` needs one position", hint="an offset, --to -N, beginning, end or @TIME")
    place = LogPosition.parse(arguments[0])
    if place.kind == "time":
        return log.offset_at(place.time)
    if place.kind == "last":
        return max(log.next_offset - place.value, log.first_offset)
    if place.kind == "offset":
        return place.value
    return log.first_offset if place.kind == "beginning" else log.next_offset


def _offsets(words: list[str]) -> np.ndarray[Any, Any]:
    """Parse offsets and ranges of offsets.

    >>> _offsets(["3", "7-9"]).tolist()
    [3, 7, 8, 9]
    """
    if not words:
        raise UsageError("at least one offset is required", hint="for example 3 7-9")
    found = []
    for word in words:
        first, dash, last = word.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(word) > 40:
            raise UsageError(f"expected an offset or a range (got {word!r})", hint="for example 3 7-9")
        start, end = int(first), int(last or first)
        if end < start or end - start >= MAX_OFFSETS or end >= 2**63:
            raise UsageError(
                f"a range must ascend and have at most {MAX_OFFSETS:,} offsets (got {word!r})", hint="for example 7-9"
            )
        found.append(np.arange(start, end + 1, dtype=np.int64))
    return np.unique(np.concatenate(found))
