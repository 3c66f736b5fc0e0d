"""All of a configuration that shapes its program."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from stellaris_jax.agent.losses import Algorithm, Mask, TargetNetwork
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.corrections import Correction
from stellaris_jax.envs.base import HostEnv, VecEnv
from stellaris_jax.registry import register
from stellaris_jax.timeline.plan import MinibatchLayout, PlanShape
from stellaris_jax.timeline.scaling.limits import is_adaptive, is_masked


@dataclass(frozen=True)
class ProgramSpec:
    """What is the same for everything that one compiled program runs; computed once.

    algorithm: the loss, and the data it asks for. masks: of samples. seeds: S that are executed side by side. envs,
    steps: N and T of a fragment. epochs, minibatches: it is cut into. chunk_rounds: R of a chunk. lanes: gradients at
    once on each of the devices. peers: K, the most other versions that learners in flight hold. versions: H that
    gradients may be of. buffers: fragments kept. target_interval: versions from one target network to the next; 1
    without any. truncation, aggregation: modes. corrections: of gradients. masked: some environments may take no
    part in a round. hosted: fragments come from actors on the host. recurrent: the network has memory. recorded:
    gradients have weights of the KL penalty of their own.
    """

    algorithm: Algorithm
    masks: tuple[Mask, ...]
    seeds: int
    envs: int
    steps: int
    epochs: int
    minibatches: int
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
    hosted: bool
    recurrent: bool
    recorded: bool

    @classmethod
    def of(cls, config: Config, hosted: bool = False) -> ProgramSpec:
        """The static part of a configuration, of which only the environment can tell whether it is `hosted`."""
        settings, system, engine = config.algorithm, config.system, config.engine
        algorithm: Algorithm = register.algorithm[settings.name](settings.options)
        return cls(
            algorithm=algorithm,
            masks=tuple(register.mask[name](settings.options) for name in settings.masks),
            seeds=config.num_seeds if seeds_vmapped(engine.members) else 1,
            envs=config.env.num_envs,
            steps=settings.rollout_length,
            epochs=settings.epochs,
            minibatches=settings.minibatches,
            chunk_rounds=1 if hosted or is_adaptive(config) else config.chunk_rounds,
            lanes=engine.lanes,
            devices=engine.devices,
            peers=min(system.learners, system.versions) - 1 if system.truncation != "none" else 0,
            versions=system.versions,
            buffers=2 if system.actors == "pipelined" else 1,
            target_interval=algorithm.target_interval if isinstance(algorithm, TargetNetwork) else 1,
            truncation=system.truncation,
            aggregation=system.aggregation,
            corrections=tuple(register.correction[name](system.options) for name in system.corrections),
            masked=is_masked(config),
            hosted=hosted,
            recurrent=config.network.memory != "none",
            recorded=config.executor == "replay" and settings.kl_coefficient > 0.0,
        )

    @property
    def sequences(self) -> bool:
        """Whether minibatches are whole environments' fragments instead of single samples."""
        return self.algorithm.sequences or self.recurrent

    @property
    def minibatch_layout(self) -> MinibatchLayout:
        """How the data loader cuts a fragment."""
        length = self.steps if self.sequences else 1
        return MinibatchLayout(self.epochs, self.minibatches, self.steps, self.envs, length)

    @property
    def shape(self) -> PlanShape:
        """The sizes of the plans."""
        return PlanShape(
            rounds=self.chunk_rounds,
            seeds=self.seeds,
            wave_size=self.lanes * self.devices,
            peers=self.peers,
            gradients=self.epochs * self.minibatches,
            batch=self.minibatch_layout.batch,
            versions=self.versions,
            buffers=self.buffers,
            target_interval=self.target_interval,
            recorded=self.recorded,
        )

    def blocks(self, seeds: int) -> list[slice]:
        """So many seeds, parted into those that are executed side by side."""
        return [slice(i, i + self.seeds) for i in range(0, seeds, self.seeds)]

    @property
    def has_invalid(self) -> bool:
        """Whether fragments hold samples that nothing is to be learned from."""
        return self.masked or self.hosted


def seeds_vmapped(members: str) -> bool:
    """Whether seeds are executed side by side, as `engine.members` says: small products gain by it on accelerators."""
    return members == "together" or (members == "auto" and jax.default_backend() != "cpu")


def in_program(env: VecEnv | HostEnv) -> VecEnv | None:
    """The environment, if actors step it inside the compiled program; `None` if actors on the host do."""
    return None if isinstance(env, HostEnv) else env
