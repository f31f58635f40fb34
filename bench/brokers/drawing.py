"""The results of a run as a picture: a panel for each table, a point for each line, on one scale of MB/s.

Points and not bars, because the scale is logarithmic. Hollow points are synced to the disk. A line leads from the
median to the best round: on a busy machine they are far apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.brokers.contest import Result, megabytes

COLOURS = {"duramen": "#0072b2", "RabbitMQ": "#e69f00", "Kafka": "#009e73", "Spark's": "#cc79a7"}
"""Told apart by colour-blind readers as well."""
ROW_INCHES, PANEL_INCHES = 0.27, 0.62


def draw(results: Mapping[str, Sequence[Result]], path: Path) -> str:
    """Draw and save; answers a note that says where, or why not."""
    if not results:
        return "The picture is not drawn: nothing was measured."
    try:
        import matplotlib as mpl
    except ImportError:
        return "The picture is not drawn: matplotlib is not installed."
    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.fonttype"] = "path"
    mpl.rcParams["svg.hashsalt"] = "duramen"
    rows = [len(lines) for lines in results.values()]
    figure, panels = plt.subplots(
        len(rows), 1, sharex=True, squeeze=False, layout="constrained", height_ratios=[count + 0.6 for count in rows],
        figsize=(9.5, ROW_INCHES * sum(rows) + PANEL_INCHES * len(rows) + 0.4),
    )  # fmt: skip
    for axes, (title, lines) in zip(panels[:, 0], results.items(), strict=True):
        _panel(axes, title, lines)
    _scale(
        panels[-1, 0],
        [
            megabytes(speed)
            for lines in results.values()
            for line in lines
            for speed in (line.per_second, line.best_per_second)
        ],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return f"Picture: {path}"


def _panel(axes: Any, title: str, lines: Sequence[Result]) -> None:
    for place, line in enumerate(lines):
        colour = next(colour for word, colour in COLOURS.items() if line.name.startswith(word))
        speed, best = megabytes(line.per_second), megabytes(line.best_per_second)
        axes.plot([speed, best], [place, place], color=colour, linewidth=1.2, marker="|", markevery=[1], zorder=1)
        axes.plot(
            speed, place, "o", markersize=7, markeredgewidth=1.8, color=colour,
            markerfacecolor="white" if line.level == "fsync" else colour,
        )  # fmt: skip
        text = f"{speed:,.0f} MB/s" if speed >= 10 else f"{speed:.1f} MB/s"
        axes.annotate(text, (best, place), (7, 0), textcoords="offset points", va="center", fontsize=8.5)
    axes.set_yticks(range(len(lines)), [_label(line) for line in lines], fontsize=8.5)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(axis="x", color="#dddddd", linewidth=0.7)
    axes.grid(axis="y", color="#eeeeee", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _label(line: Result) -> str:
    synced = ", synced" if line.level == "fsync" else ""
    return f"{line.name}: {re.sub(r' [0-9.]+[0-9]', '', line.client, count=1)}{synced}"


def _scale(axes: Any, speeds: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set_xlim(min(speeds) / 1.4, max(speeds) * 2.2)  # room for the last label
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(
        "MB/s, log scale: median (the number), line to the best round; hollow: synced per batch", loc="right"
    )
