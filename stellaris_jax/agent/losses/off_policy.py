"""Base of off-policy algorithms: they learn from minibatches that are drawn from a replay buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.algorithm import PolyakTarget
from stellaris_jax.agent.losses.common import Metrics, Samples, Transition, Versions, mean
from stellaris_jax.config.buffer import ReplayBuffer, buffer_options
from stellaris_jax.config.schema import knob
from stellaris_jax.config.tree import Config

MOST_ROWS = 2**31 - 1
"""Most transitions of a replay buffer; more have no number of 32 bits."""


class ReplayInputs(NamedTuple):
    """Inputs of a loss on a minibatch `[B]` from a replay buffer.

    Attributes:
      batch: the minibatch; `batch.transition` has rewards, discounts and next observations.
      network: the policy's network.
      tree: parameters of the learner's policy, which the loss is differentiated by.
      target: parameters of the target network; `None` unless the algorithm has one.
      hyper: hyper-parameters.
      key: key of what the loss draws; `None` unless the algorithm `draws`.
      versions: versions of the policies.
    """

    batch: Samples
    network: Any
    tree: dict[str, Any]
    target: Any
    hyper: Hyper
    key: Any
    versions: Versions

    @property
    def transition(self) -> Transition:
        """Rewards, discounts and next observations."""
        assert self.batch.transition is not None, "the minibatch is from no replay buffer"
        return self.batch.transition

    def mean(self, x: jax.Array) -> jax.Array:
        """Mean of `[B]` over the valid transitions."""
        return mean(x, self.batch.valid)


class OffPolicy(PolyakTarget):
    """Algorithm that learns from a replay buffer, with uniform draws; its target network follows the policy.

    A loss gets `ReplayInputs`. Actors take uniformly random actions with a probability, see `randomness`.
    """

    data = "replay"
    advantage = "none"
    advantages = ("own",)
    standardises = False
    truncations = ("none",)
    masked = False
    metrics: ClassVar[Mapping[str, str]] = {"value_loss": "loss of the critic", "q_value": "mean action value"}

    own_policy = ""
    """Policy that the algorithm sets, unless `network.policy` names another; empty for none."""

    buffer_size: int = knob(
        100_000, "newest transitions, in env steps, from which minibatches are drawn uniformly", within="[1, inf)"
    )
    batch_size: int = knob(256, "transitions of a minibatch", within="[1, inf)")
    updates_per_step: Number = knob(0.25, "minibatches per env step; each is one learner invocation", within="(0, inf)")
    learning_starts: int = knob(1_000, "env steps with random actions before the first minibatch", within="[0, inf)")
    n_step: int = knob(1, "steps of a target (n), in env steps", within="[1, 1000]")

    @classmethod
    def settles(cls, config: Config, section: str) -> Iterator[tuple[str, Any, str]]:
        yield "system.truncation", "none", ""
        if cls.own_policy:
            yield "network.policy", cls.own_policy, ""

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        yield from super().conditions(config, section)
        buffer, options = ReplayBuffer.of(config), buffer_options(config)
        if buffer is None or options is None:
            return
        name, env, algorithm = f"algorithm.name={config.algorithm.name}", config.env, config.algorithm
        samples = env.num_envs * algorithm.rollout_length
        per_round = options["updates_per_step"] * samples
        whole = abs(per_round - round(per_round)) <= 1e-6 * per_round and round(per_round) >= 1
        yield (
            whole,
            f"algorithm.options.updates_per_step={options['updates_per_step']:g} times the {samples} env steps of a "
            f"round (env.num_envs times algorithm.rollout_length) must be a whole number of minibatches; accepted: "
            f"{max(1, round(per_round)) / samples:g}.",
        )
        least = min(buffer.waiting + 1, buffer.batches) * samples
        yield (
            least >= buffer.batch,
            f"algorithm.options.batch_size={buffer.batch} must be at most the {least} transitions that there are when "
            "learning starts (algorithm.options.learning_starts, algorithm.options.buffer_size and the env steps of a "
            "round).",
        )
        held = buffer.batches * algorithm.rollout_length
        yield (
            buffer.steps <= held,
            f"algorithm.options.n_step={buffer.steps} must be at most the {held} steps of each environment that "
            f"algorithm.options.buffer_size={options['buffer_size']} keeps.",
        )
        yield (
            config.rounds > buffer.waiting,
            f"total_steps={config.total_steps} must be more than algorithm.options.learning_starts="
            f"{options['learning_starts']}, before which nothing is learned.",
        )
        yield (
            buffer.stored * samples <= MOST_ROWS,
            f"algorithm.options.buffer_size={options['buffer_size']} is more than the {MOST_ROWS} transitions that a "
            "replay buffer can have.",
        )
        yield (
            algorithm.epochs == algorithm.minibatches == 1,
            f"algorithm.epochs={algorithm.epochs} and algorithm.minibatches={algorithm.minibatches} change nothing "
            f"under {name}, which draws minibatches from a replay buffer; accepted: 1 and 1.",
        )
        for key in ("normalize_observation", "normalize_reward"):
            yield (
                not getattr(env, key),
                f"env.{key}=true is not possible with {name}: a replay buffer holds data from before the statistics "
                "changed; accepted: false.",
            )
        yield (
            config.network.memory == "none",
            f"network.memory={config.network.memory} is not possible with {name}, which learns from single steps; "
            "accepted: none.",
        )
        yield (
            not config.engine.distributed,
            f"engine.distributed=true is not possible with {name}; accepted: false.",
        )
        yield (
            config.delays.by == "steps",
            f"delays.by={config.delays.by} is not possible with {name}; accepted: steps.",
        )
        yield (
            config.scaling.rule in ("fixed", "max"),
            f"scaling.rule={config.scaling.rule} is not possible with {name}, whose batches have one size; accepted: "
            "fixed, max.",
        )

    def randomness(self, steps: jax.Array, share: jax.Array) -> jax.Array:
        """Probability that an actor takes a uniformly random action, `[n]`.

        Args:
          steps: env steps before the fragment.
          share: place of each environment among all, from 0 to 1, `[n]`.
        """
        return jnp.where(steps < self.learning_starts, 1.0, self.exploration(steps, share))

    def exploration(self, steps: jax.Array, share: jax.Array) -> jax.Array:
        """That probability once learning has started; 0 by default."""
        return jnp.zeros_like(share)

    def loss(self, inputs: ReplayInputs) -> tuple[jax.Array, Metrics]:
        """Loss of a minibatch, a scalar, and its `metrics`, scalars by name without gradient."""
        raise NotImplementedError
