"""Environment of a token task: an episode is the completion of a prompt, and a step is a token of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.envs.base import Array, Discrete, TimeStep
from stellaris_jax.envs.names import check_options, like, positive_int
from stellaris_jax.envs.suites.tokens.check import check_task
from stellaris_jax.envs.suites.tokens.task import END, TokenTask
from stellaris_jax.envs.token_space import Tokens

POOL = 256
"""Prompts drawn for each fragment, from which groups take their next ones."""


class Completion(NamedTuple):
    """State of an environment: a prompt and the tokens so far.

    Attributes:
      prompt: the prompt, uint8 `[P]`.
      tokens: the completion so far, uint8 `[L]`, then zeros.
      length: its number of tokens, int32.
      group: bits that the environments of a group share, uint32.
      number: completions of the environment before this one, int32.
    """

    prompt: Array
    tokens: Array
    length: Array
    group: Array
    number: Array


class Demonstrations(NamedTuple):
    """Steps of demonstrated episodes, arrays `[T, n, ...]`.

    Attributes:
      obs: observations.
      action: actions to imitate.
      valid: whether the episode still goes on, bool.
    """

    obs: Array
    action: Array
    valid: Array


class TokenEnv:
    """Vectorised environment of a token task.

    A group of adjacent environments has the same prompts. A fragment has one completion of each environment: what
    comes after its end is padding.

    Args:
      task: the task.
      group: environments of a group (G).
      held_out: whether prompts are those that are held out of training.
    """

    def __init__(self, task: TokenTask, group: int = 1, held_out: bool = False):
        self.task, self.group, self.held_out = task, group, held_out
        self.name = task.name
        self.observation_space = Tokens(task.prompt_length, task.vocabulary, task.longest)
        self.action_space = Discrete(task.vocabulary)
        self.max_episode_steps: int | None = task.longest

    @property
    def evaluation(self) -> TokenEnv:
        """Environment of evaluations: random prompts of those that are held out of training."""
        return TokenEnv(self.task, 1, held_out=True)

    def reset(self, keys: Array) -> tuple[Completion, Array]:
        """Begin completions: keys `[N]` -> (states, observations `[N, P + 1]`)."""
        number, leaders = len(keys), keys[:: self.group]

        def common(x: Array) -> Array:
            return jnp.repeat(x, self.group, axis=0)[:number]

        prompts = common(jax.vmap(partial(self.task.draw, held_out=self.held_out))(leaders))
        bits = common(jax.vmap(lambda key: jax.random.bits(jax.random.fold_in(key, 1)))(leaders))
        tokens = jnp.zeros((number, self.task.longest), jnp.uint8)
        state = Completion(prompts, tokens, jnp.zeros(number, jnp.int32), bits, jnp.zeros(number, jnp.int32))
        return state, self._observed(state)

    def starts(self, key: Array) -> Array:
        """Prompts `[256, P]` that follow in a fragment."""
        keys = jax.random.split(key, POOL)
        return jax.vmap(partial(self.task.draw, held_out=self.held_out))(keys)

    def step(self, keys: Array, state: Completion, action: Array, starts: Array) -> tuple[Completion, TimeStep]:
        """Append a token to each completion; an ended one is verified, and the next prompt follows."""
        at_place = jnp.arange(self.task.longest) == state.length[:, None]
        tokens = jnp.where(at_place, action[:, None].astype(jnp.uint8), state.tokens)
        length = state.length + 1
        done = (action == END) | (length >= self.task.longest)
        after = state._replace(tokens=tokens, length=length)
        final_obs = self._observed(after)

        def verified() -> Array:
            whole = (state.prompt.astype(jnp.int32), tokens.astype(jnp.int32))
            return jax.vmap(self.task.verify)(*whole).astype(jnp.float32)

        reward = jnp.where(done, jax.lax.cond(jnp.any(done), verified, lambda: jnp.zeros(done.shape)), 0.0)
        # The same for all environments of a group, whatever step they end in.
        mixed = (state.group + (state.number.astype(jnp.uint32) + 1) * jnp.uint32(2654435769)) * jnp.uint32(2246822519)
        chosen = ((mixed ^ (mixed >> 16)) % len(starts)).astype(jnp.int32)
        fresh = Completion(
            starts[chosen], jnp.zeros_like(tokens), jnp.zeros_like(length), state.group, state.number + 1
        )
        state = jax.tree.map(
            lambda new, old: jnp.where(done.reshape(-1, *(1,) * (new.ndim - 1)), new, old), fresh, after
        )
        never = jnp.zeros_like(done)
        return state, TimeStep(self._observed(state), reward, done, never, final_obs)

    def demonstrations(self, key: Array, number: int, errors: float) -> Demonstrations:
        """Right completions of training prompts, of which a share `errors` has one wrong character."""
        keys = jax.random.split(key, number)
        prompts, completions = jax.vmap(lambda key: self.task.demonstration(key, errors))(keys)
        before = jnp.concatenate([prompts[:, -1:], completions[:, :-1]], axis=1).T  # [L, n]
        every = jnp.broadcast_to(prompts, (self.task.longest, *prompts.shape))
        obs = jnp.concatenate([every, before[..., None]], axis=-1)
        ended = jnp.cumsum(completions == END, axis=1) - (completions == END) > 0
        return Demonstrations(obs, completions.T.astype(jnp.int32), ~ended.T)

    def _observed(self, state: Completion) -> Array:
        before = jnp.take_along_axis(state.tokens, jnp.maximum(state.length - 1, 0)[:, None], axis=1)[:, 0]
        last = jnp.where(state.length > 0, before, state.prompt[:, -1])
        return jnp.concatenate([state.prompt, last[:, None]], axis=1)


def token_env(kind: Callable[..., TokenTask]) -> Callable[..., TokenEnv]:
    """Factory of the environment of a token task: takes `group`, and the task's own options."""

    def make(group: int = 8, **options: Any) -> TokenEnv:
        task = kind(**options)
        check_task(task)
        return TokenEnv(task, positive_int("group", group))

    return make


def checked(name: str, options: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Check the names of a task's options, that floats are numbers and all others positive integers.

    Raises ConfigError.
    """
    check_options(name, options, ["group", *defaults])
    for key, value in options.items():
        if isinstance(default := defaults.get(key, 1), float):
            like(key, value, default)
        else:
            positive_int(key, value)
