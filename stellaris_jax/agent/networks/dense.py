"""Products of dense layers, `[B, I]` times `[I, O]`, in two forms that agree.

XLA's own gradient of a kernel, `[I, B]` times `[B, O]`, reads its first factor transposed. On CPU that is slow where
outputs are few, as those of policy and critic: up to 18 times as slow as a product of plain factors, the errors
transposed, whose result is transposed in turn.
"""

from __future__ import annotations

from typing import Any

import jax

FEW = 16
"""Outputs at most of a layer whose errors are transposed; from 32 on it gains nothing."""


def product(x: jax.Array, kernel: jax.Array, dimensions: Any, precision: Any = None) -> jax.Array:
    """`jax.lax.dot_general` as `flax.linen.Dense` calls it, in the form this backend is fast at."""
    if jax.default_backend() == "cpu" and x.ndim == 2 and kernel.shape[1] <= min(FEW, kernel.shape[0]):
        return product_of_few(x, kernel)
    return jax.lax.dot_general(x, kernel, dimensions, precision)


@jax.custom_vjp
def product_of_few(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The product of inputs `[B, I]` and a kernel `[I, O]` of few outputs.

    As of all functions with gradients of their own, it has derivatives forwards of its gradients alone.
    """
    return x @ kernel


def _forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x @ kernel, (x, kernel)


def _backward(residuals: tuple[jax.Array, jax.Array], error: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradients of inputs and kernel. Without barriers XLA would merge transpositions and product again."""
    x, kernel = residuals
    transposed = jax.lax.optimization_barrier(error.T)
    return error @ kernel.T, jax.lax.optimization_barrier(transposed @ x).T


product_of_few.defvjp(_forward, _backward)
