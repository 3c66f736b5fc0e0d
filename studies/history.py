"""Histories of runs: returns of every seed against env steps, simulated seconds and dollars.

Time and money follow from the timeline alone (`stellaris_jax.timeline`), never from training. So systems that differ
only in billing share their training, and each is billed here by its own rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np

from stellaris_jax.base.statistics import ROUNDING
from stellaris_jax.config.tree import Config
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.records import Accounts
from stellaris_jax.timeline import Round, Timeline, Usage
from stellaris_jax.timeline.billing import Bill, bill, common_bill
from stellaris_jax.timeline.plan import MinibatchLayout
from stellaris_jax.timeline.scaling import limits_of
from studies import store
from studies.files import read_rows, write_table
from studies.store import Learned
from studies.training import Variant


@dataclass(frozen=True)
class History:
    """Evaluations of one seed, in order.

    Attributes:
      env: environment.
      series: name of the curve in a figure.
      variant: name of the trained variant.
      seed: the seed.
      env_steps: env steps `[points]`.
      seconds: simulated seconds `[points]`.
      cost_usd: dollars by the system's own rule `[points]`.
      learner_usd: part of `cost_usd` for learners and the parameter function `[points]`.
      common_usd: price of the whole cluster by wall-clock `[points]`.
      returns: evaluated returns `[points]`.
    """

    env: str
    series: str
    variant: str
    seed: int
    env_steps: np.ndarray
    seconds: np.ndarray
    cost_usd: np.ndarray
    learner_usd: np.ndarray
    common_usd: np.ndarray
    returns: np.ndarray

    @property
    def final_return(self) -> float:
        return store.final(self.returns.tolist())


KEYS = ("env", "series", "variant", "seed")
CURVES = tuple(field.name for field in fields(History) if field.name not in KEYS)


@dataclass(frozen=True)
class Series:
    """Curve of a figure.

    Attributes:
      name: name of the curve.
      env: environment.
      variant: variant to train.
      billing: settings that change only the bill.
    """

    name: str
    env: str
    variant: Variant
    billing: tuple[str, ...] = ()

    def histories(self, curves: Sequence[Learned]) -> list[History]:
        """Results of this series against env steps, time and money."""
        config = load_config([*self.variant.overrides, *self.billing])
        result = []
        for curve in curves:
            values = (*_accounts(config, curve), np.array(curve.returns))
            result.append(History(self.env, self.name, self.variant.name, curve.seed, *values))
        return result


def _accounts(config: Config, run: Learned) -> tuple[np.ndarray, ...]:
    """Env steps, simulated seconds, dollars, dollars for learners, and common dollars, up to each point of a run."""
    accounts, usages = Accounts(config), [Usage(), *(round_.usage for round_ in rounds_of(config, run))]
    rows = []
    for usage in (usages[round_] for round_ in run.rounds):
        billed, common = (rule(config.system, config.prices, usage, accounts.reserved) for rule in (bill, common_bill))
        rows.append((accounts.env_steps([usage]), usage.seconds, billed.total, _learners(billed), common.total))
    return tuple(np.array(rows, float).T)


def rounds_of(config: Config, one: Learned) -> list[Round]:
    """All rounds of a run, simulated again."""
    timeline = Timeline.of(config, one.seed)
    if not one.actors:
        return [timeline.next_round() for _ in range(one.rounds[-1])]
    layout, envs = MinibatchLayout.of(config), limits_of(config).envs
    return [timeline.next_round(n, layout.epochs * layout.count(n * envs)) for n in one.actors]


def _learners(bill: Bill) -> float:
    return sum(dollars for item, dollars in bill.items.items() if not item.startswith("actor"))


def of(histories: Iterable[History], env: str, series: str) -> list[History]:
    """Histories of the seeds of one curve."""
    return [history for history in histories if (history.env, history.series) == (env, series)]


def final(histories: Iterable[History]) -> list[float]:
    """Final returns `[seeds]`."""
    return [history.final_return for history in histories]


def seconds(histories: Iterable[History]) -> list[float]:
    """Simulated seconds of whole runs `[seeds]`."""
    return [history.seconds[-1] for history in histories]


def cost(histories: Iterable[History]) -> list[float]:
    """Dollars of whole runs by the system's own rule `[seeds]`."""
    return [history.cost_usd[-1] for history in histories]


def common_cost(histories: Iterable[History]) -> list[float]:
    """Dollars of whole runs at the common price, that of the whole cluster by wall-clock `[seeds]`."""
    return [history.common_usd[-1] for history in histories]


def within(histories: Iterable[History], axis: str, limit: float) -> list[float]:
    """Final returns of runs that are cut off at a limit.

    Args:
      histories: seeds of a curve.
      axis: `seconds` or `cost_usd`.
      limit: seconds or dollars. It has a tolerance for rounding, as it may be a mean of equal figures.

    Returns:
      Returns `[seeds]` as by `final`; NaN for a run without evaluations by then.
    """
    end = limit * (1 + ROUNDING)
    counts = [(history, int(np.sum(getattr(history, axis) <= end))) for history in histories]
    return [store.final(history.returns[:count].tolist()) if count else np.nan for history, count in counts]


def alike(a: Sequence[History], b: Sequence[History], axis: str) -> tuple[list[float], list[float]]:
    """Final returns of two curves, with all runs cut off at the mean expense of the cheaper curve.

    Args:
      a: seeds of one curve.
      b: seeds of the other curve.
      axis: `seconds` or `cost_usd`.
    """
    limit = min(float(np.mean([getattr(history, axis)[-1] for history in curve])) for curve in (a, b))
    return within(a, axis, limit), within(b, axis, limit)


def until(histories: Iterable[History], axis: str, target: float, evaluations: int = 3) -> list[float]:
    """Value of an axis at which each run first reaches a target.

    Args:
      histories: seeds of a curve.
      axis: attribute of `History`, such as `seconds`.
      target: return that the mean of consecutive evaluations must reach.
      evaluations: number of consecutive evaluations.

    Returns:
      Values `[seeds]`; inf for a run that never reaches the target.
    """
    spent = []
    for history in histories:
        rows = [history.returns[i : i + evaluations] for i in range(len(history.returns) - evaluations + 1)]
        reached = np.flatnonzero([np.mean(row) >= target for row in rows])
        spent.append(float(getattr(history, axis)[reached[0] + evaluations - 1]) if len(reached) else np.inf)
    return spent


def write_csv(histories: Iterable[History], path: Path) -> None:
    """Write one line per series, seed and evaluation."""
    rows = []
    for history in histories:
        key = [getattr(history, name) for name in KEYS]
        for values in zip(*(getattr(history, name) for name in CURVES), strict=True):
            texts = (
                f"{value:.0f}" if name == "env_steps" else f"{value:.5g}"
                for name, value in zip(CURVES, values, strict=True)
            )
            rows.append([*key, *texts])
    write_table(path, [*KEYS, *CURVES], rows)


def read_csv(path: Path) -> list[History]:
    """Histories that `write_csv` wrote; empty if there is no file."""
    if not path.is_file():
        return []
    result = []
    for key, group in groupby(read_rows(path, _point), key=itemgetter(0)):
        result.append(History(*key, *map(np.array, zip(*(point for _, point in group), strict=True))))
    return result


def _point(row: dict[str, str]) -> tuple[tuple[str, str, str, int], list[float]]:
    """Key of a line, and its point on each curve."""
    key = (row["env"], row["series"], row["variant"], int(row["seed"]))
    return key, [float(row[name]) for name in CURVES]
