"""Recipe: what training data are made of, once per batch and by each learner."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.advantages import GAE, Advantage, Estimate
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.algorithm import Algorithm
from stellaris_jax.agent.losses.common import AdvantageInputs, LossInputs
from stellaris_jax.agent.losses.ppo import PPO
from stellaris_jax.agent.losses.vtrace import learned_steps


class Recipe(NamedTuple):
    """Parts of an agent that make training data.

    Attributes:
      advantage: estimator of advantages and targets.
      algorithm: the algorithm.
    """

    advantage: Advantage = GAE()
    algorithm: Algorithm = PPO()

    @property
    def sequences(self) -> bool:
        """Whether learners need every step, in whole sequences."""
        return self.algorithm.sequences or self.advantage.by_learners

    @property
    def made(self) -> tuple[str, ...]:
        """Fields of `Estimate` that samples have once they are made."""
        return () if self.advantage.by_learners else self.advantage.gives

    def fields(self, hyper: Hyper, steps: AdvantageInputs) -> dict[str, jax.Array] | None:
        """The algorithm's own fields of samples `[T, N]`, by name; `None` without any."""
        return self.algorithm.bound(hyper.options).fields(steps) or None

    def estimate(self, hyper: Hyper, steps: AdvantageInputs) -> Estimate:
        """Advantages and targets of steps `[T, N]`, standardised if the algorithm says so."""
        estimate = self.advantage.bound(hyper.advantage).estimate(steps)
        if estimate.advantage is None or self.advantage.relative or not self.algorithm.standardises:
            return estimate
        return estimate._replace(advantage=standardised(estimate.advantage, steps.valid))

    def learned(self, inputs: LossInputs) -> LossInputs:
        """Inputs of a loss with the advantages that learners compute, without gradient, if they do."""
        if not self.advantage.by_learners:
            return inputs
        batch = inputs.batch
        steps = learned_steps(inputs.log_prob - batch.log_prob, inputs)
        estimate = self.estimate(inputs.hyper, steps)
        advantage, target = (None if x is None else x.reshape(-1) for x in estimate)
        return inputs._replace(batch=batch._replace(advantage=advantage, target=target))


PPO_RECIPE = Recipe()
"""Recipe of PPO."""


def standardised(advantage: jax.Array, valid: jax.Array | None) -> jax.Array:
    """Standardised advantages `[T, N]`, with mean and deviation of the valid and finite ones."""
    finite = jnp.isfinite(advantage)
    if valid is not None:
        finite &= valid
    count = jnp.maximum(jnp.sum(finite), 1)
    mean = jnp.sum(jnp.where(finite, advantage, 0.0)) / count
    variance = jnp.sum(jnp.where(finite, jnp.square(advantage - mean), 0.0)) / count
    return (advantage - mean) * jax.lax.rsqrt(variance + 1e-8)
