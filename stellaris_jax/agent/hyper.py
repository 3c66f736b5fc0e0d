"""Hyper-parameters: the numbers of a configuration that shape no program, as leaves that a program is given."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from stellaris_jax.agent.fractional import Fractional, fractional_adam
from stellaris_jax.agent.momentum import varying_momentum
from stellaris_jax.config.options import numbers_of
from stellaris_jax.config.tree import Config
from stellaris_jax.registry import register


class Hyper(NamedTuple):
    """Scalars of one run, or arrays `[S]` of one element per seed; by the names of the keys of `algorithm`.

    options: the numbers among the options of the algorithm and its masks, by their names; corrections: among those of
    the system's corrections. rho: `system.rho` (Eq. 2).

    Whoever compiles for them compiles once for all values: what a key turns off by 0 is off by a value that changes
    nothing, such as an infinite `max_grad_norm`.

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
    value_coefficient: Any
    entropy_coefficient: Any
    kl_coefficient: Any
    kl_target: Any
    rho: Any
    options: dict[str, Any]
    corrections: dict[str, Any]

    @classmethod
    def of(cls, config: Config) -> Hyper:
        """Those of a configuration, each a float32."""
        algorithm = config.algorithm
        values = {
            name: getattr(algorithm, name) for name in cls._fields if hasattr(algorithm, name) and name != "options"
        }
        values |= {"max_grad_norm": algorithm.max_grad_norm or math.inf, "rho": config.system.rho}
        options = numbers_of(register.algorithm[algorithm.name], algorithm.options)
        for name in algorithm.masks:
            options |= numbers_of(register.mask[name], algorithm.options)
        corrections: dict[str, float] = {}
        for name in config.system.corrections:
            corrections |= numbers_of(register.correction[name], config.system.options)
        leaves: Hyper = jax.tree.map(np.float32, cls(**values, options=options, corrections=corrections))
        return leaves

    def rows(self, number: int) -> Hyper:
        """The same for so many seeds: arrays `[number]`."""
        rows: Hyper = jax.tree.map(lambda value: np.repeat(value, number), self)
        return rows

    def optimizer(
        self, aggregation: str = "factored", varying: bool = False
    ) -> optax.GradientTransformation | Fractional:
        """Adam at the base learning rate (alpha_0), behind a clip of the aggregated gradient's norm.

        Args:
          aggregation: `system.aggregation`; under `fractional` it takes fractions of a step.
          varying: whether beta_1 may differ from step to step; its bias correction then goes by all of them.
        """
        if varying:
            return varying_momentum(self.optimizer(aggregation), self.adam_b1)
        if aggregation == "fractional":
            numbers = (self.learning_rate, self.adam_b1, self.adam_b2, self.adam_eps)
            return fractional_adam(*numbers, max_grad_norm=self.max_grad_norm)
        adam = optax.adam(self.learning_rate, b1=self.adam_b1, b2=self.adam_b2, eps=self.adam_eps)
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), adam)
