"""Act 6: retention and compaction shrink a log, but never remove records that a consumer still needs."""

from __future__ import annotations

import duramen
from duramen.cli.demo.stage import Stage

TITLE = "Retention and compaction"


def play(stage: Stage) -> None:
    stage.say("Retention removes the oldest segments. But the group `billing` has not read them yet:")
    stage.duramen("retain", "logs/keratin", "--max-bytes", "200kB", "--dry-run")
    stage.say("In a copy of the log, move the group to the end; then nothing holds the segments:")
    stage.duramen("copy", "logs/keratin", "smaller")
    stage.duramen("group", "smaller", "billing", "reset", "end")
    stage.duramen("retain", "smaller", "--max-bytes", "200kB")
    stage.say("Compaction keeps the newest record of every key in sealed segments, so seal the active one first:")
    stage.duramen("seal", "smaller")
    stage.duramen("compact", "smaller", "--key", "key")
    stage.duramen("verify", "smaller")
    with duramen.open("smaller") as log:
        left = [record.key for record in log]
    stage.show("One record of every customer remains, at its original offset.", len(left) == len(set(left)))
