"""Figures as they are saved: the data of their curves, bars and legends, and blank pixels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib.image
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure


@contextmanager
def saved_figures() -> Iterator[dict[str, Figure]]:
    """Figures that are saved meanwhile, by the names of their files."""
    figures: dict[str, Figure] = {}
    savefig = Figure.savefig

    def save(figure: Figure, path: Path, *arguments: Any, **options: Any) -> None:
        savefig(figure, path, *arguments, **options)
        # It is written under another name, from which its own is made again (`base.outputs.replacing`).
        figures[re.sub(r"^\.(.*)\.\w+\.tmp(\.\w+)$", r"\1\2", Path(path).name)] = figure

    with mock.patch.object(Figure, "savefig", save):
        yield figures


def legend(of: Figure | Axes) -> list[str]:
    """Labels of the legend below a figure, or within a panel."""
    found = of.legends[0] if isinstance(of, Figure) else of.get_legend()
    return [text.get_text() for text in found.get_texts()]


def curve_ends(figure: Figure, panel: int) -> dict[str, float]:
    """The end of each label's curve in a panel: that of the thickest line with the label's style."""
    ends = {}
    for handle in figure.legends[0].legend_handles:
        look = (handle.get_color(), handle.get_linestyle(), handle.get_marker())
        alike = [
            line
            for line in figure.axes[panel].lines
            if (line.get_color(), line.get_linestyle(), line.get_marker()) == look
        ]
        if alike:
            ends[handle.get_label()] = float(max(alike, key=lambda line: line.get_linewidth()).get_ydata()[-1])
    return ends


def circles(axes: Axes) -> list[float]:
    """Heights of the paper's points, the last of those that are joined."""
    return [float(line.get_ydata()[-1]) for line in axes.lines if line.get_markerfacecolor() == "white"]


def widths(axes: Axes, label: str) -> list[float]:
    """Widths of horizontal bars of the colour that `label` has in the panel."""
    (first,) = [bars[0] for bars in axes.containers if bars.get_label() == label]
    return [bar.get_width() for bar in axes.patches if bar.get_facecolor() == first.get_facecolor()]


def assert_in_view(figure: Figure) -> None:
    """Every panel has curves or bars of finite data, within its limits."""
    assert figure.axes
    for axes in figure.axes:
        lines = [line.get_xydata() for line in axes.lines if line.get_transform() == axes.transData]
        points = np.concatenate([*lines, *(bar.get_bbox().get_points() for bar in axes.patches)])
        assert len(points) and np.isfinite(points).all()
        for values, limits in ((points[:, 0], axes.get_xlim()), (points[:, 1], axes.get_ylim())):
            assert min(limits) <= values.min() and values.max() <= max(limits)


def assert_picture(path: Path, width: int) -> None:
    """A file of that many pixels in width, and not all of one colour."""
    pixels = matplotlib.image.imread(path)
    assert pixels.shape[1] == width
    assert pixels[..., :3].std() > 0.01
