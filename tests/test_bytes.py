"""Observations that are bytes: of environments in JAX and on the host, as fractions of 255 or normalised."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from training import tiny

from stellaris_jax import AutoResetEnv, Box, Discrete, Trainer
from stellaris_jax.envs.registry import register
from stellaris_jax.execute.footprint import _sizes, parts


class Pixels(AutoResetEnv):
    """An image whose pixels count steps, and are truncated at the fifth."""

    name = "test/pixels"
    observation_space = Box((2, 3, 1), (0.0,) * 6, (255.0,) * 6, "uint8")
    action_space = Discrete(2)
    max_episode_steps = 5
    start_pool = 4

    def reset_one(self, key: Any) -> Any:
        return jnp.int32(0), jnp.zeros((2, 3, 1), jnp.uint8)

    def step_one(self, key: Any, state: Any, action: Any) -> Any:
        steps = state + 1
        # int32, which the adapter makes bytes of.
        return steps, jnp.full((2, 3, 1), steps), jnp.float32(action), False, steps >= 5


register("test/pixels", Pixels)


@pytest.mark.parametrize("normalize", ["false", "true"])
@pytest.mark.parametrize("env", ["test/pixels", "gymnasium/gym_lab:Drift-v0"])
def test_bytes_are_learned_from(env: str, normalize: str) -> None:
    kwargs = "env.kwargs={observation: bytes}" if env.startswith("gymnasium/") else "env.kwargs={}"
    changes = [f"env.name={env}", kwargs, f"env.normalize_observation={normalize}", "total_steps=256"]
    trainer = Trainer(tiny(*changes))
    try:
        records = trainer.run()
        assert len(records) == 2 and records[-1]["nonfinite_gradients"] == 0
        obs = trainer.state.loader.fragments.obs
        assert obs.dtype == (np.float32 if normalize == "true" else np.uint8)
        sizes = _sizes(trainer.config, trainer.env, trainer.network)
        assert sizes.viewed * 8 * 16 * trainer.spec.buffers == obs.nbytes
        assert sizes.observation == trainer.env.observation_space.size
        (samples,) = (part for part in parts(trainer.config, sizes) if part.what == "training samples")
        assert samples.device > obs.nbytes
        assert np.isfinite(trainer.evaluate(episodes=2).returns).all()
    finally:
        trainer.close()


class Digit(AutoResetEnv):
    """A byte that counts steps; action 1 is right where it is 3, action 0 elsewhere."""

    name = "test/digit"
    observation_space = Box((1,), (0.0,), (3.0,), "uint8")
    action_space = Discrete(2)
    max_episode_steps = 4
    start_pool = 4

    def reset_one(self, key: Any) -> Any:
        return jnp.int32(0), jnp.zeros(1, jnp.uint8)

    def step_one(self, key: Any, state: Any, action: Any) -> Any:
        steps = state + 1
        right = action == (state % 4 == 3)
        return steps, (steps % 4)[None].astype(jnp.uint8), right.astype(jnp.float32), False, steps >= 4


register("test/digit", Digit)


def test_vectors_of_bytes_are_fractions_of_their_bound() -> None:
    """Divided by 255 the four observations would look alike to a network."""
    trainer = Trainer(tiny("env.name=test/digit", "env.kwargs={}", "total_steps=128"))
    network = trainer.network
    tree = network.unravel(trainer.state.params[0])
    inputs = (jnp.uint8([[3], [1]]), jnp.float32([[1.0], [1 / 3]]))
    as_bytes, as_floats = (network.policy(tree, x, None) for x in inputs)
    np.testing.assert_allclose(as_bytes, as_floats, rtol=1e-6)
