"""The command line: `duramen VERB …`.

Typer only parses; a command answers a job, and the job runs here, so that one place decides what an error looks like:
one line on standard error and its exit code, never a traceback for bad input.

Exit codes: 0 fine, 1 damage found, 2 wrong usage, 3 cannot read or write; 70 a bug of duramen, the only case that
prints a traceback; 130 after ctrl-C, 143 after SIGTERM: see `signals`. When whoever reads the output goes away
(``duramen cat … | head -1``), the program ends quietly, with 0 or with what it had found by then.
"""

from __future__ import annotations

import os
import platform
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated

import typer

from duramen import __version__
from duramen.cli import (
    append,
    cat,
    compact,
    convert,
    copy,
    cursor,
    demo,
    dump,
    group,
    info,
    lag,
    pipeline,
    repair,
    retain,
    serve,
    top,
    topic,
    verify,
)
from duramen.cli.output import safe
from duramen.cli.signals import Signals
from duramen.cli.usage import Command
from duramen.errors import DuramenError

USAGE = 2
STORAGE = 3
BUG = 70
"""EX_SOFTWARE of sysexits.h: nothing is said about the log, because the program itself is at fault."""
INTERRUPTED = 130

_Misuse: type[Exception] = typer.BadParameter.__bases__[0]
"""Typer's own error about wrong usage, which it does not export."""

app = typer.Typer(
    name="duramen",
    help="A durable log, in five on-disk formats: write one, look at one, read it, check it.",
    epilog="Exit codes: 0 fine, 1 damage found, 2 wrong usage, 3 cannot read or write; 70 a bug of duramen; "
    "130 ctrl-C, 143 SIGTERM.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)
for _name, _command in (
    ("create", append.create_command),
    ("append", append.append_command),
    ("info", info.command),
    ("cat", cat.command),
    ("dump", dump.command),
    ("verify", verify.command),
    ("repair", repair.command),
    ("reindex", repair.reindex_command),
    ("seal", append.seal_command),
    ("convert", convert.command),
    ("copy", copy.command),
    ("topic", topic.command),
    ("group", group.command),
    ("cursor", cursor.command),
    ("lag", lag.command),
    ("retain", retain.command),
    ("compact", compact.command),
    ("top", top.command),
    ("serve", serve.command),
    ("demo", demo.command),
):
    app.command(_name, cls=Command)(_command)
app.add_typer(pipeline.app, name="pipeline")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"duramen {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(USAGE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and answer the exit code."""
    with Signals() as signals:
        try:
            signals.start()
            code = _run(arguments)
            signals.finish()
        except KeyboardInterrupt:
            signals.finish()
            code = _flushed(INTERRUPTED)
        return signals.code(code)


def _run(arguments: Sequence[str] | None) -> int:
    _prepare_streams()
    code = 0
    try:
        answer = app(arguments, prog_name="duramen", standalone_mode=False)
        code = answer() if callable(answer) else int(answer or 0)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # typer turns the former into the latter while it prints its help
        _let_go()
        return code
    except typer.Abort:  # what typer makes of a ctrl-C
        return _flushed(INTERRUPTED)
    except DuramenError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        place = os.fsdecode(error.filename) if error.filename else "standard output"
        return _fail(f"{place}: {error.strerror or error}", STORAGE)
    except _Misuse as error:
        return _fail(_misuse(error), USAGE)
    except MemoryError:
        return _fail("there is not enough memory for this", STORAGE)
    except Exception as error:  # noqa: BLE001  Python would end with 1, which says that damage was found
        return _bug(error)
    return code


def _prepare_streams() -> None:
    """File names and payloads may hold what no encoding can: nothing printed may fail because of that."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before we started
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _misuse(error: Exception) -> str:
    """Typer's message as one line, with where to look it up."""
    message = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
    context: typer.Context | None = getattr(error, "ctx", None)
    program = context.command_path if context is not None else "duramen"
    return f"{message[:1].lower()}{message[1:]} (`{program} --help` shows what there is)"


def _fail(message: str, code: int) -> int:
    """One line on standard error, behind what is on standard output already."""
    _flushed(code)
    print(f"duramen: {safe(message)}", file=sys.stderr)
    return code


def _bug(error: Exception) -> int:
    """What nobody expected: the traceback, and below it what that means and what to do."""
    _flushed(BUG)
    for line in "".join(traceback.format_exception(error)).splitlines():
        print(safe(line), file=sys.stderr)
    what = safe(" ".join(traceback.format_exception_only(error)).strip())
    print(
        f"duramen: this is a bug of duramen {__version__}, and says nothing about the log: {what}\n"
        f"duramen: please report it with all these lines, the command line and the output of `duramen info` "
        f"(Python {platform.python_version()}, {platform.platform()})",
        file=sys.stderr,
    )
    return BUG


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except OSError:
        _let_go()
    return code


def _let_go() -> None:
    """Point standard output at nothing, so that the interpreter's last flush does not fail again."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


if __name__ == "__main__":
    sys.exit(main())
