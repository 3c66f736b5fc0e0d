"""One compiled engine for many systems of independent actors, and the literal functions beside it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, settings
from reference_actor_training import ActorFunctions, ActorTraining, statistics_of
from reference_actors import ActorSystem
from reference_systems import IndependentCase
from settings import algorithm_of, system_of

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.config.sections import DelaysConfig, EngineConfig, EnvConfig, NetworkConfig
from stellaris_jax.config.system import SystemConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.program import Engine, EngineInputs, EngineState
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.engine.wave import RoundMetrics
from stellaris_jax.envs.registry import make
from stellaris_jax.timeline import Timeline
from stellaris_jax.timeline.collection import CollectionSizes, Collector
from stellaris_jax.timeline.plan import build_collection_plan

SCHEDULE = [1.0, 0.8, 0.6, 0.4, 0.2]
"""Factor on the learning rate in each round; the engine runs the last round as a shorter chunk."""
ENVS, STEPS = 8, 16
SIZES = CollectionSizes(8, 64, 8, 64)
"""Capacities that all plans of a bench fit into, so that few programs are compiled."""
ROOM = 12
"""Fragments that may wait, at most."""

# The same few examples in every run, and no shrinking, which would take minutes.
ENGINE = settings(deadline=None, derandomize=True, phases=[Phase.generate])

BENCHES: dict[str, dict[str, Any]] = {
    "whole fragments": {},
    "segments": {"sync_steps": 4},
    "a version for each step, four lanes": {"sync_steps": 1, "lanes": 4, "aggregation": "sequential", "versions": 10},
    "normalised": {
        # Not a pendulum: where actors roll much that is dropped, its chaos makes rounding visible.
        "env": EnvConfig("gymnax/MountainCarContinuous-v0", normalize_observation=True, normalize_reward=True),
        "sync_steps": 8,
        "truncation": "none",
    },
    "two devices": {
        "env": EnvConfig(normalize_observation=True, normalize_reward=True),
        "sync_steps": 4,
        "devices": 2,
        "truncation": "surrogate",
    },
    "two shards": {"shards": 2, "sync_steps": 2, "truncation": "artifact", "aggregation": "gradient"},
    "gru": {"memory": "gru", "sync_steps": 4},
    "gru, normalised, two devices": {
        "memory": "gru", "sync_steps": 8, "devices": 2, "env": EnvConfig(normalize_observation=True),
    },
    "impala": {"algorithm": "impala", "sync_steps": 4},
    "impact": {"algorithm": "impact", "sync_steps": 8},
    "a3po": {"algorithm": "a3po", "sync_steps": 4},
    "truncated episodes": {"env": EnvConfig("diagnostic/truncation", normalize_reward=True), "sync_steps": 4},
}  # fmt: skip

OPTIONS: dict[str, dict[str, float]] = {
    # Rounding decides on which side of a clip's edge a sample is, so that there must be few of them.
    "ppo": {"value_clip": 0.0, "clip": 0.5},
    "impala": {"c_bar": 1.05},
    "impact": {"clip": 0.2, "target_interval": 3, "c_bar": 1.05, "impact_ratio": 1.01},
    "a3po": {"proximal_interval": 4, "value_clip": 0.0, "clip": 0.5},
}
"""Options of every algorithm."""


class Bench:
    """One compiled engine, which runs the plans of any rule and data admission, and the literal functions beside it."""

    def __init__(
        self,
        env: EnvConfig | None = None,
        shards: int = 4,
        sync_steps: int = 0,
        lanes: int = 1,
        devices: int = 1,
        seeds: int = 1,
        aggregation: str = "factored",
        truncation: str = "weight",
        versions: int = 16,
        algorithm: str = "ppo",
        memory: str = "none",
        by: str = "steps",
    ):
        system = system_of(
            rule="async", aggregation=aggregation, truncation=truncation, versions=versions, rho=1.02,
            actors="independent", actor_shards=shards, sync_steps=sync_steps, data_queue=ROOM, batches_in_flight=3,
        )  # fmt: skip
        self.config = Config(
            num_seeds=seeds,
            total_steps=len(SCHEDULE) * ENVS * STEPS,
            delays=DelaysConfig(by=by),
            env=replace(env or EnvConfig(), num_envs=ENVS),
            network=NetworkConfig(hidden=(8,), memory=memory, memory_size=4),
            algorithm=algorithm_of(
                algorithm, rollout_length=STEPS, epochs=2, minibatches=4, learning_rate=0.01, kl_coefficient=0.2,
                anneal=True, **OPTIONS[algorithm],
            ),
            system=system,
            engine=EngineConfig(lanes, devices),
        )  # fmt: skip
        of_config = ProgramSpec.of(self.config)
        self.orders = sequence_orders if of_config.sequences else minibatch_orders
        # One program for all systems of a bench, which have 8 learners at most.
        peers = 0 if truncation == "none" else min(7, versions - 1)
        spec = replace(of_config, chunk_rounds=2 if by == "steps" else 1, seeds=seeds, peers=peers)
        self.shape = spec.shape
        vec_env = make(self.config.env.name, dict(self.config.env.kwargs))
        network = ActorCritic(vec_env.observation_space, vec_env.action_space, self.config.network)
        self.engine = Engine(self.config.env, vec_env, network, spec)
        self.hyper = Hyper.of(self.config)
        self.functions = ActorFunctions(self.config, vec_env, network)
        self.start = cache(lambda *seeds: self.engine.init(list(seeds), Hyper.of(self.config).rows(len(seeds))))

    def case(self, case: IndependentCase) -> IndependentCase:
        """The same case with the bench's shards and segments, and no more versions and room than it has."""
        own, drawn = self.config.system, case.settings
        least = own.actor_shards * (drawn.data_admission_options.get("lag", 0) + 1)
        every = min(drawn.publish_every, own.versions - 1)
        adapted = replace(
            drawn,
            actor_shards=own.actor_shards,
            sync_steps=own.sync_steps,
            versions=own.versions,
            publish_every=every,
            publish_lag=min(drawn.publish_lag, own.versions - 1 - every),
            data_queue=min(max(drawn.data_queue, least), max(ROOM, least)),
        )
        actors = max(case.platform.actors, own.actor_shards)
        return IndependentCase(adapted, replace(case.platform, actors=actors), case.delays)

    def timeline(self, case: IndependentCase, seed: int) -> Timeline:
        system = SystemConfig(**{"actors": "independent", **vars(case.settings)})
        delays = DelaysConfig(by=self.config.delays.by, **vars(case.delays))
        return Timeline.of(replace(self.config, system=system, platform=case.platform, delays=delays), seed)

    def execute(self, timelines: dict[int, Timeline]) -> tuple[EngineState, RoundMetrics]:
        """The final state of the engine and the metrics of all rounds; timelines by seed."""
        seeds, hyper = list(timelines), Hyper.of(self.config).rows(len(timelines))
        assert self.shape.collection is not None
        collectors = [Collector(self.shape.collection, self.shape.ring) for _ in seeds]
        state, history, sizes = jax.tree.map(jnp.copy, self.start(*seeds)), [], SIZES
        for first in range(0, len(SCHEDULE), self.shape.rounds):
            factors = SCHEDULE[first : first + self.shape.rounds]
            records = [[timeline.next_round() for timeline in timelines.values()] for _ in factors]
            steps = [
                [one.steps(record.sequence) for one, record in zip(collectors, row, strict=True)] for row in records
            ]
            plan, sizes = build_collection_plan(
                self.shape, steps, lambda s, batch: self.orders(seeds[s])[batch], factors, sizes
            )
            state, metrics = self.engine.run(EngineInputs(state, hyper, plan), len(factors))
            history.append(metrics)
        # The engine writes the newest policy into the ring when it next reads from it.
        slots = self.shape.ring.slot(state.version)
        state = state._replace(ring=state.ring.at[np.arange(len(seeds)), slots].set(state.params))
        # The last chunk is shorter: what follows in its metrics is empty.
        return state, jax.tree.map(lambda *parts: np.concatenate(parts)[: len(SCHEDULE)], *history)

    def literal(self, case: IndependentCase, seed: int) -> tuple[ActorSystem, ActorTraining]:
        """The literal system after as many rounds, from the same start."""
        start = jax.tree.map(lambda x: x[0], jax.device_put(self.start(seed), jax.devices()[0]))
        training = ActorTraining(self.functions, start, self.orders(seed), SCHEDULE)
        literal = ActorSystem(
            *(case.settings, case.platform, case.delays, self.shape.gradients, seed, case.platform.actors),
            rollout_length=STEPS,
            num_envs=ENVS,
            training=training,
        )
        literal.run(len(SCHEDULE))
        return literal, training


