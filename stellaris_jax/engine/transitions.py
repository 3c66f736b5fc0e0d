"""Transitions of n steps, as replay buffers hold them, from the steps that actors roll.

A transition needs the n - 1 steps after its own. So every environment carries its last n - 1 steps from fragment to
fragment (`Window`), and each step completes the transition that began n - 1 steps before it. Targets cross the borders
of fragments, and stop at the end of an episode: a terminated one has no value after it, a truncated one has that of
its final observation.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number
from stellaris_jax.agent.losses.common import Samples, Transition
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.engine.prepare import Collected
from stellaris_jax.engine.rollout import Fragment


class Window(NamedTuple):
    """Last n - 1 steps of environments, arrays `[N, n - 1, ...]`; fields as in `Collected`."""

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    valid: jax.Array
    next_obs: jax.Array

    @classmethod
    def empty(cls, envs: int, steps: int, obs: jax.Array, action: jax.Array) -> Window | None:
        """Window before the first step; `None` if targets have one step.

        Args:
          envs: environments N.
          steps: steps of a target, n.
          obs, action: samples `[M, ...]`, for shapes and dtypes.
        """
        if steps == 1:
            return None

        def zeros(like: jax.Array) -> jax.Array:
            return jnp.zeros((envs, steps - 1, *like.shape[1:]), like.dtype)

        number, flag = jnp.zeros((envs, steps - 1)), jnp.zeros((envs, steps - 1), bool)
        return cls(zeros(obs), zeros(action), number, flag, flag, flag, zeros(obs))


def transitions(data: Collected, window: Window | None, steps: int, gamma: Number) -> tuple[Collected, Window | None]:
    """Transitions that are complete with each of T steps.

    Args:
      data: steps `[T, N, ...]`, with `next_obs`.
      window: the n - 1 steps before; `None` for n = 1.
      steps: n.
      gamma: discount of a step.

    Returns:
      (transitions `[T, N, ...]`, each the one that began n - 1 steps earlier, with `reward` r_1 + gamma r_2 + ... and
      `discount` of the value of `next_obs`; window after the steps).
    """
    # Steps that actors in the program roll are all valid; those before the run are not.
    valid = jnp.ones_like(data.terminated) if data.valid is None else data.valid
    if window is None:
        whole = data._replace(valid=valid, discount=gamma * (1.0 - data.terminated))
        return _without_non_finite(whole), None
    length = len(data.reward)
    new = Window(*(getattr(data._replace(valid=valid), name) for name in Window._fields))
    every = jax.tree.map(lambda old, now: jnp.concatenate([jnp.swapaxes(old, 0, 1), now]), window, new)
    after: Window = jax.tree.map(lambda x: jnp.swapaxes(x[length:], 0, 1), every)

    def step(k: int) -> Window:
        part: Window = jax.tree.map(lambda x: x[k : k + length], every)
        return part

    first = last = step(0)
    going, total, power = first.valid, first.reward, gamma
    discount, next_obs = gamma * (1.0 - first.terminated), first.next_obs
    for k in range(1, steps):
        now = step(k)
        going = going & ~(last.terminated | last.truncated) & now.valid
        total = total + jnp.where(going, power * now.reward, 0.0)
        power = power * gamma
        discount = jnp.where(going, power * (1.0 - now.terminated), discount)
        next_obs = jnp.where(going.reshape(going.shape + (1,) * (next_obs.ndim - 2)), now.next_obs, next_obs)
        last = now
    whole = data._replace(
        obs=first.obs, action=first.action, reward=total, valid=first.valid, next_obs=next_obs, discount=discount
    )
    return _without_non_finite(whole), after


def _without_non_finite(data: Collected) -> Collected:
    """Transitions of which those with non-finite numbers are invalid: they would spoil every minibatch they are in."""
    finite = jnp.isfinite(data.reward)
    for x in (data.obs, data.next_obs, data.action):
        if jnp.issubdtype(x.dtype, jnp.floating):
            finite &= jnp.isfinite(x).all(axis=range(2, x.ndim))
    return data._replace(valid=finite if data.valid is None else data.valid & finite)


def steps_for_replay(config: EnvConfig, fragment: Fragment) -> Collected:
    """Steps of a fragment for a replay buffer: what `collected` returns, without what only fresh data need."""
    trajectory = fragment.trajectory
    following = trajectory.final_obs
    if following is None:
        following = jnp.concatenate([trajectory.obs[1:], trajectory.last_obs[None]])
    return Collected(
        obs=trajectory.obs,
        raw_obs=None,
        action=trajectory.action,
        distribution=None,
        reward=jnp.sign(trajectory.reward) if config.clip_reward else trajectory.reward,
        terminated=trajectory.terminated,
        truncated=trajectory.truncated,
        valid=trajectory.valid,
        value=None,
        next_value=None,
        discounted_return=None,
        first=None,
        next_obs=following,
    )


def replayed(data: Collected) -> Samples:
    """Samples `[T * N, ...]` of a replay buffer from transitions `[T, N, ...]`."""
    samples = Samples(
        obs=data.obs,
        action=data.action,
        distribution=None,
        log_prob=None,
        value=None,
        advantage=None,
        target=None,
        valid=data.valid,
        transition=Transition(data.reward, data.discount, data.next_obs),
    )
    flat: Samples = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), samples)
    return flat
