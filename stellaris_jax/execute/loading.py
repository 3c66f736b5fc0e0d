"""Runnable configurations: composed, then checked by every part of the package that has conditions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stellaris_jax.config.options import complete
from stellaris_jax.config.tree import Config
from stellaris_jax.config.trust import Trust
from stellaris_jax.config.validation import check_values, require
from stellaris_jax.timeline.scaling.check import conditions


def load_config(
    overrides: Sequence[str] = (),
    config_dir: str | Path | None = None,
    alone: bool = False,
    trust: Trust = False,
) -> Config:
    """Compose and check a configuration; the check starts JAX.

    Args:
      overrides: command-line overrides, such as `["env=gymnax/acrobot", "seed=3"]`.
      config_dir: a directory laid out like `configs/`, with choices beyond those that ship.
      alone: this process trains only this run, so JAX is started for it (`engine.mesh.threads_of`).
      trust: plug-ins, modules and services that a run named by `resume` or `trace` may import or connect to. All
        (`True`), or those of these names; by default those that this user's own commands made or allowed.

    With `resume=RUN_DIR` the configuration is the stored one of that run, with the overrides that may change.

    Raises:
      ConfigError: the configuration cannot run; the message is one sentence.
    """
    # Imported late: a stored configuration is checked without Hydra.
    from stellaris_jax.config.compose import compose_config

    return checked(compose_config(overrides, config_dir, trust), alone)


def checked(config: Config, alone: bool = False) -> Config:
    """Configuration with the environment's full name and the settings that its spaces decide.

    Raises ConfigError if it cannot run.
    """
    config = complete(config)
    check_and_start_jax(config, alone)
    # Imported late: a suite is a heavy import, and every other mistake should be reported before it.
    from stellaris_jax.envs.registry import resolve, settled

    named = config.replace({"env.name": resolve(config.env.name)})
    return named.replace({"env": settled(named.env)})


def check_and_start_jax(config: Config, alone: bool = False) -> None:
    """Raise ConfigError for the first value or combination of values that cannot run here.

    The check starts JAX with as many devices as configured; if `alone`, tuned for this run only.
    """
    check(config)
    start_jax(config, alone)
    # Imported late, as in `start_jax`.
    from stellaris_jax.execute.footprint import check_run

    check_run(config)


def check(config: Config) -> None:
    """Raise ConfigError for the first value or combination of values that no machine can run. Starts nothing."""
    check_values(config)
    require(conditions(config))


def start_jax(config: Config, alone: bool = False) -> None:
    """Start JAX with as many devices as configured; if `alone`, tuned for this run only.

    Raises ConfigError if the machine has no such devices, or they cannot share the environment.
    """
    # Imported late: these start JAX, and every other mistake should be reported before that.
    from stellaris_jax.engine.mesh import check_spread, threads_of, use_devices
    from stellaris_jax.live.accelerators import take_memory_as_needed

    if config.executor == "live":
        take_memory_as_needed()
    use_devices(config.engine.devices, config.engine.distributed, threads_of(config) if alone else None)
    check_spread(config.env.name, config.engine.devices)
