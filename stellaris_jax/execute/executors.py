"""Choice of the executor for a configuration."""

from __future__ import annotations

from stellaris_jax.base.registry import register
from stellaris_jax.config.tree import Config
from stellaris_jax.engine import processes
from stellaris_jax.execute.distributed import LeadingExecutor
from stellaris_jax.execute.executor import Executor, ExecutorInputs
from stellaris_jax.execute.live import LiveExecutor, MakePool
from stellaris_jax.execute.recording import Recording
from stellaris_jax.execute.replay import ReplayExecutor
from stellaris_jax.execute.schedule import Schedule
from stellaris_jax.execute.simulated import SimulatedExecutor
from stellaris_jax.execute.stretches import StretchedExecutor
from stellaris_jax.timeline import Timeline


def check_installed(config: Config) -> None:
    """Raise ConfigError if a dependency of `config.executor` is not installed."""
    if config.executor == "live":
        register.pool[config.live.pool].check_installed()


def executor_of(
    inputs: ExecutorInputs, recording: Recording | None = None, make_pool: MakePool | None = None
) -> Executor:
    """Executor for `config.executor`, and for `engine.distributed`.

    Args:
      inputs: inputs of the trainer.
      recording: live run that `executor=replay` repeats.
      make_pool: see `LiveExecutor`.
    """
    config = inputs.config
    if config.executor == "live":
        return LiveExecutor(inputs, make_pool)
    if recording is not None:
        return ReplayExecutor(inputs, recording)
    schedule = Schedule(config, inputs.spec, inputs.seeds, [Timeline.of(config, seed) for seed in inputs.seeds])
    if config.delays.by == "episodes":
        return StretchedExecutor(inputs, schedule)
    planned = SimulatedExecutor(inputs, schedule)
    return LeadingExecutor(planned) if config.engine.distributed and processes.is_first() else planned
