"""Program spec: the part of a configuration that shapes the compiled program."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from stellaris_jax.agent.advantages import Advantage
from stellaris_jax.agent.losses import Algorithm, Mask
from stellaris_jax.agent.losses.common import DRIFT
from stellaris_jax.agent.networks.policy_network import VALUE
from stellaris_jax.agent.optimizers import Optimizer
from stellaris_jax.agent.recipe import Recipe
from stellaris_jax.base.registry import register
from stellaris_jax.config.buffer import ReplayBuffer
from stellaris_jax.config.options import estimator_of, is_recurrent, part_optimizers
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.corrections import Correction
from stellaris_jax.engine.mesh import AXIS
from stellaris_jax.envs.base import HostEnv, VecEnv
from stellaris_jax.timeline.plan import MinibatchLayout
from stellaris_jax.timeline.scaling.limits import is_adaptive, is_masked
from stellaris_jax.timeline.shapes import CollectionShape, PlanShape


@dataclass(frozen=True)
class ProgramSpec:
    """Static properties of a compiled program, the same for all runs that share it.

    Attributes:
      algorithm: the loss, and the data that it needs.
      advantage: estimator of advantages and targets.
      optimizer: the optimizer.
      part_optimizers: optimizers of parts of the policy that have their own, by name of the part.
      parts: parts of the policy with learning rates or optimizers of their own.
      critic: whether the policy has a critic.
      loss_mean: mean of the loss's terms over samples.
      masks: masks of samples.
      seeds: number S of seeds executed together (`vmap`).
      minibatch_layout: layout of a fragment as minibatches.
      chunk_rounds: rounds R of a chunk.
      lanes: gradients computed together on each device.
      devices: number of devices.
      peers: largest number K of other versions that learners in flight hold.
      versions: number H of versions on which gradients may be computed.
      buffers: fragments stored.
      target_interval: versions from one target network to the next; 1 without target networks.
      truncation: mode of the truncation (Eq. 2).
      aggregation: mode of the aggregation (Eq. 4).
      corrections: corrections of gradients.
      masked: whether rounds may leave out some environments; those of independent actors never do.
      host_fragments: whether fragments come from actors on the host.
      recurrent: whether the network has memory.
      actor_precision: arithmetic of actors.
      episodic: whether fragments have one episode of each environment, and padding after it.
      kl_coefficient_per_gradient: whether each gradient has its own weight of the KL penalty.
      collection: sizes of independent actors' collection; `None` for other actors.
    """

    algorithm: Algorithm
    advantage: Advantage
    optimizer: Optimizer
    part_optimizers: tuple[tuple[str, Optimizer], ...]
    parts: tuple[str, ...]
    critic: bool
    loss_mean: str
    masks: tuple[Mask, ...]
    seeds: int
    minibatch_layout: MinibatchLayout
    chunk_rounds: int
    lanes: int
    devices: int
    peers: int
    versions: int
    buffers: int
    target_interval: int
    truncation: str
    aggregation: str
    corrections: tuple[Correction, ...]
    masked: bool
    host_fragments: bool
    recurrent: bool
    actor_precision: str
    episodic: bool
    kl_coefficient_per_gradient: bool
    collection: CollectionShape | None = None

    @classmethod
    def of(cls, config: Config, host_fragments: bool = False) -> ProgramSpec:
        """Program spec of a configuration; `host_fragments` depends on its environment."""
        settings, system, engine = config.algorithm, config.system, config.engine
        algorithm: Algorithm = register.algorithm[settings.name](settings.options)
        follows = config.delays.by == "episodes"
        return cls(
            algorithm=algorithm,
            advantage=register.advantage[estimator_of(config)](settings.advantage_options),
            optimizer=register.optimizer[settings.optimizer](settings.optimizer_options),
            part_optimizers=tuple(
                (part, register.optimizer[name](given)) for part, (name, given) in part_optimizers(config).items()
            ),
            parts=tuple(sorted({*settings.learning_rates, *settings.optimizers})),
            critic=VALUE in register.policy[config.network.policy].outputs,
            loss_mean=settings.loss_mean,
            masks=tuple(register.mask[name](settings.mask_options.get(name, {})) for name in settings.masks),
            # Seeds whose fragments end with their episodes have stretches of their own.
            seeds=config.num_seeds if seeds_vmapped(engine.members) and not follows else 1,
            minibatch_layout=MinibatchLayout.of(config),
            chunk_rounds=1 if host_fragments or is_adaptive(config) or follows else config.chunk_rounds,
            lanes=engine.lanes,
            devices=engine.devices,
            peers=min(system.learners, system.versions) - 1 if system.truncation != "none" else 0,
            versions=system.versions,
            buffers=system.fragments_in_flight,
            target_interval=getattr(algorithm, "target_interval", 1) if algorithm.target == "version" else 1,
            truncation=system.truncation,
            aggregation=system.aggregation,
            corrections=tuple(
                register.correction[name](system.correction_options.get(name, {})) for name in system.corrections
            ),
            masked=is_masked(config) and config.actor_shards == 0,
            host_fragments=host_fragments,
            recurrent=is_recurrent(config),
            actor_precision=system.actor_precision,
            episodic=follows or register.policy[config.network.policy].episodic,
            kl_coefficient_per_gradient=config.executor == "replay" and settings.kl_coefficient > 0.0,
            collection=CollectionShape.of(config),
        )

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the losses' metrics."""
        if self.buffer is not None:
            return tuple(self.algorithm.metrics)
        return (*(name for name in self.algorithm.metrics if name != "value_loss" or self.has_value_loss), *DRIFT)

    @property
    def buffer(self) -> ReplayBuffer | None:
        """Sizes of the replay buffer; `None` unless the algorithm learns from one."""
        return self.minibatch_layout.buffer

    @property
    def buffer_axis(self) -> str | None:
        """Mesh axis of devices that share a replay buffer, each with a part of its rows; `None` if each has all."""
        if self.buffer is None or self.steps * self.envs % self.devices:
            return None
        if self.host_fragments and self.collection is not None:
            return None  # `HostEngine` has all of its state on every device
        return AXIS if self.devices > 1 else None

    @property
    def has_value_loss(self) -> bool:
        """Whether a critic learns, from the estimator's targets or from the loss's own."""
        return self.critic and ("target" in self.advantage.gives or VALUE in self.algorithm.needs)

    @property
    def recipe(self) -> Recipe:
        """Recipe of training data."""
        return Recipe(self.advantage, self.algorithm)

    @property
    def sequences(self) -> bool:
        """Whether minibatches hold whole sequences of environments instead of single samples."""
        return self.recipe.sequences or self.recurrent

    @property
    def envs(self) -> int:
        """Environments N of a fragment."""
        return self.minibatch_layout.envs

    @property
    def steps(self) -> int:
        """Steps T of a fragment."""
        return self.minibatch_layout.steps

    @property
    def segment_steps(self) -> int:
        """Steps of a segment of independent actors."""
        assert self.collection is not None, "actors are not independent"
        return self.steps // self.collection.segments

    @property
    def shard_envs(self) -> int:
        """Environments of a shard of independent actors."""
        assert self.collection is not None, "actors are not independent"
        return self.envs // self.collection.shards

    @property
    def shape(self) -> PlanShape:
        """Sizes of the plans."""
        return PlanShape(
            rounds=self.chunk_rounds,
            seeds=self.seeds,
            wave_size=self.lanes * self.devices,
            peers=self.peers,
            gradients=self.minibatch_layout.epochs * self.minibatch_layout.minibatches,
            batch=self.minibatch_layout.batch,
            versions=self.versions,
            buffers=self.buffers,
            target_interval=self.target_interval,
            kl_coefficient_per_gradient=self.kl_coefficient_per_gradient,
            collection=self.collection,
        )

    def blocks(self, seeds: int) -> list[slice]:
        """Partition of `seeds` seeds into blocks that are executed together."""
        return [slice(i, i + self.seeds) for i in range(0, seeds, self.seeds)]

    @property
    def has_invalid(self) -> bool:
        """Whether fragments may hold invalid samples."""
        return self.masked or self.host_fragments or self.episodic or self.buffer is not None

    @property
    def follows(self) -> bool:
        """Whether fragments end with their episodes."""
        return self.collection is not None and self.collection.follows


def seeds_vmapped(members: str) -> bool:
    """Whether seeds are executed together (`engine.members`), which speeds up small products on accelerators."""
    return members == "together" or (members == "auto" and jax.default_backend() != "cpu")


def in_program(env: VecEnv | HostEnv) -> VecEnv | None:
    """Environment if actors step it inside the compiled program; `None` if actors on the host step it."""
    return None if isinstance(env, HostEnv) else env
