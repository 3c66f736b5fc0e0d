"""Pictures of the map: heat maps of means with half-intervals, and differences with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.lines import Line2D

from stellaris_jax.base.statistics import mean_ci95, welch
from stellaris_jax.report.curves import BLACK, BLUE, TEXT, VERMILION, legend_below, save, tidy, titled
from stellaris_jax.report.style import drawing
from studies.map.warnings import Alarm

Field = tuple[str, Sequence[float]]
"""Note, such as a learning rate, and the values of all seeds."""


@drawing()
def heat(
    rows: Mapping[str, Sequence[Field]],
    columns: Sequence[str],
    axis: str,
    path: Path,
    title: str,
    best: bool = True,
    counted: bool = False,
    measure: str = "share of the way from the worst to the solved return",
) -> Path:
    """Draw a heat map, a row per method and a column per value of an axis; 0 is dark, 1 is bright.

    Args:
      rows: a field for each column, by method.
      columns: labels of the columns.
      axis: name of the axis.
      path: picture to write.
      title: title of the picture.
      best: whether to print in bold the best of a column, and values within its interval.
      counted: whether to count seeds, where each value is 0 or 1.
      measure: name of the values, beside their scale.
    """
    means = np.array([[np.mean(values) for _, values in row] for row in rows.values()])
    figure = titled(title, 1.2 + min(0.32 * len(rows), 8.4))
    axes = figure.add_subplot()
    image = axes.imshow(means, cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto")
    scale = figure.colorbar(image, ax=axes, aspect=40, pad=0.01, ticks=(0.0, 0.5, 1.0))
    scale.set_label("share of seeds" if counted else measure, fontsize=TEXT - 1)
    scale.ax.tick_params(labelsize=TEXT - 1)
    scale.outline.set_visible(False)  # type: ignore[operator]
    axes.set_xticks(range(len(columns)), columns, fontsize=TEXT)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=TEXT)
    axes.set_xlabel(axis, fontsize=TEXT)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    fields = list(rows.values())
    for x in range(len(columns)):
        top = int(np.argmax(means[:, x]))
        _, half = mean_ci95(fields[top][x][1])
        for y in range(len(rows)):
            note, values = fields[y][x]
            value, spread = mean_ci95(values)
            shown = f"{sum(values):.0f} of {len(values)}" if counted else f"{value:.2f} ± {spread:.2f}"
            text = shown + (f"  ({note})" if note else "")
            colour = "white" if value < 0.55 else "black"
            weight = "bold" if best and value >= means[top, x] - half else "normal"
            axes.text(x, y, text, ha="center", va="center", fontsize=TEXT - 2, color=colour, fontweight=weight)
    return save(figure, path)


@drawing()
def forest(
    rows: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    path: Path,
    title: str,
    margin: float = 0.0,
    axis: str = "difference, as a share of the way to what counts as solved, and its 95 % interval",
    kinds: tuple[str, str, str] = ("more", "not shown", "less"),
    factors: Sequence[float] = (),
) -> Path:
    """Draw differences of means with Welch's 95 % intervals, a row each, the largest first.

    Args:
      rows: values of two sides, by name.
      path: picture to write.
      title: title of the picture.
      margin: difference that counts as none, which is shaded.
      axis: name of what is compared.
      kinds: legend of intervals above, around and below zero.
      factors: ticks, if the values are logarithms to base 2; by default they are not.
    """
    differences = {name: welch(*sides) for name, sides in rows.items()}
    order = sorted(differences, key=lambda name: -differences[name][0])
    figure = titled(title, 1.4 + 0.2 * len(rows))
    axes = figure.add_subplot()
    axes.axvline(0.0, color=BLACK, linewidth=0.8)
    if margin:
        axes.axvspan(-margin, margin, color="0.92", zorder=0)
    for y, name in enumerate(order):
        difference, half, _ = differences[name]
        colour = BLUE if difference - half > 0.0 else VERMILION if difference + half < 0.0 else "0.45"
        axes.errorbar(difference, y, xerr=half, fmt="o", color=colour, markersize=4, linewidth=1.4)
    axes.set_yticks(range(len(order)), order, fontsize=TEXT - 1)
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.set_xlabel(axis, fontsize=TEXT)
    if factors:
        axes.set_xticks(np.log2(factors), [f"{factor:g}" for factor in factors])
    tidy(axes)
    colours = zip(kinds, (BLUE, "0.45", VERMILION), strict=True)
    legend_below(figure, [Line2D([], [], marker="o", color=colour, label=name) for name, colour in colours], 3)
    return save(figure, path)


@drawing()
def alarms(diagnostics: Sequence[Alarm], path: Path, title: str) -> Path:
    """Draw how well each diagnostic separates collapses from sound runs, and what its threshold announces."""
    figure = titled(title, 1.6 + 0.34 * len(diagnostics))
    axes = figure.add_subplot()
    names = [f"{a.name} {'>' if a.above else '<'} {a.threshold:.3g}" for a in diagnostics]
    measures = {
        "rank area": ([a.area for a in diagnostics], BLACK, "D"),
        "at equal rate": ([a.area_at_rate for a in diagnostics], "0.5", "^"),
        "in one cell": ([a.area_in_cell for a in diagnostics], "0.5", "v"),
        "collapses announced": ([a.sensitivity for a in diagnostics], BLUE, "o"),
        "false alarms": ([a.false for a in diagnostics], VERMILION, "X"),
    }
    for xs, colour, marker in measures.values():
        axes.plot(xs, range(len(diagnostics)), marker, color=colour, linestyle="none", markersize=6)
    for y, a in enumerate(diagnostics):
        axes.text(1.03, y, f"{a.lead:.0%} of a run ahead", va="center", fontsize=TEXT - 1)
    axes.axvline(0.5, color="0.6", linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(diagnostics)), names, fontsize=TEXT)
    axes.set_ylim(len(diagnostics) - 0.4, -0.6)
    axes.set_xlim(0.0, 1.25)
    axes.set_xticks(np.linspace(0, 1, 6))
    label = "share of runs; rank area: chance that a run that collapses looks more alarming than another"
    axes.set_xlabel(label, fontsize=TEXT)
    tidy(axes)
    handles = [
        Line2D([], [], marker=marker, color=colour, linestyle="none", label=name)
        for name, (_, colour, marker) in measures.items()
    ]
    legend_below(figure, handles, len(handles))
    return save(figure, path)
