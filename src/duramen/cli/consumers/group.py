"""`duramen group`: list, show, change and delete the consumer groups of a log, and replay their dead letters.

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
from duramen.consumers import ConsumableLog, ConsumerLag, Group, GroupPolicy, InFlight, Member, consumer_lags
from duramen.errors import CorruptionError, UsageError
from duramen.store import log_path

MAX_OFFSETS = 10_000_000


class GroupAction(StrEnum):
    SHOW = "show"
    MEMBERS = "members"
    STUCK = "stuck"
    RESET = "reset"
    ACK = "ack"
    NACK = "nack"
    REPLAY = "replay"
    COMPACT = "compact"
    REPAIR = "repair"
    DELETE = "delete"


def command(
    path: LogDirectory,
    name: Annotated[str, typer.Argument(metavar="NAME|list", help="The group, or `list` for all groups.")] = "list",
    action: Annotated[
        GroupAction | None, typer.Argument(metavar="ACTION", help="Action from the list (default: show).")
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="TO|OFFSET…|DEAD", help="Target of a reset, offsets to ack or nack, dead letters."),
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
    NAME show              state and policy of the group
    NAME members           which consumers hold how many records
    NAME stuck             records delivered 3 times, or held for 10 min
    NAME reset TO          move to an offset, beginning, end or @TIME
    NAME reset --to -N     move to the last N records
    NAME ack OFFSET…       acknowledge, for any holder; 7-9 means 7, 8, 9
    NAME nack OFFSET…      deliver again now
    NAME replay DEAD       deliver the group's records in the log DEAD again
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
    if arguments and action not in (GroupAction.RESET, GroupAction.ACK, GroupAction.NACK, GroupAction.REPLAY):
        raise UsageError(f"`group … {action}` takes no argument (got {arguments[0]!r})")
    with open_log(target) as log:
        standing = _standing(log, name)
        if action == GroupAction.SHOW:
            _show(target, standing, _policy(log, name), json)
            return int(standing.offset is None)
        if action in (GroupAction.MEMBERS, GroupAction.STUCK):
            return _holders(log.group(name, create=False), action, json)
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


def _policy(log: ConsumableLog, name: str) -> GroupPolicy | None:
    try:
        return log.group(name, create=False).policy
    except CorruptionError:  # the state cannot be read either, or `show` names the problem
        return None


def _holders(group: Group, action: GroupAction, json: bool) -> int:
    """Print which consumers hold records, or which records are stuck."""
    found: list[Member] | list[InFlight] = group.members() if action == GroupAction.MEMBERS else group.stuck()
    if json:
        print(to_json([one._asdict() for one in found], indent=2))
        return 0
    now_ms = time.time_ns() // 1_000_000
    rows: list[list[str | Cell]] = []
    for one in found:
        name = Cell(one.consumer or "?", "name")
        if isinstance(one, Member):
            rows.append([name, f"{one.in_flight:,}", _since(one.oldest_ms, now_ms)])
        else:
            offsets_ = f"{one.start:,}" if one.end == one.start + 1 else f"{one.start:,}-{one.end - 1:,}"
            rows.append([offsets_, str(one.epoch), name, _since(one.fetched_ms, now_ms)])
    columns = [Column("consumer"), Column("in flight", True), Column("oldest fetched", True)]
    if action == GroupAction.STUCK:
        columns = [Column("offsets", True), Column("attempt", True), Column("consumer"), Column("fetched", True)]
    if rows:
        Output().table(columns, rows, indent=0)
    else:
        Output().line("no records are in flight" if action == GroupAction.MEMBERS else "no records are stuck")
    return 0


def _since(at_ms: int | None, now_ms: int) -> str:
    return "?" if at_ms is None else f"{duration(max(now_ms - at_ms, 0) / 1000)} ago"


def _show(target: Target, standing: ConsumerLag, policy: GroupPolicy | None, json: bool) -> None:
    if json:
        print(to_json({**standing._asdict(), "policy": policy and policy._asdict()}, indent=2))
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
    if policy is not None:
        gives_up = f", {policy.max_attempts} attempts, then to {policy.dead_letter}" if policy.dead_letter else ""
        pairs.append(("policy", f"lease {duration(policy.lease_ms / 1000)}{gives_up}"))
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
    if action == GroupAction.REPLAY:
        return _replay(group, arguments, dry_run)
    if action == GroupAction.DELETE:
        if not dry_run:
            group.delete()
        return {"said": f"{would}deleted"}
    if not dry_run:
        group.compact()
    if action == GroupAction.COMPACT:
        return {"said": f"{would}compacted: {', '.join(standing.paths)}"}
    return {"said": f"{would}repaired: {standing.problem or 'nothing was wrong'}", "problem": standing.problem}


def _replay(group: Group, arguments: list[str], dry_run: bool) -> dict[str, Any]:
    if len(arguments) != 1:
        raise UsageError(
            "`group … replay` needs the log of the dead letters",
            hint=f"the group's policy names {group.policy.dead_letter}" if group.policy.dead_letter else None,
        )
    done = group.replay(log_path(arguments[0]), dry_run=dry_run)
    gone = f"; {number(done.missing, 'record')} no longer in the log" if done.missing else ""
    said = f"{number(done.replayed, 'dead letter')} {'would be' if dry_run else 'will be'} delivered again{gone}"
    return {"said": said, **done._asdict()}


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
