"""Base class of token tasks: prompts, a verifier of completions, and demonstrations.

A task is defined for a single prompt and traced by JAX; `TokenEnv` vectorises it. Token 0 fills up prompts and
completions (`PAD`), token 1 ends a completion (`END`), and the task's characters follow.

To add one, subclass `TokenTask` and register `token_env` of it; see `docs/tokens.md`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.envs.base import Array

PAD, END = 0, 1
"""Tokens that fill up a prompt or a completion, and that end a completion."""
HELD_OUT = 8
"""One prompt of so many, by its hash, is held out of training, and used by evaluations."""


class TokenTask(ABC):
    """Base of token tasks. Options are keyword arguments of the constructor, and numbers of `env.kwargs`.

    Attributes:
      name: `suite/name`.
      characters: characters that tokens from 2 on stand for.
      prompt_length: tokens P of every prompt, filled up with `PAD` at the front.
      longest: tokens L of the longest completion, its `END` included.
    """

    name: str
    characters: str
    prompt_length: int
    longest: int

    @abstractmethod
    def prompt(self, key: Array) -> Array:
        """Random prompt, integers `[P]`."""

    @abstractmethod
    def verify(self, prompt: Array, completion: Array) -> Array:
        """Reward of a completion `[L]`, which has `PAD` after its `END`: a scalar, 1 for a right one."""

    @abstractmethod
    def demonstrate(self, key: Array, prompt: Array) -> Array:
        """Right completion `[L]` of a prompt, with `PAD` after its `END`; a random one if there are several."""

    # What tasks use ----------------------------------------------------------------------------------------------

    def token(self, character: str) -> int:
        """Token of a character."""
        return self.characters.index(character) + 2

    def encode(self, text: str, length: int, front: bool = True) -> np.ndarray:
        """Tokens `[length]` of a text, filled up with `PAD` at the front (as prompts) or at the end."""
        tokens = [self.token(character) for character in text]
        fill = [PAD] * (length - len(tokens))
        return np.array(fill + tokens if front else tokens + fill, np.int32)

    def decode(self, tokens: Any) -> str:
        """Text of tokens; nothing for `PAD`, and `.` for `END`."""
        names = ["", ".", *self.characters]
        return "".join(names[int(token)] for token in np.asarray(tokens).ravel())

    # What the environment uses -----------------------------------------------------------------------------------

    @property
    def vocabulary(self) -> int:
        """Number of tokens V."""
        return len(self.characters) + 2

    def held_out(self, prompt: Array) -> Array:
        """Whether a prompt is held out of training, by a hash of its tokens: no prompt is on both sides."""
        state = jnp.uint32(2166136261)
        for token in prompt.astype(jnp.uint32):
            state = (state ^ token) * jnp.uint32(16777619)  # FNV-1a
        state = (state ^ (state >> 15)) * jnp.uint32(2246822519)
        return (state ^ (state >> 13)) % HELD_OUT == 0

    def draw(self, key: Array, held_out: bool) -> Array:
        """Random prompt `[P]`, uint8, of one side of the split."""

        def again(so_far: tuple[Array, Array]) -> Array:
            return self.held_out(so_far[1]) != held_out

        def other(so_far: tuple[Array, Array]) -> tuple[Array, Array]:
            key, own = jax.random.split(so_far[0])
            return key, self.prompt(own).astype(jnp.uint8)

        prompt: Array = jax.lax.while_loop(again, other, other((key, jnp.zeros(0))))[1]
        return prompt

    def demonstration(self, key: Array, errors: float) -> tuple[Array, Array]:
        """Training prompt `[P]` and completion `[L]`, uint8; of a share `errors` one character is another one."""
        keys = jax.random.split(key, 5)
        prompt = self.draw(keys[0], held_out=False)
        completion = self.demonstrate(keys[1], prompt.astype(jnp.int32)).astype(jnp.uint8)
        length = jnp.sum(completion > END)
        place = jax.random.randint(keys[2], (), 0, jnp.maximum(length, 1))
        number = len(self.characters)
        further = jax.random.randint(keys[3], (), 1, number)
        other = (2 + (completion[place].astype(jnp.int32) - 2 + further) % number).astype(jnp.uint8)
        wrong = jax.random.bernoulli(keys[4], errors) & (length > 0)
        return prompt, completion.at[place].set(jnp.where(wrong, other, completion[place]))


def ended(completion: Array) -> Array:
    """Whether a completion has an `END`."""
    return jnp.any(completion == END)


def length_of(completion: Array) -> Array:
    """Tokens of a completion before its `END`; all of them without one."""
    return jnp.where(ended(completion), jnp.argmax(completion == END), completion.shape[0])
