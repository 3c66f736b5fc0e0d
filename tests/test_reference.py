"""The planned and compiled system equals the literal one (`reference.py`): same events, same policies."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from fractions import Fraction
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from reference import System
from reference_training import Functions, Training
from settings import algorithm_of, delay, system_of

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.base.registry import register
from stellaris_jax.config.sections import (
    DelaysConfig,
    EngineConfig,
    EnvConfig,
    NetworkConfig,
    PlatformConfig,
    SystemConfig,
)
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.program import Engine, EngineState, RoundMetrics
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.envs.registry import make
from stellaris_jax.timeline import Timeline, build_plan

CASES = [(rule, learners) for rule in register.rule for learners in (1, 3, 8) if rule != "central" or learners == 1]
ROUNDS = 5

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


def about(gradient: Any) -> tuple:
    """All that is known of a gradient, the package's or the reference's."""
    g = gradient
    return g.fragment, g.minibatch, g.learner, g.version, g.staleness, g.peers, float(g.start), float(g.end)


def usage(system: System) -> dict[str, Any]:
    log = system.log
    ages = [delivery.staleness for one in log.aggregations for delivery in one.deliveries]
    meters = ("learner_busy", "learner_failed", "learner_startup", "actor_busy", "actor_startup", "aggregate_busy")
    return {
        **{name: float(getattr(log, name)) for name in meters},
        **{name: getattr(log, name) for name in ("invocations", "actor_invocations", "failures", "waits", "unready")},
        "learner_dropped": float(sum((lost.end - lost.start for _, lost in log.dropped), Fraction(0))),
        "scaling_busy": 0.0,
        "seconds": float(system.time.now),
        "updates": system.parameter_function.clock,
        "gradients": len(ages),
        "dropped": len(log.dropped),
        "escapes": sum(one.escaped for one in log.aggregations),
        "staleness_total": sum(ages),
        "staleness_max": max(ages, default=0),
    }


@pytest.mark.parametrize(("rule", "learners"), CASES)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), platform=platforms, delays=delays, minibatches=st.integers(1, 12), seed=st.integers(0, 99))
def test_timeline_equals_literal_system(
    rule: str,
    learners: int,
    data: st.DataObject,
    platform: PlatformConfig,
    delays: DelaysConfig,
    minibatches: int,
    seed: int,
) -> None:
    check_events(data.draw(systems(rule, learners)), platform, delays, minibatches, seed)


def check_events(
    system: SystemConfig, platform: PlatformConfig, delays: DelaysConfig, minibatches: int, seed: int
) -> None:
    """The timeline's rounds and usage equal the literal system's, exactly."""
    timeline = Timeline(system, platform, delays, gradients_per_round=minibatches, seed=seed)
    literal = System(system, platform, delays, minibatches, seed)
    records = []
    for r in range(ROUNDS):
        records.append(record := timeline.next_round())
        literal.run(r + 1)
        version, second = literal.log.fragments[r]
        assert (record.behaviour_version, record.start) == (version, float(second))
        expected = [one for one in literal.log.aggregations if one.round == r]
        for group, one in zip(record.groups, expected, strict=True):
            assert [about(g) for g in group.gradients] == [about(d) for d in one.deliveries]
            assert (group.clock, group.second, group.escaped) == (one.clock, float(one.second), one.escaped)
            assert group.weights == pytest.approx(one.weights)
            assert group.threshold == one.threshold
        assert [about(g) for g in record.dropped] == [about(d) for round, d in literal.log.dropped if round == r]
        assert asdict(record.usage) == usage(literal)
    published = [group.published for record in records for group in record.groups]
    assert published == [float(one.published) for one in literal.log.aggregations]


constants = st.builds(delay, kind=st.just("constant"), seconds=decimals)


@pytest.mark.parametrize(("rule", "learners"), [("async", 8), ("stellaris", 8), ("ssp", 3), ("allreduce", 8)])
@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    platform=platforms,
    delays=st.builds(DelaysConfig, learner=constants, actor=constants, aggregate=constants, loader=constants),
    minibatches=st.integers(1, 24),
)
def test_constant_delays_tie_as_in_the_literal_system(
    rule: str,
    learners: int,
    data: st.DataObject,
    platform: PlatformConfig,
    delays: DelaysConfig,
    minibatches: int,
) -> None:
    """Sums of 0.05, 0.1, 0.3 and 0.7 s are equal where they are equal in decimals: first in, first out."""
    check_events(data.draw(systems(rule, learners)), platform, delays, minibatches, seed=0)


@settings(max_examples=100, deadline=None)
@given(systems(), platforms, delays, st.integers(1, 12), st.integers(0, ROUNDS))
def test_timeline_continues_from_its_state(
    system: SystemConfig, platform: PlatformConfig, delays: DelaysConfig, minibatches: int, pause: int
) -> None:
    def timeline() -> Timeline:
        return Timeline(system, platform, delays, gradients_per_round=minibatches, seed=0)

    whole, first, second = timeline(), timeline(), timeline()
    rounds = [whole.next_round() for _ in range(ROUNDS)]
    for _ in range(pause):
        first.next_round()
    state = json.dumps(first.state())
    second.restore(json.loads(state))
    assert json.dumps(second.state()) == state
    assert [second.next_round() for _ in range(pause, ROUNDS)] == rounds[pause:]
    assert second.state() == whole.state()


# Numbers -------------------------------------------------------------------------------------------------------------

SCHEDULE = [1.0, 0.7, 0.4]
"""Factor on the learning rate in each round; the engine runs the last round as a shorter chunk."""

# The same few examples in every run, and no shrinking, which would take minutes.
ENGINE = settings(deadline=None, derandomize=True, phases=[Phase.generate])

BENCHES: dict[str, dict[str, Any]] = {
    "one lane, one device": {},
    "four lanes": {"lanes": 4, "aggregation": "sequential", "truncation": "surrogate", "versions": 5},
    "four devices": {"devices": 4, "aggregation": "gradient", "truncation": "artifact", "versions": 5},
    "four lanes, four devices": {"lanes": 4, "devices": 4},
    "continuous actions": {
        "env": EnvConfig("gymnax/Pendulum-v1", normalize_observation=True, normalize_reward=True),
        "devices": 4,
        "aggregation": "sequential",
        "truncation": "none",
    },
    "non-finite gradients": {"env": EnvConfig("diagnostic/nonfinite")},
    "three seeds": {"seeds": 3},
    "impala": {"algorithm": "impala", "versions": 5},
    "impact": {"algorithm": "impact", "devices": 4},
    "impact, three seeds": {"algorithm": "impact", "seeds": 3},
    "gru": {"memory": "gru", "devices": 4},
    "impact, lstm": {"algorithm": "impact", "memory": "lstm"},
}


OPTIONS: dict[str, dict[str, float]] = {
    "ppo": {},
    "impala": {"c_bar": 1.05},
    "impact": {"clip": 0.2, "target_interval": 3, "c_bar": 1.05, "impact_ratio": 1.01},
}
"""Of every algorithm."""


class Bench:
    """One compiled engine, which runs the plans of any rule, and the literal system's functions beside it."""

    def __init__(
        self,
        env: EnvConfig | None = None,
        lanes: int = 1,
        devices: int = 1,
        seeds: int = 1,
        aggregation: str = "factored",
        truncation: str = "weight",
        versions: int = 16,
        algorithm: str = "ppo",
        memory: str = "none",
    ):
        self.config = Config(
            num_seeds=seeds,
            env=replace(env or EnvConfig(), num_envs=8),
            network=NetworkConfig(hidden=(8,), memory=memory, memory_size=4),
            algorithm=algorithm_of(
                algorithm, rollout_length=16, epochs=3, minibatches=4, learning_rate=0.01, kl_coefficient=0.2,
                **OPTIONS[algorithm],
            ),
            # Ratios of 1 are common, and rounding decides which side of rho = 1 they fall on.
            system=system_of(aggregation=aggregation, truncation=truncation, versions=versions, rho=1.02),
            engine=EngineConfig(lanes, devices),
        )  # fmt: skip
        self.orders = sequence_orders if ProgramSpec.of(self.config).sequences else minibatch_orders
        # One program for all systems of a bench: they have 8 learners at most, and some are pipelined.
        spec = replace(
            ProgramSpec.of(self.config),
            chunk_rounds=2,
            seeds=seeds,
            peers=0 if truncation == "none" else min(7, versions - 1),
            buffers=2,
            target_interval=3,
        )
        self.shape = spec.shape
        vec_env = make(self.config.env.name, {})
        network = ActorCritic(vec_env.observation_space, vec_env.action_space, self.config.network)
        self.engine = Engine(self.config.env, vec_env, network, spec)
        self.functions = Functions(self.config, vec_env, network)
        self.start = cache(lambda *seeds: self.engine.init(list(seeds), Hyper.of(self.config).rows(len(seeds))))

    def timeline(self, system: SystemConfig, platform: PlatformConfig, delays: DelaysConfig, seed: int) -> Timeline:
        return Timeline(system, platform, delays, gradients_per_round=self.shape.gradients, seed=seed)

    def execute(self, timelines: dict[int, Timeline]) -> tuple[EngineState, RoundMetrics]:
        """The final state of the engine and the metrics of all rounds; timelines by seed."""
        state, history = jax.tree.map(jnp.copy, self.start(*timelines)), []
        for first in range(0, len(SCHEDULE), self.shape.rounds):
            rounds = range(first, min(first + self.shape.rounds, len(SCHEDULE)))
            records = [[timeline.next_round() for timeline in timelines.values()] for _ in rounds]
            orders = [[self.orders(seed)[r] for seed in timelines] for r in rounds]
            plan = build_plan(self.shape, records, orders, [SCHEDULE[r] for r in rounds])
            state, metrics = self.engine.run(state, Hyper.of(self.config).rows(len(timelines)), plan, len(rounds))
            history.append(metrics)
        # The engine writes the newest policy into the ring when it next reads from it.
        slots = state.version % self.shape.ring
        ring = state.ring.at[np.arange(len(timelines)), slots].set(state.params)
        state = state._replace(ring=ring)
        # The last chunk is shorter: what follows in its metrics is empty.
        return state, jax.tree.map(lambda *parts: np.concatenate(parts)[: len(SCHEDULE)], *history)

    def literal(
        self, system: SystemConfig, platform: PlatformConfig, delays: DelaysConfig, seed: int
    ) -> tuple[System, Training]:
        """The literal system after as many rounds, from the same start."""
        start = jax.tree.map(lambda x: x[0], jax.device_put(self.start(seed), jax.devices()[0]))
        training = Training(self.functions, start, self.orders(seed), SCHEDULE)
        literal = System(system, platform, delays, self.shape.gradients, seed, training)
        literal.run(len(SCHEDULE))
        training.end_round()
        return literal, training


