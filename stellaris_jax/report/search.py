"""Pictures of a search: progress of the best result, and importance of the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from matplotlib.figure import Figure

from stellaris_jax.report.curves import BLUE, GREEN, TEXT, VERMILION, titled
from stellaris_jax.report.style import drawing
from stellaris_jax.telemetry.format import percent


class Trial(NamedTuple):
    """Trial of a search.

    Attributes:
      number: number of the trial.
      returns: returns of its evaluations.
      complete: whether it ran to its end.
    """

    number: int
    returns: Sequence[float]
    complete: bool


@drawing()
def history_figure(trials: Sequence[Trial]) -> Figure:
    """Last return of every trial with the best so far (left), and all trials over their evaluations (right)."""
    figure = titled("Search", height=3.4)
    last, course = figure.subplots(1, 2)
    known = [trial for trial in trials if trial.returns]
    for complete, colour, label in ((True, BLUE, "to its end"), (False, VERMILION, "stopped early")):
        some = [trial for trial in known if trial.complete == complete]
        if some:
            last.scatter([t.number for t in some], [t.returns[-1] for t in some], s=14, color=colour, label=label)
        for trial in some:
            xs = range(1, len(trial.returns) + 1)
            course.plot(xs, trial.returns, color=colour, linewidth=0.8, alpha=0.7, marker=".", markersize=3)
    completed = [trial for trial in known if trial.complete]
    if completed:
        best = list(accumulate((trial.returns[-1] for trial in completed), max))
        last.step([t.number for t in completed], best, where="post", color=GREEN, label="best so far")
    last.set_xlabel("trial")
    last.set_ylabel("return at the last evaluation")
    course.set_xlabel("evaluation")
    course.set_ylabel("return")
    if known:
        last.legend(fontsize=TEXT - 1)
    return figure


@drawing()
def importance_figure(shares: Mapping[str, float], trials: int) -> Figure:
    """Importance of each setting for good trials; `shares` sum to 1."""
    title = f"Importance of settings, over {trials} completed trials (PED-ANOVA)"
    figure = titled(title, height=0.9 + 0.35 * len(shares))
    axes = figure.subplots()
    names = sorted(shares, key=lambda name: shares[name])
    bars = axes.barh(names, [shares[name] for name in names], color=BLUE)
    axes.bar_label(bars, [percent(shares[name]) for name in names], padding=3, fontsize=TEXT - 1)
    axes.set_xlim(0, 1.12 * max(shares.values()))
    axes.set_xlabel("share")
    return figure
