"""Products of dense layers, `[B, I]` times `[I, O]`, in two equivalent forms.

XLA's own gradient of a kernel, `[I, B]` times `[B, O]`, reads its first factor transposed. On CPU this is slow for
layers with few outputs, such as those of policy and critic. A product with transposed errors, whose result is
transposed again, is up to 18 times as fast.
"""

from __future__ import annotations

from typing import Any

import jax

FEW = 16
"""Largest number of outputs of a layer whose errors are transposed; from 32 outputs on there is no speed-up."""


def product(x: jax.Array, kernel: jax.Array, dimensions: Any, precision: Any = None) -> jax.Array:
    """`jax.lax.dot_general` with the arguments of `flax.linen.Dense`, in the faster form for this backend."""
    if jax.default_backend() == "cpu" and x.ndim == 2 and kernel.shape[1] <= min(FEW, kernel.shape[0]):
        return product_of_few(x, kernel)
    return jax.lax.dot_general(x, kernel, dimensions, precision)


@jax.custom_vjp
def product_of_few(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Product of inputs `[B, I]` and a kernel `[I, O]` with few outputs.

    As for all functions with a custom VJP, forward-mode differentiation works on its gradients only.
    """
    return x @ kernel


def _forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x @ kernel, (x, kernel)


def _backward(residuals: tuple[jax.Array, jax.Array], error: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradients of inputs and kernel. Without barriers, XLA would fuse the transpositions into the product again."""
    x, kernel = residuals
    transposed = jax.lax.optimization_barrier(error.T)
    return error @ kernel.T, jax.lax.optimization_barrier(transposed @ x).T


product_of_few.defvjp(_forward, _backward)
