"""Pairs of a task and delays, and the candidates, all of them written down before anything was trained.

Those of Breakout were seen before `choose` was mended, so they judge nothing. An earlier version chose learning rates
after a ninth of the steps, and took the wrong one of one learner on all four. `JUDGING` are five further pairs.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

SPACE = Path(__file__).with_name("space.yaml")
"""Candidates."""
FRESH = range(2000, 2008)
"""Seeds on which all candidates are compared; choices search and judge on others."""


class Task(NamedTuple):
    """Task of the study.

    Attributes:
      env: environment, as on the command line.
      target: return to reach, about 0.75 of the way from an untrained policy to a solved task, of Breakout half of it.
      steps: env steps of a run.
      overrides: further settings.
    """

    env: str
    target: float
    steps: int
    overrides: tuple[str, ...] = ()


_ASYNCHRONOUS = ("algorithm.rollout_length=128", "algorithm.learning_rate=2.5e-3")
"""Settings of the study instead of the game's own, which are those of one learner; candidates name their system."""
TASKS = {
    "cartpole": Task("gymnax/cartpole", 360.0, 150_000),
    "acrobot": Task("gymnax/acrobot", -200.0, 150_000),
    "breakout": Task("gymnax/breakout_minatar", 5.0, 500_000, ("env.num_envs=16", *_ASYNCHRONOUS)),
}
_FAST_ACTORS = ("delays.actor.kind=constant", "delays.actor.seconds=0.3")
DELAYS: dict[str, tuple[str, ...]] = {
    "heavy tails": (
        "delays=pareto", "delays.learner.options.alpha=1.5", "delays.failure=0.05", *_FAST_ACTORS,
        "system.learners=8",
    ),
    "constant": ("delays=constant", "delays.actor.seconds=0.3", "system.learners=8"),
    "slow actors": ("delays=lognormal", "delays.actor.options.sigma=1.0", "system.learners=8"),
    "many learners": (
        "delays=exponential", *_FAST_ACTORS, "system.learners=32", "platform.gpus=8", "prices.learner_vms=8",
    ),
    "few learners": ("delays=exponential", *_FAST_ACTORS, "system.learners=4"),
    "failures": (
        "delays=lognormal", "delays.failure=0.1", *_FAST_ACTORS, "system.learners=16", "platform.gpus=4",
        "prices.learner_vms=4",
    ),
}  # fmt: skip
"""Delays by name: stragglers and failures among learners, none, actors that take long, 32 learners, 4, and 16 of which
a tenth fails."""


class Pair(NamedTuple):
    """Task with delays.

    Attributes:
      task: key of `TASKS`.
      delays: key of `DELAYS`.
    """

    task: str
    delays: str

    @property
    def overrides(self) -> tuple[str, ...]:
        """Overrides of the pair, as on the command line of `stellaris-jax choose`."""
        task = TASKS[self.task]
        return (
            f"env={task.env}", *task.overrides, *DELAYS[self.delays], f"total_steps={task.steps}",
            "algorithm.epochs=4", "algorithm.minibatches=8", "algorithm.anneal=false", "evaluation.greedy=false",
        )  # fmt: skip


JUDGING = [
    *(Pair(task, delays) for task in ("cartpole", "acrobot") for delays in ("few learners", "failures")),
    Pair("breakout", "few learners"),
]
"""Pairs that nothing was mended by."""
PAIRS = JUDGING + [Pair("breakout", delays) for delays in ("heavy tails", "constant", "slow actors", "many learners")]
