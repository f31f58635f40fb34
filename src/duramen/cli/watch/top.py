"""`duramen top`: a live table of logs: rates, latencies, segments, lag, warnings. Reads only.

To a pipe, or with ``--once``, it observes for a moment, prints the table once and exits.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from duramen.cli.arguments import Job, Json
from duramen.cli.output import Cell, Column, Output, safe, size, to_json
from duramen.disk import PosixDisk
from duramen.errors import UsageError
from duramen.sidecar import Verification
from duramen.watch import Observation, Observer, Rates, WatchedPaths

if TYPE_CHECKING:
    from rich.console import Group

MOST = 40
LOW_ON_DISK = 0.1
SLOW_SYNC_S = 0.1
COLUMNS = (
    Column("log"), Column("format"), Column("records/s", right=True), Column("bytes/s", right=True),
    Column("sync p50/p99", right=True), Column("segments", right=True), Column("size", right=True),
    Column("next offset", right=True), Column("lag", right=True), Column("warnings"),
)  # fmt: skip

DROPPED = ("format", "next offset", "segments", "bytes/s", "sync p50/p99", "size", "lag")
"""Columns that a narrow terminal leaves out, in this order."""
NAME_WIDTH = 16
"""How far a name may be shortened before a column is left out."""


def command(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Logs, stores or directories of logs.")],
    every: Annotated[float, typer.Option("--every", metavar="S", help="Seconds between updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the table once and exit.")] = False,
    json: Json = False,
) -> Job:
    """Watch logs on the terminal. Press q or Ctrl-C to stop."""
    if every <= 0:
        raise UsageError(f"--every must be greater than 0 (got {every:g})")
    return partial(run, paths, every, once=once, json=json)


def run(paths: list[str], every_s: float, *, once: bool = False, json: bool = False) -> int:
    disk = PosixDisk()
    places = WatchedPaths(disk, paths)
    observers = [Observer(disk, place) for place in places.all()[:MOST]]
    hidden = len(places.all()) - len(observers)
    try:
        if once or json or not sys.stdout.isatty():
            _observe(observers)
            time.sleep(min(every_s, 1.0))
            _observe(observers)
            _print(observers, hidden, json=json)
        else:
            _watch(observers, every_s, hidden)
    except KeyboardInterrupt:
        pass
    finally:
        for observer in observers:
            observer.close()
    return 0


def _observe(observers: list[Observer]) -> None:
    for observer in observers:
        observer.observe()


def _print(observers: list[Observer], hidden: int, *, json: bool) -> None:
    out = Output()
    if json:
        documents = [_document(observer) for observer in observers]
        out.write(to_json(documents, indent=2) + "\n")
        return
    out.table(COLUMNS, [_row(observer) for observer in observers], indent=0)
    if hidden:
        out.line(Cell(f"… and {hidden:,} more logs; give their paths to see them", "label"))


def _watch(observers: list[Observer], every_s: float, hidden: int) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(markup=False, highlight=False)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            _observe(observers)
            live.update(_screen(observers, hidden, console.width), refresh=True)
            if pressed(every_s) in ("q", "Q"):
                return


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits up to some seconds for a key, which needs no Enter. Returns it, or nothing."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return os.read(descriptor, 1).decode("ascii", "replace") if ready else ""

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def fitting(rows: list[list[str]], width: int) -> list[int]:
    """The columns that fit whole next to a short name: a number is never cut.

    >>> full = [[column.title for column in COLUMNS[:-1]]]
    >>> [len(fitting(full, width)) for width in (200, 80, 60, 20)]
    [9, 8, 7, 2]
    """
    shown = list(range(len(COLUMNS) - 1))
    widths = [max(len(text) for text in column) + 2 for column in zip(*rows, strict=True)]
    for title in DROPPED:
        if min(widths[0], NAME_WIDTH) + sum(widths[number] for number in shown[1:]) <= width:
            break
        shown = [number for number in shown if COLUMNS[number].title != title]
    return shown


def _screen(observers: list[Observer], hidden: int, width: int) -> Group:
    """The table, as wide as fits, with warnings below it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from duramen.cli.output import STYLES

    more = f", {hidden:,} more logs" if hidden else ""
    title = Text(f"duramen top  {time.strftime('%H:%M:%S')}{more}  (q quits)", no_wrap=True, overflow="ellipsis")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=title, title_justify="left")
    rows = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in _row(observer)] for observer in observers]
    texts = [[column.title for column in COLUMNS[:-1]], *([safe(cell.text) for cell in row[:-1]] for row in rows)]
    shown = fitting(texts, width)
    for number in shown:
        column = COLUMNS[number]
        table.add_column(Text(column.title, STYLES["label"]), justify="right" if column.right else "left", no_wrap=True)
    room = max(width - sum(max(len(row[number]) for row in texts) + 2 for number in shown[1:]) - 2, 1)
    warnings = []
    for cells in rows:
        name = safe(cells[0].text)
        cells[0] = Cell(name if len(name) <= room else "…" + name[len(name) + 1 - room :])
        table.add_row(*(Text(safe(cells[number].text), style=STYLES.get(cells[number].style, "")) for number in shown))
        if cells[-1].text:
            text = safe(cells[-1].text)
            said = text if text.startswith(name) else f"{name}: {text}"
            warnings.append(Text(said, style=STYLES.get(cells[-1].style, "")))
    return Group(table, *([Text("")] if warnings else []), *warnings)


def _row(observer: Observer) -> list[str | Cell]:
    seen, rates = observer.history[-1], observer.rates()
    if seen.problem is not None:
        return [observer.place.name, *[""] * (len(COLUMNS) - 2), Cell(seen.problem, "damage")]
    lag = max((one.lag or 0 for one in seen.standings), default=None)
    return [
        observer.place.name,
        seen.format,
        f"{rates.records:,.0f}",
        size(int(rates.size_bytes)),
        f"{_ms(rates.sync_p50_s)}/{_ms(rates.sync_p99_s)}",
        f"{seen.segments:,}",
        size(seen.size_bytes),
        f"{seen.next_offset:,}",
        "–" if lag is None else f"{lag:,}",
        _warnings(seen, rates),
    ]


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:g} ms"


def _warnings(seen: Observation, rates: Rates) -> Cell:
    found = []
    if seen.published is not None and seen.published.counters["poisoned"]:
        return Cell("a sync failed: reopen the log", "damage")
    if seen.verified is not None and not seen.verified.is_ok:
        return Cell(_damage(seen.verified), "damage")
    if seen.free_ratio is not None and seen.free_ratio < LOW_ON_DISK:
        found.append(f"{seen.free_ratio:.0%} of the disk free")
    if rates.sync_p99_s is not None and rates.sync_p99_s > SLOW_SYNC_S:
        found.append("slow syncs")
    found += [f"{one.kind} {one.name}: {one.problem}" for one in seen.standings if one.problem]
    return Cell("; ".join(found), "warning") if found else Cell("")


def _damage(found: Verification) -> str:
    at = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.at_us / 1e6))
    return f"damage, verified {at}: " + (found.problem or f"findings: {found.findings['damage']:,}")


def _document(observer: Observer) -> dict[str, object]:
    from duramen.watch import as_json

    return {"log": observer.place.name, **as_json(observer.history[-1]), "rates": observer.rates()._asdict()}
