"""Random actions, which actors of off-policy algorithms take with some probability instead of the policy's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.base.draws import in_one_row
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.keys import RANDOM
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.envs.base import Box, Discrete, MultiBinary, MultiDiscrete, Space


class Explored(NamedTuple):
    """Random actions of a fragment, arrays `[n, T, ...]`.

    Attributes:
      taken: whether the random action is taken, bool.
      action: random actions.
    """

    taken: jax.Array
    action: jax.Array


def chance(spec: ProgramSpec, hyper: Hyper, number: Any, envs: jax.Array) -> jax.Array | None:
    """Probability of a random action in fragment `number` of environments `envs` `[n]`; `None` if there is none."""
    algorithm: Any = spec.algorithm
    if spec.buffer is None:
        return None
    share = envs / max(spec.envs - 1, 1)
    steps = jnp.asarray(number, jnp.float32) * (spec.envs * spec.steps)
    return algorithm.bound(hyper.options).randomness(steps, share)


def chance_of(config: Config) -> Callable[[jax.Array, jax.Array], Any] | None:
    """Function from the number of a fragment and those of environments `[n]` to `chance`; `None` if there is none."""
    spec = ProgramSpec.of(config)
    return None if spec.buffer is None else partial(chance, spec, Hyper.of(config))


def explored(space: Space, chance: jax.Array, keys: jax.Array, length: int) -> Explored:
    """Random actions of environments, from one key each `[n]`, for `length` steps."""

    def of_one(key: jax.Array, chance: jax.Array) -> Explored:
        coin, action = jax.random.split(jax.random.fold_in(key, RANDOM))
        return Explored(jax.random.uniform(coin, (length,)) < chance, random_actions(space, action, (length,)))

    return jax.vmap(of_one)(keys, chance)


def random_actions(space: Space, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniformly random actions `[*shape, ...]` of a space with finite bounds."""
    match space:
        case Discrete():
            return jax.random.randint(key, shape, 0, space.n)
        case MultiDiscrete():
            return in_one_row(jax.random.randint, key, (*shape, len(space.nvec)), 0, jnp.array(space.nvec))
        case MultiBinary():
            return in_one_row(jax.random.randint, key, (*shape, space.n), 0, 2)
        case Box():
            low, high = jnp.array(space.low), jnp.array(space.high)
            return in_one_row(_between, key, (*shape, space.size), low, high)
    raise ValueError(f"no random actions for {space}")


def _between(key: jax.Array, shape: tuple[int, ...], low: jax.Array, high: jax.Array) -> jax.Array:
    """Uniform numbers between bounds of the shape."""
    return jax.random.uniform(key, shape, minval=low, maxval=high)


def mixed(explored: Explored | None, action: jax.Array) -> jax.Array:
    """Actions `[n, ...]` of which some are replaced by random ones, `[n]` and `[n, ...]`."""
    if explored is None:
        return action
    taken = explored.taken.reshape(explored.taken.shape + (1,) * (action.ndim - explored.taken.ndim))
    return jnp.where(taken, explored.action, action)
