"""Figures of return against env steps, simulated seconds and dollars, for one run or for several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stellaris_jax.report.runs import Run, read_run, seed_curves
from stellaris_jax.report.statistics import Curve, band
from stellaris_jax.schema import ConfigError
from stellaris_jax.telemetry.format import compact, dollars

AXES = {"env_steps": "env steps", "simulated_seconds": "simulated seconds", "cost_usd": "dollars"}
# Okabe and Ito's palette, told apart under every common colour blindness.
BLUE, ORANGE, GREEN, PINK, VERMILION, SKY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9"
BLACK = "#000000"
COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK)
LINES = ("-", "--", ":", "-.")
DPI = 120
TEXT = 9
MOST_POINTS = 250


def plot_run(run_dir: Path, path: Path | None = None) -> Path:
    """Draws `curve.png` of a run directory (or `path`) and returns where it is.

    Raises ConfigError where the directory holds no metrics.
    """
    return save(run_figure(_with_records(run_dir)), path or Path(run_dir) / "curve.png")


def plot_runs(runs: Mapping[str, Sequence[Path]], path: Path, title: str) -> Path:
    """Compares systems: `runs` maps a label to the run directories of its seeds. Returns `path`.

    A label's curve is the mean over all seeds of all its runs, its band the 95 % interval over them.
    Raises ConfigError where a directory holds no metrics.
    """
    read = {label: [_with_records(run_dir) for run_dir in run_dirs] for label, run_dirs in runs.items()}
    return save(comparison_figure(read, title), path)


def run_figure(run: Run) -> Figure:
    """The figure of one run: return on three axes, the distribution of staleness, the gate over rounds."""
    figure = Figure(figsize=(10, 6.2), dpi=DPI, layout="constrained")
    figure.suptitle(_title(run), fontsize=TEXT + 2, fontweight="bold")
    (top,), (bottom,) = figure.subfigures(2, 1, squeeze=False)
    panels = top.subplots(1, len(AXES), sharey=True)
    for axes, axis in zip(panels, AXES, strict=True):
        _draw_run(axes, run, axis)
        _finish_return(axes, axis, first=axes is panels[0])
    _legend(panels[0])
    distribution, gate = bottom.subplots(1, 2, width_ratios=(1, 2))
    _draw_distribution(distribution, run)
    _draw_gate(gate, run)
    return figure


def comparison_figure(runs: Mapping[str, Sequence[Run]], title: str) -> Figure:
    """The figure that compares labels on three axes."""
    columns = 3
    rows = -(-len(runs) // columns)
    figure = Figure(figsize=(10, 3.7 + 0.2 * rows), dpi=DPI, layout="constrained")
    figure.suptitle(title, fontsize=TEXT + 2, fontweight="bold")
    panels = figure.subplots(1, len(AXES), sharey=True)
    for index, (label, group) in enumerate(runs.items()):
        style = {"color": COLOURS[index % len(COLOURS)], "linestyle": LINES[index // len(COLOURS) % len(LINES)]}
        for axes, axis in zip(panels, AXES, strict=True):
            curves = [curve for run in group for curve in seed_curves(run, axis)]
            draw_band(axes, curves, style)
        # An empty line in the first panel stands for the label in the figure's legend.
        panels[0].plot([], [], **style, label=f"{label} ({len(curves)} seed{'s' * (len(curves) != 1)})")
    for axes, axis in zip(panels, AXES, strict=True):
        _finish_return(axes, axis, first=axes is panels[0])
    figure.legend(loc="outside lower center", ncols=min(columns, len(runs)), frameon=False, fontsize=TEXT)
    return figure


def _draw_run(axes: Axes, run: Run, axis: str) -> None:
    trained = _column(run.rounds, "train_return")
    ended = np.isfinite(trained)
    if ended.any():
        x, y = _thinned(_column(run.rounds, axis)[ended]), _thinned(trained[ended])
        axes.plot(x, y, color=ORANGE, linewidth=0.9, label="training episodes")
    curves = seed_curves(run, axis) if run.evaluations else []
    if len(curves) > 1:
        for index, (x, y) in enumerate(curves):
            label = "evaluation, each seed" if index == 0 else None
            axes.plot(x, y, color=BLUE, linewidth=0.7, alpha=0.4, label=label)
    if run.evaluations:
        x, mean = _column(run.evaluations, axis), _column(run.evaluations, "eval_return_mean")
        half_width = _column(run.evaluations, "eval_return_ci95")
        axes.fill_between(x, mean - half_width, mean + half_width, color=BLUE, alpha=0.2, linewidth=0)
        label = "evaluation, mean and 95 %" if np.isfinite(half_width).any() else "evaluation"
        axes.plot(x, mean, color=BLUE, linewidth=2, marker="o", markersize=3.5, label=label)


def draw_band(axes: Axes, curves: Sequence[Curve], style: dict[str, Any]) -> None:
    """The mean of curves and the 95 % interval around it; a single point where they have no range in common."""
    if not curves:
        return
    grid, mean, half_width = band(curves)
    if len(grid) == 1:
        axes.errorbar(grid, mean, yerr=np.nan_to_num(half_width), color=style["color"], marker="o", capsize=3)
        return
    axes.fill_between(grid, mean - half_width, mean + half_width, color=style["color"], alpha=0.15, linewidth=0)
    axes.plot(grid, mean, linewidth=1.8, **style)


def _draw_distribution(axes: Axes, run: Run) -> None:
    rows = [record.get("staleness_counts") or [] for record in run.rounds]
    counts = np.zeros(max((len(row) for row in rows), default=0))
    for row in rows:
        counts[: len(row)] += row
    if counts.any():
        staleness = np.arange(len(counts))
        axes.bar(staleness, 100 * counts / counts.sum(), color=GREEN, width=0.85)
        mean, largest = float(staleness @ counts / counts.sum()), int(staleness[counts > 0].max())
        axes.axvline(mean, color=BLACK, linewidth=1, linestyle="--")
        text = f"mean {mean:.2f}\nmax {largest}"
        axes.text(0.97, 0.95, text, transform=axes.transAxes, ha="right", va="top", fontsize=TEXT)
        axes.set_xlim(-0.6, largest + 0.6)
    axes.set_xlabel("staleness (versions)", fontsize=TEXT)
    axes.set_ylabel("gradients (%)", fontsize=TEXT)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    tidy(axes)


def _draw_gate(axes: Axes, run: Run) -> None:
    rounds, gate = _column(run.rounds, "round"), _column(run.rounds, "gate")
    mean, largest = _column(run.rounds, "staleness_mean"), _column(run.rounds, "staleness_max")
    axes.plot(rounds, largest, color=GREEN, linewidth=0.8, alpha=0.45, label="largest staleness")
    axes.plot(_thinned(rounds), _thinned(mean), color=GREEN, linewidth=1.4, label="mean staleness")
    if np.isfinite(gate).any():
        axes.plot(rounds, gate, color=VERMILION, linewidth=1.8, linestyle="--", label="gate β")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("round", fontsize=TEXT)
    axes.set_ylabel("staleness (versions)", fontsize=TEXT)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    _legend(axes)
    tidy(axes)


def _column(records: Sequence[dict[str, Any]], key: str) -> np.ndarray:
    """One value of every record, NaN where there is none."""
    return np.array([record.get(key) for record in records], dtype=float)


def _thinned(values: np.ndarray) -> np.ndarray:
    """Means of consecutive values, at most MOST_POINTS of them."""
    return np.array([block.mean() for block in np.array_split(values, min(len(values), MOST_POINTS))])


def _finish_return(axes: Axes, axis: str, first: bool) -> None:
    axes.set_xlabel(AXES[axis], fontsize=TEXT)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    formatter = dollars if axis == "cost_usd" else compact
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: formatter(value)))
    axes.set_xlim(left=0)
    if first:
        axes.set_ylabel("return", fontsize=TEXT)
    else:
        axes.tick_params(labelleft=False)
    tidy(axes)


def tidy(axes: Axes) -> None:
    """The look all figures share: no frame, a light grid, small tick labels."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=TEXT - 1)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=TEXT - 1, frameon=True, framealpha=0.8, edgecolor="none")


def _title(run: Run) -> str:
    parts = [run.config.get("system.name"), run.config.get("env.name")]
    return " · ".join(str(part) for part in parts if part) or run.path.name


def _with_records(run_dir: Path) -> Run:
    run = read_run(Path(run_dir))
    if not run.rounds and not run.evaluations:
        raise ConfigError(f"{run_dir} holds no metrics to plot; give a run directory with a metrics.jsonl.")
    return run


def save(figure: Figure, path: Path) -> Path:
    """Writes a figure as PNG and returns `path`."""
    FigureCanvasAgg(figure).print_png(str(path))
    return path
