"""Two-dimensional convolution and max-pooling on images `[B, H, W, C]`, each in two equivalent forms.

Accelerators use XLA's own convolution. On CPU its forward pass is fast with stride 1. But its gradient is 4 to 100
times slower inside a loop than outside (XLA does not call its fast kernels there), and training is a loop. So the CPU
form turns blocks of pixels into channels, so that every stride is 1. The gradients of image and kernel are then forward
convolutions again. For the same reason, the gradient of XLA's pooling, a scatter, has a dense form.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

Initializer = Callable[..., jax.Array]

IMAGES = 16
"""Batch size of images in the gradient of a kernel."""


class Conv(nn.Module):
    """Convolution with bias: `features` filters of `kernel` x `kernel`; `padding` is SAME or VALID."""

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
    """Convolution of images `[B, H, W, C]` with a kernel `[k, k, C, D]`, in the faster form for this backend.

    Returns `[B, H', W', D]`.
    """
    form = convolve_blocks if jax.default_backend() == "cpu" else convolve_library
    return form(x, kernel, stride, padding)


def max_pool(x: jax.Array, size: int, stride: int) -> jax.Array:
    """Maximum of every `size` x `size` window, with SAME padding, in the faster form for this backend."""
    form = max_pool_slices if jax.default_backend() == "cpu" else max_pool_library
    return form(x, size, stride)


def convolve_library(x: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
    """Convolution by XLA."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=layout)


def convolve_blocks(x: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
    """Convolution with stride 1 on a smaller image, whose channels are blocks of stride x stride pixels.

    The kernel is padded with zeros to a whole number of blocks.
    """
    size, _, channels, features = kernel.shape
    (rows, top), (columns, left) = (extent(x.shape[axis], size, stride, padding) for axis in (1, 2))
    if rows == columns == 1:
        stride = size  # a single patch is a single block
    blocks = -(-size // stride)
    height, width = ((count - 1 + blocks) * stride for count in (rows, columns))
    edges = [(0, 0, 0), (top, height - x.shape[1] - top, 0), (left, width - x.shape[2] - left, 0), (0, 0, 0)]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), edges)  # negative edges crop pixels that no patch reaches
    x = x.reshape(-1, height // stride, stride, width // stride, stride, channels)
    x = x.swapaxes(2, 3).reshape(-1, height // stride, width // stride, stride * stride * channels)
    filling = blocks * stride - size
    kernel = jnp.pad(kernel, [(0, filling), (0, filling), (0, 0), (0, 0)])
    kernel = kernel.reshape(blocks, stride, blocks, stride, channels, features).swapaxes(1, 2)
    kernel = kernel.reshape(blocks, blocks, -1, features)
    return x @ kernel[0, 0] if blocks == 1 else _correlate(x, kernel)


@jax.custom_vjp
def _correlate(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolution with stride 1 without padding: `[B, H, W, C]`, `[k, k, C, D]` -> `[B, H - k + 1, W - k + 1, D]`."""
    return _library(x, kernel)


# Under `vmap` over kernels (seeds), XLA would use a grouped convolution, which its fast kernels do not support.
@jax.custom_batching.sequential_vmap
def _library(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return convolve_library(x, kernel, 1, "VALID")


def _correlate_forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    x, kernel = jax.lax.optimization_barrier((x, kernel))
    return _library(x, kernel), (x, kernel)


def _correlate_backward(residuals: tuple[jax.Array, jax.Array], error: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradients of image and kernel, both as forward convolutions."""
    x, kernel = residuals
    edge = kernel.shape[0] - 1
    padded = jnp.pad(error, [(0, 0), (edge, edge), (edge, edge), (0, 0)])
    return _library(padded, kernel[::-1, ::-1].swapaxes(2, 3)), _kernel_gradient(x, error)


def _kernel_gradient(x: jax.Array, error: jax.Array) -> jax.Array:
    """Gradient `[k, k, C, D]` from images `[B, H, W, C]` and errors `[B, H', W', D]`.

    This is a forward convolution, too: channels and images swap places, and the errors are the kernel. Images are
    processed in small batches, so that the unfolded data stay in the processor's cache.
    """

    def add(total: jax.Array, part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        x, error = part
        return total + _library(x.transpose(3, 1, 2, 0), error.transpose(1, 2, 0, 3)), None

    def parts(z: jax.Array) -> jax.Array:
        z = jnp.pad(z, [(0, -len(z) % IMAGES), (0, 0), (0, 0), (0, 0)])
        return z.reshape(-1, IMAGES, *z.shape[1:])

    (channels, features), size = (x.shape[-1], error.shape[-1]), x.shape[1] - error.shape[1] + 1
    total, _ = jax.lax.scan(add, jnp.zeros((channels, size, size, features)), (parts(x), parts(error)))
    return total.transpose(1, 2, 0, 3)


_correlate.defvjp(_correlate_forward, _correlate_backward)


def max_pool_library(x: jax.Array, size: int, stride: int) -> jax.Array:
    """Max-pooling by XLA."""
    return nn.max_pool(x, (size, size), (stride, stride), "SAME")


def max_pool_slices(x: jax.Array, size: int, stride: int) -> jax.Array:
    """Max-pooling by comparing shifted slices, first along rows and then along columns.

    If values are equal, the first in row-major order gets the gradient, as in `max_pool_library`.
    """
    for axis in (2, 1):
        count, before = extent(x.shape[axis], size, stride, "SAME")
        span = (count - 1) * stride + 1
        after = span + size - 1 - x.shape[axis] - before
        edges = [(0, 0, 0)] * 4
        edges[axis] = (before, after, 0)
        padded = jax.lax.pad(x, jnp.array(-jnp.inf, x.dtype), edges)
        x = jax.lax.slice_in_dim(padded, 0, span, stride, axis)
        for i in range(1, size):
            shifted = jax.lax.slice_in_dim(padded, i, i + span, stride, axis)
            x = jnp.where(shifted > x, shifted, x)
    return x


def extent(length: int, size: int, stride: int, padding: str) -> tuple[int, int]:
    """Number of windows along an axis of `length`, and the padding before the first one."""
    if padding == "VALID":
        return (length - size) // stride + 1, 0
    count = -(-length // stride)
    return count, max((count - 1) * stride + size - length, 0) // 2
