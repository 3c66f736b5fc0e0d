"""An environment of wide actions and observations, in gymnasium and in JAX: it observes the action it was given."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from stellaris_jax.envs import AutoResetEnv, Box

LOW, HIGH = (-1000.0, 0.0), (1000.0, 4.0)


class WideGym(gymnasium.Env):
    """Rewards of minus the distance from 700 and 3."""

    metadata: ClassVar = {"render_modes": []}
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(np.array(LOW, np.float32), np.array(HIGH, np.float32))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in self.action_space
        return action, -abs(float(action[0]) - 700) / 100, False, False, {}


class Wide(AutoResetEnv):
    """The same in JAX."""

    name = "test/wide"
    observation_space = Box((2,), (-1e9,) * 2, (1e9,) * 2)
    action_space = Box((2,), LOW, HIGH)
    max_episode_steps = 8
    start_pool = 4

    def reset_one(self, key: Any) -> Any:
        return jnp.int32(0), jnp.zeros(2)

    def step_one(self, key: Any, state: Any, action: Any) -> Any:
        return state + 1, action, -jnp.abs(action[0] - 700) / 100, jnp.bool_(False), state + 1 >= 8


gymnasium.register("Wide-v0", WideGym, max_episode_steps=8)
