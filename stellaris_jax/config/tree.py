"""Typed configuration tree: the schema of `configs/`.

Configurations are immutable: `Config.replace` makes another.
"""

# ruff: noqa: RUF009  (`knob` and `group` make dataclass fields)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.near_miss import did_you_mean
from stellaris_jax.config.schema import Knob, Section, group, knob, walk
from stellaris_jax.config.sections import (
    AlgorithmConfig,
    CheckpointConfig,
    DelaysConfig,
    EngineConfig,
    EnvConfig,
    EvaluationConfig,
    LiveConfig,
    NetworkConfig,
    PlatformConfig,
    PricesConfig,
    RunConfig,
    ScalingConfig,
    WarmStartConfig,
)
from stellaris_jax.config.system import SystemConfig

MOST_SHARDS = 8
"""Largest number of shards of independent actors that `system.actor_shards=0` chooses."""


@dataclass(frozen=True)
class Config(Section):
    env: EnvConfig = group(EnvConfig, "what is learned")
    network: NetworkConfig = group(NetworkConfig, "actor-critic network")
    algorithm: AlgorithmConfig = group(AlgorithmConfig, "how it is learned")
    system: SystemConfig = group(SystemConfig, "the architecture: learners, aggregation, truncation")
    scaling: ScalingConfig = group(ScalingConfig, "how many actors every round has")
    platform: PlatformConfig = group(PlatformConfig, "the emulated serverless platform")
    delays: DelaysConfig = group(DelaysConfig, "how long everything takes, in simulated seconds")
    prices: PricesConfig = group(PricesConfig, "what everything costs")
    engine: EngineConfig = group(EngineConfig, "how this machine executes the plan")
    live: LiveConfig = group(LiveConfig, "how executor=live runs")
    evaluation: EvaluationConfig = group(EvaluationConfig, "measuring the policy")
    checkpoint: CheckpointConfig = group(CheckpointConfig, "saving the run")
    run: RunConfig = group(RunConfig, "where the run lives")
    warm_start: WarmStartConfig = group(WarmStartConfig, "imitating demonstrations before the first round")
    seed: int = knob(0, "first random seed; seeds seed .. seed + num_seeds - 1 are trained", within="[0, inf)")
    num_seeds: int = knob(1, "independent agents trained side by side, each with its own delays", within="[1, 1e5]")
    total_steps: int = knob(500_000, "env steps per seed at full width, rounded up to whole rounds", within="[1, inf)")
    executor: str = knob(
        "simulated",
        "what becomes of delays: they are simulated first and executed afterwards; processes take them for real, on "
        "Ray (live); or they are those of a live run that is repeated (replay)",
        choices=("simulated", "live", "replay"),
    )
    trace: str = knob("", "run directory of the live run that executor=replay repeats, or its trace.jsonl.gz")
    plugins: tuple[str, ...] = knob(
        (), "modules and .py files that register rules, environments and more, imported first"
    )
    init_from: str = knob(
        "", "run directory whose newest policy, and statistics of observations, the run starts from; read once, as data"
    )
    resume: str = knob(
        "",
        "run directory to continue; only total_steps, engine, evaluation, checkpoint, live, run.progress, run.loggers "
        "and run.logger_options may change",
    )

    def replace(self, values: Mapping[str, Any]) -> Config:
        """Copy of the configuration with other values, by their dotted keys.

        >>> config = Config().replace({"algorithm.gamma": 0.9, "env.kwargs.backend": "spring"})
        >>> config.algorithm.gamma, config.env.kwargs, config.algorithm.epochs
        (0.9, {'backend': 'spring'}, 4)

        Raises ConfigError for a key that the schema does not have, old keys included; values are checked when they are
        used.
        """
        tree: Any = self
        for key, value in values.items():
            tree = _replaced(tree, key.split("."), value, key)
        return tree

    @property
    def rounds(self) -> int:
        """Number of rounds of the run."""
        return -(-self.total_steps // (self.env.num_envs * self.algorithm.rollout_length))

    @property
    def actor_shards(self) -> int:
        """Number A of shards of independent actors; 0 with other actors."""
        if self.system.actors != "independent":
            return 0
        # Devices have no say, because a run may continue on another number of them.
        envs, group = self.env.num_envs, self.group if self.system.dynamic_sampling else 1
        most = min(envs // group if group > 1 else MOST_SHARDS, self.platform.actors)
        fitting = [shards for shards in range(1, most + 1) if envs % (shards * group) == 0]
        return self.system.actor_shards or max(fitting, default=1)

    @property
    def group(self) -> int:
        """Environments of a group, of which group advantages are relative."""
        size = self.algorithm.advantage_options.get("size", 8)
        return size if isinstance(size, int) and size > 0 else 1

    @property
    def segments(self) -> int:
        """Number S of segments of a fragment, each of one version; 1 unless independent actors fetch within it."""
        independent = self.system.actors == "independent" and self.system.sync_steps > 0
        return max(1, self.algorithm.rollout_length // self.system.sync_steps) if independent else 1

    @property
    def chunk_rounds(self) -> int:
        """Rounds of a chunk: `engine.chunk_rounds`, or all rounds of a shorter run."""
        return min(self.engine.chunk_rounds, self.rounds)


def _replaced(node: Any, path: list[str], value: Any, key: str) -> Any:
    """Copy of a section or mapping, `node`, with another value at `path`."""
    name, *rest = path
    if isinstance(node, dict):
        return {**node, name: _replaced(node.get(name, {}), rest, value, key) if rest else value}
    if not is_dataclass(node) or name not in {entry.name for entry in fields(node)}:
        raise _no_key(key)
    changed = _replaced(getattr(node, name), rest, value, key) if rest else value
    return replace(node, **{name: changed})  # type: ignore[type-var]


def _no_key(key: str) -> ConfigError:
    """Error for a key that the schema does not have; for an old key of options, with the new ones."""
    section, _, rest = key.partition(".")
    own = [name for name in knobs() if name.startswith(f"{section}.") and name.endswith("_options")]
    if own and rest.partition(".")[0] == "options":
        *others, last = own
        keys = f"{', '.join(others)} or {last}" if others else last
        return ConfigError(f"{key} stands below the key of its owner now: {keys}.")
    return ConfigError(f"{key} is not a config key{did_you_mean(key, knobs())}")


@cache
def knobs() -> dict[str, Knob]:
    """Every config field by its dotted key, in the order of the schema."""
    return {key: Knob(key, kind, **about) for key, kind, about in walk(Config) if not is_dataclass(kind)}


@cache
def sections() -> dict[str, str]:
    """Help text of every nested group of fields by its dotted key, in the order of the schema."""
    return {key: about["help"] for key, kind, about in walk(Config) if is_dataclass(kind)}
