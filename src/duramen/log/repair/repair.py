"""Repair a damaged log: plan, apply, confirm; and undo.

`repair_log` verifies the log and makes a plan: keep each whole record, also after damage, in the order of the offsets;
correct what can be proven; name files by their contents; rebuild derived files. If told to, it applies the plan under
the writer's lock: every byte that changes is copied into the quarantine first, and a journal tells how to restore it.
The result is compared with the plan (`claims`); if it differs, everything is put back. `undo_repair` restores the state
before the last repair.

An interrupt finds the log as it was, or repaired: any exception rolls the repair back. A second exception could stop
the rollback, so a program that handles signals passes ``hold``, a context that defers them. It returns a function that
raises a deferred signal; repair calls it where it can still roll back.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from duramen.disk import Disk, Kind, disk_or_real, rooted
from duramen.errors import DuramenError, UsageError, printable
from duramen.formats import Format
from duramen.log.recover import resolve_tx
from duramen.log.repair.apply import Application
from duramen.log.repair.claims import check_claims
from duramen.log.repair.plan import Plan, Strategy
from duramen.log.repair.planner import make_plan
from duramen.log.repair.restore import put_back
from duramen.log.repair.undo import Undone, last_repair, plan_undo, undo
from duramen.log.segments import kind_of, refuse_special_files, special_files
from duramen.log.verify import Finding, Progress, Report, check_log, format_for
from duramen.sidecar import (
    RepairJournal,
    RepairState,
    Sidecar,
    read_repair_journal,
    read_tx_marker,
    refuse_no_directory,
    replay_file_swap,
)

logger = logging.getLogger(__package__)

Hold = Callable[[], AbstractContextManager[Callable[[], None]]]


def not_held() -> AbstractContextManager[Callable[[], None]]:
    """The ``hold`` of a program that does not handle signals: nothing is deferred."""
    return contextlib.nullcontext(lambda: None)


def repair_log(
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
    """Plan the repair of the log at ``path``; with ``plan_only=False`` also apply the plan and verify the result.

    ``strategy``: ``"salvage"`` keeps every whole record, ``"truncate"`` cuts a segment at its first bad one.
    ``strays``: also set aside files that do not belong to the log.
    """
    disk = disk_or_real(disk).within(path)
    asked = _RepairRequest(path, format, options, _strategy(strategy), strays, progress)
    if kind_of(disk, path) != Kind.DIRECTORY:
        raise UsageError("cannot repair a single file", path=path, hint="give the log's directory")
    refuse_no_directory(disk, path)
    fmt, _ = asked.detect(disk)
    fmt.refuse_writing(path)
    if not plan_only and not any(found.is_own for found in special_files(disk, path, fmt)):
        return _repair(disk, asked, hold)
    journal = read_repair_journal(disk, path)
    if journal is not None and journal.state == RepairState.ACTING:
        return _unfinished(path, fmt, asked.strategy)
    return asked.plan(disk)[0]


@dataclass(frozen=True)
class _RepairRequest:
    path: str
    format: str | None
    options: dict[str, Any]
    strategy: Strategy
    strays: bool
    progress: Progress | None

    def detect(self, disk: Disk) -> tuple[Format, Finding | None]:
        return format_for(disk, self.path, self.format, self.options)

    def plan(self, disk: Disk, *, is_ours: bool = False) -> tuple[Plan, Format]:
        fmt, problem = self.detect(disk)
        plan = make_plan(
            disk, self.path, fmt, self.strategy, strays=self.strays, problem=problem, progress=self.progress,
            is_ours=is_ours,
        )  # fmt: skip
        return plan, fmt

    def verify(self, disk: Disk, progress: Progress | None, *, is_ours: bool = False) -> Report:
        """Verify the log; leave out the finding that this repair is not finished."""
        fmt, problem = self.detect(disk)
        problems = [] if problem is None else [problem]
        report = check_log(disk, self.path, fmt, progress, problems, is_ours=is_ours)
        report.findings = [finding for finding in report.findings if finding.code != "unfinished-repair"]
        return report


def _repair(disk: Disk, asked: _RepairRequest, hold: Hold) -> Plan:
    """Plan and apply, under the writer's lock."""
    path = asked.path
    with rooted(disk, path) as disk, _locked(disk, path) as (sidecar, made):
        with hold():
            _finish_others(disk, asked, sidecar)
        plan, fmt = asked.plan(disk, is_ours=True)
        if plan.steps:
            with hold() as check:

                def confirm() -> None:
                    plan.report = asked.verify(disk, _checking(check, asked.progress), is_ours=True)
                    check_claims(disk, path, fmt, plan, plan.report)

                journal = _apply(Application(disk, path, fmt, sidecar, plan, made=made, check=check, confirm=confirm))
            plan.quarantine = journal.directory
            extra = {"path": path, "steps": len(plan.steps), "quarantine": plan.quarantine}
            logger.warning("repaired %s in %d steps", printable(path), len(plan.steps), extra=extra)
        plan.applied = True
    if plan.report is None:
        plan.report = asked.verify(disk, asked.progress)
    return plan


