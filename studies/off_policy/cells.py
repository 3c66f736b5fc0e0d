"""Cells of the study: algorithms on two tasks, with asynchronous learners that know nothing of staleness."""

from __future__ import annotations

from typing import NamedTuple

from studies import outcomes
from studies.training import Variant


class Task(NamedTuple):
    """Algorithm on an environment.

    Attributes:
      overrides: environment, algorithm and size.
      steps: env steps of a run.
      worst, solved: returns of an untrained policy and of a solved task.
      rates: learning rates to begin with.
    """

    overrides: tuple[str, ...]
    steps: int
    worst: float
    solved: float
    rates: tuple[str, ...]


LADDER = ("3e-5", "1e-4", "3e-4", "1e-3", "3e-3", "1e-2", "3e-2", "1e-1")
"""Learning rates, half-decades. Those beyond a task's own are tried while the outermost is best."""
_SMALL = ("env.num_envs=8", "network.hidden=[64,64]", "env.normalize_reward=false", "env.normalize_observation=false")
_BUFFER = (*_SMALL, "algorithm.rollout_length=8", "algorithm.options.updates_per_step=0.5",
           "algorithm.options.batch_size=64", "algorithm.options.target_rate=0.01")  # fmt: skip
_FRESH = (*_SMALL, "algorithm.rollout_length=64", "algorithm.epochs=4", "algorithm.minibatches=8")
TASKS = {
    "cartpole, DQN": Task(
        ("env=gymnax/cartpole", "algorithm=dqn", *_BUFFER, "algorithm.options.n_step=3",
         "algorithm.options.exploration_steps=10_000"),
        40_000, 20.0, 475.0, LADDER[1:6],
    ),
    "cartpole, PPO": Task(("env=gymnax/cartpole", *_FRESH), 80_000, 20.0, 475.0, LADDER[2:7]),
    "pendulum, SAC": Task(
        ("env=gymnax/pendulum", "algorithm=sac", *_BUFFER, "algorithm.options.learning_starts=1_000"),
        15_000, -1200.0, -200.0, LADDER[1:6],
    ),
    "pendulum, PPO": Task(
        ("env=gymnax/pendulum", *_FRESH, "env.normalize_reward=true", "env.normalize_observation=true"),
        400_000, -1200.0, -200.0, LADDER[2:7],
    ),
}  # fmt: skip
"""Algorithms by task. PPO has more env steps, for on these it learns less from each."""
LEVELS = (1, 2, 4, 8, 16, 32)
"""Learners."""
TUNING, JUDGING = range(3), range(8, 16)
"""Tuning seeds, which choose learning rates, and judging seeds, which judge the choices."""
STALENESS, ASYNC = "staleness", "async"


class Cell(outcomes.Cell):
    """Setting that is trained: its task is one of `TASKS`, its level a number of learners."""

    __slots__ = ()

    @property
    def together(self) -> int:
        return 40

    @property
    def variant(self) -> Variant:
        task, learners = TASKS[self.task], self.level
        machines = max(2, -(-learners // 4))
        overrides = (
            *task.overrides,
            "system=async", "system.truncation=none", "system.actors=pipelined",
            f"system.learners={learners}", f"system.versions={8 * learners}",
            f"platform.gpus={machines}", f"prices.learner_vms={machines}",
            f"algorithm.learning_rate={self.rate}", "algorithm.anneal=false", f"total_steps={task.steps}",
            "evaluation.points=0", "run.loggers=[]",
        )  # fmt: skip
        return Variant("/".join(map(str, self)), overrides)

    def share(self, value: float) -> float:
        task = TASKS[self.task]
        return (value - task.worst) / (task.solved - task.worst)


def places(task: str) -> list[Cell]:
    """Places of a task: all numbers of learners."""
    return [Cell(STALENESS, task, ASYNC, learners, "") for learners in LEVELS]