bench = lru_cache(maxsize=1)(lambda name: Bench(**BENCHES[name]))
BATCHES = len(SCHEDULE) + 3


@cache
def minibatch_orders(seed: int) -> np.ndarray:
    """Sample indices `[batches, G, B]`: in every epoch, each of the 128 samples once."""
    generator = np.random.default_rng(seed)
    return np.array([generator.permutation(128) for _ in range(BATCHES * 2)], np.int32).reshape(BATCHES, 8, 32)


@cache
def sequence_orders(seed: int) -> np.ndarray:
    """As `minibatch_orders`, but minibatches are all 16 steps of two of the eight environments: `[16, 2]` rows."""
    generator = np.random.default_rng(seed)
    environments = np.array([generator.permutation(ENVS) for _ in range(BATCHES * 2)], np.int32)
    rows = [ENVS * t + environments.reshape(-1, 2) for t in range(STEPS)]
    return np.stack(rows, axis=1).reshape(BATCHES, 8, 32)


def check_episodes(metrics: RoundMetrics, literal: ActorSystem, training: ActorTraining) -> None:
    """Episodes in the used and in the dropped data of each round are those of the literal system."""
    for found, fragments in (
        (metrics.episodes, [(one.round, fragment) for one in literal.log.batches for fragment in one.fragments]),
        (metrics.dropped_episodes, literal.log.dropped_fragments),
    ):
        for r in range(len(SCHEDULE)):
            ended = [episode for round_, one in fragments if round_ == r for episode in training.episodes[one.name]]
            assert found.ended[r, 0] == len(ended)
            assert found.total_length[r, 0] == sum(length for _, length in ended)
            assert found.total_return[r, 0] == pytest.approx(sum(total for total, _ in ended), rel=1e-4, abs=1e-4)