bench = cache(lambda name: Bench(**BENCHES[name]))


@cache
def minibatch_orders(seed: int) -> np.ndarray:
    """Sample indices `[rounds, G, B]`: in every epoch, each of the 128 samples once."""
    generator = np.random.default_rng(seed)
    epochs = [generator.permutation(128) for _ in range(len(SCHEDULE) * 3)]
    return np.array(epochs, np.int32).reshape(len(SCHEDULE), 12, 32)


@cache
def sequence_orders(seed: int) -> np.ndarray:
    """As `minibatch_orders`, but minibatches are all 16 steps of two of the eight environments: `[16, 2]` rows."""
    generator = np.random.default_rng(seed)
    environments = np.array([generator.permutation(8) for _ in range(len(SCHEDULE) * 3)], np.int32)
    rows = [8 * t + environments.reshape(-1, 2) for t in range(16)]
    return np.stack(rows, axis=1).reshape(len(SCHEDULE), 12, 32)


def check_policies(
    bench: Bench, system: SystemConfig, platform: PlatformConfig, delays: DelaysConfig, seed: int = 0
) -> Training:
    """Every version the engine still keeps equals the literal system's, and so do the counts."""
    own = bench.config.system
    system = replace(system, versions=own.versions, aggregation=own.aggregation, truncation=own.truncation)
    literal, training = bench.literal(system, platform, delays, seed)
    state, metrics = bench.execute({seed: bench.timeline(system, platform, delays, seed)})
    newest, ring = max(training.cache), np.asarray(state.ring[0])
    assert state.version[0] == newest
    for version in range(max(0, newest - len(ring) + 1), newest + 1):
        expected = bench.functions.network.ravel(training.cache[version])
        np.testing.assert_allclose(ring[version % len(ring)], expected, rtol=1e-4, atol=2e-6)
    deliveries = sum(len(one.deliveries) for one in literal.log.aggregations)
    assert metrics.rejected[-1, 0] == training.rejected
    assert metrics.gradients.sum() == deliveries - training.rejected
    assert metrics.kl_coefficient[-1, 0] == pytest.approx(training.kl_coefficient)
    return training


