"""Pictures of one run, in the style of `panels`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from stellaris_jax.report import curves
from stellaris_jax.report.axes import axis_name, clock_name
from stellaris_jax.report.page.markup import text
from stellaris_jax.report.page.panels import INK, LOOK, axes_of, panel, return_axes, svg
from stellaris_jax.report.runs import Run
from stellaris_jax.report.style import drawing
from stellaris_jax.telemetry.names import METRICS

SMALL = (3.3, 1.9)
"""Size of a picture of one metric, in inches."""
COLUMNS, MOST_ROWS, SHADES = 120, 40, 8
"""Columns, most rows and shades of the heat map of staleness over rounds; the last row holds all larger values."""

LINE_LOOKS: tuple[dict[str, Any], ...] = (
    {"color": curves.BLUE, "linewidth": 1.4},
    {"color": curves.VERMILION, "linewidth": 1.4, "linestyle": "--"},
    {"color": curves.GREEN, "linewidth": 1.4, "linestyle": "-."},
)
"""Styles of the lines of a picture of several metrics."""


@drawing()
def return_panel(run: Run, clock: str) -> str:
    """Return over a clock; empty for a run without returns."""
    figure, axes = panel()
    curves.draw_run(axes, run, clock)
    if not axes.lines:
        return ""
    name = clock_name(axis_name(clock, axes_of([run])), run)
    return_axes(axes, clock, name)
    return svg(figure, f"return over {name}")


def return_legend(run: Run) -> dict[str, dict[str, Any]]:
    """Names of the lines of return, with their styles."""
    key = {}
    if np.isfinite(curves.column(run.rounds, "train_return")).any():
        key["training episodes"] = {"color": curves.ORANGE, "linestyle": "-"}
    if run.evaluations:
        seeds = len(run.evaluations[-1]["per_seed"]["eval_return_mean"])
        spread = "95 % over seeds" if seeds > 1 else "95 % over episodes"
        each = "; thin: each seed" if seeds > 1 else ""
        key[f"evaluation, mean and {spread}{each}"] = {"color": curves.BLUE, "linestyle": "-"}
    return key


@drawing()
def staleness_over_rounds(run: Run) -> str:
    """Heat map of the distribution of staleness over rounds: the stronger the colour, the larger the share."""
    counts = [_counts(row.get("staleness_counts")) for row in run.rounds]
    if not any(sum(row) for row in counts):
        return ""
    blocks = np.array_split(np.arange(len(counts)), min(len(counts), COLUMNS))
    rows = min(MOST_ROWS, max(map(len, counts)))
    shares = np.zeros((len(blocks), rows))
    for place, block in enumerate(blocks):
        for index in block:
            for staleness, count in enumerate(counts[index]):
                shares[place, min(staleness, rows - 1)] += count
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1)
    # Each shade is one shape of many rectangles, because thousands of separate ones would be most of the page.
    shade = np.ceil(SHADES * np.sqrt(shares / shares.max())).astype(int)
    numbers = curves.column(run.rounds, "round")
    edges = [*(numbers[block[0]] - 0.5 for block in blocks), numbers[-1] + 0.5]
    figure, axes = panel()
    for level in range(1, SHADES + 1):
        corners: list[tuple[float, float]] = []
        for place, staleness in zip(*np.nonzero(shade == level), strict=True):
            left, right, low = edges[place], edges[place + 1], staleness - 0.5
            corners += [(left, low), (right, low), (right, low + 1), (left, low + 1), (left, low)]
        if corners:
            codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * (len(corners) // 5)
            axes.add_patch(PathPatch(Path(corners, codes), color=curves.BLUE, alpha=level / SHADES, linewidth=0))
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(-0.5, rows - 0.5)
    axes.set_xlabel("round", fontsize=curves.TEXT)
    above = f", {rows - 1} and more in the last row" if max(map(len, counts)) > rows else ""
    axes.set_ylabel(f"staleness (versions){above}", fontsize=curves.TEXT)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))
    curves.tidy(axes)
    return svg(figure, "distribution of staleness over rounds")


def _counts(row: Any) -> list[int]:
    """Histogram of a record; empty if it is damaged."""
    numbers = isinstance(row, list) and all(isinstance(value, int) and value >= 0 for value in row)
    return row if numbers else []


@drawing()
def gate_panel(run: Run) -> str:
    """Staleness and the gate over rounds, and the share of groups that escaped it."""
    with matplotlib.rc_context(LOOK):
        figure, axes = panel()
        curves.draw_gate(axes, run)
        return svg(figure, "staleness and the gate over rounds")


@drawing()
def distribution_panel(
    run: Run, key: str = "staleness_counts", name: str = "staleness", counted: str = "gradients"
) -> str:
    """Distribution of the staleness of all gradients, or of another value in versions; see `draw_distribution`."""
    if any(row.get(key) != _counts(row.get(key)) for row in run.rounds):
        return ""
    with matplotlib.rc_context(LOOK):
        figure, axes = panel()
        curves.draw_distribution(axes, run, key, name, counted)
        return svg(figure, f"distribution of {name} over all rounds")


@drawing()
def lines_panel(run: Run, lines: Mapping[str, str], name: str, factor: float = 1.0) -> str:
    """Metrics of the records over rounds, in one picture; empty if there are no values.

    Args:
      run: the run.
      lines: keys of the metrics, with their names.
      name: name of the y axis.
      factor: factor on the values, such as 100 for percent.
    """
    figure, axes = panel()
    rounds = curves.thinned(curves.column(run.rounds, "round"))
    for (key, label), look in zip(lines.items(), LINE_LOOKS, strict=False):
        values = factor * curves.thinned(curves.column(run.rounds, key))
        if np.isfinite(values).any():
            axes.plot(rounds, values, label=label, marker=curves.dot(values), **look)
    if not axes.lines:
        return ""
    axes.set_ylim(bottom=0)
    axes.set_ylabel(name, fontsize=curves.TEXT)
    curves.round_axis(axes, rounds, 6)
    with matplotlib.rc_context(LOOK):
        axes.legend(fontsize=curves.TEXT - 1, frameon=False, labelcolor=INK)
    curves.tidy(axes)
    return svg(figure, f"{name} over rounds")


@drawing()
def groups_panel(run: Run) -> str:
    """Number of gradients that were aggregated together, over rounds."""
    figure, axes = panel()
    axes.set_ylabel("gradients in a group", fontsize=curves.TEXT)
    return _over_rounds(figure, axes, run, "group_size", curves.GREEN)


@drawing()
def metric_panel(run: Run, key: str) -> str:
    """Metric of the records over rounds, in a small picture; empty if there are no values."""
    return _over_rounds(*panel(*SMALL), run, key, curves.BLUE)


def captioned_panels(run: Run, keys: Iterable[str]) -> list[str]:
    """Small pictures of metrics with captions; constant metrics are left out."""
    drawn = []
    for key in keys:
        values = curves.column(run.rounds, key)
        known = values[np.isfinite(values)]
        if len(known) and np.ptp(known) > 0:
            metric = METRICS[key]
            caption = f"<figcaption><code>{text(metric.name)}</code>: {text(metric.about)}</figcaption>"
            drawn.append(metric_panel(run, key) + caption)
    return drawn


def _over_rounds(figure: Figure, axes: Axes, run: Run, key: str, colour: str) -> str:
    values, rounds = curves.thinned(curves.column(run.rounds, key)), curves.thinned(curves.column(run.rounds, "round"))
    known = np.isfinite(values)
    if not known.any():
        return ""
    axes.plot(rounds[known], values[known], color=colour, linewidth=1.3, marker=curves.dot(values))
    curves.round_axis(axes, rounds, 5)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    curves.tidy(axes)
    return svg(figure, f"{METRICS[key].name} over rounds")
