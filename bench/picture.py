"""Latencies as a picture: percentile against milliseconds, both on scales that show the tail."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import Samples

PERCENTILES = (0, 50, 90, 99, 99.9)
COLOURS = ("#777777", "#e69f00", "#009e73", "#0072b2")
"""Told apart by colour-blind readers as well."""


def draw(series: Mapping[str, Samples], path: Path) -> str:
    """Draw and save; answers a note that says where, or why not."""
    try:
        import matplotlib as mpl
    except ImportError:
        return "The picture is not drawn: matplotlib is not installed."
    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.fonttype"] = "path"
    mpl.rcParams["svg.hashsalt"] = "duramen"
    figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    for (name, samples), colour in zip(series.items(), COLOURS, strict=True):
        _line(axes, name, samples, colour)
    _dress(axes)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return f"Picture: {path}"


def _place(percent: Any) -> Any:
    """Where a percentile stands: each further nine takes the same width."""
    return -np.log10(1 - np.asarray(percent) / 100)


def _line(axes: Any, name: str, samples: Samples, colour: str) -> None:
    most = 100 * (1 - 1 / len(samples))
    percents = 100 * (1 - 10 ** -np.linspace(0, min(3.0, float(_place(most))), 150))
    dashed = name.startswith("raw")
    axes.plot(
        _place(percents), np.percentile(samples, percents) * 1e3, label=name, color=colour,
        linewidth=2.2, linestyle="--" if dashed else "-", zorder=3 if dashed else 2,
    )  # fmt: skip
    marked = [percent for percent in (50, 90, 99) if percent <= most]
    axes.plot(_place(marked), np.percentile(samples, marked) * 1e3, "o", color=colour, markersize=5, zorder=4)


def _dress(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("latency of one append (ms, log scale)")
    axes.set_xticks(_place(PERCENTILES), ["fastest", "p50", "p90", "p99", "p99.9"])
    axes.set_xlim(-0.05, 3.05)
    axes.set_xlabel("percentile")
    axes.set_title("Single appends of 256 B at durability fsync", loc="left", fontsize=12)
    axes.grid(color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
