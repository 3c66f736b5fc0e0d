"""Sizes of a replay buffer, which off-policy algorithms learn from: the part of a configuration that is about it."""

from __future__ import annotations

from typing import Any, NamedTuple

from stellaris_jax.base.registry import register
from stellaris_jax.config.optioned import completed, options_of
from stellaris_jax.config.tree import Config


class ReplayBuffer(NamedTuple):
    """Sizes of a replay buffer.

    Attributes:
      batches: newest batches from which minibatches are drawn (K); a batch is what the actors collect in a round.
      stored: batches that are stored: K, and those that may be overwritten while gradients on older draws are computed.
      batch: transitions of a minibatch.
      gradients: minibatches of a round.
      waiting: first rounds, which have no minibatches.
      steps: steps of a target (n).
    """

    batches: int
    stored: int
    batch: int
    gradients: int
    waiting: int
    steps: int

    @classmethod
    def of(cls, config: Config) -> ReplayBuffer | None:
        """Sizes of a configuration; `None` unless its algorithm learns from a replay buffer."""
        options = buffer_options(config)
        if options is None:
            return None
        samples = config.env.num_envs * config.algorithm.rollout_length
        batches = max(1, options["buffer_size"] // samples)
        return cls(
            batches=batches,
            stored=batches + config.system.fragments_in_flight - 1,
            batch=options["batch_size"],
            gradients=max(1, round(options["updates_per_step"] * samples)),
            waiting=-(-options["learning_starts"] // samples),
            steps=options["n_step"],
        )


def buffer_options(config: Config) -> dict[str, Any] | None:
    """Options of an algorithm that learns from a replay buffer; `None` for others."""
    algorithm = register.algorithm.get(config.algorithm.name)
    if getattr(algorithm, "data", "fresh") != "replay" or not is_off_policy(algorithm):
        return None
    return completed(algorithm, config.algorithm.options)


def is_off_policy(algorithm: Any) -> bool:
    """Whether an algorithm has the options of a replay buffer; a plug-in that lacks them is refused."""
    return {"buffer_size", "batch_size", "updates_per_step", "learning_starts", "n_step"} <= {*options_of(algorithm)}


def minibatches_per_round(config: Config) -> int:
    """Minibatches of a round, over all epochs (G)."""
    buffer = ReplayBuffer.of(config)
    return config.algorithm.epochs * config.algorithm.minibatches if buffer is None else buffer.gradients
