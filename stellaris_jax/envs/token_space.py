"""Observation space of token tasks."""

from __future__ import annotations

from dataclasses import dataclass

from stellaris_jax.envs.base import Box


@dataclass(frozen=True, init=False)
class Tokens(Box):
    """Observation space of token tasks: a prompt and the last token, bytes `[P + 1]`.

    Before a completion's first token, the last token is the prompt's.

    Attributes:
      vocabulary: number of tokens V.
      longest: tokens of the longest completion L.
    """

    vocabulary: int
    longest: int

    def __init__(self, prompt_length: int, vocabulary: int, longest: int):
        super().__init__((prompt_length + 1,), 0.0, float(vocabulary - 1), "uint8")
        object.__setattr__(self, "vocabulary", vocabulary)
        object.__setattr__(self, "longest", longest)

    @property
    def prompt_length(self) -> int:
        """Tokens P of a prompt."""
        return self.shape[0] - 1
