"""Systems, platforms and delays that the literal system and the package are compared on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from reference import LearnerSystem
from reference_actors import ActorSystem, Lengths, Settings
from settings import delay, system_of

from stellaris_jax.base.registry import register
from stellaris_jax.config.sections import DelayConfig
from stellaris_jax.config.system import SystemConfig
from stellaris_jax.config.tree import DelaysConfig, PlatformConfig
from stellaris_jax.timeline import Usage

CASES = [(rule, learners) for rule in register.rule for learners in (1, 3, 8) if rule != "central" or learners == 1]

# Multiples of a quarter, and of a twentieth, which no float is: many things happen at the same moment.
quarters = st.integers(1, 12).map(lambda n: n / 4)
decimals = st.sampled_from([0.0, 0.05, 0.1, 0.15, 0.3, 0.7, 1.0])
constants = st.builds(delay, kind=st.just("constant"), seconds=decimals)
drawn = st.one_of(
    st.builds(delay, kind=st.just("measured"), table=st.lists(quarters, min_size=1, max_size=9)),
    constants,
    st.builds(delay, kind=st.just("lognormal"), sigma=st.sampled_from([0.3, 1.5])),
    st.builds(delay, kind=st.just("pareto"), seconds=st.just(0.5), alpha=st.just(1.2)),
)
delays = st.builds(
    DelaysConfig, learner=drawn, actor=drawn, aggregate=drawn, failure=st.sampled_from([0.0, 0.0, 0.2, 0.6])
)
platforms = st.builds(
    PlatformConfig,
    actors=st.integers(1, 3),
    cold_start=st.sampled_from([0.0, 1.5]),
    warm_start=st.sampled_from([0.0, 0.25]),
    keep_alive=st.sampled_from([0.0, 2.0, 600.0]),
    prewarm=st.booleans(),
    gpus=st.integers(1, 3),
    gpus_per_vm=st.integers(1, 2),
    actor_cold_start=st.sampled_from([0.0, 0.5]),
    shared_memory=st.sampled_from([0.0, 0.25]),
    rpc=st.sampled_from([0.0, 0.5]),
    cache=st.sampled_from([0.0, 0.25]),
    parameter_shards=st.sampled_from([1, 1, 2, 3]),
    contention=st.sampled_from([0.0, 0.0, 0.5, 1.0, 1 / 3]),
    interference=st.sampled_from([0.0, 0.0, 0.25, 0.91]),
)


STRAGGLERS = DelaysConfig(learner=delay("pareto", alpha=1.5), aggregate=delay(seconds=0.125), failure=0.1)


@st.composite
def systems(draw: st.DrawFn, rule: str | None = None, learners: int | None = None) -> SystemConfig:
    """A system under a rule with so many learners, drawn where they are not given."""
    if rule is None or learners is None:
        rule, learners = draw(st.sampled_from(CASES))
    return system_of(
        rule=rule,
        learners=learners,
        c=draw(st.integers(1, learners)),
        coalesce=draw(st.sampled_from([False, False, True])),
        s=draw(st.integers(0, 3)),
        decay=draw(st.sampled_from([0.25, 0.5, 0.96, 1.0])),
        root=draw(st.integers(1, 3)),
        weights="artifact" if rule == "artifact" else draw(st.sampled_from(["power", "power", "power", "constant"])),
        actors=draw(st.sampled_from(["barrier", "pipelined"])),
        versions=draw(st.sampled_from([2, 3, 5, 32])),
        overflow=draw(st.sampled_from(["wait", "drop"])),
    )


LOST_BY_ACTORS = {
    name: zero
    for name, zero in {
        "actor_failed": 0.0,
        "actor_blocked": 0.0,
        "actor_failures": 0,
        "fragments_dropped": 0,
        "actor_dropped": 0.0,
    }.items()
    if name in Usage.__dataclass_fields__
}
"""Meters of attempts that died and of dropped fragments, with their type, where the package has them."""


def about(gradient: Any) -> tuple:
    """All that is known of a gradient, the package's or the reference's."""
    g = gradient
    return g.fragment, g.minibatch, g.learner, g.version, g.staleness, g.peers, float(g.start), float(g.end)


def usage(system: LearnerSystem) -> dict[str, Any]:
    """Usage of the literal system, as the package counts it."""
    log, updates = system.log, system.updates
    ages = [delivery.staleness for one in updates for delivery in one.deliveries]
    begun = sum((one.published - one.second for one in log.aggregations[len(updates) :]), Fraction(0))
    meters = ("learner_busy", "learner_failed", "learner_startup", "actor_busy", "actor_startup")
    return {
        **{name: float(getattr(log, name)) for name in meters},
        **{name: getattr(log, name) for name in ("invocations", "actor_invocations", "failures", "waits")},
        "aggregate_busy": float(log.aggregate_busy - begun * system.parameter_functions),
        "unready": sum(one.unready for one in updates),
        "learner_dropped": float(sum((lost.end - lost.start for _, lost in log.dropped), Fraction(0))),
        **{name: type(zero)(getattr(log, name, zero)) for name, zero in LOST_BY_ACTORS.items()},
        "scaling_busy": 0.0,
        "seconds": float(system.time.now),
        "updates": system.parameter_function.clock,
        "gradients": len(ages),
        "dropped": len(log.dropped),
        "escapes": sum(one.escaped for one in updates),
        "staleness_total": sum(ages),
        "staleness_max": max(ages, default=0),
    }


# Independent actors ---------------------------------------------------------------------------------------------------

ROLLOUT_LENGTH, NUM_ENVS = 8, 12

data_admissions: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "fifo": st.just({}),
    "ready_first": st.fixed_dictionaries({"eta": st.integers(0, 3)}),
    "capacity": st.fixed_dictionaries({"eta": st.integers(0, 3)}),
    "newest": st.fixed_dictionaries({"bound": st.integers(0, 3)}),
    "bounded": st.fixed_dictionaries({"bound": st.integers(0, 3), "by": st.sampled_from(["drop", "wait"])}),
    "window": st.fixed_dictionaries({"bound": st.integers(0, 3)}),
    "fixed": st.fixed_dictionaries({"lag": st.integers(0, 3)}),
    "in_order": st.fixed_dictionaries({"window": st.integers(0, 3)}),
    "evict_stalest": st.just({}),
}
"""Options of every data admission."""


@dataclass
class IndependentCase:
    """A system with independent actors, its platform and its delays."""

    settings: Settings
    platform: PlatformConfig
    delays: Any

    def literal(self, minibatches: int, seed: int, lengths: Lengths | None = None) -> ActorSystem:
        return ActorSystem(
            *(self.settings, self.platform, self.delays, minibatches, seed, self.platform.actors),
            rollout_length=ROLLOUT_LENGTH,
            num_envs=NUM_ENVS,
            lengths=lengths,
        )


@st.composite
def independent(
    draw: st.DrawFn,
    rule: str | None = None,
    learners: int | None = None,
    admission: str | None = None,
    durations: st.SearchStrategy[DelayConfig] = drawn,
) -> IndependentCase:
    """A system with independent actors under a rule and a data admission, drawn where they are not given."""
    admission = draw(st.sampled_from([*data_admissions])) if admission is None else admission
    options = draw(data_admissions[admission])
    system = draw(systems(rule, learners))
    shards = draw(st.sampled_from([1, 2, 3, 4]))
    least = shards * (options.get("lag", 0) + 1)
    settings = Settings(
        rule=system.rule,
        rule_options=system.rule_options,
        weights=system.weights,
        weight_options=system.weight_options,
        learners=system.learners,
        versions=system.versions,
        overflow=system.overflow,
        actor_shards=shards,
        sync_steps=draw(st.sampled_from([0, 0, 1, 2, 4, 8])),
        publish_every=draw(st.sampled_from([1, 1, 2, 5])),
        publish_lag=draw(st.sampled_from([0, 0, 1, 3])),
        data_queue=draw(st.integers(least, least + 5)),
        batches_in_flight=draw(st.integers(1, 3)),
        data_admission=admission,
        data_admission_options=options,
    )
    platform = replace(draw(platforms), actors=draw(st.integers(shards, 6)), contention=0.0, interference=0.0)
    # Where fragments are dropped, actors need not wait: if they took no time, no time would ever pass.
    takes_time = admission in ("newest", "evict_stalest") or options.get("by") == "drop"
    actor = durations.filter(lambda own: own.kind != "constant" or own.seconds > 0) if takes_time else durations
    delays = SimpleNamespace(
        learner=draw(durations),
        actor=draw(actor),
        aggregate=draw(durations),
        loader=draw(durations),
        failure=draw(st.sampled_from([0.0, 0.0, 0.2, 0.6])),
        actor_failure=draw(st.sampled_from([0.0, 0.0, 0.2, 0.6])),
    )
    return IndependentCase(settings, platform, delays)


def constant_delays(actor: list[float], learner: float = 1.0, loader: float = 0.0) -> Any:
    """Constant delays; the actors' are a table that is repeated. Aggregation takes no time."""
    return SimpleNamespace(
        learner=delay(seconds=learner),
        actor=delay("measured", table=actor),
        aggregate=delay(seconds=0.0),
        loader=delay(seconds=loader),
        failure=0.0,
    )


def constant(
    shards: list[float],
    learner: float,
    gradients: int = 1,
    platform: PlatformConfig | None = None,
    loader: float = 0.0,
    rollout_length: int = 8,
    **system: Any,
) -> ActorSystem:
    """A system whose durations are constant: `shards` has the seconds of each shard, which is one actor."""
    delays = constant_delays(shards, learner, loader)
    platform = platform or PlatformConfig()
    settings = Settings(**{"actor_shards": len(shards), **system})
    return ActorSystem(settings, platform, delays, gradients, 0, len(shards), rollout_length=rollout_length)
