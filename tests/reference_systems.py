"""Systems, platforms and delays that the literal system and the package are compared on."""

from __future__ import annotations

from hypothesis import strategies as st
from settings import delay, system_of

from stellaris_jax.base.registry import register
from stellaris_jax.config.tree import DelaysConfig, PlatformConfig
from stellaris_jax.config.system import SystemConfig

CASES = [(rule, learners) for rule in register.rule for learners in (1, 3, 8) if rule != "central" or learners == 1]

# Multiples of a quarter, and of a twentieth, which no float is: many things happen at the same moment.
quarters = st.integers(1, 12).map(lambda n: n / 4)
decimals = st.sampled_from([0.0, 0.05, 0.1, 0.15, 0.3, 0.7, 1.0])
drawn = st.one_of(
    st.builds(delay, kind=st.just("measured"), table=st.lists(quarters, min_size=1, max_size=9)),
    st.builds(delay, kind=st.just("constant"), seconds=decimals),
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
        s=draw(st.integers(0, 3)),
        decay=draw(st.sampled_from([0.25, 0.5, 0.96, 1.0])),
        root=draw(st.integers(1, 3)),
        weights="artifact" if rule == "artifact" else draw(st.sampled_from(["power", "power", "power", "constant"])),
        actors=draw(st.sampled_from(["barrier", "pipelined"])),
        versions=draw(st.sampled_from([2, 3, 5, 32])),
        overflow=draw(st.sampled_from(["wait", "drop"])),
    )
