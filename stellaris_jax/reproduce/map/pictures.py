"""Heat maps: methods by an axis of the map, with the mean over seeds and the half of its interval in every field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from stellaris_jax.report.curves import TEXT, save, titled
from stellaris_jax.report.statistics import mean_ci95

Field = tuple[str, Sequence[float]]
"""A note, such as a learning rate, and the values of all seeds."""


def heat(rows: Mapping[str, Sequence[Field]], columns: Sequence[str], axis: str, path: Path, title: str) -> Path:
    """A row per method, a column per value of an axis; the best of every column, and what is within its interval, is
    framed. Values are shares of the way to what counts as solved."""
    means = np.array([[np.mean(values) for _, values in row] for row in rows.values()])
    figure = titled(title, 1.2 + 0.34 * len(rows))
    axes = figure.add_subplot()
    axes.imshow(means, cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto")
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
            within = value >= means[top, x] - half
            text = f"{value:.2f} ± {spread:.2f}" + (f"\n{note}" if note else "")
            colour = "white" if value < 0.55 else "black"
            weight = "bold" if within else "normal"
            axes.text(x, y, text, ha="center", va="center", fontsize=TEXT - 2.5, color=colour, fontweight=weight)
    return save(figure, path)
