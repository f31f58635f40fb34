"""Repair: from a damaged log to a sound one, with nothing destroyed on the way.

The plan, in prose. Verify the log. Walk every segment that is in question and keep each record that is whole, also
behind damage, in the order of the offsets; put right what can be proven. Give files the names that their contents ask
for. Make anew what is derived. Everything that changes is copied into the quarantine first, and a journal says how to
take it all back: after a crash, after an error, or because somebody thought better of it.

`repair` plans, and acts if told to; `undo_repair` takes the last one back. Both hold the writer's lock while they act.

An interrupt is to find the log as it was, or done. An exception of any kind has everything taken back; but a second
one could stop that. So a program that has signals in its hand gives ``hold``: a context in which none comes by itself.
It answers a function that raises one that is waiting, and this is called where everything can still be taken back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from duramen.disk import Disk, PosixDisk
from duramen.disk.base import Kind
from duramen.errors import DuramenError, UsageError
from duramen.formats import Format
from duramen.log import change, pending
from duramen.log.directory import kind_of
from duramen.log.journal import Journal, State, read_journal
from duramen.log.repair.apply import Application
from duramen.log.repair.plan import Action, Loss, Plan, Removed, Step, Strategy
from duramen.log.repair.planner import make_plan
from duramen.log.repair.restore import put_back
from duramen.log.repair.undo import Undone, last_repair, plan_undo, undo
from duramen.log.sidecar import Sidecar, refuse_no_directory
from duramen.log.verify import Progress, check_log, format_for

__all__ = ["Action", "Loss", "Plan", "Removed", "Step", "Strategy", "Undone", "repair", "undo_repair"]

Hold = Callable[[], AbstractContextManager[Callable[[], None]]]


def not_held() -> AbstractContextManager[Callable[[], None]]:
    """For those who do not handle signals: interrupts come when they come."""
    return contextlib.nullcontext(lambda: None)


def repair(
    path: str,
    *,
    plan_only: bool = True,
    format: str | None = None,
    strategy: Strategy | str = Strategy.SALVAGE,
    strays: bool = False,
    disk: Disk | None = None,
    progress: Progress | None = None,
    hold: Hold = not_held,
    **options: Any,
) -> Plan:
    """The plan for the log at ``path``; with ``plan_only=False`` it is carried out, and the log verified again.

    ``strategy``: ``"salvage"`` keeps every whole record, ``"truncate"`` cuts a segment at its first bad one.
    ``strays``: files that are none of the log's are set aside, too.
    """
    disk = disk if disk is not None else PosixDisk()
    chosen = _strategy(strategy)
    if kind_of(disk, path) != Kind.DIRECTORY:
        raise UsageError("a single file cannot be repaired", path=path, hint="name the log's directory")
    refuse_no_directory(disk, path)
    if plan_only:
        journal = read_journal(disk, path)
        fmt, problem = format_for(disk, path, format, options)
        if journal is not None and journal.state == State.ACTING:
            return _unfinished(path, fmt, chosen)
        return make_plan(disk, path, fmt, chosen, strays=strays, problem=problem, progress=progress)
    made = disk.kind(f"{path}/.duramen") == Kind.MISSING
    with _locked(disk, path) as sidecar:
        with hold():
            _finish_others(disk, path, format, options, sidecar)
        fmt, problem = format_for(disk, path, format, options)
        plan = make_plan(disk, path, fmt, chosen, strays=strays, problem=problem, progress=progress)
        if plan.steps:
            with hold() as check:
                journal = _apply(Application(disk, path, fmt, sidecar, plan, made=made, check=check))
            plan.quarantine = journal.directory
        plan.applied = True
    fmt, problem = format_for(disk, path, format, options)
    plan.report = check_log(disk, path, fmt, progress, [] if problem is None else [problem])
    return plan


def _strategy(strategy: Strategy | str) -> Strategy:
    try:
        return Strategy(strategy)
    except ValueError:
        known = ", ".join(Strategy)
        raise UsageError(f"strategy {strategy!r} is not known", hint=f"it is one of {known}") from None


def _unfinished(path: str, fmt: Format, strategy: Strategy) -> Plan:
    plan = Plan(path, fmt.name, strategy)
    plan.refused.append(
        "a repair was stopped half-way: `--apply` puts everything back and begins anew, `--undo` puts everything back"
    )
    return plan


@contextlib.contextmanager
def _locked(disk: Disk, path: str) -> Iterator[Sidecar]:
    sidecar = Sidecar(disk, path)
    sidecar.lock()
    try:
        yield sidecar
    finally:
        sidecar.release()


def _finish_others(disk: Disk, path: str, format: str | None, options: dict[str, Any], sidecar: Sidecar) -> None:
    """What others left half done comes first: an earlier repair, a change of files, a transaction."""
    journal = read_journal(disk, path)
    if journal is not None and journal.state == State.ACTING:
        put_back(disk, path, journal)
    change.finish(disk, path)
    if pending.read(disk, path) is not None:
        fmt, _ = format_for(disk, path, format, options)
        pending.settle(disk, path, fmt, sidecar)


def _apply(application: Application) -> Journal:
    try:
        return application.run()
    except DuramenError as error:
        _take_back(application, error)
        raise
    except BaseException:  # ctrl-C, or no memory
        application.take_back()
        raise


def _take_back(application: Application, error: DuramenError) -> None:
    """After an error: as it was, if the disk lets us; else the journal stays, and says so to whoever comes next."""
    try:
        acted = application.take_back()
        error.hint = "everything was put back as it was" if acted else error.hint or "nothing was changed"
    except DuramenError:
        error.hint = "the repair is half done: `duramen repair --undo` takes it back, `--apply` begins anew"


def undo_repair(
    path: str,
    *,
    plan_only: bool = False,
    force: bool = False,
    format: str | None = None,
    disk: Disk | None = None,
    hold: Hold = not_held,
    **options: Any,
) -> Undone:
    """Take the last repair back. Raises `UsageError` where the log has changed since, unless ``force`` is given."""
    disk = disk if disk is not None else PosixDisk()
    if kind_of(disk, path) != Kind.DIRECTORY:
        raise UsageError("a single file was never repaired", path=path, hint="name the log's directory")
    journal = last_repair(disk, path)
    fmt, _ = format_for(disk, path, format, options)
    if plan_only:
        return plan_undo(disk, path, fmt, journal)
    with _locked(disk, path):
        journal = last_repair(disk, path)
        undone = plan_undo(disk, path, fmt, journal)
        if undone.dropped and not force:
            some = "; ".join(undone.dropped[:3]) + (" …" if len(undone.dropped) > 3 else "")
            raise UsageError(
                f"the log has changed since the repair: {some}", path=path,
                hint="`--undo --force` drops that, and keeps a copy of it in the quarantine",
            )  # fmt: skip
        with hold() as check:
            return undo(disk, path, fmt, journal, undone, check)
