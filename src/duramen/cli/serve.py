"""`duramen serve`: a local web page about some logs, and their metrics for Prometheus. Reads only."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated

import typer

from duramen.cli.arguments import Job
from duramen.cli.output import Output
from duramen.metrics.rules import prometheus_rules

DEFAULT_PORT = 7477


def command(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH…", help="Logs, or roots of stores: all their topics.")
    ] = None,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Only /metrics for Prometheus is meant; the page is there all the same.")
    ] = False,
    host: Annotated[str, typer.Option("--host", metavar="H", help="Where to listen; loopback needs no token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", metavar="N", help="0 takes one that is free.")] = DEFAULT_PORT,
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="T", help="Requests must carry it; DURAMEN_TOKEN in the environment, too."),
    ] = None,
    rules: Annotated[bool, typer.Option("--rules", help="Print alert rules for Prometheus, and end.")] = False,
) -> Job:
    """Show logs on a local web page.

    /metrics has the numbers for Prometheus. Nothing is ever written, and nothing is loaded from elsewhere. To listen
    on anything but loopback takes a token.
    """
    if rules:
        return _print_rules
    return partial(run, paths or ["."], host, port, token or os.environ.get("DURAMEN_TOKEN"), only_metrics=metrics)


def _print_rules() -> int:
    Output().write(prometheus_rules())
    return 0


def run(paths: list[str], host: str, port: int, token: str | None, *, only_metrics: bool = False) -> int:
    from duramen.watch.server import Server

    server = Server(paths, host=host, port=port, token=token)
    out = Output()
    suffix = "metrics" if only_metrics else ""
    out.line(f"serving {', '.join(paths)} on {server.url}{suffix}{'?token=…' if token else ''} (ctrl-C ends it)")
    out.flush()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()
    return 0
