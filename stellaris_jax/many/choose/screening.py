"""First step of a choice: the timelines of all systems, without training; dominated systems are dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from stellaris_jax.config.tree import Config
from stellaris_jax.many.choose.arms import ALL_REDUCE, Arm
from stellaris_jax.many.forecast import Combination, forecast, plannable
from stellaris_jax.telemetry.format import significant
from stellaris_jax.timeline.forecast import Window
from stellaris_jax.timeline.joblog import read_log
from stellaris_jax.timeline.prediction import MOST

SEEDS = 3
"""Seeds of the durations."""
MARGIN = 0.02
"""Relative difference below which two forecasts count as equal."""
STALE = 1.0
"""Versions of staleness and data lag together beyond those of all-reduce, above which corrections are tried."""


class Timing(NamedTuple):
    """Forecast of a system's timeline.

    Attributes:
      seconds: seconds of a round, from one batch of data to the next.
      dollars: dollars of the whole run.
      staleness: mean staleness of gradients, in versions.
      data_lag: mean data lag, in versions.
      learners_busy: share of the time that learners compute.
      rolled: env steps rolled out for each one learned from.
      updates: updates of the policy in a round.
    """

    seconds: float
    dollars: float
    staleness: float
    data_lag: float
    learners_busy: float
    rolled: float
    updates: float

    @property
    def stale(self) -> float:
        """Versions between the policy that acted and the aggregation of the gradient."""
        return self.staleness + self.data_lag


def timing(config: Config) -> Timing:
    """Forecast of a configuration over `SEEDS` seeds. Raises RunError if a rule or a delay model fails."""
    seeds = [config.seed + seed for seed in range(SEEDS)]
    figures = forecast(Combination(plannable(config), seeds, {}), Window.of(None, None)).figures
    return Timing(
        seconds=figures["round_seconds"][0],
        dollars=figures["run_usd"][0],
        staleness=figures["staleness_mean"][0],
        data_lag=figures["data_lag_mean"][0],
        learners_busy=figures["learner_utilisation"][0],
        rolled=figures["steps_rolled_per_learned"][0],
        updates=figures["round_updates"][0],
    )


def dominated(timings: Mapping[str, Timing], kept: Sequence[str] = ()) -> dict[str, str]:
    """Systems that another one beats in seconds, dollars and staleness, each with the name of that one.

    A system is dominated if another one is shorter, cheaper and fresher, each by more than `MARGIN`, and makes no fewer
    updates of a batch. A system with fewer updates is fresher in versions, but may learn less. Systems with equal
    timelines, such as those that differ in weights or corrections, do not dominate one another.

    Args:
      timings: forecast of each system.
      kept: systems that are never dropped.
    """
    beaten: dict[str, str] = {}
    for name, own in timings.items():
        for rival, other in timings.items():
            if name not in kept and rival not in beaten and _beats(other, own):
                beaten[name] = rival
                break
    return beaten


def _beats(one: Timing, other: Timing) -> bool:
    pairs = [(one.seconds, other.seconds), (one.dollars, other.dollars), (one.stale + 1.0, other.stale + 1.0)]
    fewer = one.updates < (1.0 - MARGIN) * other.updates
    return not fewer and all(better < (1.0 - MARGIN) * worse for better, worse in pairs)


def is_tried(arm: Arm, timings: Mapping[str, Timing], beaten: Mapping[str, str]) -> bool:
    """Whether an arm is trained: its system is not dominated, and a correction has something to correct.

    Data of all-reduce are stale, too, because a batch makes several updates. A correction is tried with systems that
    are more than `STALE` versions staler than all-reduce.
    """
    usual = timings[ALL_REDUCE].stale if ALL_REDUCE in timings else 0.0
    return arm.system not in beaten and (not arm.corrected or timings[arm.system].stale > usual + STALE)


def logged(log: Path, timings: Mapping[str, Timing]) -> str:
    """Sentence that compares the staleness of a log with that of the timelines of all systems.

    Args:
      log: log of jobs, as in docs/jobs.md.
      timings: forecast of each system.
    """
    staleness = read_log(log).staleness(MOST)
    if staleness is None:
        return f"{log} has no versions, so its staleness is unknown."
    foretold = ", ".join(f"{name} {significant(own.staleness, 2)}" for name, own in timings.items())
    when = "were aggregated" if staleness.aggregated else "were done"
    return (
        f"Gradients of {log} were {significant(staleness.mean, 2)} versions stale on average when they {when}; the "
        f"timelines foretell, at aggregation: {foretold}."
    )
