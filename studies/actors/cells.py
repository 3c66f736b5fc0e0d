"""Cells of the study: tasks, questions, and the settings that each question varies."""

from __future__ import annotations

from typing import NamedTuple

from studies import outcomes
from studies.training import Variant


class Task(NamedTuple):
    """Task of the study.

    Attributes:
      env: environment, as on the command line.
      solved: return that counts as solved.
      worst: approximate return of an untrained policy.
      bounded: whether it is asked for the bound of data staleness.
      sync_steps: env steps from one fetch to the next; 0: once per fragment, of 128 steps.
      corrected_lags: data lags at which all objectives are compared, in batches.
      rate_lags: data lags at which PPO is trained with every learning rate, in batches.
    """

    env: str
    solved: float
    worst: float
    bounded: bool = True
    sync_steps: tuple[int, ...] = (0, 64, 32, 16, 8)
    corrected_lags: tuple[int, ...] = (0, 1, 2, 4, 8)
    rate_lags: tuple[int, ...] = (0, 1, 2, 4, 8, 16)

    def share(self, value: float) -> float:
        """Return as a share of the way from the worst to the solved return."""
        return (value - self.worst) / (self.solved - self.worst)


BOUNDS, SYNC, LAGS = "bounds", "sync", "lags"
"""Questions: bound of data staleness, fetches within a fragment, and corrections and rates by data lag."""

TASKS = {
    "cartpole": Task("gymnax/cartpole", 475.0, 20.0),
    "acrobot": Task("gymnax/acrobot", -100.0, -500.0),
    "breakout": Task("gymnax/breakout_minatar", 10.0, 0.4, False, (0, 32, 8), (0, 2, 8), (0, 2, 8, 16)),
}
"""Tasks. Breakout, whose steps cost four times as much to compute, has fewer settings."""

TUNING, JUDGING = range(8), range(8, 16)
"""Tuning seeds, which choose learning rates, and judging seeds, which judge the choices."""

LADDER = ("6.25e-5", "1.25e-4", "2.5e-4", "5e-4", "1e-3", "2e-3", "4e-3", "8e-3", "1.6e-2", "3.2e-2", "6.4e-2")
"""Learning rates, each twice the one before. Those beyond a question's own are tried while the outermost is best."""
FINE_RATES = LADDER[4:10]
"""Six learning rates, of the question for the best one."""
COARSE_RATES = FINE_RATES[::2]
"""Three learning rates, of the other questions."""

BARRIER, WAIT, DROP = "barrier", "wait", "drop"
ADMISSIONS = ((BARRIER, 0), (WAIT, 1), (WAIT, 2), (DROP, 0), (DROP, 1), (DROP, 2))
"""Admissions of `BOUNDS` with their bounds in batches. Waiting with bound 0 is the barrier, event by event."""

FREE, PAID = "free", "0.13 s"
FETCHES = {FREE: "0", PAID: "0.13"}
"""Seconds of a fetch (`platform.cache`), by name."""

PPO = "PPO"
CORRECTIONS = {
    PPO: ("algorithm=ppo",),
    "decoupled": ("algorithm=decoupled", "algorithm.options.target_interval=2"),
    "TIS": ("algorithm=tis",),
    "A-3PO": ("algorithm=a3po", "algorithm.options.proximal_interval=2"),
    "V-trace": ("algorithm=impala", "algorithm.gae_lambda=0.95"),
    "CISPO": ("algorithm=cispo",),
}
"""Objectives of `LAGS`. A batch is two updates there, after which proximal policies are renewed, as AReaL has it."""
BATCHES = {BOUNDS: 60, SYNC: 120, LAGS: 320}
"""Batches of a run."""
BATCH = {BOUNDS: 8 * 512, SYNC: 16 * 128, LAGS: 16 * 64}
"""Env steps of a batch; of `BOUNDS` at most, for its environments stop at the end of an episode."""

_LEARNERS = ("system=allreduce", "system.learners=4", "system.actors=independent", "system.actor_shards=8")
_SHAPES: dict[str, tuple[str, ...]] = {
    BOUNDS: ("env.num_envs=8", "algorithm.rollout_length=512", "algorithm.minibatches=8", "algorithm.epochs=2"),
    SYNC: ("env.num_envs=16", "algorithm.rollout_length=128", "algorithm.minibatches=32", "algorithm.epochs=1"),
    LAGS: ("env.num_envs=16", "algorithm.rollout_length=64", "algorithm.minibatches=8", "algorithm.epochs=1"),
}
"""Size of a batch and its number of gradients, four of which are one update."""


class Cell(outcomes.Cell):
    """Setting that is trained.

    Its question is `BOUNDS`, `SYNC` or `LAGS`, and its task a key of `TASKS`. Its method is an admission, the name of
    a fetch's cost, or a key of `CORRECTIONS`. Its level is a bound in batches, env steps between fetches, or a data lag
    in batches.
    """

    __slots__ = ()

    @property
    def variant(self) -> Variant:
        """Variant that is trained there."""
        task = TASKS[self.task]
        algorithm = CORRECTIONS[self.method if self.question == LAGS else PPO]
        overrides = (
            f"env={task.env}",
            *algorithm,
            *_LEARNERS,
            *_SHAPES[self.question],
            *_SETTINGS[self.question](self),
            f"algorithm.learning_rate={self.rate}",
            "algorithm.anneal=false",
            f"total_steps={BATCHES[self.question] * BATCH[self.question]}",
            "evaluation.points=0",
            "evaluation.greedy=false",
            "run.loggers=[]",
        )
        return Variant("/".join(map(str, self)), overrides)

    def share(self, value: float) -> float:
        return TASKS[self.task].share(value)


def _bounded(cell: Cell) -> tuple[str, ...]:
    if cell.method == BARRIER:
        named, options = "capacity", ["eta=0"]
    else:
        named, options = "bounded", [f"bound={cell.level}", f"by={cell.method}"]
    given = (f"system.data_admission_options.{option}" for option in options)
    return ("delays.by=episodes", f"system.data_admission={named}", *given)


def _synchronised(cell: Cell) -> tuple[str, ...]:
    given = ("system.data_admission=capacity", "system.data_admission_options.eta=2", "delays.learner.seconds=0.1")
    return (*given, f"system.sync_steps={cell.level}", f"platform.cache={FETCHES[cell.method]}")


def _lagged(cell: Cell) -> tuple[str, ...]:
    return ("system.data_admission=fixed", f"system.data_admission_options.lag={cell.level}")


_SETTINGS = {BOUNDS: _bounded, SYNC: _synchronised, LAGS: _lagged}


def bounds_places(task: str) -> list[Cell]:
    """Places of the question which bound data staleness should have."""
    return [Cell(BOUNDS, task, method, bound, "") for method, bound in ADMISSIONS]


def sync_places(task: str) -> list[Cell]:
    """Places of the question how often actors should fetch."""
    return [Cell(SYNC, task, fetch, steps, "") for fetch in FETCHES for steps in TASKS[task].sync_steps]


def correction_places(task: str) -> list[Cell]:
    """Places of the question which correction is needed at which data lag."""
    lags = TASKS[task].corrected_lags
    return [Cell(LAGS, task, method, lag, "") for method in CORRECTIONS for lag in lags]


def rate_places(task: str) -> list[Cell]:
    """Places of the question how the best learning rate falls with data lag."""
    return [Cell(LAGS, task, PPO, lag, "") for lag in TASKS[task].rate_lags]
