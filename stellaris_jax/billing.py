"""The bill of a timeline: dollars for learners, actors and the parameter function.

Serverless work pays per invocation: its seconds times the VM's price per second over the functions the VM holds;
pre-warmed and idle containers are free (SC'24, §VIII-A). Serverful work pays for its whole cluster by wall-clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from stellaris_jax.config import PricesConfig, SystemConfig
from stellaris_jax.timeline.simulate import Usage

HOUR = 3600.0


@dataclass(frozen=True)
class Bill:
    """Dollars per item; failed invocations are part of `learner`."""

    learner: float
    actor: float
    parameter_function: float

    @property
    def total(self) -> float:
        return self.learner + self.actor + self.parameter_function


def bill(system: SystemConfig, prices: PricesConfig, usage: Usage) -> Bill:
    """What a run has cost so far under the system's own billing rules.

    The parameter function runs beside the learners: it is an invocation like theirs where they are serverless, and
    included in their cluster where they are not.
    """
    if system.learner_billing == "serverless":
        slot = prices.learner_vm / prices.learner_vm_slots / HOUR
        learner = slot * (usage.learner_busy + usage.learner_failed)
        parameter_function = slot * usage.aggregate_busy
    else:
        learner = prices.learner_vm * prices.learner_vms / HOUR * usage.seconds
        parameter_function = 0.0
    if system.actor_billing == "serverless":
        actor = prices.actor_vm / prices.actor_vm_slots / HOUR * usage.actor_busy
    else:
        actor = prices.actor_vm * prices.actor_vms / HOUR * usage.seconds
    return Bill(learner, actor, parameter_function)
