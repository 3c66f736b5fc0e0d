"""The trainer that a configuration asks for."""

from __future__ import annotations

import threading

from stellaris_jax.config.tree import Config
from stellaris_jax.training.distributed import Leader
from stellaris_jax.training.live import LiveTrainer
from stellaris_jax.training.programs import Programs
from stellaris_jax.training.replay import ReplayTrainer
from stellaris_jax.training.trainer import Trainer

EXECUTORS = {"simulated": Trainer, "live": LiveTrainer, "replay": ReplayTrainer}
"""Values of `executor`."""


def trainer_of(config: Config, stopping: threading.Event | None = None, programs: Programs | None = None) -> Trainer:
    """A trainer of `config.executor`, in the first process where there are several; see `Trainer`."""
    if config.engine.distributed:
        return Leader(config, stopping, programs)
    return EXECUTORS[config.executor](config, stopping, programs)
