"""Choice of the trainer for a configuration."""

from __future__ import annotations

import subprocess
import sys
import threading
from importlib.util import find_spec

from stellaris_jax.base.errors import ConfigError
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
    if config.executor != "live":
        return
    if find_spec("ray") is None:
        raise ConfigError("executor=live needs Ray; install it by: pip install 'stellaris-jax[ray]'.")
    # Tried in a separate process, because this one never loads Ray (`live.broker`).
    attempt = subprocess.run([sys.executable, "-P", "-c", "import ray"], capture_output=True, text=True)
    if attempt.returncode != 0:
        reason = (attempt.stderr.strip() or "no reason given").splitlines()[-1]
        raise ConfigError(f"executor=live needs Ray, which cannot be imported ({reason}); install it anew.")


def trainer_of(
    config: Config, stopping: threading.Event | None = None, programs: ProgramCache | None = None
) -> Trainer:
    """Trainer for `config.executor`; the leader if the run has several processes. See `Trainer`."""
    if config.engine.distributed:
        return Leader(config, stopping, programs)
    return EXECUTORS[config.executor](config, stopping, programs)
