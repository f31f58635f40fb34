"""Act 6: retention and compaction: a log gets smaller, but never takes away what somebody still needs."""

from __future__ import annotations

import duramen
from duramen.cli.acts.stage import Stage

TITLE = "Making a log smaller"


def play(stage: Stage) -> None:
    stage.say("Retention removes the oldest segments. But the group `billing` has not read them yet:")
    stage.duramen("retain", "logs/keratin", "--max-bytes", "200kB", "--dry-run")
    stage.say("In a copy of the log the group goes to the end, and nothing is held any more:")
    stage.duramen("copy", "logs/keratin", "smaller")
    stage.duramen("group", "smaller", "billing", "reset", "end")
    stage.duramen("retain", "smaller", "--max-bytes", "200kB")
    stage.say("Compaction keeps the newest record of every key. The active segment is left alone, so it ends first:")
    stage.duramen("seal", "smaller")
    stage.duramen("compact", "smaller", "--key", "key")
    stage.duramen("verify", "smaller")
    with duramen.open("smaller") as log:
        left = [record.key for record in log]
    stage.show("One record is left of every customer, at the offset that it always had.", len(left) == len(set(left)))
