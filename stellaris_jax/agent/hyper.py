"""Hyper-parameters: numbers of a configuration that are inputs of compiled programs, so changes compile nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from stellaris_jax.agent import Number
from stellaris_jax.base.registry import register
from stellaris_jax.config.optioned import numbers_of
from stellaris_jax.config.options import part_optimizers
from stellaris_jax.config.tree import Config


class Hyper(NamedTuple):
    """Hyper-parameters: scalars of one run, or arrays `[S]` with one element per seed.

    Fields without a description here are the keys of `algorithm` of the same name.

    Attributes:
      rho: `system.rho` (Eq. 2).
      options: float options of the algorithm, by name.
      advantage: float options of the estimator of advantages, by name.
      optimizer: float options of the optimizer, by name.
      rate_factors: learning rates of parts of the policy over the base learning rate, by name of the part.
      part_optimizers: float options of the optimizers of parts of the policy, by name of the part.
      masks: float options of every mask, by name.
      corrections: float options of every correction, by name.

    A program is compiled once for all values. So a key that 0 turns off becomes a value without effect, such as an
    infinite `max_grad_norm`.

    >>> hyper = Hyper.of(Config())
    >>> float(hyper.max_grad_norm), float(Hyper.of(Config().replace({"algorithm.max_grad_norm": 0})).max_grad_norm)
    (0.5, inf)
    """

    learning_rate: Number
    adam_b1: Number
    adam_b2: Number
    adam_eps: Number
    max_grad_norm: Number
    gamma: Number
    gae_lambda: Number
    value_coefficient: Number
    entropy_coefficient: Number
    kl_coefficient: Number
    kl_target: Number
    rho: Number
    options: Mapping[str, Number]
    advantage: Mapping[str, Number]
    optimizer: Mapping[str, Number]
    rate_factors: Mapping[str, Number]
    part_optimizers: Mapping[str, Mapping[str, Number]]
    masks: tuple[Mapping[str, Number], ...]
    corrections: tuple[Mapping[str, Number], ...]

    @classmethod
    def of(cls, config: Config) -> Hyper:
        """Hyper-parameters of a configuration, each a float32."""
        algorithm = config.algorithm
        values = {
            name: getattr(algorithm, name)
            for name in cls._fields
            if hasattr(algorithm, name) and name not in ("options", "masks", "advantage", "optimizer")
        }
        values |= {"max_grad_norm": algorithm.max_grad_norm or math.inf, "rho": config.system.rho}
        masks, corrections = algorithm.mask_options, config.system.correction_options
        values |= {
            "options": numbers_of(register.algorithm[algorithm.name], algorithm.options),
            "advantage": numbers_of(register.advantage[algorithm.advantage], algorithm.advantage_options),
            "optimizer": numbers_of(register.optimizer[algorithm.optimizer], algorithm.optimizer_options),
            "rate_factors": {name: x / algorithm.learning_rate for name, x in algorithm.learning_rates.items()},
            "part_optimizers": {
                part: numbers_of(register.optimizer[name], given)
                for part, (name, given) in part_optimizers(config).items()
            },
            "masks": tuple(numbers_of(register.mask[name], masks.get(name)) for name in algorithm.masks),
            "corrections": tuple(
                numbers_of(register.correction[name], corrections.get(name)) for name in config.system.corrections
            ),
        }
        leaves: Hyper = jax.tree.map(np.float32, cls(**values))
        return leaves

    def rows(self, number: int) -> Hyper:
        """Hyper-parameters repeated for `number` seeds: arrays `[number]`."""
        rows: Hyper = jax.tree.map(lambda value: np.repeat(value, number), self)
        return rows
