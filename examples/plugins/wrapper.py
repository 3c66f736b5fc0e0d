"""Wrappers: every action is done four times, and observations are clipped.

stellaris-jax train plugins=[wrapper.py] env=gymnax/acrobot env.wrappers=[action_repeat,clip_observation]
"""

import jax
import jax.numpy as jnp

import stellaris_jax as sj


@sj.register.wrapper("action_repeat")
class ActionRepeat(sj.Wrapper):
    """Rewards of the four steps are added up; an episode that ends among them stays where it ended."""

    def step_one(self, key, state, action):
        keys = jax.random.split(key, 4)
        first = self.env.step_one(keys[0], state, action)

        def again(step, key):
            state, _, reward, terminated, truncated = step
            later = self.env.step_one(key, state, action)
            later = (*later[:2], reward + later[2], *later[3:])
            return jax.tree.map(lambda old, new: jnp.where(terminated | truncated, old, new), step, later), None

        return jax.lax.scan(again, first, keys[1:])[0]


@sj.register.wrapper("clip_observation")
class ClipObservation(sj.Wrapper):
    def reset_one(self, key):
        state, obs = self.env.reset_one(key)
        return state, jnp.clip(obs, -5.0, 5.0)

    def step_one(self, key, state, action):
        state, obs, *outcome = self.env.step_one(key, state, action)
        return state, jnp.clip(obs, -5.0, 5.0), *outcome
