"""Fragments that end with their episodes: the stretched engine has the policies of the literal system.

The literal system steps its environments one step at a time and measures lengths itself, so events agree only if
lengths do.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from reference_actor_training import ActorTraining, statistics_of
from reference_actors import ActorSystem
from reference_bench import ENGINE, ENVS, SCHEDULE, SIZES, STEPS, Bench, check_episodes
from reference_events import Delivery
from reference_events_of_actors import check_round
from reference_systems import IndependentCase, data_admissions, independent
from uneven import Uneven

from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.engine.seed_states import SeedStates
from stellaris_jax.execute.executor import ExecutorInputs
from stellaris_jax.execute.schedule import Schedule
from stellaris_jax.execute.stretches import StretchedExecutor
from stellaris_jax.timeline import minibatch_order

UNEVEN = EnvConfig(Uneven.name, normalize_observation=True, normalize_reward=True)
BENCHES: dict[str, dict[str, Any]] = {
    "whole fragments": {"env": UNEVEN},
    "segments": {"env": UNEVEN, "sync_steps": 4},
    "longer episodes than segments": {"env": replace(UNEVEN, kwargs={"longest": 30}), "sync_steps": 4},
    "a version for each step": {"env": EnvConfig(Uneven.name), "sync_steps": 1, "shards": 2, "versions": 10},
    "one shard, two devices": {"env": UNEVEN, "sync_steps": 4, "shards": 1, "devices": 2, "lanes": 2},
    "gru": {"env": UNEVEN, "sync_steps": 4, "memory": "gru"},
    "impala": {"env": UNEVEN, "sync_steps": 8, "algorithm": "impala"},
    "impact, gru": {"env": EnvConfig(Uneven.name), "sync_steps": 4, "algorithm": "impact", "memory": "gru"},
    "a3po": {"env": EnvConfig(Uneven.name), "sync_steps": 4, "algorithm": "a3po"},
}


class StretchedBench(Bench):
    """A bench whose fragments end with their episodes, executed in stretches."""

    def __init__(self, **options: Any):
        super().__init__(**options, by="episodes")

    def run(self, case: IndependentCase, seed: int) -> tuple[StretchedExecutor, list[Any], Any]:
        """Executor after all rounds, their records, and metrics `[R, 1]`."""
        timeline = self.timeline(case, seed)
        states = SeedStates(self.engine, self.hyper, [seed])
        states.state = jax.tree.map(jnp.copy, self.start(seed))
        spec: Any = self.engine.spec
        inputs = ExecutorInputs(self.config, spec, [seed], self.engine, states, *[None] * 4)  # type: ignore[arg-type]
        executor = StretchedExecutor(inputs, Schedule(self.config, spec, [seed], [timeline]))
        executor.sizes = SIZES
        done = [executor.step(ahead=False) for _ in SCHEDULE]
        metrics = jax.tree.map(lambda *x: np.concatenate(x), *(one.metrics for one in done))
        return executor, [one.chunk.rounds[0][0] for one in done], metrics

    def literal(self, case: IndependentCase, seed: int) -> tuple[ActorSystem, ActorTraining]:
        start = jax.tree.map(lambda x: x[0], jax.device_put(self.start(seed), jax.devices()[0]))
        start = start._replace(actor=start.actor._replace(alive=None))
        training = ActorTraining(self.functions, start, orders_of(self, seed), SCHEDULE)
        literal = ActorSystem(
            *(case.settings, case.platform, case.delays, self.shape.gradients, seed, case.platform.actors),
            rollout_length=STEPS,
            num_envs=ENVS,
            training=training,
            lengths=training.lengths,
        )
        return literal, training


def orders_of(bench: Bench, seed: int) -> list[np.ndarray]:
    """Minibatches of every batch, as the package shuffles them."""
    return [minibatch_order(seed, batch, bench.engine.spec.minibatch_layout) for batch in range(len(SCHEDULE) + 3)]


bench = cache(lambda name: StretchedBench(**BENCHES[name]))


def data_lag(training: ActorTraining, delivery: Delivery) -> float:
    """Versions from the policies that acted to the one that learns, the mean over a minibatch's valid samples."""
    rows, samples = training.orders[delivery.fragment][delivery.minibatch], training.fragments[delivery.fragment]
    acted = samples.version[rows][samples.valid[rows]]
    return float(delivery.version - acted.mean()) if len(acted) else 0.0


def check_policies(bench: StretchedBench, case: IndependentCase, seed: int = 0) -> ActorSystem:
    """Events equal the literal system's exactly, policies, episodes and statistics but for rounding."""
    case = bench.case(case)
    literal, training = bench.literal(case, seed)
    executor, records, metrics = bench.run(case, seed)
    for r, record in enumerate(records):
        literal.run(r + 1)
        check_round(record, literal, r)
    state = executor.inputs.seed_states.state
    newest, ring = max(training.cache), np.asarray(state.ring[0])
    assert state.version[0] == newest
    np.testing.assert_allclose(
        state.params[0], bench.functions.network.ravel(training.cache[newest]), rtol=1e-4, atol=4e-6
    )
    for version in range(max(0, newest - len(ring) + 1), newest):
        expected = bench.functions.network.ravel(training.cache[version])
        np.testing.assert_allclose(ring[version % len(ring)], expected, rtol=1e-4, atol=4e-6)
    assert metrics.rejected[-1, 0] == training.rejected == 0
    assert metrics.gradients.sum() == sum(len(one.deliveries) for one in literal.updates)
    assert metrics.kl_coefficient[-1, 0] == pytest.approx(training.kl_coefficient)
    check_episodes(metrics, literal, training)
    for r in range(len(SCHEDULE)):
        lags = [
            data_lag(training, delivery)
            for one in literal.log.aggregations
            if one.round == r
            for delivery in one.deliveries
        ]
        assert metrics.data_lag[r, 0] == pytest.approx(np.mean(lags) if lags else 0.0, rel=1e-4, abs=1e-4)
    for statistics, samples, shape in (
        (state.normalizers.obs, training.seen * bool(bench.config.env.normalize_observation), training.shape),
        (state.normalizers.reward, training.returns, ()),
    ):
        for mine, own in zip(statistics, statistics_of(samples, shape), strict=True):
            np.testing.assert_allclose(mine[0], own, rtol=2e-4, atol=1e-5)
    return literal


@pytest.mark.parametrize("name", BENCHES)
@examples(ENGINE, max_examples=2)
@given(data=st.data())
def test_engine_equals_literal_system(name: str, data: st.DataObject) -> None:
    admission = data.draw(st.sampled_from(sorted(data_admissions)))
    check_policies(bench(name), data.draw(independent(admission=admission)), data.draw(st.integers(0, 3)))


@pytest.mark.parametrize("admission", data_admissions)
@examples(ENGINE, max_examples=2)
@given(data=st.data())
def test_engine_equals_literal_system_by_admission(admission: str, data: st.DataObject) -> None:
    check_policies(bench("segments"), data.draw(independent(admission=admission)), data.draw(st.integers(0, 3)))
