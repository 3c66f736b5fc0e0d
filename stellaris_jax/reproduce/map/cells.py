"""What the map is made of: tasks, methods, and the axes between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stellaris_jax.reproduce.training import Variant


class Task(NamedTuple):
    """A task of the map. env: as on the command line; overrides: beside those of its tuned file. steps: budget, in env
    steps. solved: the return that counts as solved. worst: about what an untrained policy earns."""

    env: str
    steps: int
    solved: float
    worst: float
    overrides: tuple[str, ...] = ()

    def share(self, value: float) -> float:
        """A return as a share of the way from the worst to what counts as solved."""
        return (value - self.worst) / (self.solved - self.worst)


TASKS = {
    "cartpole": Task("gymnax/cartpole", 150_000, 475.0, 20.0),
    "acrobot": Task("gymnax/acrobot", 150_000, -100.0, -500.0),
    "breakout": Task("gymnax/breakout_minatar", 500_000, 6.0, 0.3),
    "asterix": Task("gymnax/asterix_minatar", 500_000, 4.0, 0.5),
    "pendulum": Task("brax/inverted_pendulum", 200_000, 900.0, 10.0),
}

LEARNERS = (1, 4, 8, 16, 32)
"""No more than a round has gradients; beyond that nobody gets one."""
RATES = ("3e-4", "1e-3", "3e-3", "1e-2", "3e-2")
DELAYS = ("constant", "lognormal", "pareto")
TUNING, CONFIRMING = range(8), range(8, 16)
"""Seeds that rates and methods are chosen on, and seeds that what is chosen is judged by."""

METHODS: dict[str, tuple[str, ...]] = {
    "all-reduce": ("system=allreduce",),
    "async": ("system=async",),
    "async, w = 1/s": ("system=async", "system.weights=power", "system.options.root=1"),
    "async, w = 1/s on the gradient": (
        "system=async",
        "system.weights=power",
        "system.options.root=1",
        "system.aggregation=gradient",
    ),
    "async, truncation": ("system=async", "system.truncation=weight"),
    "softsync": ("system=softsync", "system.weights=constant"),
    "softsync, w = 1/s": ("system=softsync",),
    "SSP": ("system=ssp",),
    "Stellaris": ("system=stellaris",),
    "Stellaris, w = 1/s": ("system=stellaris", "system.options.root=1"),
    "Stellaris, no truncation": ("system=stellaris", "system.truncation=none"),
    "DC-ASGD": ("system=dc_asgd",),
    "gap-aware": ("system=gap_aware",),
    "KL gate": ("system=async", "system.corrections=[kl_gate]"),
    "less momentum": ("system=async", "system.corrections=[less_momentum]"),
    "ESS": ("system=async", "system.corrections=[ess]"),
    "waiting, 4": ("system=async", "system.admission=waiting", "system.options.bound=4"),
}
"""Overrides of each; the number of learners comes on top."""


class Cell(NamedTuple):
    """A place on the map: keys of `TASKS` and `METHODS`, and values of the axes."""

    task: str
    method: str
    learners: int
    rate: str
    delays: str = "pareto"

    @property
    def variant(self) -> Variant:
        """What is trained there; every learner is billed for the seconds it is busy."""
        task = TASKS[self.task]
        group = max(1, self.learners // 2)
        softsync = (f"system.options.c={group}",) if self.method.startswith("softsync") else ()
        overrides = (
            f"env={task.env}",
            *METHODS[self.method],
            *softsync,
            f"delays={self.delays}",
            f"system.learners={self.learners}",
            "system.learner_billing=serverless",
            "platform.gpus=8",
            "prices.learner_vms=8",
            "system.versions=128",
            f"algorithm.learning_rate={self.rate}",
            "algorithm.anneal=false",
            f"total_steps={task.steps}",
            *task.overrides,
            "evaluation.points=0",
            "run.loggers=[]",
        )
        return Variant("/".join(map(str, self)), overrides)


def grid(
    tasks: Iterable[str],
    methods: Iterable[str] = METHODS,
    learners: Iterable[int] = LEARNERS,
    rates: Iterable[str] = RATES,
    delays: Iterable[str] = ("pareto",),
) -> list[Cell]:
    """All cells of these axes; methods change fastest, so that what shares a plan stands together.

    With one learner all methods are one, the sequential trainer's.
    """
    methods = list(methods)
    return [
        Cell(task, method, count, rate, tail)
        for task in tasks
        for tail in delays
        for count in learners
        for method in (methods if count > 1 else ["all-reduce"])
        for rate in rates
    ]
