"""A trained policy as a function of observations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.config import Config
from stellaris_jax.networks import ActorCritic
from stellaris_jax.rollout import Normalizers, view
from stellaris_jax.schema import ConfigError


@dataclass(frozen=True)
class Policy:
    """Call it with one observation or a batch `[B, ...]`; with a key it samples, without one it acts by the mode."""

    network: ActorCritic
    params: jax.Array
    normalizers: Normalizers
    config: Config

    def __call__(self, obs: Any, key: jax.Array | None = None) -> jax.Array:
        single = np.ndim(obs) == len(self.network.observation_shape)
        batch = jnp.asarray(obs, jnp.float32)
        batch = batch[None] if single else batch
        tree = self.network.unravel(self.params)
        distribution = self.network.policy(tree, view(self.normalizers, batch, self.config.env))
        if key is None:
            action = self.network.distribution.mode(distribution)
        else:
            noise = self.network.distribution.noise(key, batch.shape[:1])
            action = self.network.distribution.perturb(distribution, noise)
        return action[0] if single else action


def load_policy(run_dir: str | Path, seed: int | None = None) -> Policy:
    """The newest policy saved in a run directory, of one of its seeds (the first, if none is named)."""
    from stellaris_jax.run import open_run

    trainer = open_run(run_dir)
    seed = trainer.seeds[0] if seed is None else seed
    if seed not in trainer.seeds:
        raise ConfigError(f"seed={seed} is not in {run_dir}; accepted: {', '.join(map(str, trainer.seeds))}.")
    index = trainer.seeds.index(seed)
    normalizers = jax.tree.map(lambda x: x[index], trainer.state.normalizers)
    return Policy(trainer.network, trainer.state.params[index], normalizers, trainer.config)
