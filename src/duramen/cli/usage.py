"""The usage line of a verb: ``duramen append [OPTIONS] PATH [FILE]``.

Typer draws it differently from version to version (``{PATH} [[FILE]]``), so it is made here. An argument is called by
its metavar; one that may be left out stands in brackets; ``…`` in a metavar says that there may be more of them.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class Command(TyperCommand):
    """What every verb is, for ``app.command(…, cls=Command)``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *(_piece(one) for one in self.get_params(ctx) if one.param_type_name == "argument")]


def _piece(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"
