"""Sweeps, new or resumed, with their reports: `stellaris-jax train -m`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stellaris_jax.base.commands import as_override
from stellaris_jax.base.errors import RunError
from stellaris_jax.base.statistics import FEWEST
from stellaris_jax.cli import program
from stellaris_jax.config.compose import Sweep, compose_configs, load_sweep
from stellaris_jax.config.schema import flatten, plain
from stellaris_jax.config.tree import Config
from stellaris_jax.config.trust import Trust
from stellaris_jax.execute.loading import checked

if TYPE_CHECKING:
    from stellaris_jax.many.cluster import Cluster
    from stellaris_jax.many.points import Outcome


def sweep(
    task: Callable[[Config], Any] | None, overrides: Sequence[str], config_dir: str | None, trust: Trust = False
) -> None:
    """Check every point of a sweep, then train the points, and report.

    Args:
      task: trains one point; None trains points concurrently, unless `sweep.together=false` is among the overrides.
      overrides: the command line's.
      config_dir: a directory with further choices.
      trust: what a resumed sweep may import and connect to.

    Raises:
      ConfigError: a setting is invalid; before training, if that can be known by then.
      RunError: points have no result; raised once the others are done.
    """
    plan = load_sweep(overrides, config_dir)
    address = plan.settings.ray if task is None else ""
    if address:
        program.require("ray", of="sweep.ray", extra="ray")
    configs = _resumed(plan, config_dir, trust) if plan.resumed else compose_configs(plan.points, config_dir)
    with _cluster(address) as cluster:
        # All points run in this process, and JAX can start only once.
        from stellaris_jax.engine.mesh import emulate

        emulate(max(config.engine.devices for config in configs))
        from stellaris_jax.execute.executors import check_installed

        for config in configs if task is None else ():
            check_installed(config)
        configs = [checked(config) for config in configs]
        from stellaris_jax.many.sweep import lay_out, train_points
        from stellaris_jax.runs.run_dir import reserved

        directory = plan.directory
        if not plan.resumed:
            # Another sweep may have started in the same second.
            named = any(line.lstrip("+").startswith("hydra.sweep.dir=") for line in overrides)
            advice = "hydra.sweep.dir=PATH names another place"
            directory = plan.directory if named else reserved(plan.directory, advice)
            _warn_of_few(configs)
            configs = lay_out(directory, configs, plan.overrides)
        try:
            with program.signalled():
                live = any(config.executor == "live" for config in configs)  # their processes need all cores
                if task is None and plan.settings.together and not live:
                    outcome = train_points(directory, configs, cluster)
                else:
                    outcome = _one_by_one(configs, task or _train)
        finally:
            damaged, trouble = _reported(directory)
    if outcome.error is not None:
        raise outcome.error
    if outcome.failed:
        names = ", ".join(map(str, sorted(outcome.failed)))
        raise RunError(f"{len(outcome.failed)} of {len(configs)} points have no result: {names}.")
    if trouble is not None:
        raise trouble
    if damaged:
        raise RunError(f"{len(damaged)} of {len(configs)} points are damaged: {', '.join(damaged)}.")


def _warn_of_few(configs: Sequence[Config]) -> None:
    """Say before training if settings are compared on fewer seeds than a verdict needs."""
    from stellaris_jax.report.runs import setting_of

    seeds: dict[str, set[int]] = {}
    for config in configs:
        seeds.setdefault(setting_of(flatten(plain(config))), set()).update(
            range(config.seed, config.seed + config.num_seeds)
        )
    if len(seeds) > 1 and min(map(len, seeds.values())) < FEWEST:
        print(
            f"Some settings have fewer than {FEWEST} seeds: reports show their returns, and decide nothing "
            f"(num_seeds={FEWEST}, or further seeds later, let them).",
            file=sys.stderr,
        )


def _reported(directory: Path) -> tuple[list[str], RunError | None]:
    """Report on a sweep. Returns the names of damaged points, and the error if the report could not be written.

    Nothing is written if the directory has been moved.
    """
    from stellaris_jax.report.sweep import report
    from stellaris_jax.runs.run_dir import writing

    try:
        with writing(directory):
            return (report(directory) if (directory / "sweep.yaml").is_file() else []), None
    except RunError as error:
        return [], error


def _cluster(address: str) -> AbstractContextManager[Cluster | None]:
    """Context of the Ray cluster at an address, if any. It is joined before JAX starts, because Ray forks processes."""
    if not address:
        return nullcontext()
    from stellaris_jax.many.cluster import connected

    return connected(address)


def _resumed(plan: Sweep, config_dir: str | None, trust: Trust) -> list[Config]:
    """Stored configurations of a sweep's points, with the overrides that may change."""
    from stellaris_jax.many.sweep import laid_out

    places = laid_out(plan.directory)
    return compose_configs([[as_override("resume", place), *plan.overrides] for place in places], config_dir, trust)


def _one_by_one(configs: Sequence[Config], task: Callable[[Config], Any]) -> Outcome:
    """Train points one after the other, each with its own display."""
    from stellaris_jax.execute.session import Interrupted
    from stellaris_jax.many.points import Outcome
    from stellaris_jax.many.sweep import is_done

    outcome = Outcome()
    for number, config in enumerate(configs):
        if is_done(config):
            continue
        print(f"point {number + 1} of {len(configs)}: {config.run.dir}", flush=True)
        try:
            task(config)
        except Interrupted:
            raise
        except (Exception, SystemExit) as error:
            outcome.add(number, error)
    return outcome


def _train(config: Config) -> None:
    from stellaris_jax.execute.run import train

    train(config)
