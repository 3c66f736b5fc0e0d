"""Verdicts on settings: whether each differs from the best one or another, and whether it is within a margin of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from stellaris_jax.base.commands import command
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.statistics import FEWEST, mean_ci95
from stellaris_jax.report.results import AREA, ENV, LAST, RATE, Measure, Row, at_the_edge, compared_with, verdict
from stellaris_jax.report.robust import Difference
from stellaris_jax.report.runs import is_compared, short
from stellaris_jax.report.sweep import headings, way, way_cells
from stellaris_jax.report.table import print_sentence, print_table
from stellaris_jax.telemetry.format import over_seeds, significant, value_text

MEASURED = {
    LAST.name: "the last return",
    AREA.name: "the mean return over the run",
    "env_steps": "env steps",
    "simulated_seconds": "simulated seconds",
    "cost_usd": "dollars",
}
"""Measures in words."""
MOST_RUNS = 3
"""Runs of a setting that a table names."""
MOST_CHOICES = 6
"""Settings that a refusal names."""


class Setting(NamedTuple):
    """Value of a key, by which a reference is named.

    Attributes:
      key: heading of a column, or the whole key.
      value: the value, as tables show it.
    """

    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}"

    def key_in(self, rows: Sequence[Row]) -> str | None:
        """Whole key; None if it is not one of those in which settings differ, or the short form of several."""
        keys = dict.fromkeys(key for row in rows for key in row.group.values if key != ENV)
        shown = [key for key in keys if short(key) == self.key]
        return self.key if self.key in keys else shown[0] if len(shown) == 1 else None

    def reference(self, row: Row, rows: Sequence[Row]) -> Row | None:
        """Row that differs from another in this key alone, and has this value of it."""
        key = self.key_in(rows)

        def others(one: Row) -> dict[str, Any]:
            return {name: value for name, value in one.group.values.items() if name != key}

        if key is None:
            return None
        twins = (other for other in rows if others(other) == others(row))
        return next((other for other in twins if is_value(other.group.values.get(key), self.value)), None)

    def goes_along(self, rows: Sequence[Row]) -> list[str]:
        """Keys of other sections that differ as well from the references, such as learning rates of a preset."""
        along: dict[str, None] = {}
        section = (self.key_in(rows) or "").partition(".")[0]
        for row in rows:
            reference = self.reference(row, rows)
            if reference is not None:
                ours, theirs = (side.group.runs[0].settings for side in (row, reference))
                differ = [name for name in {*ours, *theirs} if is_compared(name) and ours.get(name) != theirs.get(name)]
                along |= dict.fromkeys(name for name in differ if name.partition(".")[0] != section)
        return sorted(along)


def is_value(value: Any, text: str) -> bool:
    """Whether a text stands for a value, in any of its forms: `1e-3` and `0.001`, `none` and `null`."""
    if text in (value_text(value), str(value)):
        return True
    if value is None or isinstance(value, bool):
        return text.lower() in ({"none", "null"} if value is None else {str(value).lower()})
    try:
        return isinstance(value, int | float) and float(text) == value
    except ValueError:
        return False


class Question(NamedTuple):
    """Question that verdicts answer.

    Attributes:
      measure: what is compared.
      against: what the others are compared with: the setting of the run in a directory, or for each one that which
        differs from it in one key; None for the best one.
      margin: largest loss that counts as none; None asks for no loss.
      threshold: return whose steps, seconds and dollars are shown; None shows none.
    """

    measure: Measure = LAST
    against: Path | Setting | None = None
    margin: float | None = None
    threshold: float | None = None

    @property
    def gap(self) -> str:
        """Heading of the differences."""
        return f"this / {self.reference}" if self.measure.is_time else f"{self.reference} − this"

    @property
    def nothing(self) -> float:
        """Value of no difference."""
        return 1.0 if self.measure.is_time else 0.0

    @property
    def reference(self) -> str:
        """Word for the setting that the others are compared with."""
        return "best" if self.against is None else "reference"

    def shown(self, difference: Difference) -> Difference:
        """Difference as it is shown: of logarithms as a ratio."""
        if not self.measure.is_time:
            return difference
        mean, low, high = np.exp([difference.mean, difference.low, difference.high]).tolist()
        return replace(difference, mean=mean, low=low, high=high)

    def judged(self, rows: Sequence[Row]) -> list[Row]:
        """Rows with their differences from the reference.

        Args:
          rows: settings, as `compare_settings` returns them.

        Raises:
          ConfigError: `against` is none of their runs or settings, or has no such measure.
        """
        if self.against is None and self.measure == LAST:
            return list(rows)
        return compared_with(rows, self._references(rows), self.measure)

    def _references(self, rows: Sequence[Row]) -> Callable[[Row], Row | None]:
        if self.against is None:
            best = {row.env: row for row in sorted((row for row in rows if row.measured(self.measure)), key=self._mean)}
            return lambda row: best.get(row.env)
        if isinstance(self.against, Setting):
            return self._by_setting(self.against, rows)
        place = self.against.resolve()
        one = next((row for row in rows if any(run.path.resolve() == place for run in row.group.runs)), None)
        if one is None or not one.measured(self.measure):
            problem = "none of the compared runs" if one is None else f"without {self._measured}"
            raise ConfigError(
                f"--against={self.against} is {problem}; accepted: the directory of one that has a result, or a value "
                "of a column, such as learning_rate=0.001."
            )
        return lambda row: one if row.env == one.env else None

    def _by_setting(self, setting: Setting, rows: Sequence[Row]) -> Callable[[Row], Row | None]:
        found = {row.label: setting.reference(row, rows) for row in rows}
        if not any(found.values()):
            columns = [item for row in rows for item in headings(row.group).items() if item[0] not in (ENV, short(ENV))]
            columns.sort(key=lambda item: item[0] != setting.key)
            choices = ", ".join([*dict.fromkeys(f"{name}={text}" for name, text in columns)][:MOST_CHOICES])
            raise ConfigError(
                f"--against={setting} is of none of the compared settings; accepted: the directory of a run"
                + (f", or a value of a column, such as {choices}." if choices else ".")
            )
        return lambda row: found[row.label]

    def _mean(self, row: Row) -> float:
        return float(np.mean(row.measured(self.measure)))

    @property
    def _measured(self) -> str:
        words = MEASURED[self.measure.name]
        return words if self.measure.threshold is None else f"{words} to {significant(self.measure.threshold)}"

    @property
    def about(self) -> str:
        """Meaning of the difference, and of the words of `within`."""
        whose = "all seeds of both"
        if isinstance(self.against, Setting):
            whose += f"; reference: the setting that is equal but for {self.against}"
        elif self.against is not None:
            whose += f"; reference: {self.against}"
        over = f"over the seeds that both have (shared), else of {whose}."
        if self.measure.is_time:
            return (
                f"{self.gap}: {self._measured}, geometric mean of the ratios {over} A setting with a seed that never "
                "gets there is not compared. Times are those of evaluations, and as coarse as these are far apart."
            )
        about = f"{self.gap}: {self._measured}, {over}"
        if self.margin is None:
            return about
        return (
            f"{about} within {self.margin:g}: yes if the whole interval is at most {self.margin:g}, no if none of it "
            f"is, else not shown. Both need {FEWEST} seeds."
        )

    @property
    def chosen(self) -> str:
        """Warning that the reference was chosen by what it is judged by; "" if it was given."""
        return "" if self.against else "The best was chosen by the same figures, which flatters it."

    @property
    def reading(self) -> str:
        """Meaning of the words of `verdict`."""
        nothing = "one" if self.measure.is_time else "zero"
        return (
            "the setting: p (Student's test, corrected for the number of comparisons by Holm) is below 5 %. open: "
            f"{nothing} is outside of the interval (a bootstrap's), but p is not below 5 %. tied: {nothing} is within "
            "the interval."
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
    """Print a table of each setting's difference from the reference; nothing for a single setting without threshold.

    Args:
      console: where to print.
      rows: settings, as `Question.judged` returns them.
      question: what is asked.
    """
    compared = any(row.comparison for row in rows)
    if not compared and question.threshold is None:
        if isinstance(question.against, Setting):
            print_sentence(
                console,
                f"Nothing is compared: no two settings differ in {question.against.key} alone. "
                "--against also takes the directory of a run.",
            )
        return
    names = [name for row in rows for name in headings(row.group)]
    places = {run.path.resolve() for row in rows for run in row.group.runs}
    alike = len({place.name for place in places}) < len(places)
    cells = [_cells(row, question, alike, compared) for row in rows]
    print_table(console, "Is it the setting or the noise?", cells, names=names)
    if compared:
        print_sentence(console, question.about)
        print_sentence(console, f"{question.reading} {question.chosen}".rstrip())
    elif question.measure.is_time:
        print_sentence(
            console,
            "Nothing is compared: all seeds of two settings must get there, at an expense above 0. "
            f"{command('choose')} counts a seed that does not as twice the longest run.",
        )
    if isinstance(question.against, Setting) and (along := question.against.goes_along(rows)):
        print_sentence(console, f"With {question.against.key} these differ, too: {', '.join(along)}.")
    if rates := _hidden_rates(rows):
        print_sentence(console, f"These have learning rates of their own: {rates}.")
    if compared and question.measure.name == "cost_usd" and (differs := _differing_bills(rows)):
        print_sentence(console, f"Dollars are by each setting's own billing, which differs here: {differs}.")
    for sentence in at_the_edge(rows, question.measure):
        print_sentence(console, sentence)
    if question.threshold is not None and any(row.reached(question.threshold) != len(row.seeds) for row in rows):
        for sentence in _reachable(rows):
            print_sentence(console, sentence)


def _hidden_rates(rows: Sequence[Row]) -> str:
    """Learning rates that differ between settings of an environment, but follow from their names; "" if none do."""
    shown = []
    for env in dict.fromkeys(row.env for row in rows):
        rates = {row.label: row.group.runs[0].settings.get(RATE) for row in rows if row.env == env}
        if len(set(map(str, rates.values()))) > 1 and not any(RATE in row.group.values for row in rows):
            shown += [f"{label} has {value_text(rate)}" for label, rate in rates.items()]
    return ", ".join(shown)


def _differing_bills(rows: Sequence[Row]) -> str:
    """Keys of billing in which settings differ, with their values; "" if there are none."""
    keys = ("system.learner_billing", "system.actor_billing")
    values = {key: sorted({str(row.group.runs[0].config.get(key)) for row in rows}) for key in keys}
    return "; ".join(f"{key} is {' or '.join(several)}" for key, several in values.items() if len(several) > 1)


def _reachable(rows: Sequence[Row]) -> list[str]:
    """Sentences on the highest return that all seeds with a result reach, rounded down to three digits."""
    highest: dict[str, list[float]] = {}
    for row in rows:
        for seed in row.seeds.values():
            highest.setdefault(row.env, []).append(max(seed.curves["env_steps"][1]) if seed.curves else -np.inf)
    sentences = []
    for env, values in highest.items():
        common = min(values)
        if np.isfinite(common):
            step = 10.0 ** (np.floor(np.log10(abs(common))) - 2) if common else 1.0
            where = f" on {env}" if len(highest) > 1 else ""
            shown = significant(step * np.floor(common / step))
            sentences.append(f"All {len(values)} seeds that have a result reach a return of {shown}{where}.")
    return sentences


def _cells(row: Row, question: Question, alike: bool, compared: bool) -> dict[str, str]:
    """Cells of a row; its runs are named with their folder if names are alike."""
    gap = question.shown(row.comparison) if row.comparison else None
    area = question.measure == AREA
    values = row.measured(AREA if area else LAST)
    standing = "reference" if question.against else "least" if question.measure.is_time else "highest mean"
    standing = standing if compared else ""
    ends = f"{significant(gap.low)} to {significant(gap.high)}" if gap and np.isfinite(gap.low) else ""
    runs = [f"{run.path.parent.name}/{run.path.name}" if alike else run.path.name for run in row.group.runs]
    cells = {
        **headings(row.group),
        "runs": ", ".join(runs[:MOST_RUNS]) + ", …" * (len(runs) > MOST_RUNS),
        "mean return" if area else "return": over_seeds(*mean_ci95(values), values) if values else "no result",
        **_way(row, question.threshold),
        "it is": verdict(row) if gap else standing if row.is_top else "",
        question.gap: significant(gap.mean) if gap else "",
        "95 % interval": f"{ends} (range)" if gap and ends and not gap.enough else ends,
        "p (Holm)": significant(row.p_holm, 2) if gap else "",
        "seeds": str(len(row.seeds)),
        "shared": str(gap.pairs) if gap else "",
    }
    if question.margin is None:
        return cells
    return {**cells, f"within {question.margin:g}": within(row.comparison, question.margin) if row.comparison else ""}


def _way(row: Row, threshold: float | None) -> dict[str, str]:
    """Cells on the way to a return."""
    if threshold is None:
        return {}
    return {cell.heading: cell.text for cell in way_cells({**way(row, threshold), "seeds": len(row.seeds)}, threshold)}
