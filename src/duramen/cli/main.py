"""The program `duramen VERB …`.

Typer only parses: a command returns a job, and `main` runs it. One place therefore decides what an error looks like:
one line on standard error and an exit code, never a traceback for bad input.

Exit codes: 0 success, 1 damage found, 2 wrong usage, 3 cannot read or write; 70 a bug in duramen, the only case that
prints a traceback; 130 after ctrl-C, 143 after SIGTERM (see `signals`). If the reader of the output ends early
(``duramen cat … | head -1``), the program ends silently with the exit code reached so far.
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
from duramen.cli.output import safe
from duramen.cli.signals import Signals
from duramen.cli.verbs import VerbGroup
from duramen.errors import DuramenError

USAGE = 2
STORAGE = 3
BUG = 70
"""EX_SOFTWARE of sysexits.h: the program is at fault, not the log."""
INTERRUPTED = 130

_Misuse: type[Exception] = typer.BadParameter.__bases__[0]
"""Typer's base class of usage errors, which it does not export."""

app = typer.Typer(
    name="duramen",
    cls=VerbGroup,
    help="Write, read, inspect, verify and repair durable logs in six on-disk formats.",
    epilog="Exit codes: 0 success, 1 damage found, 2 wrong usage, 3 cannot read or write; 70 bug in duramen; "
    "130 ctrl-C, 143 SIGTERM.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)


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
    """Run the command line and return the exit code."""
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
        job = app(arguments, prog_name="duramen", standalone_mode=False)
        code = job() if callable(job) else int(job or 0)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # typer turns the former into the latter while it prints help
        _discard_output()
        return code
    except typer.Abort:  # typer's translation of ctrl-C
        return _flushed(INTERRUPTED)
    except DuramenError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        place = os.fsdecode(error.filename) if error.filename else "standard output"
        return _fail(f"{place}: {error.strerror or error}", STORAGE)
    except _Misuse as error:
        return _fail(_misuse(error), USAGE)
    except MemoryError:
        return _fail("out of memory", STORAGE)
    except Exception as error:  # noqa: BLE001  Python would exit with 1, which means damage
        return _bug(error)
    return code


def _prepare_streams() -> None:
    """Make printing safe for file names and payloads that are not valid UTF-8."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _misuse(error: Exception) -> str:
    """Typer's message as one line, with a pointer to the help."""
    message = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
    context: typer.Context | None = getattr(error, "ctx", None)
    program = context.command_path if context is not None else "duramen"
    return f"{message[:1].lower()}{message[1:]} (see `{program} --help`)"


def _fail(message: str, code: int) -> int:
    """Print one line on standard error, after flushing standard output."""
    _flushed(code)
    print(f"duramen: {safe(message)}", file=sys.stderr)
    return code


def _bug(error: Exception) -> int:
    """Print the traceback of an unexpected exception and ask for a bug report."""
    _flushed(BUG)
    for line in "".join(traceback.format_exception(error)).splitlines():
        print(safe(line), file=sys.stderr)
    what = safe(" ".join(traceback.format_exception_only(error)).strip())
    print(
        f"duramen: this is a bug in duramen {__version__}, not a problem of the log: {what}\n"
        f"duramen: please report it with these lines, the command line and the output of `duramen info` "
        f"(Python {platform.python_version()}, {platform.platform()})",
        file=sys.stderr,
    )
    return BUG


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()
    return code


def _discard_output() -> None:
    """Redirect standard output to /dev/null, so that the interpreter's last flush does not fail again."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


if __name__ == "__main__":
    sys.exit(main())