@pytest.mark.parametrize(("rule", "learners"), CASES)
@pytest.mark.parametrize("name", ["one lane, one device", "four lanes", "four devices", "four lanes, four devices"])
@settings(ENGINE, max_examples=4)
@given(data=st.data(), platform=platforms, delays=delays)
def test_engine_equals_literal_system(
    name: str, rule: str, learners: int, data: st.DataObject, platform: PlatformConfig, delays: DelaysConfig
) -> None:
    check_policies(bench(name), data.draw(systems(rule, learners)), platform, delays)


@settings(ENGINE, max_examples=8)
@given(systems(), platforms, delays)
def test_engine_equals_literal_system_with_continuous_actions(
    system: SystemConfig, platform: PlatformConfig, delays: DelaysConfig
) -> None:
    check_policies(bench("continuous actions"), system, platform, delays)


@pytest.mark.parametrize(("rule", "learners"), [("stellaris", 8), ("allreduce", 8), ("central", 1)])
@pytest.mark.parametrize("name", ["impala", "impact"])
@settings(ENGINE, max_examples=3)
@given(data=st.data(), platform=platforms, delays=delays)
def test_engine_equals_literal_system_with_sequences(
    name: str, rule: str, learners: int, data: st.DataObject, platform: PlatformConfig, delays: DelaysConfig
) -> None:
    check_policies(bench(name), data.draw(systems(rule, learners)), platform, delays)


