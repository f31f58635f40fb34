"""The recovery table: what the evidence says, the case that it is, and the action.

`recover` walks the rows from top to bottom and runs the action of each row whose evidence holds, until an action has
decided where appending goes on. The rows that follow a decision come last. Doubt counts as damage, and damage comes
before every action that changes a file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from duramen.disk import Disk
from duramen.errors import printable
from duramen.formats import Format
from duramen.log.recover.case import CUTS, RecoveryStep
from duramen.log.recover.case import RecoveryCase as Case
from duramen.log.recover.evidence import Evidence
from duramen.log.recover.recovery import Recovered, Recovery
from duramen.metrics import process as process_counters
from duramen.sidecar import FileSwap, Sidecar, TxMarker, refuse_unfinished_repair

logger = logging.getLogger(__package__)


class Row(NamedTuple):
    """``evidence`` describes ``holds`` for people; the case describes its action."""

    case: Case
    evidence: str
    holds: Callable[[Evidence], bool]
    act: Callable[[Recovery], None]
    follows: bool = False
    """Whether the row is asked after an earlier one has decided."""


TABLE = (
    Row(Case.CHANGE, "retention or compaction committed a file swap and did not finish it",
        lambda e: e.swap is not None, Recovery.note_file_swap),
    Row(Case.UNCOMMITTED, "a transaction was in progress, and its ledger does not list it",
        lambda e: e.tx is not None and e.tx.after is None, lambda r: r.note_tx(Case.UNCOMMITTED)),
    Row(Case.COMMITTED, "a transaction was in progress, and its ledger lists it",
        lambda e: e.tx is not None and e.tx.after is not None, lambda r: r.note_tx(Case.COMMITTED)),
    Row(Case.CLEAN, "the log was closed, no file has changed since, and the records end at the watermark",
        lambda e: e.clean_close is not None, Recovery.resume),
    Row(Case.DAMAGE,
        "a sealed or the active segment is missing; a sealed one has another size; a record is not whole and a valid "
        "one follows, or it lies below the durable watermark, or its version is unknown; at the durable watermark no "
        "record ends, or another offset follows, or the digest of the bytes before it differs; `verify` finds damage "
        "in what opening reads",
        lambda e: e.damage is not None, Recovery.refuse),
    Row(Case.LEFTOVER, "a temporary file of unfinished work, or an index without its segment",
        lambda e: bool(e.temporary_files or e.early_indexes), Recovery.remove_leftovers),
    Row(Case.FRESH, "no segment exists, and neither the sealed list nor the watermark names one",
        lambda e: not e.segments, Recovery.start_log),
    Row(Case.CONTINUED, "the last segment is sealed and unchanged, and another program has appended to it",
        lambda e: e.continued is not None, Recovery.note_continued),
    Row(Case.SEALED, "the last segment is sealed", lambda e: e.last_sealed is not None, Recovery.follow_sealed),
    Row(Case.NEVER_BEGUN,
        "the last segment lacks its header, or a part of what it starts with, and no record in it was ever durable",
        lambda e: e.segment is None, Recovery.recreate_segment),
    Row(Case.CUT, "damage in the active segment, and the caller asked to cut it",
        lambda e: e.is_damaged or e.contradiction is not None, Recovery.cut_damage),
    Row(Case.UNSYNCED,
        "a record is not whole and valid ones follow, but all after the durable watermark, within what one unfinished "
        "write can span, in a log that was not closed",
        lambda e: e.is_unsynced, lambda r: r.keep(Case.UNSYNCED, cut=True, copy=True)),
    Row(Case.TORN, "a record is not whole, no valid one follows, and nothing after it was ever durable",
        lambda e: e.is_torn, lambda r: r.keep(Case.TORN, cut=True, copy=True)),
    Row(Case.UNPROVEN, "bytes after the watermark that no checksum proves to be what was written",
        lambda e: e.is_unproven, lambda r: r.keep(Case.UNPROVEN, cut=True, copy=True)),
    Row(Case.ZEROS, "only zeros follow the records",
        lambda e: e.zeros_follow, lambda r: r.keep(Case.ZEROS, cut=True)),
    Row(Case.CLEAN, "the records end where the file ends", lambda e: True, lambda r: r.keep(Case.CLEAN)),
    Row(Case.INDEX, "an index of the active segment is missing, long or wrong",
        lambda e: e.has_wrong_index, Recovery.rebuild_indexes, follows=True),
    Row(Case.INDEX, "an index of a sealed segment is missing, or has another size than when it was sealed",
        lambda e: bool(e.wrong_sealed_indexes), Recovery.rebuild_sealed, follows=True),
)  # fmt: skip


def recover(
    disk: Disk,
    root: str,
    fmt: Format,
    sidecar: Sidecar,
    *,
    swap: FileSwap | None = None,
    tx: TxMarker | None = None,
    now_us: int,
    cut_damage: bool = False,
) -> Recovered:
    """Turn what a crash left into a log that can be appended to, by `TABLE`.

    The caller holds the lock, and has finished the file swap ``swap`` and resolved the transaction ``tx``. Raises
    `CorruptionError` for damage, before anything is changed."""
    began = time.perf_counter()
    evidence = Evidence(disk, root, fmt, sidecar, swap=swap, tx=tx, cut_damage=cut_damage)
    refuse_unfinished_repair(disk, root)
    recovery = Recovery(evidence, now_us=now_us)
    recovery.settle()
    for row in TABLE:
        is_decided = recovery.recovered is not None
        if is_decided == row.follows and row.holds(evidence):
            row.act(recovery)
    recovery.adopt_indexes()
    process_counters.recovered(time.perf_counter() - began, sum(step.case in CUTS for step in recovery.steps))
    assert recovery.recovered is not None
    _log_steps(root, recovery.steps)
    return recovery.recovered


def _log_steps(root: str, steps: list[RecoveryStep]) -> None:
    for step in steps:
        usual = step.case in (Case.FRESH, Case.CLEAN)
        level = logging.WARNING if step.case in CUTS else logging.DEBUG if usual else logging.INFO
        extra = {"path": root, "case": str(step.case), "file": step.path, "position": step.position}
        logger.log(level, "recovery of %s: %s", printable(root), printable(step), extra=extra)


def evidence_of(case: Case) -> str:
    """What the first row of a case says about its evidence.

    >>> evidence_of(Case.SEALED)
    'the last segment is sealed'
    """
    return next(row.evidence for row in TABLE if row.case == case)


def markdown_table() -> str:
    """The table for docs/recovery.md."""
    rows = [f"| *{row.case}* | {row.evidence} | {row.case.action} |" for row in TABLE]
    return "\n".join(["| case | evidence | action |", "|---|---|---|", *rows])
