"""Rows that nothing is to be learned from, whatever stands in them, leave gradients as they are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris_jax import load_config
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import Samples, Steps, Versions
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.engine.learner import Fetched, gradient_of
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.envs.base import Box, Discrete
from stellaris_jax.timeline.plan import Peers

B, SIZE = 16, 3
INVALID = np.array([2, 3, 6, 7])
"""Rows of the last two of four environments, in a minibatch of four steps."""


def minibatch(bad: float) -> Samples:
    random = np.random.default_rng(0)

    def rows(*shape: int) -> np.ndarray:
        x = random.normal(size=(B, *shape)).astype(np.float32)
        x[INVALID] = bad
        return x

    valid = np.ones(B, bool)
    valid[INVALID] = False
    no = np.zeros(B, bool)
    action = random.integers(0, 2, B).astype(np.int32)
    steps = Steps(rows(), rows(), no, no)
    return Samples(rows(SIZE), action, rows(2), rows(), rows(), rows(), rows(), valid, steps)


def gradient(name: str, bad: float) -> np.ndarray:
    small = ["env.num_envs=4", "algorithm.rollout_length=4", "algorithm.epochs=1", "algorithm.minibatches=4",
             "system.learners=4", "network.hidden=[8]", "algorithm.kl_coefficient=0.1",
             "system.truncation=weight", "algorithm.masks=[icepop]"]  # fmt: skip
    config = load_config([f"algorithm.name={name}", *small])
    network = ActorCritic(Box((SIZE,), (-1.0,) * SIZE, (1.0,) * SIZE), Discrete(2), config.network)
    spec = ProgramSpec.of(config, host_fragments=True)
    params = network.ravel(network.unravel(network.init(jax.random.key(0))))
    batch = jax.tree.map(jnp.asarray, minibatch(bad))
    if name in ("impact", "decoupled"):
        batch = batch._replace(target_policy=batch.distribution)
    peers = Peers(jnp.int32(1), jnp.zeros(1, jnp.int32))
    known = Versions(jnp.int32(7), jnp.int32(3))
    fetched = Fetched(params, batch, params[None], peers, known, jnp.float32(0.1))
    found: Any = gradient_of(network, spec, jax.tree.map(jnp.asarray, Hyper.of(config)), fetched)
    return np.asarray(found[0])


@pytest.mark.parametrize("name", ["ppo", "importance", "topr", "decoupled", "a3po", "bapo", "impala", "impact"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e38])
def test_invalid_rows_do_not_reach_the_gradient(name: str, bad: float) -> None:
    if bad == 1e38 and name in ("impala", "impact"):
        pytest.skip("sequences keep what is finite, for later rows may follow from it")
    expected, found = gradient(name, 0.0), gradient(name, bad)
    assert np.isfinite(found).all() and np.any(found)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
