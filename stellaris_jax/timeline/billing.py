"""Bill of a timeline: dollars for learners, actors and the parameter function, item by item.

Serverless billing charges each invocation: its seconds times the VM's price per second, divided by the functions that
the VM holds (SC'24, §VIII-A). Actors priced by memory pay GB-seconds and reserved concurrency instead (Nitro, VLDB'25,
§6.1). Pre-warmed, idle and kept-alive containers are free. Serverful billing charges the whole cluster by wall-clock;
the unused part is the idle item.

The number of billed actors is `platform.actors`, independent of `env.num_envs`: by default 128 actors share 16
environments. With `scaling`, its rule chooses the number of actors, and each actor has its own environments.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from stellaris_jax.config.sections import PricesConfig
from stellaris_jax.config.system import SystemConfig
from stellaris_jax.timeline.records import Usage

HOUR = 3600.0


@dataclass(frozen=True)
class Bill:
    """Dollars per item.

    Attributes:
      learner_busy: useful work of learners.
      learner_startup: learners' containers starting.
      learner_failed: learner invocations that died.
      learner_idle: unused time of the learners' cluster; 0 if serverless.
      actor_busy: work of actors, and of independent ones that died.
      actor_startup: actors' containers starting.
      actor_idle: unused time of the actors' cluster; 0 if serverless.
      actor_reserved: concurrency reserved for serverless actors, for the largest number of them.
      parameter_busy: aggregation; 0 on a learners' cluster, whose bill includes it.
      scaling_busy: choice of the next round's actors; 0 on a learners' cluster, whose bill includes it.
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
    """Cost of a run so far, under the billing rules of its system.

    Args:
      system: billing rules of learners and actors.
      prices: prices and sizes of the virtual machines.
      usage: seconds and counts of the run so far.
      actors: largest number of actors of a round.

    Example: one hour, in which learners compute for one hour in total, on two VMs at $3.06 an hour, with four learners
    each.

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
        actor_idle = cluster - actor * (usage.actor_busy + usage.actor_failed + usage.actor_startup)
    return Bill(
        learner_busy=learner_busy,
        learner_startup=startup,
        learner_failed=failed,
        learner_idle=idle,
        actor_busy=actor * (usage.actor_busy + usage.actor_failed),
        actor_startup=actor * usage.actor_startup,
        actor_idle=actor_idle,
        actor_reserved=reserved,
        parameter_busy=parameter_busy,
        scaling_busy=scaling_busy,
    )


def common_bill(system: SystemConfig, prices: PricesConfig, usage: Usage, actors: int) -> Bill:
    """Bill under the rule that all systems share: the whole cluster by wall-clock. Arguments as for `bill`."""
    return bill(replace(system, learner_billing="serverful", actor_billing="serverful"), prices, usage, actors)
