"""Runs a verb on one log, or on each log of a topic, a store or a directory of logs.

Several logs are processed one after the other. An error in one is printed, and the others follow; the exit code is the
highest. JSON is then a list with one document per log.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from duramen.cli.arguments import Target, Targets
from duramen.cli.output import Output, safe, to_json
from duramen.errors import DuramenError


class Outcome(NamedTuple):
    """What a verb did with one log."""

    document: Any
    """For ``--json``."""
    show: Callable[[Output], None]
    """Prints the text."""
    code: int = 0
    error: DuramenError | None = None
    """What to report after the text."""


def run_each(
    targets: Targets, work: Callable[[Target], Outcome], *, json: bool, headings: bool = True, stops: bool = False
) -> int:
    """Run ``work`` on each log and print what it did. Returns the exit code. ``stops``: an error ends the run."""
    out, code, documents = Output(), 0, []
    for target in targets.all:
        try:
            outcome = work(target)
        except DuramenError as error:
            if not targets.is_many:
                raise
            outcome = Outcome({"path": target.path, "ok": False, "error": str(error)}, _nothing, 0, error)
        documents.append(outcome.document)
        if not json:
            if targets.is_many and headings:
                out.heading(target.name)
            outcome.show(out)
        elif not targets.is_many:
            out.write(to_json(outcome.document, indent=2) + "\n")
        code = max(code, outcome.code, _report(outcome.error, targets, out))
        if stops and outcome.error is not None:
            break
    if json and targets.is_many:
        out.write(to_json(documents, indent=2) + "\n")
    return code


def _report(error: DuramenError | None, targets: Targets, out: Output) -> int:
    """Print an error on standard error, or raise it if it is about the only log. Returns its exit code."""
    if error is None:
        return 0
    if not targets.is_many:
        raise error
    out.flush()
    print(f"duramen: {safe(str(error))}", file=sys.stderr)
    return error.exit_code


def _nothing(_out: Output) -> None:
    pass
