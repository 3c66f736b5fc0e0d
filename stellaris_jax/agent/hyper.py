"""Hyper-parameters: the numbers of a configuration that shape no program, as leaves that a program is given."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import optax

from stellaris_jax.config.tree import Config


class Hyper(NamedTuple):
    """Scalars of one run, or arrays `[S]` of one element per seed; by the names of the keys of `algorithm`.

    Whoever compiles for them compiles once for all values: what a key turns off by 0 is off by a value that changes
    nothing, such as an infinite `max_grad_norm`. rho: `system.rho` (Eq. 2).

    >>> hyper = Hyper.of(Config())
    >>> float(hyper.max_grad_norm), float(Hyper.of(Config().replace({"algorithm.max_grad_norm": 0})).max_grad_norm)
    (0.5, inf)
    """

    learning_rate: Any
    adam_b1: Any
    adam_b2: Any
    adam_eps: Any
    max_grad_norm: Any
    gamma: Any
    gae_lambda: Any
    clip: Any
    value_clip: Any
    value_coefficient: Any
    entropy_coefficient: Any
    kl_coefficient: Any
    kl_target: Any
    rho_bar: Any
    c_bar: Any
    impact_ratio: Any
    rho: Any

    @classmethod
    def of(cls, config: Config) -> Hyper:
        """Those of a configuration, each a float32."""
        algorithm = config.algorithm
        values = {name: getattr(algorithm, name) for name in cls._fields if name != "rho"}
        off = {name: math.inf for name in ("max_grad_norm", "value_clip") if values[name] == 0}
        return cls(**{name: np.float32(value) for name, value in {**values, **off, "rho": config.system.rho}.items()})

    def rows(self, number: int) -> Hyper:
        """The same for so many seeds: arrays `[number]`."""
        return Hyper(*(np.repeat(value, number) for value in self))

    def optimizer(self) -> optax.GradientTransformation:
        """Adam at the base learning rate (alpha_0), behind a clip of the aggregated gradient's norm."""
        adam = optax.adam(self.learning_rate, b1=self.adam_b1, b2=self.adam_b2, eps=self.adam_eps)
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), adam)
