"""Live runs that learn from a replay buffer: the engine repeats them, deaths included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from live_runs import SMALL, left, live, params, replayed, shared_parts  # noqa: F401

from stellaris_jax import load_config

pytestmark = pytest.mark.usefixtures("shared_programs", "shared_parts")

DQN = ("algorithm=dqn", "env.num_envs=4", "algorithm.rollout_length=8", "network.hidden=[8]", "total_steps=384",
       "algorithm.options.batch_size=16", "algorithm.options.learning_starts=64", "algorithm.options.buffer_size=256",
       "algorithm.options.updates_per_step=0.125",
       "system=async", "system.learners=3", "engine.chunk_rounds=1")  # fmt: skip
FREE = ("system.actors=independent", "system.actor_shards=2", "system.sync_steps=4")
CASES = {
    "dqn": ("algorithm.options.n_step=3",),
    "dqn, pipelined": ("system.actors=pipelined", "system=stellaris"),
    "dqn, independent": (*FREE, "algorithm.options.n_step=2", "algorithm.options.exploration_power=3"),
    "sac": ("algorithm=sac", "env=gymnax/pendulum", "env.num_envs=4"),
    "dqn, gymnasium": ("env=gymnasium/CartPole-v1", "env.num_envs=4", "algorithm.options.n_step=2"),
    "dqn, gymnasium, independent": ("env=gymnasium/CartPole-v1", "env.num_envs=4", *FREE, "algorithm.options.n_step=3"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("deaths", [0.0, pytest.param(0.2, marks=pytest.mark.thorough)])
def test_the_engine_repeats_a_live_run(case: str, deaths: float, tmp_path: Path) -> None:
    small = [one for one in SMALL if not one.startswith(("algorithm.epochs", "env=", "total_steps"))]
    config = load_config(["env=gymnax/cartpole", *small, *DQN, *CASES[case]])
    trainer = live(config, deaths=deaths)
    records = trainer.run()
    trainer.close()
    again = replayed(config, left(trainer, config, tmp_path))
    assert int(records[-1]["updates"]) == len(again.executor.deviations) - 1 > 10
    assert max(one.deviation for one in again.executor.deviations) < 1e-5
    np.testing.assert_allclose(params(again), params(trainer), atol=1e-5)
    assert records[-1]["staleness_max"] > 0
    assert records[-1]["data_lag"] > 3.0
