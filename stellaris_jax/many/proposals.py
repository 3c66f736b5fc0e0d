"""Proposals and rungs of a search as functions of the stored trials, so that a killed search resumes unchanged.

Neither keeps its own state. The sampler's random numbers follow from the search's seed and the trial's number, and
successive halving compares the returns in Optuna's storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

Returns = Mapping[int, float]
"""Returns of a trial's evaluations, keyed by their numbers, which count from 1."""


class Sampler(optuna.samplers.BaseSampler):
    """TPE sampler whose proposals depend on the search's seed, the trial's number and the other trials' results."""

    def __init__(self, seed: int):
        self.seed = seed

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Space of the parameters that are proposed jointly."""
        return self._of(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Values of the parameters that are proposed jointly."""
        return self._of(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Value of one parameter, independent of how many were drawn before it."""
        return self._of(trial, param_name).sample_independent(study, trial, param_name, param_distribution)

    def _of(self, trial: FrozenTrial, name: str = "") -> optuna.samplers.TPESampler:
        words = np.random.SeedSequence(self.seed, spawn_key=(trial.number, *name.encode())).generate_state(1)
        return optuna.samplers.TPESampler(seed=int(words[0]))


@dataclass(frozen=True)
class Halving:
    """Successive halving of a search (Li et al. 2020): one of `reduction` trials continues at every rung.

    Attributes:
      reduction: one of `reduction` trials continues at a rung; 0 lets all trials run to their end.
      evaluations: number of evaluations of a whole run.
      points: `evaluation.points`; the first rung comes after 1 / reduction² of them.
    """

    reduction: int
    evaluations: int
    points: int

    @property
    def rungs(self) -> list[int]:
        """Numbers of the evaluations at which trials are compared, without the last one."""
        rungs, number = [], max(1, self.points // max(1, self.reduction) ** 2)
        while self.reduction > 1 and number < self.evaluations:
            rungs.append(number)
            number *= self.reduction
        return rungs

    def goes_on(self, returns: Returns, others: Sequence[Returns]) -> bool:
        """Whether a trial is among the best at every rung that its last evaluation has completed.

        Args:
          returns: returns of the trial.
          others: returns of each other trial.
        """
        last = max(returns)
        completed = [
            rung for rung in self.rungs if rung <= last and not any(rung <= number < last for number in returns)
        ]
        return all(self._is_among_best(rung, returns[last], others) for rung in completed)

    def _is_among_best(self, rung: int, value: float, others: Sequence[Returns]) -> bool:
        rivals = [reached for returns in others if (reached := _at(returns, rung)) is not None]
        ranked = sorted([*rivals, value], reverse=True)
        return value >= ranked[max(1, len(ranked) // self.reduction) - 1]


def _at(returns: Returns, rung: int) -> float | None:
    """Return of the first evaluation at or after a rung, because an earlier one may be missing; None without any."""
    numbers = [number for number in returns if number >= rung]
    return returns[min(numbers)] if numbers else None
