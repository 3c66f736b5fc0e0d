"""Figures of return against env steps, simulated seconds and dollars, for one run or for several."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import replacing
from stellaris_jax.base.statistics import FEWEST, Curve, band, within_data
from stellaris_jax.report.axes import axes_of, axis_name, clock_name
from stellaris_jax.report.runs import Run, read_run, recorded_axis, seed_curves
from stellaris_jax.report.style import drawing
from stellaris_jax.telemetry.format import compact, dollars

# Okabe and Ito's palette, distinguishable under every common colour blindness.
BLUE, ORANGE, GREEN, PINK, VERMILION, SKY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9"
BLACK = "#000000"
COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK)
LINES = ("-", "--", ":", "-.")
DPI = 120
TEXT = 9
WIDTH, LINE = 10, 110
"""Width of a figure in inches, and characters of text that fit into it."""
MOST_POINTS = 250
FEWEST_OF_A_LINE = 3
FORMATS = (".png", ".pdf", ".svg")


def plot_run(run_dir: Path, path: Path | None = None, axes: Sequence[str] = ()) -> Path:
    """Draw `curve.png` of a run directory (or `path`) over axes (see `axes_of`), and return its path.

    Raises ConfigError if the directory holds no metrics.
    """
    run = _with_records(run_dir)
    with readable(run_dir):
        figure = run_figure(run, axes)
    return save(figure, path or Path(run_dir) / "curve.png")


def plot_runs(runs: Mapping[str, Sequence[Path]], path: Path, title: str, axes: Sequence[str] = ()) -> Path:
    """Draw a comparison of systems and return `path`.

    A label's curve is the mean over all seeds of all its runs, its band the 95 % interval over them.

    Args:
      runs: run directories of the seeds, by label.
      path: picture to write.
      title: title of the figure.
      axes: axes of the curves; see `axes_of`.

    Raises:
      ConfigError: a directory holds no metrics.
    """
    read = {label: [_with_records(run_dir) for run_dir in run_dirs] for label, run_dirs in runs.items()}
    with readable(path.parent):
        figure = comparison_figure(read, title, axes)
    return save(figure, path)


@contextmanager
def readable(place: str | Path) -> Iterator[None]:
    """Context in which errors of damaged metrics become a ConfigError of one sentence."""
    try:
        yield
    except ConfigError:
        raise
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        raise ConfigError(f"{place}: the records are damaged, so that nothing can be drawn of them.") from error


@drawing()
def run_figure(run: Run, chosen: Sequence[str] = ()) -> Figure:
    """Figure of one run: return over axes (see `axes_of`); the distribution of staleness, and the gate over rounds.

    The latter two are left out if no gradient was stale and there is no gate.
    """
    chosen = axes_of([run], chosen)
    stale = any(row.get("staleness_max") or row.get("gate_groups") for row in run.rounds)
    figure = titled(_title(run), height=6.2 if stale else 3.5)
    parts = figure.subfigures(1 + stale, 1, squeeze=False)[:, 0]
    panels = parts[0].subplots(1, len(chosen), sharey=True, squeeze=False)[0]
    for axes, axis in zip(panels, chosen, strict=True):
        draw_run(axes, run, axis)
        _finish_return(axes, axis, clock_name(axis_name(axis, chosen), run), first=axes is panels[0])
    _legend_above(parts[0], panels[0])
    if stale:
        distribution, gate = parts[1].subplots(1, 2, width_ratios=(1, 2))
        draw_distribution(distribution, run)
        draw_gate(gate, run)
    return figure


@drawing()
def comparison_figure(runs: Mapping[str, Sequence[Run]], title: str, chosen: Sequence[str] = ()) -> Figure:
    """Figure that compares labels over axes; see `axes_of`."""
    chosen = axes_of([run for group in runs.values() for run in group], chosen)
    figure = titled(title, height=3.5)
    panels = figure.subplots(1, len(chosen), sharey=True, squeeze=False)[0]
    handles = []
    for index, (label, group) in enumerate(runs.items()):
        line = LINES[index // len(COLOURS) % len(LINES)]
        style: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "linestyle": line}
        for axes, axis in zip(panels, chosen, strict=True):
            curves = [curve for run in group for curve in seed_curves(run, axis)]
            draw_band(axes, curves, style)
        handles.append(Line2D([], [], **style, label=f"{label} ({len(curves)} seed{'s' * (len(curves) != 1)})"))
    for axes, axis in zip(panels, chosen, strict=True):
        _finish_return(axes, axis, axis_name(axis, chosen), first=axes is panels[0])
    counts = [sum(len(seed_curves(run, "env_steps")) for run in group) for group in runs.values()]
    legend_below(figure, handles, columns=3, note=about_spread(counts))
    return figure


def draw_run(axes: Axes, run: Run, axis: str) -> None:
    """Draw return over an axis: of training episodes, of every seed's evaluations, and their mean with its interval.

    Args:
      axes: axes to draw on.
      run: the run.
      axis: key of `stellaris_jax.report.axes.AXES`.
    """
    trained = column(run.rounds, "train_return")
    ended = np.isfinite(trained)
    if ended.any():
        x, y = thinned(clock_column(run.rounds, axis)[ended]), thinned(trained[ended])
        axes.plot(x, y, color=ORANGE, linewidth=0.9, label="training episodes")
    curves = seed_curves(run, axis) if run.evaluations else []
    for index, (x, y) in enumerate(curves if len(curves) > 1 else ()):
        label = "evaluation, each seed" if index == 0 else None
        axes.plot(x, y, color=BLUE, linewidth=0.7, alpha=0.4, label=label)
    if run.evaluations:
        x, mean = clock_column(run.evaluations, axis), column(run.evaluations, "eval_return_mean")
        half_width = column(run.evaluations, "eval_return_ci95")
        low, high, label = mean - half_width, mean + half_width, "evaluation, mean and 95 % over episodes"
        if len(curves) > 1:
            each = np.array([row["per_seed"]["eval_return_mean"] for row in run.evaluations], float).T
            (low, high), label = within_data(mean, half_width, each), "evaluation, mean and 95 % over seeds"
        if np.isfinite(low).any():
            axes.fill_between(x, low, high, color=BLUE, alpha=0.2, linewidth=0)
        else:
            label = "evaluation, mean"
        axes.plot(x, mean, color=BLUE, linewidth=2, marker="o", markersize=3.5, label=label)


def draw_band(axes: Axes, curves: Sequence[Curve], style: dict[str, Any]) -> None:
    """Draw the mean of curves and its 95 % interval; for fewer than FEWEST curves, the curves themselves.

    The curves are also drawn if they have no range in common.

    Args:
      axes: axes to draw on.
      curves: curves of the seeds.
      style: colour and line style, as keywords of Matplotlib.
    """
    if not curves:
        return
    colour = style["color"]
    grid, mean, low, high = band(curves)
    if len(grid) > 1:
        axes.plot(grid, mean, linewidth=1.8, **style)
        axes.fill_between(grid, low, high, color=colour, alpha=0.15, linewidth=0)
    elif len(grid) == 1:
        axes.plot(grid, mean, marker="o", color=colour)
        axes.vlines(grid, low, high, color=colour)
    if 1 < len(curves) < FEWEST or not len(grid):
        for x, y in curves:
            axes.plot(x, y, color=colour, linewidth=0.7, alpha=0.45, marker="." if len(x) == 1 else None)


def draw_distribution(
    axes: Axes, run: Run, key: str = "staleness_counts", x: str = "staleness", y: str = "gradients"
) -> None:
    """Draw a distribution over versions, in percent.

    Args:
      axes: axes to draw on.
      run: the run.
      key: key of the histograms in the records of rounds.
      x: name of the values.
      y: name of what they are counted of.
    """
    histograms = [row.get(key) or [] for row in run.rounds]
    counts = np.zeros(max(map(len, histograms), default=0))
    for histogram in histograms:
        counts[: len(histogram)] += histogram
    if counts.any():
        staleness = np.arange(len(counts))
        axes.bar(staleness, 100 * counts / counts.sum(), color=GREEN, width=0.85)
        mean, largest = float(staleness @ counts / counts.sum()), int(staleness[counts > 0].max())
        axes.axvline(mean, color=BLACK, linewidth=1, linestyle="--")
        text = f"mean {mean:.2f}\nmax {largest}"
        axes.text(0.97, 0.95, text, transform=axes.transAxes, ha="right", va="top", fontsize=TEXT)
        axes.set_xlim(-0.6, largest + 0.6)
    axes.set_xlabel(f"{x} (versions)", fontsize=TEXT)
    axes.set_ylabel(f"{y} (%)", fontsize=TEXT)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    tidy(axes)


def draw_gate(axes: Axes, run: Run) -> None:
    """Draw staleness, the gate, and the share of groups that escaped it, over rounds."""
    rounds, gate, mean, largest = (
        thinned(column(run.rounds, key)) for key in ("round", "gate", "staleness_mean", "staleness_max")
    )
    marker = dot(rounds)
    axes.plot(rounds, largest, color=GREEN, linewidth=0.8, alpha=0.45, label="largest staleness", marker=marker)
    axes.plot(rounds, mean, color=GREEN, linewidth=1.4, label="mean staleness", marker=marker)
    if np.isfinite(gate).any():
        axes.plot(rounds, gate, color=VERMILION, linewidth=1.8, linestyle="--", label="gate β", marker=marker)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("staleness (versions)", fontsize=TEXT)
    round_axis(axes, rounds, 8)
    handles = axes.get_legend_handles_labels()[0]
    escaped, groups = (np.diff(column(run.rounds, key), prepend=0) for key in ("gate_escapes", "gate_groups"))
    percent = 100 * np.divide(escaped, groups, out=np.full_like(groups, np.nan), where=groups > 0)
    if np.isfinite(percent).any():
        share = axes.twinx()
        handles += share.plot(
            rounds, thinned(percent), color="0.45", linewidth=0.8, label="groups that escaped (right)", marker=marker
        )
        share.set_ylim(0, 105)
        share.set_ylabel("groups (%)", fontsize=TEXT)
        share.spines[["top"]].set_visible(False)
        share.tick_params(labelsize=TEXT - 1)
        axes.set_zorder(share.get_zorder() + 1)
        axes.patch.set_visible(False)
    place: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 2}  # hides no curve
    axes.legend(handles=handles, fontsize=TEXT - 1, frameon=False, **place)
    tidy(axes)


def dot(values: np.ndarray) -> str | None:
    """Marker for curves that have too few points to be seen as lines."""
    return "." if np.isfinite(values).sum() < FEWEST_OF_A_LINE else None


def round_axis(axes: Axes, rounds: np.ndarray, ticks: int) -> None:
    """Label the x axis with rounds, in whole numbers."""
    axes.set_xlabel("round", fontsize=TEXT)
    axes.xaxis.set_major_locator(MaxNLocator(ticks, integer=True))
    if len(rounds) == 1:
        axes.set_xlim(rounds[0] - 1, rounds[0] + 1)


def column(rows: Sequence[dict[str, Any]], key: str) -> np.ndarray:
    """One value of every row, NaN if there is no number."""
    values = (row.get(key) for row in rows)
    return np.array([value if isinstance(value, int | float) else math.nan for value in values], dtype=float)


def clock_column(rows: Sequence[dict[str, Any]], axis: str) -> np.ndarray:
    """Value of an axis in every row; see `recorded_axis`."""
    return column([{axis: row.get(recorded_axis(row, axis))} for row in rows], axis)


def thinned(values: np.ndarray) -> np.ndarray:
    """Means of consecutive finite values, at most MOST_POINTS of them."""
    if len(values) <= MOST_POINTS:
        return values
    blocks = np.array_split(values, MOST_POINTS)
    return np.array([block[np.isfinite(block)].mean() if np.isfinite(block).any() else np.nan for block in blocks])


def _finish_return(axes: Axes, axis: str, name: str, first: bool) -> None:
    axes.set_xlabel(name, fontsize=TEXT)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    formatter = dollars if axis == "cost_usd" else compact
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: formatter(value)))
    begin_at_zero(axes)
    if first:
        axes.set_ylabel("return", fontsize=TEXT)
    else:
        axes.tick_params(labelleft=False)
    tidy(axes)


def begin_at_zero(axes: Axes) -> None:
    """Set the x axis from 0 to a little more than its largest value."""
    right = axes.dataLim.x1
    axes.set_xlim(0, 1.04 * right if np.isfinite(right) and right > 0 else None)


def tidy(axes: Axes) -> None:
    """Apply the common style: no frame, a light grid, small tick labels."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=TEXT - 1)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def _legend_above(part: SubFigure, axes: Axes) -> None:
    """Add the legend of some axes above all panels, where it hides no curve."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        part.legend(handles, labels, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=TEXT - 1)


def _title(run: Run) -> str:
    parts = [run.config.get(key) for key in ("system.name", "algorithm.name", "env.name")]
    return " · ".join(str(part) for part in parts if part) or run.path.name


def _with_records(run_dir: Path) -> Run:
    run = read_run(Path(run_dir))
    if not run.rounds and not run.evaluations:
        raise ConfigError(f"{run_dir} holds no metrics to plot; give a run directory with a metrics.jsonl.")
    return run


@drawing()
def titled(title: str, height: float) -> Figure:
    """Empty figure of `height` inches under a title."""
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    figure.suptitle(fill(title, LINE - 20), fontsize=TEXT + 2, fontweight="bold")
    return figure


def about_spread(seeds: Iterable[int], many: str = "bands", few: str = "thin lines") -> str:
    """Legend of the spread around means.

    Args:
      seeds: numbers of seeds of the means.
      many: name of the marks for intervals.
      few: name of the marks for single seeds, if there are too few for an interval.
    """
    counts = sorted(set(seeds))
    enough = " or ".join(str(count) for count in counts if count >= FEWEST)
    too_few = " or ".join(str(count) for count in counts if 1 < count < FEWEST)
    within = ", within their range" if many == "bands" else ""
    parts = [f"{many}: 95 % intervals over {enough} seeds{within}"] if enough else []
    return "; ".join([*parts, f"{few}: the {too_few} seeds of a mean"] if too_few else parts)


@drawing()
def legend_below(figure: Figure, handles: Sequence[Artist], columns: int, note: str = "") -> None:
    """Add a legend below all panels, enlarging the figure.

    Args:
      figure: the figure.
      handles: entries of the legend.
      columns: most columns; fewer are used if the legend would be wider than the figure.
      note: heading of the legend.
    """
    renderer = FigureCanvasAgg(figure).get_renderer()
    labels = [in_legend(fill(str(handle.get_label()), LINE)) for handle in handles]
    for ncols in range(max(1, min(columns, len(handles))), 0, -1):
        legend = figure.legend(
            handles, labels, loc="outside lower center", ncols=ncols, frameon=False, fontsize=TEXT,
            title=note, title_fontsize=TEXT - 1,
        )  # fmt: skip
        size = legend.get_window_extent(renderer)
        if size.width < figure.bbox.width:
            break
        if ncols > 1:
            legend.remove()
    figure.set_figheight(figure.get_figheight() + size.height / figure.dpi)


def in_legend(name: str) -> str:
    """Label that Matplotlib shows; it hides labels that begin with an underscore."""
    return f" {name}" if name.startswith("_") else name


def checked(path: Path) -> Path:
    """`path`, if a figure can be written there. Raises ConfigError for an ending outside of FORMATS."""
    if Path(path).suffix.lower() not in FORMATS:
        raise ConfigError(f"{path} is no picture that can be written; accepted endings: {', '.join(FORMATS)}.")
    return Path(path)


@drawing()
def save(figure: Figure, path: Path) -> Path:
    """Write a figure in the format of the ending of `path`, and return `path`; missing folders are made.

    Raises as `checked` does.
    """
    checked(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as fresh:
        figure.savefig(fresh)
    return path
