"""Convolutional torsos, which precede the dense layers for images. All use ReLUs, as published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import flax.linen as nn
import jax

from stellaris_jax.agent.networks.convolution import Conv, Initializer, max_pool
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register


class Layer(NamedTuple):
    """Convolutional layer: `features` filters of `kernel` x `kernel`; padding is SAME or VALID."""

    features: int
    kernel: int
    stride: int
    padding: str


IMPALA_FEATURES = (16, 32, 32)


class Stack(nn.Module):
    """Sequence of convolutions, each with a ReLU: images `[B, H, W, C]` -> `[B, H', W', D]`."""

    layers: tuple[Layer, ...]
    kernel_init: Initializer

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = nn.relu(Conv(*layer, self.kernel_init)(x))
        return x


class Impala(nn.Module):
    """Residual torso of IMPALA (Espeholt et al. 2018, Fig. 3, right), up to the ReLU before its dense layer.

    Each of three sections halves the image: a convolution, 3x3 max-pooling with stride 2, and two residual blocks
    x + conv(relu(conv(relu(x)))). `[B, H, W, C]` -> `[B, H/8, W/8, 32]`, rounded up.
    """

    kernel_init: Initializer
    smallest_image: ClassVar[int] = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for features in IMPALA_FEATURES:
            layer = Layer(features, 3, 1, "SAME")
            x = max_pool(Conv(*layer, self.kernel_init)(x), 3, 2)
            for _ in range(2):
                inner = Conv(*layer, self.kernel_init)(nn.relu(x))
                x = x + Conv(*layer, self.kernel_init)(nn.relu(inner))
        return nn.relu(x)


@dataclass(frozen=True)
class Convolutions:
    """Torso of successive convolutions, each followed by a ReLU."""

    layers: tuple[Layer, ...]

    def __call__(self, kernel_init: Initializer) -> nn.Module:
        return Stack(self.layers, kernel_init)

    @property
    def smallest_image(self) -> int:
        """Side in pixels of the smallest image for which the output is not empty."""
        side = 1
        for layer in reversed(self.layers):
            side = (side - 1) * layer.stride + (layer.kernel if layer.padding == "VALID" else 1)
        return side


@register.torso("mlp")
def mlp(kernel_init: Initializer) -> None:
    """Network without a torso: dense layers only."""


# RLlib's torso for 84 x 84 images, used by Stellaris (SC'24, Table II): the last filters cover the whole image.
register.torso("rllib_cnn")(
    Convolutions((Layer(16, 8, 4, "SAME"), Layer(32, 4, 2, "SAME"), Layer(256, 11, 1, "VALID")))
)
# Mnih et al. 2015
register.torso("nature_cnn")(
    Convolutions((Layer(32, 8, 4, "VALID"), Layer(64, 4, 2, "VALID"), Layer(64, 3, 1, "VALID")))
)
register.torso("impala_cnn")(Impala)
# Young & Tian 2019
register.torso("minatar_cnn")(Convolutions((Layer(16, 3, 1, "VALID"),)))


def torso(name: str, kernel_init: Initializer) -> nn.Module | None:
    """Module of `network.torso`; `None` for `mlp`, which has dense layers only."""
    module: nn.Module | None = register.torso[name](kernel_init)
    return module


def check_observation(name: str, shape: tuple[int, ...]) -> None:
    """Raise ConfigError if a torso with a `smallest_image` cannot read observations of this shape."""
    side = getattr(register.torso[name], "smallest_image", 0)
    if side and (len(shape) != 3 or min(shape[:2]) < side):
        raise ConfigError(
            f"network.torso={name} needs images of at least {side}x{side} pixels, [height, width, channels], but the "
            f"environment's observations are {list(shape)}; network.torso=mlp takes any."
        )
