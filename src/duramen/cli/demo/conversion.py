"""Act 4: conversion between formats. Losses are listed first; lossless conversions return the same bytes."""

from __future__ import annotations

import os

from duramen.cli.demo.stage import Stage, files

TITLE = "Conversion"


def play(stage: Stage) -> None:
    os.mkdir("converted")
    stage.say("RabbitMQ's format cannot store keys and headers, so this is refused:")
    stage.duramen("convert", "logs/keratin", "converted/osiris", "--to", "osiris", code=2)
    stage.say("With permission to drop them:")
    allowed = ("--allow-loss", "key", "--allow-loss", "headers")
    stage.duramen("convert", "logs/keratin", "converted/osiris", "--to", "osiris", *allowed)
    stage.say("If the other format can store everything, converting there and back returns the same bytes:")
    stage.duramen("convert", "logs/durable-log", "converted/there", "--to", "keratin")
    stage.duramen("convert", "converted/there", "converted/back", "--to", "durable-log")
    stage.shell("diff -r --exclude=.duramen logs/durable-log converted/back && echo the same")
    same = files("logs/durable-log") == files("converted/back")
    stage.show("Nothing is dropped silently, and a round trip is the same, byte for byte.", same)
