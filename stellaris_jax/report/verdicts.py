"""Verdicts on settings: whether each differs from the best one or another, and whether it is within a margin of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.statistics import FEWEST, mean_ci95
from stellaris_jax.report.results import AREA, LAST, Row, at_the_edge, compared_with, verdict
from stellaris_jax.report.robust import Difference
from stellaris_jax.report.sweep import headings
from stellaris_jax.report.table import print_sentence, print_table
from stellaris_jax.telemetry.format import over_seeds, significant

READING = (
    "the setting: p (Student's test, corrected for the number of comparisons by Holm) is below 5 %. open: zero is "
    "outside of the interval (a bootstrap's), but p is not below 5 %. noise: zero is within the interval."
)
"""Meaning of the words of `verdict`."""
MEASURED = {LAST: "the last return", AREA: "the mean return over the run"}
"""Measures in words."""
MOST_RUNS = 3
"""Runs of a setting that a table names."""


class Question(NamedTuple):
    """Question that verdicts answer.

    Attributes:
      measure: what is compared, LAST or AREA.
      against: directory of a run whose setting the others are compared with; None for the best one.
      margin: largest loss that counts as none; None asks for no loss.
    """

    measure: str = LAST
    against: Path | None = None
    margin: float | None = None

    @property
    def gap(self) -> str:
        """Heading of the differences."""
        return f"{self.reference} − this"

    @property
    def reference(self) -> str:
        """Word for the setting that the others are compared with."""
        return "best" if self.against is None else "reference"

    def judged(self, rows: Sequence[Row]) -> list[Row]:
        """Rows with their differences from the reference.

        Args:
          rows: settings, as `compare_settings` returns them.

        Raises:
          ConfigError: `against` is none of their runs, or has no such measure.
        """
        if self.against is None and self.measure == LAST:
            return list(rows)
        return compared_with(rows, self._references(rows), self.measure)

    def _references(self, rows: Sequence[Row]) -> dict[str, Row]:
        if self.against is None:
            able = sorted((row for row in rows if row.measured(self.measure)), key=self._mean)
            return {row.env: row for row in able}
        place = self.against.resolve()
        row = next((row for row in rows if any(run.path.resolve() == place for run in row.group.runs)), None)
        if row is None or not row.measured(self.measure):
            problem = "none of the compared runs" if row is None else f"without {MEASURED[self.measure]}"
            raise ConfigError(
                f"--against={self.against} is {problem}; accepted: the directory of one that has a result."
            )
        return {row.env: row}

    def _mean(self, row: Row) -> float:
        return float(np.mean(row.measured(self.measure)))

    @property
    def about(self) -> str:
        """Meaning of the difference, and of the words of `within`."""
        whose = "all seeds of both" if self.against is None else f"all seeds of both; reference: {self.against}"
        about = f"{self.gap}: {MEASURED[self.measure]}, over the seeds that both have (shared), else of {whose}."
        if self.margin is None:
            return about
        return (
            f"{about} within {self.margin:g}: yes if the whole interval is at most {self.margin:g}, no if none of it "
            f"is, else not shown. Both need {FEWEST} seeds."
        )


BEST_ROW = Question()
"""Question that is asked by default: how last returns differ from those of the best setting."""


def within(difference: Difference, margin: float) -> str:
    """Answer whether a setting is at most a margin below another, by the interval of the difference.

    Args:
      difference: the other setting's return less this one's.
      margin: largest loss that counts as none.

    Returns:
      `yes` if the whole interval is at most the margin, `no` if none of it is, else `not shown`. `too few seeds` if the
      interval is only a range.
    """
    if not difference.enough:
        return "too few seeds"
    return "yes" if difference.high <= margin else "no" if difference.low > margin else "not shown"


def print_verdicts(console: Console, rows: Sequence[Row], question: Question = BEST_ROW) -> None:
    """Print a table of each setting's difference from the reference; nothing for a single setting.

    Args:
      console: where to print.
      rows: settings, as `Question.judged` returns them.
      question: what is asked.
    """
    if not any(row.comparison for row in rows):
        return
    names = [name for row in rows for name in headings(row.group)]
    print_table(console, "Is it the setting or the noise?", [_cells(row, question) for row in rows], names=names)
    print_sentence(console, question.about)
    print_sentence(console, READING)
    for sentence in at_the_edge(rows, question.measure):
        print_sentence(console, sentence)


def _cells(row: Row, question: Question) -> dict[str, str]:
    gap, margin = row.comparison, question.margin
    values = row.measured(question.measure)
    standing = "highest mean" if question.against is None else "reference"
    ends = f"{significant(gap.low)} to {significant(gap.high)}" if gap and np.isfinite(gap.low) else ""
    runs = [run.path.name for run in row.group.runs]
    cells = {
        **headings(row.group),
        "runs": ", ".join(runs[:MOST_RUNS]) + ", …" * (len(runs) > MOST_RUNS),
        "return" if question.measure == LAST else "mean return": (
            over_seeds(*mean_ci95(values), values) if values else "no result"
        ),
        "it is": verdict(row) if gap else standing if row.is_top else "",
        question.gap: significant(gap.mean) if gap else "",
        "95 % interval": f"{ends} (range)" if gap and ends and not gap.enough else ends,
        "p (Holm)": significant(row.p_holm, 2) if gap else "",
        "seeds": str(len(row.seeds)),
        "shared": str(gap.pairs) if gap else "",
    }
    return cells if margin is None else {**cells, f"within {margin:g}": within(gap, margin) if gap else ""}
