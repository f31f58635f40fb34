"""Turn a damaged log into a sound one, without destroying anything on the way.

`repair_log` verifies the log and returns a `Plan`: one `RepairStep` per file, and every offset that is lost. With
``plan_only=False`` it applies the plan. `undo_repair` restores the state before the last repair. `reindex` only
rebuilds indexes and manifests.

The planner reads and decides: `salvage` finds the records of a damaged segment, `order` puts them in order,
`segment_plan`, `slots` and `derived` make the steps. `apply`, `restore` and `undo` write, under the writer's lock: a
copy of every changed byte goes to the quarantine first, and a journal makes each state in between reversible. `claims`
compares the result with the plan; a difference rolls the repair back.

Repair never guesses a payload, never assigns an offset twice, and does not touch a segment of an unknown version.
"""

from __future__ import annotations

from duramen.log.repair.plan import Plan, RepairAction, RepairStep, Strategy
from duramen.log.repair.reindex import Reindexed, reindex
from duramen.log.repair.repair import repair_log, undo_repair
from duramen.log.repair.undo import Undone
