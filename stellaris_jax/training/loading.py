"""Configurations that can run: composed, and checked by everybody who has something to say of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stellaris_jax.config.compose import compose_config
from stellaris_jax.config.options import complete
from stellaris_jax.config.tree import Config
from stellaris_jax.config.trust import Trust
from stellaris_jax.config.validation import check_values, require


def load_config(
    overrides: Sequence[str] = (),
    config_dir: str | Path | None = None,
    alone: bool = False,
    trust: Trust = False,
) -> Config:
    """Compose and check_and_start_jax a configuration.

    Args:
      overrides: what one would write on the command line, such as `["env=gymnax/acrobot", "seed=3"]`.
      config_dir: a directory laid out like `configs/`, with choices beyond those that ship.
      alone: this process trains this one run and no more, so that JAX is started for it (`engine.mesh.threads_of`).
      trust: what of a run named by `resume` or `trace` may be imported and connected to: everything (`True`), or the
        plug-ins, modules and services of these names; by default what this user's own commands made or allowed.

    With `resume=RUN_DIR` the configuration is the stored one of that run, with the overrides that may change.
    Raises ConfigError, whose message is one sentence, for anything that cannot run.
    """
    return checked(compose_config(overrides, config_dir, trust), alone)


def checked(config: Config, alone: bool = False) -> Config:
    """The configuration, if it can run, with the full name of its environment, and all that its spaces decide.

    Raises ConfigError.
    """
    config = complete(config)
    check_and_start_jax(config, alone)
    # Last and late, because a suite is a heavy import that every other mistake should not have to wait for.
    from stellaris_jax.envs.registry import resolve, settled

    named = config.replace({"env.name": resolve(config.env.name)})
    return named.replace({"env": settled(named.env)})


def check_and_start_jax(config: Config, alone: bool = False) -> None:
    """Raise ConfigError for the first value or combination of values that cannot run here.

    That takes JAX to be started, with as many devices as are asked for; for this run only where it is `alone`.
    """
    check_values(config)
    # Late, because they start JAX, which every other mistake should not have to wait for.
    from stellaris_jax.engine.mesh import check_spread, threads_of, use_devices
    from stellaris_jax.live.accelerators import take_memory_as_needed
    from stellaris_jax.timeline.scaling.check import conditions
    from stellaris_jax.training.footprint import check_run

    if config.executor == "live":
        take_memory_as_needed()
    use_devices(config.engine.devices, config.engine.distributed, threads_of(config) if alone else None)
    check_spread(config.env.name, config.engine.devices)
    check_run(config)
    require(conditions(config))
