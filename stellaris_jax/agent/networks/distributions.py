"""Action distributions over arrays of parameters `[..., D]`.

Sampling is split into `noise`, drawn for a whole fragment at once, and `perturb`, which turns parameters and noise
into an action: random bits are the costly part inside a rollout loop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from stellaris_jax.base.draws import in_one_row
from stellaris_jax.envs.base import Box, Discrete, MultiBinary, MultiDiscrete, Space


class Distribution(Protocol):
    """Action distribution; `size` is D, the number of parameters per action."""

    size: int

    def noise(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array: ...

    def perturb(self, parameters: jax.Array, noise: jax.Array) -> jax.Array: ...

    def mode(self, parameters: jax.Array) -> jax.Array: ...

    def log_prob(self, parameters: jax.Array, action: jax.Array) -> jax.Array: ...

    def entropy(self, parameters: jax.Array) -> jax.Array: ...

    def kl(self, first: jax.Array, second: jax.Array) -> jax.Array: ...


def _log_softmax(logits: jax.Array) -> jax.Array:
    """Log-probabilities, in the faster form for this backend."""
    return (jax.nn.log_softmax if jax.default_backend() == "cpu" else kept_log_softmax)(logits)


@jax.custom_jvp
def kept_log_softmax(logits: jax.Array) -> jax.Array:
    """Log-probabilities that are kept where they are differentiated.

    XLA would compute them anew in the kernel of each term of a loss, forwards and backwards.
    """
    return jax.nn.log_softmax(logits)


@kept_log_softmax.defjvp
def _(logits: tuple[jax.Array], change: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    log_p = jax.lax.optimization_barrier(kept_log_softmax(*logits))
    return log_p, change[0] - jnp.sum(jnp.exp(log_p) * change[0], axis=-1, keepdims=True)


class Categorical:
    """Categorical distribution over `n` actions; the parameters are logits. Sampled by the Gumbel trick."""

    def __init__(self, n: int):
        self.size = n

    def noise(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return in_one_row(jax.random.gumbel, key, (*shape, self.size))

    def perturb(self, parameters: jax.Array, noise: jax.Array) -> jax.Array:
        return jnp.argmax(parameters + noise, axis=-1).astype(jnp.int32)

    def mode(self, parameters: jax.Array) -> jax.Array:
        return jnp.argmax(parameters, axis=-1).astype(jnp.int32)

    def log_prob(self, parameters: jax.Array, action: jax.Array) -> jax.Array:
        # A one-hot product instead of a gather: its gradient is no scatter, which is slow in XLA loops.
        chosen = jax.nn.one_hot(action, self.size, dtype=parameters.dtype)
        return jnp.sum(_log_softmax(parameters) * chosen, axis=-1)

    def entropy(self, parameters: jax.Array) -> jax.Array:
        log_p = _log_softmax(parameters)
        return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)

    def kl(self, first: jax.Array, second: jax.Array) -> jax.Array:
        log_p, log_q = _log_softmax(first), _log_softmax(second)
        return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


class Categoricals:
    """Independent categorical distributions, the i-th over `nvec[i]` choices; parameters are concatenated logits."""

    def __init__(self, nvec: Sequence[int]):
        self.parts = [Categorical(n) for n in nvec]
        self.size = sum(nvec)
        self._ends = list(itertools.accumulate(nvec))[:-1]

    def _split(self, *arrays: jax.Array) -> Iterator[tuple[Any, ...]]:
        """Distribution of each choice, with its columns of the arrays `[..., D]`."""
        return zip(self.parts, *(jnp.split(array, self._ends, axis=-1) for array in arrays), strict=True)

    def noise(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return in_one_row(jax.random.gumbel, key, (*shape, self.size))

    def perturb(self, parameters: jax.Array, noise: jax.Array) -> jax.Array:
        return jnp.stack([part.perturb(p, x) for part, p, x in self._split(parameters, noise)], axis=-1)

    def mode(self, parameters: jax.Array) -> jax.Array:
        return jnp.stack([part.mode(p) for part, p in self._split(parameters)], axis=-1)

    def log_prob(self, parameters: jax.Array, action: jax.Array) -> jax.Array:
        choices = jnp.unstack(action, axis=-1)
        return _total(part.log_prob(p, a) for (part, p), a in zip(self._split(parameters), choices, strict=True))

    def entropy(self, parameters: jax.Array) -> jax.Array:
        return _total(part.entropy(p) for part, p in self._split(parameters))

    def kl(self, first: jax.Array, second: jax.Array) -> jax.Array:
        return _total(part.kl(p, q) for part, p, q in self._split(first, second))


class Bernoullis:
    """Independent Bernoulli distributions of `n` switches; the parameters are log-odds. Sampled by logistic noise."""

    def __init__(self, n: int):
        self.size = n

    def noise(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return in_one_row(jax.random.logistic, key, (*shape, self.size))

    def perturb(self, parameters: jax.Array, noise: jax.Array) -> jax.Array:
        return self.mode(parameters + noise)

    def mode(self, parameters: jax.Array) -> jax.Array:
        return (parameters > 0).astype(jnp.int32)

    def log_prob(self, parameters: jax.Array, action: jax.Array) -> jax.Array:
        return jnp.sum(jax.nn.log_sigmoid(jnp.where(action == 1, parameters, -parameters)), axis=-1)

    def entropy(self, parameters: jax.Array) -> jax.Array:
        # For probability p: -log p = log(1 + exp(-x)) and -log(1 - p) = x - log p.
        return jnp.sum(jax.nn.softplus(parameters) - jax.nn.sigmoid(parameters) * parameters, axis=-1)

    def kl(self, first: jax.Array, second: jax.Array) -> jax.Array:
        on = jax.nn.sigmoid(first) * (first - second)
        return jnp.sum(on - jax.nn.softplus(first) + jax.nn.softplus(second), axis=-1)


class DiagonalGaussian:
    """Independent normal distributions in `n` dimensions; the parameters are concatenated means and log-deviations."""

    def __init__(self, n: int):
        self.size = 2 * n

    def noise(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return in_one_row(jax.random.normal, key, (*shape, self.size // 2))

    def perturb(self, parameters: jax.Array, noise: jax.Array) -> jax.Array:
        mean, log_std = jnp.split(parameters, 2, axis=-1)
        return mean + jnp.exp(log_std) * noise

    def mode(self, parameters: jax.Array) -> jax.Array:
        return jnp.split(parameters, 2, axis=-1)[0]

    def log_prob(self, parameters: jax.Array, action: jax.Array) -> jax.Array:
        mean, log_std = jnp.split(parameters, 2, axis=-1)
        z = (action - mean) * jnp.exp(-log_std)
        return jnp.sum(-0.5 * jnp.square(z) - log_std - 0.5 * math.log(2.0 * math.pi), axis=-1)

    def entropy(self, parameters: jax.Array) -> jax.Array:
        _, log_std = jnp.split(parameters, 2, axis=-1)
        return jnp.sum(log_std + 0.5 * math.log(2.0 * math.pi * math.e), axis=-1)

    def kl(self, first: jax.Array, second: jax.Array) -> jax.Array:
        mean_p, log_p = jnp.split(first, 2, axis=-1)
        mean_q, log_q = jnp.split(second, 2, axis=-1)
        squares = jnp.exp(2.0 * (log_p - log_q)) + jnp.square((mean_p - mean_q) * jnp.exp(-log_q))
        return jnp.sum(log_q - log_p + 0.5 * (squares - 1.0), axis=-1)


def _total(arrays: Iterable[jax.Array]) -> jax.Array:
    return reduce(add, arrays)


def for_space(space: Space) -> Distribution:
    """Distribution over an action space: categorical or Bernoulli, or a diagonal Gaussian for a `Box`.

    Raises:
      ValueError: there is no distribution for the space.
    """
    if isinstance(space, Discrete):
        return Categorical(space.n)
    if isinstance(space, MultiDiscrete):
        return Categoricals(space.nvec)
    if isinstance(space, MultiBinary):
        return Bernoullis(space.n)
    if isinstance(space, Box) and len(space.shape) == 1:
        return DiagonalGaussian(space.size)
    accepted = "Discrete, MultiDiscrete, MultiBinary and Box vectors"
    raise ValueError(f"no action distribution for {space}; accepted: {accepted}")
