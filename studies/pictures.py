"""Pictures of the papers' figures with our results: curves, bars, lines over a parameter, and all claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stellaris_jax.base.statistics import FEWEST, mean_ci95
from stellaris_jax.report.curves import (
    BLACK,
    BLUE,
    COLOURS,
    GREEN,
    LINES,
    ORANGE,
    PINK,
    SKY,
    TEXT,
    VERMILION,
    about_spread,
    begin_at_zero,
    draw_band,
    legend_below,
    save,
    tidy,
    titled,
)
from stellaris_jax.report.style import drawing
from stellaris_jax.telemetry.format import compact, dollars
from studies.claims import HOLDS, OPEN, REVERSED, Claim
from studies.history import History
from studies.published import End

PAPER: dict[str, Any] = {"color": BLACK, "marker": "o", "markerfacecolor": "white", "linestyle": ":"}
"""Style of the paper's points."""
AXES = {"env_steps": "env steps", "seconds": "simulated seconds", "cost_usd": "dollars"}
TUNED = ", tuned"
"""Suffix of the names of series whose learning rate was tuned."""
SLOW = ", a target a round"
"""Suffix of the names of IMPACT's series whose target network is replaced once a round instead of with every version.

The paper's "target update frequency 1.0" can mean either. With every version, every policy is its own target, and
neither IMPACT's clip nor its KL penalty ever has an effect.
"""


class Mark(NamedTuple):
    """Points of the paper, drawn as open circles and joined if there are several.

    Attributes:
      series: series of the points.
      axis: one of `AXES`.
      x: positions on the axis.
      y: returns.
    """

    series: str
    axis: str
    x: Sequence[float]
    y: Sequence[float]


def end_marks(series: str, ours: Sequence[History], end: End) -> list[Mark]:
    """The paper's last point of a series on every axis; in env steps it is where ours is."""
    x = {"env_steps": float(ours[0].env_steps[-1]), "seconds": end.seconds, "cost_usd": end.dollars}
    return [Mark(series, axis, [value], [end.reward]) for axis, value in x.items()]


Panels = Mapping[str, Sequence[History]]
Marks = Mapping[str, Sequence[Mark]]


MOST_ROWS = 5
"""Most rows of a picture, so that it fits a screen."""
OWN_COLOURS = {
    "PPO": BLUE, "Stellaris": GREEN, "Nitro": PINK, "Stellaris + Nitro": ORANGE, "MinionsRL": SKY, "IMPACT": BLACK,
    "RLlib": ORANGE, "PAR-RL": SKY, "Max": BLUE, "Adapt": ORANGE, "Azure ML": VERMILION,
}  # fmt: skip
"""Colours of systems, the same in all pictures; others get what is left."""
WHOLE = ", whole GPU"


def curves(panels: Panels, marks: Marks, path: Path, title: str) -> None:
    """Draw return against env steps, simulated seconds and dollars, a row per panel.

    With more than `MOST_ROWS` panels, each task, the name of a panel up to its last comma, has a picture of its own,
    whose name ends with the task's.

    Args:
      panels: histories by panel.
      marks: points of the paper by panel, drawn as open circles.
      path: picture to write.
      title: title of the picture.
    """
    names = list(dict.fromkeys(_name(history) for history in chain(*panels.values())))
    if len(panels) <= MOST_ROWS:
        return _curves(panels, marks, path, title, names)
    path.unlink(missing_ok=True)  # of an earlier version, or of fewer panels
    for task in dict.fromkeys(map(_task, panels)):
        some = {panel: histories for panel, histories in panels.items() if _task(panel) == task}
        _curves(some, marks, path.with_stem(f"{path.stem}_{task}"), f"{title}, {task}", names)


def _task(panel: str) -> str:
    return panel.rpartition(", ")[0] or panel


@drawing()
def _curves(panels: Panels, marks: Marks, path: Path, title: str, names: Sequence[str]) -> None:
    """Draw one picture of `curves`, in which these names may occur."""
    styles = looks(names)
    names = [name for name in names if any(_name(history) == name for history in chain(*panels.values()))]
    figure = titled(title, 0.5 + min(2.4, 9.2 / len(panels)) * len(panels))
    rows = figure.subplots(len(panels), len(AXES), sharey="row", squeeze=False)
    for row, (panel, histories) in zip(rows, panels.items(), strict=True):
        for axes, (axis, label) in zip(row, AXES.items(), strict=True):
            for name in names:
                members = [history for history in histories if _name(history) == name]
                if members:
                    drawn = [(getattr(history, axis), history.returns) for history in members]
                    draw_band(axes, drawn, styles[name])
            for mark in marks.get(panel, ()):
                if mark.axis == axis:
                    axes.plot(mark.x, mark.y, linewidth=1, **PAPER | {"color": styles[mark.series]["color"]})
            begin_at_zero(axes)
            axes.set_xlabel(label, fontsize=TEXT)
            axes.xaxis.set_major_locator(MaxNLocator(5))
            written = dollars if axis == "cost_usd" else compact
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _, written=written: written(value)))
            tidy(axes)
        row[0].set_ylabel(f"{panel}\nreturn", fontsize=TEXT)
    handles = [Line2D([], [], label=name, **styles[name]) for name in names]
    if any(marks.get(panel) for panel in panels):
        handles.append(Line2D([], [], label="paper", **PAPER))
    counts = Counter((panel, history.series) for panel, members in panels.items() for history in members)
    legend_below(figure, handles, columns=5, note=about_spread(counts.values()))
    save(figure, path)


def looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Style of each name's curve: its system's colour, and dashes, so that coinciding curves stay visible."""
    fixed = {name: colour for name in names if (colour := _own_colour(name))}
    left = cycle([colour for colour in COLOURS if colour not in fixed.values()] or COLOURS)
    colours = {name: fixed.get(name) or next(left) for name in names}
    return {name: {"color": colours[name], "linestyle": line} for name, line in zip(names, cycle(LINES), strict=False)}


def _own_colour(name: str) -> str | None:
    """Colour of a system, which it keeps beside whatever it is added to; a whole GPU has its own."""
    if name.endswith(WHOLE):
        return VERMILION
    return OWN_COLOURS.get(name) or OWN_COLOURS.get(name.rpartition(" + ")[2])


def _name(history: History) -> str:
    """Name of the series without its suffix, which the panel shows."""
    return history.series.removesuffix(TUNED).removesuffix(SLOW)


@drawing()
def widths(panels: Mapping[str, Mapping[str, Sequence[Sequence[int]]]], path: Path, title: str) -> None:
    """Draw the actors of every round, as means with intervals, in a panel each.

    Args:
      panels: actors `[seeds][rounds]` by rule, by panel.
      path: picture to write.
      title: title of the picture.
    """
    figure = titled(title, 3.0)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    names = list(dict.fromkeys(chain(*panels.values())))
    styles = looks(names)
    for axes, (panel, rules) in zip(grid, panels.items(), strict=True):
        for name, seeds in rules.items():
            drawn = [(np.arange(1, len(actors) + 1, dtype=float), np.array(actors, float)) for actors in seeds]
            draw_band(axes, drawn, styles[name])
        axes.set_title(panel, fontsize=TEXT)
        axes.set_xlabel("round", fontsize=TEXT)
        axes.set_ylim(bottom=0)
        tidy(axes)
    grid[0].set_ylabel("actors", fontsize=TEXT)
    note = about_spread(len(seeds) for rules in panels.values() for seeds in rules.values())
    legend_below(figure, [Line2D([], [], label=name, **styles[name]) for name in names], columns=6, note=note)
    save(figure, path)


class Bar(NamedTuple):
    """Bar of a panel.

    Attributes:
      label: label of the bar.
      paper: the paper's value, or None.
      ours: our values `[seeds]`.
    """

    label: str
    paper: float | None
    ours: Sequence[float]


@drawing()
def bars(panels: Mapping[str, Sequence[Bar]], path: Path, title: str, unit: str) -> None:
    """Draw horizontal bars: the paper's in grey, if any, ours in blue with their 95 % intervals.

    Args:
      panels: bars by panel.
      path: picture to write.
      title: title of the picture.
      unit: unit of the values.
    """
    published = any(bar.paper is not None for panel in panels.values() for bar in panel)
    offset, thick = (0.2, 0.38) if published else (0.0, 0.6)
    figure = titled(title, 1.0 + 0.42 * max(len(panel) for panel in panels.values()))
    for axes, (name, panel) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for i, bar in enumerate(panel):
            mean, half_width = mean_ci95(bar.ours)
            if published:
                axes.barh(i - offset, bar.paper or 0.0, height=thick, color="0.7", label="paper" if i == 0 else None)
            axes.barh(i + offset, mean, height=thick, color=BLUE, label="here" if i == 0 else None)
            if len(bar.ours) < FEWEST:
                axes.plot(bar.ours, [i + offset] * len(bar.ours), color=BLACK, linestyle="", marker=".", markersize=4)
            else:
                axes.errorbar(mean, i + offset, xerr=half_width, color=BLACK, linewidth=1, capsize=2)
        axes.set_yticks(range(len(panel)), [bar.label for bar in panel])
        axes.invert_yaxis()
        axes.set_title(name, fontsize=TEXT)
        axes.set_xlabel(unit, fontsize=TEXT)
        tidy(axes)
    handles = figure.axes[0].get_legend_handles_labels()[0] if published else []
    counts = [len(bar.ours) for panel in panels.values() for bar in panel]
    legend_below(figure, handles, columns=2, note=about_spread(counts, "lines", "points"))
    save(figure, path)


class Point(NamedTuple):
    """Value of a parameter, with results.

    Attributes:
      value: value of the parameter.
      paper: the paper's return and dollars.
      returns: our returns `[seeds]`.
      cost_usd: our dollars `[seeds]`.
    """

    value: str
    paper: tuple[float, float]
    returns: Sequence[float]
    cost_usd: Sequence[float]


@drawing()
def sensitivity(panels: Mapping[str, Sequence[Point]], path: Path, title: str) -> None:
    """Draw return (top) and dollars (bottom) over the values of parameters; the paper's are dotted.

    Args:
      panels: points by parameter, a column each.
      path: picture to write.
      title: title of the picture.
    """
    figure = titled(title, 4.4)
    grid = figure.subplots(2, len(panels), squeeze=False, sharex="col", sharey="row")
    for column, (name, points) in zip(grid.T, panels.items(), strict=True):
        for index, axes in enumerate(column):
            x = range(len(points))
            intervals = [mean_ci95(point[2 + index]) for point in points]
            axes.plot(x, [mean for mean, _ in intervals], color=BLUE, marker="o", label="here")
            for at, (mean, half_width), point in zip(x, intervals, points, strict=True):
                if len(point[2 + index]) < FEWEST:
                    axes.plot([at] * len(point[2 + index]), point[2 + index], color=BLUE, linestyle="", marker="_")
                else:
                    axes.errorbar(at, mean, yerr=half_width, color=BLUE, capsize=3)
            axes.plot(x, [point.paper[index] for point in points], color=VERMILION, marker="o",
                      markerfacecolor="white", linestyle=":", label="paper")  # fmt: skip
            axes.set_xticks(x, [point.value for point in points])
            tidy(axes)
        column[1].set_xlabel(name, fontsize=TEXT)
    for axes, measure in zip(grid[:, 0], ("return", "dollars"), strict=True):
        axes.set_ylim(bottom=0)
        axes.set_ylabel(measure, fontsize=TEXT)
    note = about_spread([len(point.returns) for points in panels.values() for point in points], "lines", "dashes")
    legend_below(figure, grid[0][0].get_legend_handles_labels()[0], columns=2, note=note)
    save(figure, path)


WIDEST = 6.0
"""Largest position of a mark, in half-intervals."""
MARKS = {HOLDS: (BLUE, "o"), OPEN: (BLACK, "|"), REVERSED: (VERMILION, "X")}


@drawing()
def claims_overview(claims: Mapping[str, Sequence[Claim]], path: Path, title: str) -> Path | None:
    """Draw the claims of each figure that have an interval.

    A mark is a difference toward the paper's side, in halves of its own 95 % interval. So marks beyond the grey band,
    of one unit to both sides, are significant. Verdicts that do not survive the correction, or have none, are hollow.

    Args:
      claims: claims by figure.
      path: picture to write.
      title: title of the picture.

    Returns:
      `path`; None if no claim has an interval.
    """
    rows = {figure: [claim for claim in members if claim.effect is not None] for figure, members in claims.items()}
    rows = {figure: members for figure, members in rows.items() if members}
    if not rows:
        return None
    figure = titled(title, 1.4 + 0.42 * len(rows))
    axes = figure.add_subplot()
    axes.axvspan(-1.0, 1.0, color="#e6e6e6", linewidth=0)
    axes.axvline(0.0, color=BLACK, linewidth=0.6)
    for y, members in enumerate(rows.values()):
        places = np.linspace(-0.32, 0.32, len(members)) if len(members) > 1 else [0.0]
        for claim, shift in zip(members, places, strict=True):
            colour, marker = MARKS[claim.verdict]
            x = float(np.clip(claim.effect or 0.0, -WIDEST, WIDEST))
            face = colour if claim.survives or claim.verdict == OPEN else "none"
            axes.plot(x, y + shift, marker, color=colour, markerfacecolor=face, markersize=4.5)
    handles = [
        Line2D([], [], marker=marker, color=colour, label=verdict, linestyle="none")
        for verdict, (colour, marker) in MARKS.items()
    ]
    label = "does not survive, or not corrected"
    hollow = Line2D([], [], marker="o", color=BLUE, markerfacecolor="none", label=label, linestyle="none")
    axes.set_yticks(range(len(rows)), [f"{name} ({len(members)})" for name, members in rows.items()], fontsize=TEXT)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(-WIDEST - 0.4, WIDEST + 0.4)
    ticks = range(-6, 7, 2)
    axes.set_xticks(ticks, [f"≤ {t}" if t == -6 else f"≥ {t}" if t == 6 else str(t) for t in ticks])
    axes.set_xlabel("difference toward the paper's side, in halves of its 95 % interval", fontsize=TEXT)
    tidy(axes)
    legend_below(figure, [*handles, hollow], 4)
    return save(figure, path)
