"""Cells of the study: regimes of durations, systems and numbers of learners.

The unit of time is the mean duration of a gradient. A batch has `GRADIENTS` gradients, and eight actors collect it. All
systems have the same hardware: `learners` functions that compute, and eight actors.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import NamedTuple

from stellaris_jax.config.tree import Config
from stellaris_jax.execute.loading import load_config
from stellaris_jax.many.forecast import plannable

GRADIENTS = 64
"""Gradients of a batch: 4 epochs of 16 minibatches."""
ACTORS = 8
AGGREGATION = 0.05
"""Duration of an aggregation, in gradients: a sixth of the paper's share on Hopper is the parameter function's."""

FAST = "one fast learner"
SYNCHRONOUS = (FAST, "all-reduce")
RULES: dict[str, tuple[str, ...]] = {
    FAST: ("system=central",),
    "all-reduce": ("system=allreduce",),
    "async": ("system=async",),
    "SSP": ("system=ssp",),
    "softsync": ("system=softsync",),
    "Stellaris": ("system=stellaris",),
    "FedBuff": ("system=fedbuff",),
    "capacity": ("system=areal_gradients", "system.admission_options.eta=1"),
}
"""Rules of aggregation. `FAST` computes each gradient on all of the hardware at once, without loss, and updates its own
policy, without a parameter function: no data-parallel learner is faster."""
HALF = {
    "softsync": ("system.rule_options.c",),
    "FedBuff": ("system.rule_options.c",),
    "capacity": ("system.rule_options.c", "system.admission_options.batch"),
}
"""Options that are half the number of learners, by rule."""
COLLECTING: dict[str, tuple[str, ...]] = {
    "barrier": ("system.actors=barrier",),
    "pipelined": ("system.actors=pipelined",),
    "independent": (
        "system.actors=independent",
        f"system.actor_shards={ACTORS}",
        "system.data_admission=capacity",
        "system.data_admission_options.eta=1",
    ),
}
"""Ways of actors. Independent ones are at most a batch ahead."""

LEARNERS = (1, 2, 4, 8, 16, 32, 64)
RATIOS = (1 / 64, 1 / 16, 1 / 4, 1.0)
"""Mean duration of a rollout, as a share of what one learner takes to learn from a batch."""
CONSTANT, EXPONENTIAL, PARETO = "constant", "exponential", "Pareto"
TAILS = {
    CONSTANT: lambda mean: {"kind": "constant", "seconds": mean, "options": {}},
    EXPONENTIAL: lambda mean: {"kind": "exponential", "seconds": mean, "options": {}},
    PARETO: lambda mean: {"kind": "pareto", "seconds": mean / 2.0, "options": {"alpha": 2.0}},
}
"""Distributions of the durations of learners and actors with a mean, by name."""
FAILURES = (0.0, 0.05)
"""Probabilities that a gradient's invocation dies."""
WARM, COLD = "warm", "cold"
STARTS = {WARM: (600.0 * GRADIENTS, 0.0), COLD: (10.0, 10.0)}
"""Durations for which an idle learner function stays warm, and of a cold start, in gradients."""


class Regime(NamedTuple):
    """Durations.

    Attributes:
      ratio: one of `RATIOS`.
      tail: one of `TAILS`.
      failure: one of `FAILURES`.
      start: one of `STARTS`.
    """

    ratio: float
    tail: str
    failure: float
    start: str


class Cell(NamedTuple):
    """A regime, the number of learners, and the system.

    Attributes:
      regime: the regime.
      learners: one of `LEARNERS`.
      rule: one of `RULES`.
      actors: one of `COLLECTING`.
    """

    regime: Regime
    learners: int
    rule: str
    actors: str


REGIMES = [
    Regime(ratio, tail, failure, start) for failure, start, ratio, tail in product(FAILURES, STARTS, RATIOS, TAILS)
]
"""All regimes, those without failures and cold starts first."""
CELLS = [Cell(*values) for values in product(REGIMES, LEARNERS, RULES, COLLECTING)]


def config_of(cell: Cell) -> Config:
    """Checked configuration of a cell."""
    regime, fast = cell.regime, cell.rule == FAST
    mean = 1.0 / cell.learners if fast else 1.0
    warm, cold = STARTS[regime.start]
    made = TAILS[regime.tail]
    delays = {
        "learner": made(mean),
        "actor": made(regime.ratio * GRADIENTS),
        "aggregate": TAILS[CONSTANT](0.0 if fast else AGGREGATION),
    }
    changes = {f"delays.{part}.{key}": value for part, delay in delays.items() for key, value in delay.items()}
    return _base(cell.rule, cell.actors, cell.learners).replace(
        {
            **changes,
            "delays.failure": regime.failure,
            "platform.keep_alive": warm,
            "platform.cold_start": cold,
        }
    )


@cache
def _base(rule: str, actors: str, learners: int) -> Config:
    half = max(1, learners // 2)
    overrides = [
        "env=gymnax/cartpole",
        *RULES[rule],
        *COLLECTING[actors],
        *(f"{key}={half}" for key in HALF.get(rule, ())),
        f"system.learners={1 if rule == FAST else learners}",
        "system.learner_billing=serverless",
        f"system.versions={4 * GRADIENTS + 2}",
        "env.num_envs=8",
        "algorithm.epochs=4",
        "algorithm.minibatches=16",
        "algorithm.rollout_length=128",
        f"platform.actors={ACTORS}",
        f"platform.gpus={max(LEARNERS)}",
        "platform.slots_per_gpu=1",
        f"prices.learner_vms={max(LEARNERS)}",
        *(f"platform.{cost}=0" for cost in ("shared_memory", "rpc", "cache", "actor_cold_start")),
        "total_steps=1e9",
        "evaluation.points=0",
        "run.loggers=[]",
    ]
    return plannable(load_config(overrides))
