"""Answer of a choice: what was tried, what was beaten, and the results on fresh seeds."""

from __future__ import annotations

from typing import NamedTuple

from stellaris_jax.many.choose.files import Choice
from stellaris_jax.many.choose.objective import Goal
from stellaris_jax.many.choose.screening import Timing
from stellaris_jax.many.choose.verdict import Judged, Scaling


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
