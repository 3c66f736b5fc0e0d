"""Job: everything that a configuration decides before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stellaris_jax.agent.networks import PolicyNetwork, policy_network
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.spec import ProgramSpec, in_program
from stellaris_jax.envs.base import HostEnv, VecEnv
from stellaris_jax.envs.registry import from_config
from stellaris_jax.execute.agent_checks import check_agent
from stellaris_jax.execute.distributed import check_same
from stellaris_jax.execute.footprint import check_run, live_actors
from stellaris_jax.execute.loading import check, start_jax
from stellaris_jax.execute.plugin_checks import check_plugins
from stellaris_jax.execute.recording import Recording
from stellaris_jax.execute.token_checks import check_tokens
from stellaris_jax.execute.warm_start import warm_started
from stellaris_jax.runs.start import Start, start_of
from stellaris_jax.timeline.data_admission import queue_capacity
from stellaris_jax.timeline.scaling.limits import is_scaled


class Job(NamedTuple):
    """Parts of a run that its configuration decides.

    Attributes:
      config: configuration as it is executed; see `as_executed`.
      env: the environment.
      network: the policy network.
      seeds: one per agent.
      spec: settings that shape the program.
      recording: live run that is repeated; `None` unless `executor=replay`.
      start: policy of another run to start from (`init_from`); `None` for a fresh one.
    """

    config: Config
    env: VecEnv | HostEnv
    network: PolicyNetwork
    seeds: list[int]
    spec: ProgramSpec
    recording: Recording | None
    start: Start | None


def check_and_prepare(config: Config, alone: bool = False) -> Job:
    """Job of a configuration that nobody has checked. Starts JAX (`start_jax`). Raises ConfigError if it cannot run."""
    check(config)
    start_jax(config, alone)
    return prepare(config)


def prepare(
    config: Config, working: Callable[[str], None] = lambda text: None, abandon: Callable[[], None] = lambda: None
) -> Job:
    """Job of a checked configuration: reads the runs that it names, makes the environment and the network.

    Args:
      config: the configuration.
      working: told of work that may take minutes.
      abandon: called now and then during such work; may raise to end it.

    Raises:
      ConfigError: a named run cannot be read or does not fit, a plug-in returns what training cannot use, the machine
        has too little memory, or the processes of a distributed run have different configurations.
    """
    if config.engine.distributed:
        check_same(config)  # first, so that all processes refuse alike
    recording = Recording.of(config) if config.executor == "replay" else None
    config = as_executed(config, recording)
    env = from_config(config.env)
    check_plugins(config)
    check_tokens(config, env)
    network = policy_network(env.observation_space, env.action_space, config.network, config.system.actor_precision)
    check_run(config, env, network)
    spec = ProgramSpec.of(config, host_fragments=in_program(env) is None)
    check_agent(network, config, spec)
    if spec.host_fragments:
        _check_hosted(config, recording)
    seeds = list(range(config.seed, config.seed + config.num_seeds))
    start = start_of(config, network)
    if start is None:
        start = warm_started(config, env, network, working, abandon)
    elif config.warm_start.updates:
        working(f"init_from={config.init_from} takes the place of the warm start")
    return Job(config, env, network, seeds, spec, recording, start)


def _check_hosted(config: Config, recording: Recording | None) -> None:
    if config.actor_shards and recording is not None and recording.outline.opened is not None:
        raise ConfigError(
            f"trace={config.trace} cannot be replayed: in round {recording.outline.opened} environments of "
            f"{config.env.name} were lost and began new episodes. With barrier actors it could be."
        )
    if config.engine.distributed:
        raise ConfigError(
            f"engine.distributed=true is not possible with env={config.env.name}, which is stepped by one process."
        )
    if config.delays.by == "episodes":
        raise ConfigError(
            f"delays.by=episodes is not possible with env={config.env.name}, a host environment; delays.by=steps is."
        )
    if config.executor == "live" and is_scaled(config):
        raise ConfigError(
            f"scaling={config.scaling.name} is not possible with executor=live and env={config.env.name}, a host "
            "environment, whose actors are always as many; scaling=fixed is, with live.actors of them."
        )


def as_executed(config: Config, recording: Recording | None = None) -> Config:
    """Configuration as it is executed; the one that is stored with the run stays as it was given.

    A live run and its replay have as many actors as processes, one for each shard of independent actors, and one round
    per chunk. No rollout overlaps the learning of the round before, except as `system.actors` says. A replay keeps as
    many versions as its recording reaches back, and as many of the shards' fragments as it had.

    Args:
      config: configuration that can run.
      recording: live run that is repeated.
    """
    if config.executor == "simulated":
        return config
    values: dict[str, object] = {"engine.chunk_rounds": 1, "env.overlap": False}
    if recording is not None:
        values["system.versions"] = max(recording.outline.oldest + 2, config.system.versions)
    if config.actor_shards:
        values |= _shards(config, recording)
    elif not is_scaled(config):
        recorded = 0 if recording is None else recording.outline.actors
        values["platform.actors"] = min(recorded, config.env.num_envs) or live_actors(config)
    return config.replace(values)


def _shards(config: Config, recording: Recording | None) -> dict[str, object]:
    """Values of keys that independent actors of a live run, or of its replay, have."""
    if recording is None:
        shards = config.actor_shards
        return {"system.actor_shards": shards, "platform.actors": shards}
    shards = recording.outline.actors
    return {
        "system.actor_shards": shards,
        "platform.actors": shards,
        "system.data_queue": max(queue_capacity(config.system, shards), recording.outline.rows - shards),
    }