@pytest.mark.parametrize("name", ["gru", pytest.param("impact, lstm", marks=pytest.mark.slow)])
def test_engine_equals_literal_system_with_memory(name: str) -> None:
    """Every policy in flight goes through a minibatch's sequences by itself, from what was carried to them."""
    system = system_of(rule="stellaris", learners=8, actors="pipelined")
    check_policies(bench(name), system, PlatformConfig(), STRAGGLERS)


@pytest.mark.parametrize(("rule", "learners"), CASES)
def test_non_finite_gradients_are_left_out(rule: str, learners: int) -> None:
    system = system_of(rule=rule, learners=learners)
    training = check_policies(bench("non-finite gradients"), system, PlatformConfig(), STRAGGLERS)
    assert training.rejected > 0
    assert not np.array_equal(*(ravel_pytree(training.cache[v])[0] for v in (0, max(training.cache))))


def assert_same_state(state: EngineState, expected: EngineState) -> None:
    """Equal leaf by leaf: integers and keys to the bit, floats up to rounding."""
    for (path, leaf), other in zip(jax.tree.leaves_with_path(state), jax.tree.leaves(expected), strict=True):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf, other = jax.random.key_data(leaf), jax.random.key_data(other)
        exact = not jnp.issubdtype(leaf.dtype, jnp.floating)
        tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-4, "atol": 2e-6}
        np.testing.assert_allclose(leaf, other, **tolerance, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("rule", ["stellaris", "allreduce"])
def test_devices_and_lanes_change_nothing(rule: str) -> None:
    system = system_of(rule=rule, actors="pipelined", versions=16)
    runs = []
    for name in ("one lane, one device", "four lanes, four devices"):
        timeline = bench(name).timeline(system, PlatformConfig(), STRAGGLERS, seed=0)
        runs.append(bench(name).execute({0: timeline}))
    (state, metrics), (expected, expected_metrics) = runs
    assert_same_state(state, expected)
    for one, other in zip(jax.tree.leaves(metrics), jax.tree.leaves(expected_metrics), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("several", "one"), [("three seeds", "one lane, one device"), ("impact, three seeds", "impact")]
)
def test_seeds_side_by_side_equal_seeds_alone(several: str, one: str) -> None:
    rules = ["stellaris", "allreduce", "async"]

    def timeline(seed: int) -> Timeline:
        system = system_of(rule=rules[seed], actors="pipelined", versions=16)
        return bench(several).timeline(system, PlatformConfig(), STRAGGLERS, seed)

    together, _ = bench(several).execute({seed: timeline(seed) for seed in range(3)})
    for seed in range(3):
        alone, _ = bench(one).execute({seed: timeline(seed)})
        assert_same_state(jax.tree.map(lambda x, row=seed: x[row : row + 1], together), alone)
