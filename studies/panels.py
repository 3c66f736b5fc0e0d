"""Pictures of studies: curves of means over a setting, with 95 % intervals over seeds, a panel for each task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from stellaris_jax.base.statistics import mean_ci95
from stellaris_jax.report.curves import COLOURS, LINES, TEXT, in_legend, legend_below, save, tidy, titled
from stellaris_jax.report.style import drawing

NO_COLOURS: Mapping[str, str] = MappingProxyType({})
Points = Sequence[tuple[float, float, float]]
"""Points of a curve: value, lower and upper end of the interval."""


def intervals(rows: Sequence[Sequence[float]]) -> Points:
    """Points of a curve, from the values of all seeds at each."""
    means = [mean_ci95(row) for row in rows]
    return [(mean, mean - half, mean + half) for mean, half in means]


@drawing()
def panels(
    tasks: Mapping[str, Mapping[str, Points]],
    ticks: Mapping[str, Sequence[str]],
    axis: str,
    measure: str,
    path: Path,
    title: str,
    rates: Sequence[str] = (),
    joined: bool = True,
    bars: str = "over seeds",
    possible: tuple[float, float] = (-math.inf, math.inf),
    colours: Mapping[str, str] = NO_COLOURS,
) -> Path:
    """Draw a panel for each task with a curve for each method.

    Methods named alike up to their last comma share a colour, and differ in their lines.

    Args:
      tasks: curves by method, by task; a curve has a point for each tick.
      ticks: labels of the settings, by task.
      axis: name of the setting.
      measure: name of what is measured.
      path: picture to write.
      title: title of the picture.
      rates: learning rates that may be named, on a logarithmic axis, if that is what is measured.
      joined: whether lines join the points of a curve; not for settings without an order.
      bars: what the intervals are over.
      possible: least and largest value that is possible, at which intervals are cut. Panels of a measure with both
        have one y axis.
      colours: colours of some methods, in all pictures alike.
    """
    figure = titled(title, 3.4)
    bounded = all(map(math.isfinite, possible))
    styles = _styles(list(dict.fromkeys(method for curves in tasks.values() for method in curves)), colours)
    for number, (task, curves) in enumerate(tasks.items(), 1):
        axes = figure.add_subplot(1, len(tasks), number, sharey=figure.axes[0] if figure.axes and bounded else None)
        for index, (method, points) in enumerate(curves.items()):
            middle, low, high = np.array(points).T
            low, high = np.clip(low, *possible), np.clip(high, *possible)
            places = np.arange(len(points)) + min(0.06, 0.2 / len(curves)) * (index - (len(curves) - 1) / 2.0)
            colour, line, marker = styles[method]
            style = line if joined else ""
            name = in_legend(method)
            axes.plot(places, middle, color=colour, linestyle=style, marker=marker, markersize=4, label=name)
            axes.vlines(places, low, high, color=colour, linewidth=1.2)
        axes.set_xticks(range(len(ticks[task])), ticks[task], fontsize=TEXT - 1)
        axes.set_xlabel(axis, fontsize=TEXT)
        axes.set_title(in_legend(task), fontsize=TEXT)
        if number == 1:
            axes.set_ylabel(measure, fontsize=TEXT)
        if rates:
            axes.set_yscale("log", base=2)
            low, high = axes.get_ylim()
            within = [rate for rate in rates if low <= float(rate) <= high]
            axes.set_yticks([float(rate) for rate in within], within)  # the scale's own labels are formulas
            axes.minorticks_off()
        tidy(axes)
    handles = {name: one for axes in figure.axes for one, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    legend_below(figure, list(handles.values()), min(6, len(handles)), f"bars: 95 % intervals {bars}")
    return save(figure, path)


def _styles(methods: Sequence[str], fixed: Mapping[str, str]) -> dict[str, tuple[str, str, str]]:
    """Colour, line and marker of each method; those without a fixed colour take what is left, and then all again."""
    families = [method.rpartition(", ")[0] or method for method in methods]
    taken = {fixed[family] for family in families if family in fixed}
    left = [*(colour for colour in COLOURS if colour not in taken), *COLOURS]
    others = [family for family in dict.fromkeys(families) if family not in fixed]
    styles = {}
    for index, (method, family) in enumerate(zip(methods, families, strict=True)):
        place = others.index(family) if family in others else 0
        again = family in others and place >= len(left) - len(COLOURS)
        member = families[:index].count(family) + again
        styles[method] = (fixed.get(family) or left[place], LINES[member], "os^D"[member])
    return styles
