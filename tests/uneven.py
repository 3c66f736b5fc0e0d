"""An environment whose episodes have lengths that are drawn when they begin, and end in both ways."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from stellaris_jax.envs import AutoResetEnv, Box, Discrete
from stellaris_jax.envs.registry import register

LONGEST = 12


class Uneven(AutoResetEnv):
    """Episodes of 1 to `longest` steps: those of even length are terminated, the others truncated.

    Observations are the steps taken and the length, over `longest`; the reward is the first of them, plus the action.
    """

    name = "test/uneven"
    observation_space = Box((2,), (0.0, 0.0), (1.0, 1.0))
    action_space = Discrete(2)
    start_pool = 16

    def __init__(self, longest: int = LONGEST):
        self.longest = self.max_episode_steps = longest

    def observe(self, state: Any) -> Any:
        return jnp.stack(state).astype(jnp.float32) / self.longest

    def reset_one(self, key: Any) -> Any:
        state = (jnp.int32(0), jax.random.randint(key, (), 1, self.longest + 1))
        return state, self.observe(state)

    def step_one(self, key: Any, state: Any, action: Any) -> Any:
        steps, length = state
        after = (steps + 1, length)
        over, even = steps + 1 >= length, length % 2 == 0
        reward = self.observe(after)[0] + 0.5 * action
        return after, self.observe(after), reward, over & even, over & ~even


register("test/uneven", Uneven)