def _checking(check: Callable[[], None], progress: Progress | None) -> Progress:
    """Return a progress callback that also raises a deferred interrupt."""

    def passed(done_bytes: int) -> None:
        check()
        if progress is not None:
            progress(done_bytes)

    return passed


def _strategy(strategy: Strategy | str) -> Strategy:
    try:
        return Strategy(strategy)
    except ValueError:
        known = ", ".join(Strategy)
        raise UsageError(f"unknown strategy {strategy!r}", hint=f"it must be one of {known}") from None


def _unfinished(path: str, fmt: Format, strategy: Strategy) -> Plan:
    plan = Plan(path, fmt.name, strategy)
    plan.refused.append(
        "a repair was interrupted: `--apply` puts everything back and starts again, `--undo` puts everything back"
    )
    return plan


@contextlib.contextmanager
def _locked(disk: Disk, path: str) -> Iterator[tuple[Sidecar, bool]]:
    """Lock the sidecar. Yields it, and whether it was created for the lock."""
    made = disk.kind(f"{path}/.duramen") == Kind.MISSING
    sidecar = Sidecar(disk, path)
    sidecar.lock()
    try:
        yield sidecar, made
        sidecar.check(closely=True)
    finally:
        sidecar.release()


def _finish_others(disk: Disk, asked: _RepairRequest, sidecar: Sidecar) -> None:
    """Finish what other processes left half done: an earlier repair, a file swap, a transaction."""
    path = asked.path
    journal = read_repair_journal(disk, path)
    if journal is not None and journal.state == RepairState.ACTING:
        put_back(disk, path, journal)
    replay_file_swap(disk, path)
    if read_tx_marker(disk, path) is not None:
        fmt, _ = asked.detect(disk)
        resolve_tx(disk, path, fmt, sidecar)


def _apply(application: Application) -> RepairJournal:
    try:
        return application.run()
    except DuramenError as error:
        _roll_back(application, error)
        raise
    except BaseException:  # Ctrl-C, or out of memory
        application.rollback()
        raise


def _roll_back(application: Application, error: DuramenError) -> None:
    """Restore everything after an error, and say so in its hint. If that fails the journal stays, and `--undo` can try
    again."""
    try:
        acted = application.rollback()
    except DuramenError as failed:
        error.hint = (
            f"not everything could be put back: {failed}. "
            "`duramen repair --undo` tries again, `--apply` puts everything back and plans again"
        )
        return
    checked = "everything was put back as it was"
    said = f"{error.hint}; {checked}" if error.hint and acted else error.hint
    error.hint = (said or checked) if acted else error.hint or "nothing was changed"


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
    """Undo the last repair. Raises `UsageError` if the log has changed since, unless ``force`` is given."""
    disk = disk_or_real(disk).within(path)
    if kind_of(disk, path) != Kind.DIRECTORY:
        raise UsageError("cannot undo a repair of a single file", path=path, hint="give the log's directory")
    journal = last_repair(disk, path)
    fmt, _ = format_for(disk, path, format, options)
    if plan_only:
        return plan_undo(disk, path, fmt, journal)
    refuse_special_files(disk, path, fmt)
    with rooted(disk, path) as disk, _locked(disk, path):
        journal = last_repair(disk, path)
        undone = plan_undo(disk, path, fmt, journal)
        if undone.dropped and not force:
            some = "; ".join(undone.dropped[:3]) + (" …" if len(undone.dropped) > 3 else "")
            raise UsageError(
                f"the log has changed since the repair: {some}", path=path,
                hint="`--undo --force` drops these changes and keeps a copy in the quarantine",
            )  # fmt: skip
        with hold() as check:
            undone = undo(disk, path, fmt, journal, undone, check)
    logger.warning(
        "the last repair of %s is undone", printable(path), extra={"path": path, "quarantine": journal.directory}
    )
    return undone
