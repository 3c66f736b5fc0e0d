"""Two environments in JAX: a corridor to walk (discrete), and a point to bring home (continuous).

stellaris-jax train plugins=[jax_environments.py] env=mine/corridor env.kwargs.length=5
"""

import jax
import jax.numpy as jnp

import stellaris_jax as sj


@sj.register.environment("mine/corridor")
class Corridor(sj.AutoResetEnv):
    name, max_episode_steps = "mine/corridor", 20
    observation_space, action_space = sj.Box((1,), (0.0,), (20.0,)), sj.Discrete(2)

    def __init__(self, length=5):
        self.length = length

    def reset_one(self, key):
        return (jnp.int32(0), jnp.int32(0)), jnp.zeros(1)

    def step_one(self, key, state, action):
        position, steps = jnp.maximum(state[0] + 2 * action - 1, 0), state[1] + 1
        ends = position >= self.length, steps >= self.max_episode_steps
        return (position, steps), position[None].astype(jnp.float32), jnp.float32(-1), *ends


@sj.register.environment("mine/point")
class Point(sj.AutoResetEnv):
    name, max_episode_steps = "mine/point", 10
    observation_space, action_space = sj.Box((2,), (-9.0,) * 2, (9.0,) * 2), sj.Box((2,), (-1.0,) * 2, (1.0,) * 2)

    def reset_one(self, key):
        place = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return (place, jnp.int32(0)), place

    def step_one(self, key, state, action):
        place, steps = jnp.clip(state[0] + 0.5 * action, -9.0, 9.0), state[1] + 1
        return (place, steps), place, -jnp.linalg.norm(place), False, steps >= self.max_episode_steps
