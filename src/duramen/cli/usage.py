"""The usage line of a verb: ``duramen append [OPTIONS] PATH [FILE]``.

Typer's own line differs between versions (``{PATH} [[FILE]]``). Here an argument appears as its metavar, in brackets if
optional; ``…`` in a metavar means that it may be repeated.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class Command(TyperCommand):
    """The command class of every verb: ``app.command(…, cls=Command)``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *(_piece(one) for one in self.get_params(ctx) if one.param_type_name == "argument")]


def _piece(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"
