"""Short live run that measures the durations of a choice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.run import train

ROUNDS = 16
"""Rounds of the live run."""


def measure(directory: Path, overrides: Sequence[str], config_dir: str | None = None) -> None:
    """Train a few rounds live, with the learners and actors of a configuration, into a directory.

    Args:
      directory: directory of the run, which does not exist.
      overrides: the configuration, as on the command line.
      config_dir: further directory of configurations.

    Raises:
      ConfigError: the configuration cannot run live.
      RunError: the run failed.
    """
    settings = ["executor=live", "num_seeds=1", "evaluation.points=0", "run.progress=false"]
    config = load_config([*overrides, *settings], config_dir)
    steps = ROUNDS * config.env.num_envs * config.algorithm.rollout_length
    train(config.replace({"run.dir": str(directory), "total_steps": steps}))
