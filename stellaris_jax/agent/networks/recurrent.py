"""Memory: recurrent cells, and their evaluation along sequences with resets.

To add one, subclass `Cell` and register it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from stellaris_jax.agent.networks.convolution import Initializer
from stellaris_jax.base.registry import register
from stellaris_jax.base.renamed import warn_renamed

Carry = Any
"""State of a memory, a pytree of arrays `[N, ...]`; zeros before the first step of an episode."""


class Past(NamedTuple):
    """Context of n sequences.

    Attributes:
      carry: carry before the first steps, `[n, ...]`.
      first: whether an episode starts with the step, bool `[B]` = `[T, n]`, flattened.
    """

    carry: Carry
    first: jax.Array


class Cell(nn.Module):
    """Base of all cells.

    A step has two parts, so that one product computes the projected inputs of a whole sequence.

    Attributes:
      size: number of units.
      kernel_init: initialiser of the input weights.
    """

    size: int
    kernel_init: Initializer

    def __init_subclass__(cls, **options: Any) -> None:
        if "blank" in cls.__dict__ and "initial_carry" not in cls.__dict__:
            warn_renamed(f"the method blank of {cls.__name__}", "initial_carry")
            cls.initial_carry = cls.blank  # type: ignore[attr-defined, method-assign]
        super().__init_subclass__(**options)

    def initial_carry(self, number: int) -> Carry:
        """Carry of `number` environments before the first step: zeros."""
        return jnp.zeros((number, self.size))

    def project(self, x: jax.Array) -> jax.Array:
        """Projection of inputs `[B, D]` to inputs of the recurrence `[B, E]`."""
        return x

    def __call__(self, carry: Carry, x: jax.Array) -> tuple[Carry, jax.Array]:
        """Step of the cell: (carry `[n, ...]`, projected inputs `[n, E]`) -> (next carry, outputs `[n, size]`)."""
        raise NotImplementedError


class _Gated(Cell):
    """Base of cells with gates, which share one product for the inputs and one for the carry."""

    gates: int = 0

    def setup(self) -> None:
        width = self.gates * self.size
        self.inputs = nn.Dense(width, kernel_init=self.kernel_init)
        self.recurrent = nn.Dense(width, use_bias=False, kernel_init=nn.initializers.orthogonal())

    def project(self, x: jax.Array) -> jax.Array:
        projected: jax.Array = self.inputs(x)
        return projected


@register.memory("none")
def none(size: int, kernel_init: Initializer) -> None:
    """Network without memory."""


@register.memory("gru")
class GRU(_Gated):
    """Gated recurrent unit (Cho et al. 2014), with the reset gate applied after the product, as in cuDNN:

    n = tanh(W x + b + r U h), h' = (1 - z) n + z h, with the gates r and z.
    """

    gates: int = 3

    def __call__(self, carry: Carry, x: jax.Array) -> tuple[Carry, jax.Array]:
        (reset, update, new), (of_reset, of_update, of_new) = (jnp.split(y, 3, -1) for y in (x, self.recurrent(carry)))
        z = nn.sigmoid(update + of_update)
        state = (1.0 - z) * jnp.tanh(new + nn.sigmoid(reset + of_reset) * of_new) + z * carry
        return state, state


@register.memory("lstm")
class LSTM(_Gated):
    """Long short-term memory (Hochreiter & Schmidhuber 1997; Gers et al. 2000), with a forget bias of 1
    (Jozefowicz et al. 2015):

    c' = sigmoid(f + 1) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c').
    """

    gates: int = 4

    def initial_carry(self, number: int) -> Carry:
        return (jnp.zeros((number, self.size)), jnp.zeros((number, self.size)))

    def __call__(self, carry: Carry, x: jax.Array) -> tuple[Carry, jax.Array]:
        cell, hidden = carry
        enter, forget, new, out = jnp.split(x + self.recurrent(hidden), 4, -1)
        cell = nn.sigmoid(forget + 1.0) * cell + nn.sigmoid(enter) * jnp.tanh(new)
        hidden = nn.sigmoid(out) * jnp.tanh(cell)
        return (cell, hidden), hidden


class Trunk(nn.Module):
    """Trunk of a network with memory: torso and hidden layers (`encoder`), followed by a cell."""

    encoder: nn.Module
    cell: Cell

    def encode(self, x: jax.Array) -> jax.Array:
        """Inputs of the recurrence `[B, E]` for observations `[B, ...]`."""
        return self.cell.project(self.encoder(x))

    def __call__(self, carry: Carry, encoded: jax.Array) -> tuple[Carry, jax.Array]:
        """Step of the cell."""
        return self.cell(carry, encoded)

    def both(self, carry: Carry, x: jax.Array) -> tuple[Carry, jax.Array]:
        """Step of encoder and cell, which initialises all parameters."""
        return self(carry, self.encode(x))


def reset_carry(carry: Carry, *ends: jax.Array) -> Carry:
    """Carry with zeros where an episode ends by any of the flags `ends`, bool `[N]` each."""

    def reset(x: jax.Array) -> jax.Array:
        over = ends[0]
        for end in ends[1:]:
            over = over | end
        return jnp.where(over.reshape(-1, *(1,) * (x.ndim - 1)), jnp.zeros_like(x), x)

    return jax.tree.map(reset, carry)


def unroll(
    step: Callable[[Carry, jax.Array], tuple[Carry, jax.Array]], carry: Carry, first: jax.Array, encoded: jax.Array
) -> jax.Array:
    """Outputs `[B, size]` of a cell along n sequences, `[T, n]`, flattened.

    Args:
      step: step function of the cell.
      carry: carry before the first steps, `[n, ...]`.
      first: whether an episode starts with the step, which resets the carry, bool `[B]`.
      encoded: inputs of the recurrence, `[B, E]`.
    """
    sequences = jax.tree.leaves(carry)[0].shape[0]

    def scan_step(carry: Carry, x: tuple[jax.Array, jax.Array]) -> tuple[Carry, jax.Array]:
        encoded, first = x
        return step(reset_carry(carry, first), encoded)

    in_time = (encoded.reshape(-1, sequences, encoded.shape[-1]), first.reshape(-1, sequences))
    outputs: jax.Array = jax.lax.scan(scan_step, carry, in_time)[1]
    return outputs.reshape(-1, outputs.shape[-1])
