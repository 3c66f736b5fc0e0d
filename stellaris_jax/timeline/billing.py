"""The bill of a timeline: dollars for learners, actors and the parameter function, item by item.

Serverless work pays per invocation: its seconds times the VM's price per second over the functions the VM holds
(SC'24, §VIII-A), or, for actors priced by memory, GB-seconds and the concurrency reserved for them (Nitro, VLDB'25,
§6.1). Pre-warmed, idle and kept-alive containers are free. Serverful work pays for its whole cluster by wall-clock,
of which what nothing used is its idle item.

Actors are the platform's (`platform.actors`), which share the collecting of however many environments are stepped here:
128 beside 16 by default. With `scaling` they are as many as its rule says, each with environments of its own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from stellaris_jax.config.tree import PricesConfig, SystemConfig
from stellaris_jax.timeline.records import Usage

HOUR = 3600.0


@dataclass(frozen=True)
class Bill:
    """Dollars per item: useful work, containers starting, invocations that died, and what was paid without being used.

    parameter_busy and scaling_busy (choosing the next round's actors) are 0 where they happen on a learners' cluster
    that is paid anyway. actor_reserved is concurrency reserved for serverless actors, the most there may be.
    """

    learner_busy: float = 0.0
    learner_startup: float = 0.0
    learner_failed: float = 0.0
    learner_idle: float = 0.0
    actor_busy: float = 0.0
    actor_startup: float = 0.0
    actor_idle: float = 0.0
    actor_reserved: float = 0.0
    parameter_busy: float = 0.0
    scaling_busy: float = 0.0

    @property
    def items(self) -> dict[str, float]:
        return asdict(self)

    @property
    def total(self) -> float:
        return sum(self.items.values())


def bill(system: SystemConfig, prices: PricesConfig, usage: Usage, actors: int) -> Bill:
    """What a run has cost so far under the system's own billing rules; `actors` is the most of a round.

    An hour in which learners compute for one hour in all, at $3.06 an hour for each of two VMs of four learners:

    >>> usage = Usage(seconds=HOUR, learner_busy=HOUR)
    >>> for rule in ("serverless", "serverful"):
    ...     paid = bill(SystemConfig(learner_billing=rule), PricesConfig(), usage, actors=128)
    ...     print(rule, round(paid.learner_busy, 3), round(paid.learner_idle, 3))
    serverless 0.765 0.0
    serverful 0.765 5.355
    """
    slot = prices.learner_vm / prices.learner_vm_slots / HOUR
    learner_busy, startup, failed = (
        slot * seconds for seconds in (usage.learner_busy, usage.learner_startup, usage.learner_failed)
    )
    if system.learner_billing == "serverless":
        idle, parameter_busy, scaling_busy = 0.0, slot * usage.aggregate_busy, slot * usage.scaling_busy
    else:
        cluster = prices.learner_vm * prices.learner_vms / HOUR * usage.seconds
        idle, parameter_busy, scaling_busy = cluster - learner_busy - startup - failed, 0.0, 0.0
    actor, reserved, actor_idle = prices.actor_vm / prices.actor_vm_slots / HOUR, 0.0, 0.0
    if system.actor_billing == "serverless":
        if prices.actor_gb > 0.0:
            actor = prices.actor_gb * prices.gb_second
            reserved = prices.actor_gb * prices.reserved_gb_second * actors * usage.seconds
    else:
        cluster = prices.actor_vm * prices.actor_vms / HOUR * usage.seconds
        actor_idle = cluster - actor * (usage.actor_busy + usage.actor_startup)
    return Bill(
        learner_busy=learner_busy,
        learner_startup=startup,
        learner_failed=failed,
        learner_idle=idle,
        actor_busy=actor * usage.actor_busy,
        actor_startup=actor * usage.actor_startup,
        actor_idle=actor_idle,
        actor_reserved=reserved,
        parameter_busy=parameter_busy,
        scaling_busy=scaling_busy,
    )


def common_bill(system: SystemConfig, prices: PricesConfig, usage: Usage, actors: int) -> Bill:
    """The bill at the price all systems have in common: the whole cluster by wall-clock, whatever the system's rule."""
    return bill(replace(system, learner_billing="serverful", actor_billing="serverful"), prices, usage, actors)
