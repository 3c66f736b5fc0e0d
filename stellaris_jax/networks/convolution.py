"""Two-dimensional convolution and max-pooling on images `[B, H, W, C]`, each in two forms that agree.

XLA's own convolution is the form for accelerators. On CPU its gradient is 4 to 16 times slower inside a loop than
outside (XLA does not call its fast kernels there), and training is a loop: there, patches are laid side by side and
multiplied by the kernel as one matrix. The gradient of XLA's pooling, a scatter, has a dense form for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

Initializer = Callable[..., jax.Array]


class Conv(nn.Module):
    """A convolution with bias: `features` filters of `kernel` x `kernel`; `padding` is SAME or VALID."""

    features: int
    kernel: int
    stride: int
    padding: str
    kernel_init: Initializer

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (self.kernel, self.kernel, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        return convolve(x, kernel, self.stride, self.padding) + bias


def convolve(x: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
    """Images `[B, H, W, C]` and kernel `[k, k, C, D]` -> `[B, H', W', D]`, in the form this backend is fast at."""
    form = convolve_patches if jax.default_backend() == "cpu" else convolve_library
    return form(x, kernel, stride, padding)


def max_pool(x: jax.Array, size: int, stride: int) -> jax.Array:
    """Maximum of every `size` x `size` window, with SAME padding, in the form this backend is fast at."""
    form = max_pool_slices if jax.default_backend() == "cpu" else max_pool_library
    return form(x, size, stride)


def convolve_library(x: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
    """Convolution by XLA."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=layout)


def convolve_patches(x: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
    """Convolution as a single matrix product over patches.

    Blocks of stride x stride pixels become the channels of a smaller image first, on which the stride is 1: so few
    and large slices are copied. A kernel that no whole number of blocks covers is filled up with zeros.
    """
    size, _, channels, features = kernel.shape
    (rows, top), (columns, left) = (_extent(x.shape[axis], size, stride, padding) for axis in (1, 2))
    if rows == columns == 1:
        stride = size  # a single patch is a single block
    blocks = -(-size // stride)
    height, width = ((count - 1 + blocks) * stride for count in (rows, columns))
    edges = [(0, 0, 0), (top, height - x.shape[1] - top, 0), (left, width - x.shape[2] - left, 0), (0, 0, 0)]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), edges)  # negative edges cut off what no patch reaches
    x = x.reshape(-1, height // stride, stride, width // stride, stride, channels)
    x = x.swapaxes(2, 3).reshape(-1, height // stride, width // stride, stride * stride * channels)
    x = jnp.concatenate([x[:, :, i : i + columns] for i in range(blocks)], axis=-1)
    x = jnp.concatenate([x[:, i : i + rows] for i in range(blocks)], axis=-1)
    filling = blocks * stride - size
    kernel = jnp.pad(kernel, [(0, filling), (0, filling), (0, 0), (0, 0)])
    kernel = kernel.reshape(blocks, stride, blocks, stride, channels, features).swapaxes(1, 2)
    return x @ kernel.reshape(-1, features)


def max_pool_library(x: jax.Array, size: int, stride: int) -> jax.Array:
    """Max-pooling by XLA."""
    return nn.max_pool(x, (size, size), (stride, stride), "SAME")


def max_pool_slices(x: jax.Array, size: int, stride: int) -> jax.Array:
    """Max-pooling by comparing shifted slices, first along rows and then along columns.

    Of equal values the first in reading order gets the gradient, as in `max_pool_library`.
    """
    for axis in (2, 1):
        count, before = _extent(x.shape[axis], size, stride, "SAME")
        span = (count - 1) * stride + 1
        after = span + size - 1 - x.shape[axis] - before
        edges = [(0, 0, 0)] * 4
        edges[axis] = (before, after, 0)
        padded = jax.lax.pad(x, jnp.array(-jnp.inf, x.dtype), edges)
        x = jax.lax.slice_in_dim(padded, 0, span, stride, axis)
        for i in range(1, size):
            other = jax.lax.slice_in_dim(padded, i, i + span, stride, axis)
            x = jnp.where(other > x, other, x)
    return x


def _extent(length: int, size: int, stride: int, padding: str) -> tuple[int, int]:
    """Windows along an axis of `length`, and the padding before the first."""
    if padding == "VALID":
        return (length - size) // stride + 1, 0
    count = -(-length // stride)
    return count, max((count - 1) * stride + size - length, 0) // 2
