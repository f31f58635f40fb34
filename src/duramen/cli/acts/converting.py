"""Act 4: from one format into another. What would be lost is said first; what is not lost comes back the same."""

from __future__ import annotations

import os

from duramen.cli.acts.stage import Stage, files

TITLE = "From format to format"


def play(stage: Stage) -> None:
    os.mkdir("converted")
    stage.say("RabbitMQ's format has no keys and no headers. So this is refused:")
    stage.duramen("convert", "logs/keratin", "converted/osiris", "--to", "osiris", code=2)
    stage.say("Who can do without them says so:")
    allowed = ("--allow-loss", "key", "--allow-loss", "headers")
    stage.duramen("convert", "logs/keratin", "converted/osiris", "--to", "osiris", *allowed)
    stage.say("Where everything has a place, the way there and back gives the same bytes:")
    stage.duramen("convert", "logs/durable-log", "converted/there", "--to", "keratin")
    stage.duramen("convert", "converted/there", "converted/back", "--to", "durable-log")
    stage.shell("diff -r --exclude=.duramen logs/durable-log converted/back && echo the same")
    same = files("logs/durable-log") == files("converted/back")
    stage.show("Nothing is dropped in silence, and there and back is the same, byte for byte.", same)
