"""Forecasts of one configuration or of every combination of settings, without training: `stellaris-jax plan`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register
from stellaris_jax.config.compose import compose_configs, load_sweep
from stellaris_jax.config.options import complete
from stellaris_jax.config.schema import flatten, plain
from stellaris_jax.config.tree import Config
from stellaris_jax.envs.base import HostEnv
from stellaris_jax.envs.registry import from_config, resolve, settled
from stellaris_jax.execute.loading import check
from stellaris_jax.execute.token_checks import check_tokens
from stellaris_jax.report.forecast import COLUMNS, Row
from stellaris_jax.report.runs import differing_keys, short
from stellaris_jax.telemetry.format import plural, value_text
from stellaris_jax.timeline.forecast import Forecast, Window, over_seeds
from stellaris_jax.timeline.scaling.limits import is_constant

SEEDS = 3
"""Seeds of each combination, unless the command line sets some."""
HOST_SUITES = ("envpool", "gymnasium")
"""Suites whose environments step on the host."""
TOKENS = "tokens/"
"""Suite whose spaces are looked at, since its fragments are completions."""
PLACES = ("run.dir", "hydra.sweep.dir")
"""Keys of directories that `train` makes; a forecast makes none."""


class Combination(NamedTuple):
    """One combination of settings, and the seeds of its forecast.

    Attributes:
      config: checked configuration.
      seeds: seeds of the durations.
      settings: values of the keys in which it differs from other combinations, or the name of the system.
    """

    config: Config
    seeds: list[int]
    settings: dict[str, str]


def combinations(overrides: Sequence[str], config_dir: str | Path | None = None) -> list[Combination]:
    """Checked combinations of settings; those that differ only in the seed are one.

    The checks are those of training, apart from two: only spaces of token tasks are looked at, and this machine needs
    neither the memory nor the devices.

    Args:
      overrides: overrides as on the command line of a sweep, such as `["system=async,allreduce", "delays=pareto"]`.
      config_dir: a directory laid out like `configs/`, with further choices.

    Raises:
      ConfigError: a setting is invalid, or the timeline of the configuration depends on more than settings.
    """
    given = [line for line in overrides if _key(line) not in PLACES]
    if not {"seed", "num_seeds", "sweep"} & set(map(_key, given)):
        given.append(f"num_seeds={SEEDS}")
    sweep = load_sweep(given, config_dir)
    if sweep.resumed:
        raise ConfigError(
            f"resume={sweep.directory} is for training; plan accepts settings of a run, such as system=async."
        )
    seeds: dict[Config, list[int]] = {}
    for config in map(plannable, compose_configs(sweep.points, config_dir)):
        same = seeds.setdefault(config.replace({"seed": 0, "num_seeds": 1}), [])
        same += [seed for seed in range(config.seed, config.seed + config.num_seeds) if seed not in same]
    flat = [flatten(plain(config)) for config in seeds]
    keys = differing_keys(flat) or ["system.name"]
    headings = list(map(short, keys))
    names = dict(zip(headings if len({*headings, *COLUMNS}) == len(keys) + len(COLUMNS) else keys, keys, strict=True))
    return [
        Combination(config, numbers, {name: value_text(own.get(key, "")) for name, key in names.items()})
        for (config, numbers), own in zip(seeds.items(), flat, strict=True)
    ]


def forecasts(combinations: Sequence[Combination], window: Window, tell: Callable[[str], None]) -> list[Row]:
    """Forecasts of combinations over their seeds.

    Args:
      combinations: the combinations.
      window: rounds that are simulated, at most those of a run.
      tell: is told after each round how many of all rounds are simulated.

    Raises:
      RunError: a rule or a delay model fails.
    """
    windows = [window.within(combination.config.rounds) for combination in combinations]
    total = sum(own.rounds * len(one.seeds) for one, own in zip(combinations, windows, strict=True))
    done = count(1)

    def each_round() -> None:
        tell(f"{next(done):,} of {plural(total, 'round')}")

    return [forecast(one, own, each_round) for one, own in zip(combinations, windows, strict=True)]


def forecast(combination: Combination, window: Window, each_round: Callable[[], None] = lambda: None) -> Row:
    """Forecast of one combination, as `forecasts` makes them; `each_round` is called after each round."""
    config = combination.config
    own, prefetched = window.within(config.rounds), _prefetches(config)
    means = over_seeds(Forecast.of(config, seed, own, prefetched, each_round) for seed in combination.seeds)
    return Row(combination.settings, len(combination.seeds), own, means)


def asked(combinations: Sequence[Combination]) -> str:
    """Task, length, durations and platform, as far as all combinations have them in common."""
    configs = [one.config for one in combinations]
    parts = (
        {config.env.name for config in configs},
        {f"{config.total_steps:,} env steps" for config in configs},
        {f"delays={config.delays.name}" for config in configs},
        {f"platform={config.platform.name}" for config in configs},
    )
    return ", ".join(value for (value, *others) in map(sorted, parts) if not others)


def left_out(combinations: Sequence[Combination], rows: Sequence[Row]) -> Iterator[str]:
    """Sentences on what the forecasts do not count and a user of these settings would expect."""
    if any(one.config.system.truncation != "none" for one in combinations):
        yield (
            "Not counted: a learner's forward passes of other learners' policies, which system.truncation needs. On "
            "CPUs a gradient of eight learners takes about 1.5 times as long with them; "
            "delays.learner.seconds=X counts them."
        )
    if any(not one.config.platform.prewarm and row.window.warmup for one, row in zip(combinations, rows, strict=True)):
        yield "First starts (platform.prewarm=false) are in the rounds that are left out; --warmup 0 counts them."


def _key(line: str) -> str:
    """Key of an override."""
    return line.lstrip("+").partition("=")[0]


def plannable(config: Config) -> Config:
    """Checked configuration with the environment's full name. Raises ConfigError if it cannot be forecast."""
    if config.executor in ("live", "replay"):
        raise ConfigError(
            f"executor={config.executor} takes real time, which no plan foretells; plan accepts executor=simulated."
        )
    config = complete(config)
    check(config)
    if not is_constant(config):
        constant = ", ".join(name for name, rule in register.scaling.items() if rule.constant)
        raise ConfigError(
            f"scaling.rule={config.scaling.rule} changes the number of actors as training goes on, which no plan "
            f"foretells; plan accepts scaling.rule of {constant}."
        )
    if config.delays.by == "episodes":
        raise ConfigError(
            "delays.by=episodes makes durations follow episodes that only training plays, which no plan foretells; "
            "plan accepts delays.by=steps."
        )
    if resolve(config.env.name).startswith(TOKENS):
        check_tokens(config, from_config(config.env))
    return config.replace({"env.name": resolve(config.env.name)})


def _prefetches(config: Config) -> bool:
    """Whether actors of host environments roll out the next fragment before the policy has learned from this one."""
    if not config.env.overlap or config.system.actors == "independent":
        return False
    if config.env.name in register.environment:
        return isinstance(from_config(settled(config.env)), HostEnv)
    return config.env.name.partition("/")[0] in HOST_SUITES
