"""Verdicts on settings: whether each differs from the best one, and whether it is within a margin of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console

from stellaris_jax.base.statistics import FEWEST, mean_ci95
from stellaris_jax.report.results import Row, at_the_edge, verdict
from stellaris_jax.report.robust import Difference
from stellaris_jax.report.sweep import headings
from stellaris_jax.report.table import print_sentence, print_table
from stellaris_jax.telemetry.format import over_seeds, significant

READING = (
    "best − this: over the seeds that both have (shared), else of all seeds of both. the setting: p, corrected for the "
    "number of comparisons (Holm), is below 5 %. open: zero is outside of the interval, but p is not below 5 %. noise: "
    "zero is within the interval."
)
"""Meaning of the words of `verdict`."""


def within(difference: Difference, margin: float) -> str:
    """Answer whether a setting is at most a margin below the best one, by the interval of the difference.

    Args:
      difference: the best setting's return less this one's.
      margin: largest loss that counts as none.

    Returns:
      `yes` if the whole interval is at most the margin, `no` if none of it is, else `not shown`. `too few seeds` if the
      interval is only a range.
    """
    if not difference.enough:
        return "too few seeds"
    return "yes" if difference.high <= margin else "no" if difference.low > margin else "not shown"


def about_margin(margin: float) -> str:
    """Meaning of the words of `within`."""
    return (
        f"within {margin:g}: yes if the whole interval of best − this, of last returns, is at most {margin:g}, no if "
        f"none of it is, else not shown. Both need {FEWEST} seeds."
    )


def print_verdicts(console: Console, rows: Sequence[Row], margin: float | None = None) -> None:
    """Print a table of each setting's difference from the best one; nothing for a single setting.

    Args:
      console: where to print.
      rows: settings, as `compare_settings` returns them.
      margin: largest loss that counts as none; None leaves its column out.
    """
    if not any(row.comparison for row in rows):
        return
    names = [name for row in rows for name in headings(row.group)]
    print_table(console, "Is it the setting or the noise?", [_cells(row, margin) for row in rows], names=names)
    print_sentence(console, READING)
    if margin is not None:
        print_sentence(console, about_margin(margin))
    for sentence in at_the_edge(rows):
        print_sentence(console, sentence)


def _cells(row: Row, margin: float | None) -> dict[str, str]:
    gap = row.comparison
    ends = f"{significant(gap.low)} to {significant(gap.high)}" if gap and np.isfinite(gap.low) else ""
    cells = {
        **headings(row.group),
        "return": over_seeds(*mean_ci95(row.finals), row.finals) if row.finals else "no result",
        "it is": verdict(row) if gap else "highest mean" if row.is_top else "",
        "best − this": significant(gap.mean) if gap else "",
        "95 % interval": f"{ends} (range)" if gap and ends and not gap.enough else ends,
        "p (Holm)": significant(row.p_holm, 2) if gap else "",
        "seeds": str(len(row.seeds)),
        "shared": str(gap.pairs) if gap else "",
    }
    return cells if margin is None else {**cells, f"within {margin:g}": within(gap, margin) if gap else ""}
