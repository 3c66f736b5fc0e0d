"""Preprocessing of JAX environments: frame stacks and sticky actions. Host suites have their own.

`env.wrappers` applies registered wrappers outside of these. A registered wrapper is a function of the environment. It
returns a `Wrapper` for environments on the device, and an object that opens pools for host environments.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.machine import BOUND, Part, check_fits
from stellaris_jax.base.registry import register
from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import AS_GIVEN, Array, EnvState, HostEnv, Preprocessing, VecEnv
from stellaris_jax.envs.drawing import Renderer


def preprocess(env: VecEnv | HostEnv, options: Preprocessing) -> VecEnv | HostEnv:
    """Environment with preprocessing; suites with a method `preprocessed` do it themselves.

    Raises:
      ConfigError: the environment does not support an option.
    """
    if not options.asked:
        return env
    frames = options.frame_stack * env.observation_space.size
    check_fits([Part("an observation", 0, BOUND * frames, (f"env.frame_stack={options.frame_stack}",))])
    if hasattr(env, "preprocessed"):
        changed: VecEnv | HostEnv = env.preprocessed(options)
        return changed
    if options.life_loss:
        raise ConfigError(f"env.life_loss=true is not possible: {env.name} has no lives; envpool's Atari games have.")
    if not isinstance(env, AutoResetEnv):
        key, value = next(iter(options.asked.items()))
        off = str(getattr(AS_GIVEN, key)).lower()
        raise ConfigError(
            f"env.{key}={value} is not possible: {env.name} is not derived from AutoResetEnv; accepted: {off}."
        )
    if options.sticky_actions:
        env = StickyActions(env, options.sticky_actions)
    return FrameStack(env, options.frame_stack) if options.frame_stack else env


class Wrapper(AutoResetEnv):
    """Base of wrappers, which leaves the inner environment unchanged.

    A wrapper with a state of its own overrides `inner`, which returns the inner environment's state.
    """

    def __init__(self, env: AutoResetEnv):
        self.env = env
        self.name, self.start_pool, self.max_episode_steps = env.name, env.start_pool, env.max_episode_steps
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset_one(self, key: Array) -> tuple[EnvState, Array]:
        return self.env.reset_one(key)

    def step_one(self, key: Array, state: EnvState, action: Array) -> tuple[EnvState, Array, Array, Array, Array]:
        return self.env.step_one(key, state, action)

    def inner(self, state: EnvState) -> EnvState:
        """State of the inner environment."""
        return state

    def renderer(self) -> Renderer:
        draw, pace = self.env.renderer()
        return Renderer(lambda state: draw(self.inner(state)), pace)


class Remembering(Wrapper):
    """Base of wrappers with the state (inner state, memory of the wrapper)."""

    def inner(self, state: EnvState) -> EnvState:
        return state[0]


class StickyActions(Remembering):
    """Sticky actions (Machado et al. 2018): with a probability, the last action is repeated instead of the chosen one.

    At the start of an episode, the last action is 0, or zeros.
    """

    def __init__(self, env: AutoResetEnv, probability: float):
        super().__init__(env)
        self.probability = probability

    def reset_one(self, key: Array) -> tuple[EnvState, Array]:
        state, obs = self.env.reset_one(key)
        return (state, jnp.zeros(self.action_space.shape, self.action_space.dtype)), obs

    def step_one(self, key: Array, state: EnvState, action: Array) -> tuple[EnvState, Array, Array, Array, Array]:
        inner, last = state
        sticky_key, key = jax.random.split(key)
        action = jnp.where(jax.random.bernoulli(sticky_key, self.probability), last, action)
        inner, obs, reward, terminated, truncated = self.env.step_one(key, inner, action)
        return (inner, action), obs, reward, terminated, truncated


class FrameStack(Remembering):
    """Stack of the last `size` observations along the last axis, oldest first; filled with the first observation."""

    def __init__(self, env: AutoResetEnv, size: int):
        super().__init__(env)
        self.size = size
        space = env.observation_space

        def tiled(bound: tuple[float, ...]) -> tuple[float, ...]:
            values: list[float] = np.concatenate([np.reshape(bound, space.shape)] * size, axis=-1).ravel().tolist()
            return tuple(values)

        shape = (*space.shape[:-1], space.shape[-1] * size)
        self.observation_space = replace(space, shape=shape, low=tiled(space.low), high=tiled(space.high))

    def reset_one(self, key: Array) -> tuple[EnvState, Array]:
        state, obs = self.env.reset_one(key)
        frames = jnp.concatenate([obs] * self.size, axis=-1)
        return (state, frames), frames

    def step_one(self, key: Array, state: EnvState, action: Array) -> tuple[EnvState, Array, Array, Array, Array]:
        inner, frames = state
        inner, obs, reward, terminated, truncated = self.env.step_one(key, inner, action)
        frames = jnp.concatenate([frames[..., obs.shape[-1] :], obs], axis=-1)
        return (inner, frames), frames, reward, terminated, truncated


@register.wrapper("positions")
class Positions(Wrapper):
    """Wrapper that hides the velocities of a classic-control task, in each of its stacked frames.

    The policy has to infer velocities from changes of positions. With CartPole this is popgym's position-only task
    (Morad et al. 2023).

    Raises:
      ConfigError: the velocities of the task are unknown.
    """

    VELOCITIES: ClassVar[dict[str, str]] = {
        "gymnax/CartPole-v1": "pvpv",
        "gymnax/Acrobot-v1": "ppppvv",
        "gymnax/Pendulum-v1": "ppv",
        "gymnax/MountainCar-v0": "pv",
        "gymnax/MountainCarContinuous-v0": "pv",
    }
    """Elements of a frame, by task: `p` for a position, `v` for a velocity."""

    def __init__(self, env: AutoResetEnv):
        super().__init__(env)
        if env.name not in self.VELOCITIES:
            raise ConfigError(f"{env.name} has no velocities that are known; accepted: {', '.join(self.VELOCITIES)}.")
        frame, space = self.VELOCITIES[env.name], env.observation_space
        self.seen = np.flatnonzero(np.array([*frame * (space.size // len(frame))]) == "p")
        low, high = (tuple(float(bound[i]) for i in self.seen) for bound in (space.low, space.high))
        self.observation_space = replace(space, shape=(len(self.seen),), low=low, high=high)

    def reset_one(self, key: Array) -> tuple[EnvState, Array]:
        state, obs = self.env.reset_one(key)
        return state, obs[self.seen]

    def step_one(self, key: Array, state: EnvState, action: Array) -> tuple[EnvState, Array, Array, Array, Array]:
        state, obs, *outcome = self.env.step_one(key, state, action)
        return state, obs[self.seen], *outcome
