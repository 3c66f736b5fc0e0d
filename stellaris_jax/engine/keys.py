"""PRNG keys: every key of a run is derived from its seed here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import jax

ACTING, EVALUATION, PROBE = 0xAC7, 0x5EED, 0xC0
"""Numbers that separate the keys of host actors, evaluations and probes from those of training."""
DRAWS, RANDOM = 0xD4A, 0x4A2
"""Numbers that separate the keys of what losses draw, and of random actions, from those of acting."""


class SeedKeys(NamedTuple):
    """Keys split from a seed's key.

    Attributes:
      params: key of the initial parameters.
      envs: key of the first resets.
      run: key of the rounds.
    """

    params: jax.Array
    envs: jax.Array
    run: jax.Array

    @classmethod
    def of(cls, key: jax.Array) -> SeedKeys:
        """Keys split from a seed's key."""
        return cls(*jax.random.split(key, 3))


class FragmentKeys(NamedTuple):
    """Keys of one fragment, the same in the compiled program and in a live run's actors.

    Attributes:
      start: key of the start states that all environments share.
      envs: one key per environment `[N]`, for its steps and the policy's noise.
    """

    start: jax.Array
    envs: jax.Array

    @classmethod
    def of(cls, key: jax.Array, round_: jax.Array, envs: int) -> FragmentKeys:
        """Keys of the fragment of a round, from the key of the rounds and the number N of environments."""
        start, actors = jax.random.split(jax.random.fold_in(key, round_))
        return cls(start, jax.random.split(actors, envs))

    def part(self, first: jax.Array | int, number: int) -> FragmentKeys:
        """Keys of `number` environments from number `first` on."""
        return self._replace(envs=jax.lax.dynamic_slice_in_dim(self.envs, first, number))


class EpisodeKeys(NamedTuple):
    """Keys of an evaluation's episodes inside the program.

    Attributes:
      reset: one key per environment `[E]`.
      start: key of the start states that all environments share.
      steps: key of all steps; see `at`.
    """

    reset: jax.Array
    start: jax.Array
    steps: jax.Array

    @classmethod
    def of(cls, key: jax.Array, episodes: int) -> EpisodeKeys:
        """Keys of E episodes from an evaluation's key."""
        reset, start, steps = jax.random.split(key, 3)
        return cls(jax.random.split(reset, episodes), start, steps)

    def at(self, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys of step `t`: one for the policy's noise, and one per environment `[E]`."""
        action, env = jax.random.split(jax.random.fold_in(self.steps, t))
        return action, jax.random.split(env, len(self.reset))


def step_keys(keys: jax.Array, length: int) -> jax.Array:
    """Keys split from each environment's key, `[N, 1 + length]`: one for the policy's noise, then one per step."""
    return jax.vmap(lambda key: jax.random.split(key, length + 1))(keys)


def folded(key: jax.Array, numbers: Iterable[jax.Array | int]) -> jax.Array:
    """Key derived from a key and several numbers, one after the other."""
    for number in numbers:
        key = jax.random.fold_in(key, number)
    return key


def acting_key(seed: int) -> jax.Array:
    """Data of the key from which host actors draw their noise."""
    return jax.random.key_data(folded(jax.random.key(seed), [ACTING]))


def evaluation_key(seed: int | jax.Array, stream: int | jax.Array) -> jax.Array:
    """Key of an evaluation, independent of the keys that training uses."""
    return folded(jax.random.key(seed), [EVALUATION, stream])


def probe_key(key: jax.Array, round_: jax.Array) -> jax.Array:
    """Key of a probe after a round, from the key of the rounds."""
    return folded(key, [PROBE, round_])
