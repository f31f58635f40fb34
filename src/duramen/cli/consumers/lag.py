"""`duramen lag`: the lag of every group and cursor of logs, topics or whole stores."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from duramen.cli.arguments import Job, Json, logs_of
from duramen.cli.consumers.group import COLUMNS, row
from duramen.cli.output import STYLES, Cell, Column, Output, number, safe, to_json
from duramen.consumers import ConsumableLog, ConsumerLag, consumer_lags
from duramen.disk import PosixDisk
from duramen.errors import DuramenError, UsageError
from duramen.store import GroupsByRoot
from duramen.watch import WatchedPath

if TYPE_CHECKING:
    from rich.table import Table


def command(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH…", help="Logs, ROOT#topic, stores or directories of logs.")
    ],
    watch: Annotated[
        float | None, typer.Option("--watch", metavar="S", help="Repeat every S seconds until ctrl-C.")
    ] = None,
    json: Json = False,
) -> Job:
    """Show the lag of groups and cursors.

    The lag counts offsets, including gaps left by compaction and tracking until a group has passed them.
    """
    if watch is not None and watch <= 0:
        raise UsageError(f"--watch must be greater than 0 (got {watch:g})")
    return partial(run, paths, watch, json)


class LagLook(NamedTuple):
    """The lags of all readable logs, and the errors of the others."""

    rows: list[tuple[WatchedPath, ConsumerLag]]
    failed: list[tuple[WatchedPath, DuramenError]]
    notes: list[str]
    """What was not understood."""


def run(paths: list[str], watch_s: float | None, json: bool) -> int:
    found = places(paths)  # refuse a wrong path at once, also with --watch
    if watch_s is None:
        look = _look_at(found)
        if len(found) == 1 and look.failed:
            raise look.failed[0][1]
        return _print(look, json)
    try:
        if json or not sys.stdout.isatty():
            while True:
                _print(_look_again(paths), json, title=_title())
                sys.stdout.flush()
                time.sleep(watch_s)
        _live(paths, watch_s)
    except KeyboardInterrupt:
        pass
    return 0


def places(paths: list[str]) -> list[WatchedPath]:
    """The logs that the arguments name."""
    return [WatchedPath(*found) for text in paths for found in logs_of(text)]


def _look_at(found: list[WatchedPath]) -> LagLook:
    look, brokers = LagLook([], [], []), GroupsByRoot(PosixDisk())
    for place in found:
        try:
            with ConsumableLog(place.path) as log:
                look.rows.extend((place, one) for one in [*consumer_lags(log), *brokers.of(place.path)])
        except DuramenError as error:
            look.failed.append((place, error))
    look.failed.extend((WatchedPath(path, path), error) for path, error in brokers.failed())
    look.notes.extend(f"{number(count, 'record')} not decoded: {why}" for why, count in brokers.skipped().items())
    return look


def _look_again(paths: list[str]) -> LagLook:
    """Resolve the paths again and read the lags: topics and logs may appear and disappear."""
    found: list[WatchedPath] = []
    missing: list[tuple[WatchedPath, DuramenError]] = []
    for path in paths:
        try:
            found += places([path])
        except DuramenError as error:
            missing.append((WatchedPath(path, path), error))
    look = _look_at(found)
    return LagLook(look.rows, [*look.failed, *missing], look.notes)


def _title() -> str:
    return f"duramen lag  {time.strftime('%H:%M:%S')}  (press ctrl-C to stop)"


def _print(look: LagLook, json: bool, title: str | None = None) -> int:
    rows, failed, notes = look
    code = max((error.exit_code for _, error in failed), default=0)
    code = code or int(any(one.offset is None for _, one in rows))
    if json:
        trees: list[dict[str, Any]] = [{"log": place.name, **one._asdict()} for place, one in rows]
        trees += [{"log": place.name, "problem": str(error)} for place, error in failed]
        trees += [{"note": note} for note in notes]
        print(to_json(trees))
        return code
    out = Output()
    if title is not None:
        out.heading(title)
    if rows:
        columns, cells = _table(rows)
        out.table(columns, cells, indent=0)
    elif not failed:
        out.line("no groups and no cursors")
    for _, error in failed:
        out.line(Cell(str(error), "damage"))
    for note in notes:
        out.line(Cell(note, "warning"))
    return code


def _table(rows: list[tuple[WatchedPath, ConsumerLag]]) -> tuple[list[Column], list[list[str | Cell]]]:
    return [Column("log"), *COLUMNS], [[place.name, *row(one)] for place, one in rows]


def _live(paths: list[str], watch_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(markup=False, highlight=False), screen=True, auto_refresh=False) as live:
        while True:
            live.update(_screen(_look_again(paths)), refresh=True)
            time.sleep(watch_s)


def _screen(look: LagLook) -> Table:
    from rich.table import Table
    from rich.text import Text

    rows, failed, _ = look
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=Text(_title()), title_justify="left")
    columns, cells = _table(rows)
    for column in columns:
        table.add_column(Text(column.title, STYLES["label"]), justify="right" if column.right else "left")
    for line in cells:
        shown = [cell if isinstance(cell, Cell) else Cell(cell) for cell in line]
        table.add_row(*(Text(safe(cell.text), style=STYLES.get(cell.style, "")) for cell in shown))
    for place, error in failed:
        between = [Text()] * (len(columns) - 2)
        table.add_row(Text(safe(place.name)), *between, Text(safe(error.message), style=STYLES["damage"]))
    return table
