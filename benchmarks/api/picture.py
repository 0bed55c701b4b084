"""Draws what the benchmarks of the API tier measured.

Grey is what it is compared with, colour is OpenJev. Nothing is drawn that the table does not hold.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")  # needs no screen; the file's ending still decides what is written

from matplotlib import pyplot as plt

from benchmarks.api.curves import Curve
from benchmarks.api.rows import Row

_GREYS = ("#d0d0d0", "#a8a8a8", "#606060", "#808080")
_COLOURS = ("#1f6fb4", "#5fb0e5", "#0b3c66")
_GROUP_WIDTH = 0.84


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw rates and latencies.

    Args:
        rows: in the order of the stacks.
        path: what is written; its ending says in which format.
    """
    delays = sorted({row.delay for row in rows})
    colours = _colours([row.stack for row in rows])
    figure, axes = plt.subplots(
        2, len(delays), figsize=(6.4 * len(delays), 8), squeeze=False, layout="constrained"
    )
    for column, delay in enumerate(delays):
        shown = [row for row in rows if row.delay == delay]
        upper, lower = axes[:, column]
        upper.set_title(f"Engine answers after {1000 * delay:g} ms")
        upper.set_ylabel("evaluations per second")
        _bars(upper, shown, colours, [row.rate for row in shown])
        lower.set_yscale("log")
        lower.set_ylabel("latency in ms: p50, and a line up to p99")
        _bars(lower, shown, colours, [row.p50 for row in shown], tops=[row.p99 for row in shown])
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    _save(figure, path)


def draw_growth(curves: Sequence[Curve], path: Path) -> None:
    """Draw CPU time over size, with the fitted lines, one column for each thing that grows.

    Args:
        curves: of some stacks.
        path: what is written; its ending says in which format.
    """
    growing = list(dict.fromkeys(curve.grows for curve in curves))
    colours = _colours([curve.stack for curve in curves])
    figure, axes = plt.subplots(
        1, len(growing), figsize=(6.4 * len(growing), 4.8), squeeze=False, layout="constrained"
    )
    for column, grows in zip(axes[0], growing, strict=True):
        for curve in (curve for curve in curves if curve.grows == grows):
            intercept, slope, _ = curve.line()
            sizes, colour = list(curve.cpu), colours[curve.stack]
            column.plot(sizes, list(curve.cpu.values()), "o", color=colour, label=curve.stack)
            column.axline((0, intercept), slope=slope, color=colour, linewidth=1)
        column.set_xlabel(grows)
        column.set_ylabel("ms of CPU per evaluation")
        column.set_ylim(bottom=0)
        column.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(frameon=False)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _colours(stacks: Sequence[str]) -> dict[str, str]:
    names = dict.fromkeys(stacks)
    ours = [name for name in names if "OpenJev" in name]
    others = [name for name in names if name not in ours]
    return {
        name: palette[index % len(palette)]
        for group, palette in ((others, _GREYS), (ours, _COLOURS))
        for index, name in enumerate(group)
    }


def _bars(
    axes: Any,
    rows: Sequence[Row],
    colours: dict[str, str],
    heights: Sequence[float],
    tops: Sequence[float] | None = None,
) -> None:
    """Draw a group of bars per number of connections, one bar per stack."""
    loads = sorted({row.connections for row in rows})
    stacks = list(dict.fromkeys(row.stack for row in rows))
    width = _GROUP_WIDTH / len(stacks)
    for index, name in enumerate(stacks):
        mine = [number for number, row in enumerate(rows) if row.stack == name]
        places = [
            loads.index(rows[number].connections) + (index + 0.5) * width - _GROUP_WIDTH / 2
            for number in mine
        ]
        values = [heights[number] for number in mine]
        errors: list[list[float]] | None = None
        if tops is not None:
            errors = [[0.0] * len(mine), [max(0.0, tops[n] - heights[n]) for n in mine]]
        bars = axes.bar(places, values, width, color=colours[name], label=name, yerr=errors)
        texts = [f"{value:.0f}" if value >= 10 else f"{value:.1f}" for value in values]
        axes.bar_label(bars, texts, padding=2, fontsize=6, label_type="edge")
    axes.set_xticks(range(len(loads)), [f"{load} at a time" for load in loads])
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.12)
