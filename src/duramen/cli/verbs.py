"""The verbs of the command line, and where they are. A verb is imported when it runs or its help is shown: importing
all of them would take longer than most verbs do."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperGroup

from duramen.cli.usage import Command

VERBS = {
    "create": "log.append:create_command",
    "append": "log.append:append_command",
    "info": "log.info:command",
    "cat": "log.cat:command",
    "dump": "log.dump:command",
    "verify": "log.verify:command",
    "repair": "log.repair:command",
    "reindex": "log.repair:reindex_command",
    "seal": "log.append:seal_command",
    "convert": "log.convert:command",
    "copy": "log.copy:command",
    "topic": "store.topic:command",
    "group": "consumers.group:command",
    "cursor": "consumers.cursor:command",
    "lag": "consumers.lag:command",
    "retain": "log.retain:command",
    "compact": "log.compact:command",
    "top": "watch.top:command",
    "serve": "watch.serve:command",
    "demo": "demo.demo:command",
    "pipeline": "pipeline.pipeline:app",
}
"""Name of each verb, in the order of the help, and its module and function; for a group of verbs, its typer app."""


def load(name: str) -> Callable[..., Any] | typer.Typer:
    """Import a verb."""
    module, _, attribute = VERBS[name].partition(":")
    found: Callable[..., Any] | typer.Typer = getattr(importlib.import_module(f"duramen.cli.{module}"), attribute)
    return found


class VerbTable(Mapping[str, Any]):
    """The commands by name. Looking one up imports it, listing the names does not."""

    def __getitem__(self, name: str) -> Any:
        verb = load(name)
        if isinstance(verb, typer.Typer):
            return typer.main.get_command(verb)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name, cls=Command)(verb)
        return typer.main.get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class VerbGroup(TyperGroup):
    """The command class of the program: ``typer.Typer(cls=VerbGroup)``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = VerbTable()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)
