"""Overview picture of all claims of a study: a row per figure, a mark per claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.lines import Line2D

from stellaris_jax.report.curves import BLACK, BLUE, TEXT, VERMILION, legend_below, save, tidy, titled
from stellaris_jax.report.style import drawing
from studies.claims import HOLDS, OPEN, REVERSED, Claim

WIDEST = 6.0
"""Largest position of a mark, in half-intervals."""
MARKS = {HOLDS: (BLUE, "o"), OPEN: (BLACK, "|"), REVERSED: (VERMILION, "X")}


@drawing()
def glance(claims: Mapping[str, Sequence[Claim]], path: Path, title: str) -> Path | None:
    """Draw the claims of each figure that have an interval.

    A mark is a difference toward the paper's side, in halves of its own 95 % interval. So marks beyond the grey band,
    of one
    unit to both sides, are significant. Verdicts that do not survive the correction, or have none, are hollow.

    Args:
      claims: claims by figure.
      path: picture to write.
      title: title of the picture.

    Returns:
      `path`; None if no claim has an interval.
    """
    rows = {figure: [claim for claim in members if claim.toward is not None] for figure, members in claims.items()}
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
            x = float(np.clip(claim.toward or 0.0, -WIDEST, WIDEST))
            face = colour if claim.survives or claim.verdict == OPEN else "none"
            axes.plot(x, y + shift, marker, color=colour, markerfacecolor=face, markersize=4.5)
    handles = [
        Line2D([], [], marker=marker, color=colour, label=verdict, linestyle="none")
        for verdict, (colour, marker) in MARKS.items()
    ]
    hollow = Line2D(
        [],
        [],
        marker="o",
        color=BLUE,
        markerfacecolor="none",
        label="does not survive, or not corrected",
        linestyle="none",
    )
    axes.set_yticks(range(len(rows)), [f"{name} ({len(members)})" for name, members in rows.items()], fontsize=TEXT)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(-WIDEST - 0.4, WIDEST + 0.4)
    ticks = range(-6, 7, 2)
    axes.set_xticks(ticks, [f"≤ {t}" if t == -6 else f"≥ {t}" if t == 6 else str(t) for t in ticks])
    axes.set_xlabel("difference toward the paper's side, in halves of its 95 % interval", fontsize=TEXT)
    tidy(axes)
    legend_below(figure, [*handles, hollow], 4)
    return save(figure, path)