def check_policies(bench: Bench, case: IndependentCase, seed: int = 0) -> ActorSystem:
    """Every version the engine still keeps equals the literal system's, and so do counts, episodes and statistics."""
    case = bench.case(case)
    literal, training = bench.literal(case, seed)
    state, metrics = bench.execute({seed: bench.timeline(case, seed)})
    newest, ring = max(training.cache), np.asarray(state.ring[0])
    # Dividing by the deviation of few samples magnifies what rounding makes different.
    atol = 6e-5 if bench.config.env.normalize_observation or bench.config.env.normalize_reward else 4e-6
    assert state.version[0] == newest
    for version in range(max(0, newest - len(ring) + 1), newest + 1):
        expected = bench.functions.network.ravel(training.cache[version])
        np.testing.assert_allclose(ring[version % len(ring)], expected, rtol=1e-4, atol=atol)
    assert metrics.rejected[-1, 0] == training.rejected
    assert metrics.gradients.sum() == sum(len(one.deliveries) for one in literal.updates) - training.rejected
    assert metrics.kl_coefficient[-1, 0] == pytest.approx(training.kl_coefficient)
    check_episodes(metrics, literal, training)
    for statistics, samples, shape in (
        (state.normalizers.obs, training.seen * bench.config.env.normalize_observation, training.shape),
        (state.normalizers.reward, training.returns, ()),
    ):
        for mine, own in zip(statistics, statistics_of(samples, shape), strict=True):
            np.testing.assert_allclose(mine[0], own, rtol=2e-4, atol=1e-5)
    return literal
