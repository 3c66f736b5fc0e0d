"""The compiled engine has the policies of the literal system (`reference.py`)."""

from __future__ import annotations

from dataclasses import replace
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
from reference_systems import CASES, STRAGGLERS, delays, platforms, systems
from reference_training import Functions, Training
from settings import algorithm_of, system_of

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.config.sections import (
    DelaysConfig,
    EngineConfig,
    EnvConfig,
    NetworkConfig,
    PlatformConfig,
)
from stellaris_jax.config.system import SystemConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.program import Engine, EngineInputs, EngineState, RoundMetrics
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.envs.registry import make
from stellaris_jax.timeline import Timeline, build_plan

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
    # Rounding decides on which side of a clip's edge a sample is, so that there must be few of them.
    "ppo": {"value_clip": 0.0, "clip": 0.5},
    "impala": {"c_bar": 1.05},
    "impact": {"clip": 0.2, "target_interval": 3, "c_bar": 1.05, "impact_ratio": 1.01},
}
"""Options of every algorithm."""


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
            state, metrics = self.engine.run(
                EngineInputs(state, Hyper.of(self.config).rows(len(timelines)), plan), len(rounds)
            )
            history.append(metrics)
        # The engine writes the newest policy into the ring when it next reads from it.
        slots = self.shape.ring.slot(state.version)
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
