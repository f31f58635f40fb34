"""`duramen serve`: a local web page that shows logs, and their metrics for Prometheus. Reads only."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated

import typer

from duramen.cli.arguments import Job
from duramen.cli.output import Output
from duramen.metrics import prometheus_rules

DEFAULT_PORT = 7477


def command(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH…", help="Logs, stores or directories of logs.")
    ] = None,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Print the URL of /metrics for Prometheus instead of the page's.")
    ] = False,
    host: Annotated[str, typer.Option("--host", metavar="H", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", help="Port to listen on; 0 picks a free one.")] = (
        DEFAULT_PORT
    ),
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="T", help="Token that requests must carry (or DURAMEN_TOKEN)."),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="DIR",
            help="Directory for a day of history (default: ~/.local/state/duramen); an empty string keeps none.",
        ),
    ] = None,
    rules: Annotated[bool, typer.Option("--rules", help="Print alert rules for Prometheus and exit.")] = False,
) -> Job:
    """Show logs on a local web page.

    /metrics serves the metrics for Prometheus. The server never writes to a log, and the page loads nothing from other
    hosts. A path that is missing or unreadable is shown as such. Any address other than loopback needs --token.
    """
    if rules:
        return _print_rules
    token = token or os.environ.get("DURAMEN_TOKEN")
    directory = default_state() if state is None else state or None
    return partial(run, paths or ["."], host, port, token, directory, only_metrics=metrics)


def default_state() -> str:
    """The user's directory for state, as the XDG specification defines it."""
    return os.path.join(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"), "duramen")


def _print_rules() -> int:
    Output().write(prometheus_rules())
    return 0


def run(
    paths: list[str], host: str, port: int, token: str | None, state: str | None, *, only_metrics: bool = False
) -> int:
    from duramen.watch import Server

    server = Server(paths, host=host, port=port, token=token, state=state)
    out = Output()
    suffix = "metrics" if only_metrics else ""
    out.line(f"serving {', '.join(paths)} on {server.url}{suffix}{'?token=…' if token else ''} (press ctrl-C to stop)")
    out.flush()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()
    return 0
