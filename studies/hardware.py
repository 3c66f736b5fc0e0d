"""Hardware of a single learner: whole GPUs instead of shared ones, and no parameter function."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from stellaris_jax.execute.loading import load_config
from stellaris_jax.timeline import Timeline
from stellaris_jax.timeline.billing import bill
from studies.training import Variant

AT_ONCE = ("delays.aggregate.kind=constant", "delays.aggregate.options={}", "delays.aggregate.seconds=0")
"""Settings of aggregations that take no time: a single learner updates its own policy, without a parameter function."""


ONE_VM = ("platform.gpus=1", "prices.learner_vms=1")
"""Settings of a learner that pays for the machine of its GPU alone, and not for the testbed's second one."""


def full_gpu(trained: Variant, gpus: int = 1) -> tuple[str, ...]:
    """Settings of learners that compute as fast as all functions of their GPU together, and pay for the whole testbed.

    This holds if functions that share a GPU are bound by it. With several GPUs a learner has them without any loss.
    """
    config = load_config(list(trained.overrides))
    alone = config.delays.learner.seconds / (config.platform.slots_per_gpu * gpus)
    slots = f"prices.learner_vm_slots={config.platform.gpus_per_vm}"
    return "platform.slots_per_gpu=1", slots, f"delays.learner.seconds={alone:.4g}"


class Expense(NamedTuple):
    """Expense of a run.

    Attributes:
      seconds: simulated seconds.
      dollars: bill, by the system's own rule.
    """

    seconds: float
    dollars: float


@cache
def simulated(overrides: tuple[str, ...], seed: int) -> Expense:
    """Expense of a whole run, of its timeline alone."""
    config = load_config([*overrides])
    timeline = Timeline.of(config, seed)
    *_, last = (timeline.next_round() for _ in range(config.rounds))
    return Expense(last.usage.seconds, bill(config.system, config.prices, last.usage, config.platform.actors).total)
