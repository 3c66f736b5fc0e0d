"""Answer of a choice: what was tried, what was beaten, and the results on fresh seeds."""

from __future__ import annotations

from typing import NamedTuple

from stellaris_jax.many.choose.arms import Candidate
from stellaris_jax.many.choose.files import Choice
from stellaris_jax.many.choose.objective import Goal
from stellaris_jax.many.choose.screening import Timing
from stellaris_jax.many.choose.stage import rung_of
from stellaris_jax.many.choose.verdict import Judged, Scaling


class Rate(NamedTuple):
    """How well the learning rate of a result is known.

    Attributes:
      tried: learning rates of its arm that were trained, from low to high.
      share: part of a run's steps after which its rate was chosen, between 0 and 1; 0 if there was nothing to choose.
      edge: "lowest" or "highest" if its rate is that of several tried ones, so that a further one may be better.
    """

    tried: list[float]
    share: float
    edge: str


class Answer(NamedTuple):
    """Answer of a choice.

    Attributes:
      choice: the question.
      goal: what was compared, with the target that holds.
      timings: forecast of each arm's system.
      beaten: dominated systems, each with the one that beats it.
      rungs: candidates of each rung, best first.
      results: finalists and baselines on fresh seeds, best first.
      seeds: the fresh seeds.
      confirmed: the best one on seeds that did not choose it; `None` without time for it.
      confirming: these seeds.
      scalings: the best one with several numbers of learners on the same seeds; empty if others were not tried.
      slower: forecasts of the results with learners, and with actors, that take twice as long.
      seconds: real seconds that it took.
      tried: number of candidates that were trained.
    """

    choice: Choice
    goal: Goal
    timings: dict[str, Timing]
    beaten: dict[str, str]
    rungs: list[list[int]]
    results: list[Judged]
    seeds: list[int]
    confirmed: Judged | None
    confirming: list[int]
    scalings: list[Scaling]
    slower: dict[str, list[Timing]]
    seconds: float
    tried: int

    def rate(self, own: Judged) -> Rate:
        """How well the learning rate of a result is known."""
        rungs = [[found for found in map(self._candidate, rung) if found.arm.name == own.name] for rung in self.rungs]
        tried = sorted({found.learning_rate for found in rungs[0]})
        chosen = [rung_of(found[0].config, index) / found[0].config.rounds
                  for index, found in enumerate(rungs) if len(found) > 1]  # fmt: skip
        edge = {tried[0]: "lowest", tried[-1]: "highest"}.get(own.learning_rate, "") if len(tried) > 1 else ""
        return Rate(tried, chosen[-1] if chosen else 0.0, edge)

    def _candidate(self, number: int) -> Candidate:
        return self.choice.candidates[number]
