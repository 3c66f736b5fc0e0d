"""Start of a run from another run's policy (`init_from`), read as data.

Nothing that the other run names is imported. Its `config.yaml` is read as plain data. The arrays of its newest intact
checkpoint are identified by their order in `engine.state.EngineState`.
"""

from __future__ import annotations

from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.agent.networks.normalizer import RunningStatistics
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.machine import Part, check_fits
from stellaris_jax.config.schema import plain, shown
from stellaris_jax.config.stored import from_yaml, run_config
from stellaris_jax.config.tree import Config, knobs
from stellaris_jax.envs.space_data import space_to_data
from stellaris_jax.runs.checkpoint import CheckpointError, Checkpoints
from stellaris_jax.telemetry.jsonl import warn_on_stderr

SAME = (*(key for key in knobs() if key.startswith("network.")), "env.normalize_observation", "env.rescale_action")
"""Keys that must be equal in both runs, because they give the parameters their meaning."""
SPACES = ("observation_space", "action_space")
"""Attributes of a network that checkpoints describe; only their bounds may differ."""
BEHIND_OBSERVATIONS = 4
"""Number of leaves between the observation statistics and the PRNG key in a state: statistics of returns, and the KL
coefficient."""


class Start(NamedTuple):
    """Start of a run, one row per seed.

    Attributes:
      params: `[S, P]`, flat parameters.
      statistics: `RunningStatistics` of observations, arrays `[S, *obs]`.
    """

    params: np.ndarray
    statistics: Any


def start_of(config: Config, network: PolicyNetwork) -> Start | None:
    """Start of a configuration's run; None for a fresh policy, or if the run has its own checkpoint.

    Args:
      config: configuration of the run.
      network: network of the run.

    Raises:
      ConfigError: `init_from` holds no run, no matching run, or no intact checkpoint.
    """
    if not config.init_from or is_under_way(config):
        return None
    place = f"init_from={config.init_from}"
    path = run_config(config.init_from, place)
    _check_same(place, from_yaml(path), config)
    with closing(Checkpoints(path.parent / "checkpoints", 1, read_only=True)) as checkpoints:
        try:
            leaves, host = checkpoints.arrays(lambda size: _check_size(place, size), warn_on_stderr)
        except CheckpointError as error:
            raise ConfigError(f"{place} cannot be started from: {error}") from error
    _check_spaces(place, host.get("spaces"), network)
    return _fitting(place, _extract(place, leaves), config, network)


def is_under_way(config: Config) -> bool:
    """Whether the run that a configuration continues has a checkpoint."""
    folder = Path(config.resume, "checkpoints")
    return bool(config.resume) and folder.is_dir() and any(path.name.isdigit() for path in folder.iterdir())


def _check_same(place: str, there: Config, here: Config) -> None:
    for key in SAME:
        stored, current = (plain(attrgetter(key)(config)) for config in (there, here))
        if stored == current or not (stored or current):
            continue
        if isinstance(stored, dict) and isinstance(current, dict):
            name = next(name for name in (stored | current) if stored.get(name) != current.get(name))
            key, stored, current = f"{key}.{name}", stored.get(name), current.get(name)
        raise ConfigError(f"{place} has {key}={shown(stored)}, and this run {shown(current)}: they must be the same.")


def _check_spaces(place: str, spaces: Any, network: PolicyNetwork) -> None:
    """Raise ConfigError if a checkpoint's spaces differ from the network's; earlier versions stored none."""
    if not isinstance(spaces, dict):
        return
    for name in SPACES:
        stored, current = map(_unbounded, (spaces.get(name), space_to_data(getattr(network, name))))
        if stored != current:
            raise ConfigError(
                f"{place} has {name}={shown(stored)}, and this run {shown(current)}: only bounds may differ."
            )


def _unbounded(space: Any) -> Any:
    """The description of a space without its bounds, which may be thousands of numbers."""
    if not isinstance(space, dict):
        return space
    return {key: value for key, value in space.items() if key not in ("low", "high")}


def _check_size(place: str, size: int) -> None:
    check_fits([Part("the checkpoint to start from", 0, 2 * size, (place,))])


def _extract(place: str, leaves: list[np.ndarray]) -> Start:
    """Parameters and statistics among a checkpoint's leaves; located by the seeds' key, the last leaf of its kind."""
    keys = [i for i, leaf in enumerate(leaves) if leaf.dtype == np.uint32 and leaf.ndim == 2]
    end = keys[-1] - BEHIND_OBSERVATIONS if keys else 0
    if end < len(RunningStatistics._fields) + 1:
        raise ConfigError(f"{place} cannot be started from: its checkpoint is of another version.")
    return Start(leaves[0], RunningStatistics._make(leaves[end - len(RunningStatistics._fields) : end]))


def _fitting(place: str, start: Start, config: Config, network: PolicyNetwork) -> Start:
    """Start with one row per seed of this run; a single stored row is repeated. Raises ConfigError if shapes differ."""
    shape = network.observation_space.shape
    stored = start.statistics.mean.shape[1:]
    if stored != shape:
        raise ConfigError(f"{place} observes arrays of shape {stored}, and env.name={config.env.name} {shape}.")
    params = start.params.shape[1:]
    needed = jax.eval_shape(network.init, jax.random.key(0)).shape
    if params != needed:
        raise ConfigError(f"{place} has parameters of shape {params}, and env.name={config.env.name} needs {needed}.")
    seeds = len(start.params)
    if seeds not in (1, config.num_seeds):
        raise ConfigError(f"{place} has {seeds} seeds, and num_seeds={config.num_seeds}; accepted: {seeds}.")
    rows = np.resize(np.arange(seeds), config.num_seeds)
    return Start(start.params[rows], RunningStatistics(*(array[rows] for array in start.statistics)))
