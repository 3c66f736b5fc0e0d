"""Choice of the trainer for a configuration."""

from __future__ import annotations

import threading

from stellaris_jax.base.registry import register
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.execute.distributed import Leader
from stellaris_jax.execute.live import LiveTrainer
from stellaris_jax.execute.replay import ReplayTrainer
from stellaris_jax.execute.trainer import Trainer

EXECUTORS = {"simulated": Trainer, "live": LiveTrainer, "replay": ReplayTrainer}
"""Trainer classes, keyed by the value of `executor`."""


def check_installed(config: Config) -> None:
    """Raise ConfigError if a dependency of `config.executor` is not installed."""
    if config.executor == "live":
        register.pool[config.live.pool].check_installed()


def trainer_of(
    config: Config, stopping: threading.Event | None = None, programs: ProgramCache | None = None
) -> Trainer:
    """Trainer for `config.executor`; the leader if the run has several processes. See `Trainer`."""
    if config.engine.distributed:
        return Leader(config, stopping, programs)
    return EXECUTORS[config.executor](config, stopping, programs)
