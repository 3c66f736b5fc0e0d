"""Pictures of the page: drawn by Matplotlib, embedded as SVG in the page's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from stellaris_jax.base.statistics import Curve, mean_ci95, on_common_grid
from stellaris_jax.report.axes import AXES, axis_name
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
    begin_at_zero,
    draw_band,
    in_legend,
    tidy,
)  # fmt: skip
from stellaris_jax.report.page.markup import text
from stellaris_jax.report.results import ENV, Row
from stellaris_jax.report.robust import Scores, performance_profile
from stellaris_jax.report.runs import LEARNED, Run, counts_learned, seed_curves, short_names
from stellaris_jax.report.style import drawing
from stellaris_jax.telemetry.format import compact, dollars

INK = "#123456"
"""Placeholder colour of text and axes, which no curve has; the page's own colour replaces it."""
OF_THE_PAGE = {
    INK: "currentColor", BLACK: "currentColor", BLUE: "var(--blue)", ORANGE: "var(--orange)", GREEN: "var(--green)",
    PINK: "var(--pink)", VERMILION: "var(--vermilion)", SKY: "var(--sky)", "#ffffff": "var(--back)",
}  # fmt: skip
LOOK: dict[Any, Any] = {
    "svg.fonttype": "none", "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK,
    "ytick.color": INK, "grid.color": INK, "font.family": "sans-serif",
}  # fmt: skip
MOST = 7
"""Most settings that have colours; further ones are drawn in grey, behind them."""
POINTS = 60
"""Number of points of grey curves, and of thresholds of a profile."""
WIDTH, HEIGHT = 5.2, 3.0
LOGARITHMIC = 10
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""


def axes_of(runs: Iterable[Run]) -> list[str]:
    """Axes that the returns of runs are drawn over; steps learned from only if a run has independent actors."""
    learned = counts_learned(runs)
    return [axis for axis in AXES if axis != LEARNED or learned]


