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
        batch, hyper = inputs.batch, inputs.hyper
        assert batch.steps is not None, "the minibatch holds no sequences"
        columns = (inputs.log_prob - batch.log_prob, inputs.value, batch.steps, batch.valid)
        columns = jax.tree.map(lambda x: jax.lax.stop_gradient(x).reshape(inputs.steps, -1), columns)
        log_ratio, value, (reward, next_value, terminated, truncated), valid = columns
        # Values after the last step and after truncated episodes keep their values from collection time.
        last = jnp.arange(inputs.steps)[:, None] == inputs.steps - 1
        next_value = jnp.where(truncated | last, next_value, jnp.roll(value, -1, axis=0))
        steps = AdvantageInputs(
            reward=reward,
            value=value,
            next_value=next_value,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            log_ratio=log_ratio,
            gamma=hyper.gamma,
            gae_lambda=hyper.gae_lambda,
        )
        advantage, target = (None if x is None else x.reshape(-1) for x in self.estimate(hyper, steps))
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