def styles(heights: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Styles of the highest settings, by label; settings without one are grey."""
    chosen = sorted(heights, key=lambda label: -heights[label])[:MOST]
    shown = [label for label in heights if label in chosen]
    return {label: {"color": COLOURS[i], "linestyle": LINES[i % len(LINES)]} for i, label in enumerate(shown)}


def swatch(style: Mapping[str, Any]) -> str:
    """SVG of a stroke in the style of a curve, for a legend."""
    dashes = {"-": "", "--": "7 3", ":": "2 3", "-.": "8 3 2 3"}[style["linestyle"]]
    return (
        f'<svg viewBox="0 0 30 10" aria-hidden="true"><path d="M0 5H30" fill="none" stroke-width="2.5" '
        f'stroke="{OF_THE_PAGE[style["color"]]}" stroke-dasharray="{dashes}"/></svg>'
    )


def curves_of(row: Row, clock: str) -> list[Curve]:
    """Curves of a row's seeds. Without evaluations they are of training episodes; empty if records are missing."""
    if row.seeds and row.drawn:
        return [seed.curves[clock] for seed in row.seeds.values() if len(seed.curves[clock][0])]
    return [curve for run in row.drawn for curve in seed_curves(run, clock)]


@drawing()
def curve_panel(rows: Sequence[Row], looks: Mapping[str, Mapping[str, Any]], clock: str) -> str:
    """Return over a clock: means with intervals, or every seed if there are fewer than five.

    Args:
      rows: settings of one environment.
      looks: styles, as `styles` returns them; other rows are grey.
      clock: key of `AXES`.
    """
    figure, axes = panel()
    for row in rows:
        curves = curves_of(row, clock)
        if row.label not in looks and curves:
            grid, values = on_common_grid(curves, POINTS)
            axes.plot(grid, values.mean(axis=0), color="0.6", linewidth=0.7, alpha=0.6)
    for row in rows:
        if row.label in looks:
            draw_band(axes, curves_of(row, clock), dict(looks[row.label]))
    name = axis_name(clock, axes_of([run for row in rows for run in row.group.runs]))
    return_axes(axes, clock, name)
    return svg(figure, f"return over {name} on {rows[0].env}")


def return_axes(axes: Axes, clock: str, name: str) -> None:
    """Label and scale axes of return over a clock, which begins at zero."""
    axes.set_xlabel(name, fontsize=TEXT)
    axes.set_ylabel("return", fontsize=TEXT)
    ticks(axes, dollars if clock == "cost_usd" else compact)
    begin_at_zero(axes)
    tidy(axes)


@drawing()
def profile_panel(scores: Mapping[str, Scores], looks: Mapping[str, Any], xlabel: str) -> str:
    """Performance profiles of the settings that have a style: share of runs above each return, with intervals.

    Args:
      scores: one sample of runs per task, by label.
      looks: styles, as `styles` returns them.
      xlabel: name of the scores.
    """
    figure, axes = panel()
    everything = np.concatenate([np.ravel(task) for label in scores if label in looks for task in scores[label]])
    # If all runs end alike, the range is wide enough that three digits distinguish the ticks.
    room = max(0.03 * float(np.ptp(everything)), 0.01 * float(np.abs(everything).max()), 1e-3)
    thresholds = np.linspace(everything.min() - room, everything.max() + room, POINTS)
    for label, tasks in scores.items():
        if label not in looks:
            continue
        share, low, high = performance_profile(tasks, thresholds)
        style = looks[label]
        axes.plot(thresholds, 100 * share, drawstyle="steps-post", linewidth=1.8, **style)
        if np.isfinite(low).all():
            band = {"color": style["color"], "alpha": 0.12, "linewidth": 0, "step": "post"}
            axes.fill_between(thresholds, 100 * low, 100 * high, **band)
    axes.set_xlabel(xlabel, fontsize=TEXT)
    axes.set_ylabel("runs above it (%)", fontsize=TEXT)
    axes.set_ylim(-3, 103)
    ticks(axes, compact)
    tidy(axes)
    return svg(figure, f"share of runs above each {xlabel}")


def numeric_keys(rows: Sequence[Row]) -> list[str]:
    """Settings with numbers for values in which rows differ."""
    keys = rows[0].group.values if rows else {}
    return [key for key in keys if len({v for row in rows if (v := _number(row, key)) is not None}) > 1]


@drawing()
def sensitivity_panel(rows: Sequence[Row], key: str) -> str:
    """Final return against one setting: points of all seeds, and means, one line per combination of other names.

    Rows that differ in further numbers share a line through the mean at each value.
    """
    figure, axes = panel()
    series: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        value = _number(row, key)
        if value is None or not row.finals:
            continue
        names = [str(v) for k, v in row.group.values.items() if k not in (key, ENV) and _number(row, k) is None]
        series.setdefault(", ".join(names), {}).setdefault(value, []).extend(row.finals)
    for index, (label, by_value) in enumerate(series.items()):
        style: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "linestyle": LINES[index % len(LINES)]}
        for value, returns in by_value.items():
            axes.plot([value] * len(returns), returns, ".", color=style["color"], alpha=0.45, markersize=4)
        values = sorted(by_value)
        means = [mean_ci95(by_value[value])[0] for value in values]
        axes.plot(values, means, **style, marker="o", markersize=4, label=in_legend(label))
    values = sorted({value for by_value in series.values() for value in by_value})
    if values and values[0] > 0 and values[-1] / values[0] >= LOGARITHMIC:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # the default is a formula
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        ticks(axes, compact)
    if 1 < len(series) <= MOST:
        axes.legend(fontsize=TEXT - 1, frameon=False, labelcolor=INK)
    axes.set_xlabel(short_names(rows[0].group.values)[key], fontsize=TEXT)
    axes.set_ylabel("final return", fontsize=TEXT)
    tidy(axes)
    return svg(figure, f"final return against {key} on {rows[0].env}")


def _number(row: Row, key: str) -> float | None:
    value = row.group.values.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@drawing()
def panel(width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Empty figure with one pair of axes; sizes are in inches."""
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots()


def ticks(axes: Axes, formatter: Any) -> None:
    """Set a few ticks on the x axis, with numbers as `formatter` writes them."""
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: formatter(value)))


def _shortened(attribute: re.Match[str]) -> str:
    """SVG attribute with numbers rounded to a tenth of a point."""
    return re.sub(r"-?\d+\.\d{2,}", lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), attribute[0])


@drawing()
def svg(figure: Figure, name: str) -> str:
    """Figure as an SVG element that fills the available width; `name` describes it in words."""
    file = io.StringIO()
    with matplotlib.rc_context({**LOOK, "svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    drawn = file.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", drawn, flags=re.DOTALL)
    head, _, body = drawn.partition(">")
    head = re.sub(r' (?:xmlns:xlink|version|width|height)="[^"]*"', "", head)
    drawn = f"{head}>{body.replace('xlink:href', 'href')}"
    drawn = re.sub(r' (?:d|x|y|transform)="[^"]*"', _shortened, drawn)
    # Referenced ids get the figure's name as a prefix, because a page has many figures.
    prefix = re.sub(r"\W+", "-", name)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', drawn))
    drawn = re.sub(r' id="([^"]+)"', lambda match: f' id="{prefix}-{match[1]}"' if match[1] in used else "", drawn)
    drawn = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", drawn)
    for colour, variable in OF_THE_PAGE.items():
        drawn = re.sub(colour, variable, drawn, flags=re.IGNORECASE)
    drawn = re.sub(r"\s*\n\s*", "\n", drawn)
    return drawn.replace("<svg", f'<svg role="img" aria-label="{text(name)}"', 1).strip()
