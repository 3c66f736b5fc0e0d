"""Checks of runs on token tasks, whose fragments are completions and whose environments form groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register
from stellaris_jax.config.options import estimator_of
from stellaris_jax.config.tree import Config
from stellaris_jax.envs.token_space import Tokens
from stellaris_jax.timeline.scaling.limits import is_masked


def check_tokens(config: Config, env: Any) -> None:
    """Check a run whose environment observes tokens. Raises ConfigError."""
    if isinstance(env.observation_space, Tokens):
        for holds, message in _conditions(config, env.observation_space, getattr(env, "group", 1)):
            if not holds:
                raise ConfigError(message)


def _conditions(config: Config, space: Tokens, group: int) -> Iterator[tuple[bool, str]]:
    name, policy = config.env.name, config.network.policy
    able = [other for other, kind in register.policy.items() if kind.episodic]
    yield (
        register.policy[policy].episodic,
        f"network.policy={policy} does not complete prompts, which env.name={name} needs; accepted: {', '.join(able)}.",
    )
    steps = config.algorithm.rollout_length
    yield (
        steps == space.longest,
        f"algorithm.rollout_length={steps} must be the tokens of the longest completion of env.name={name}, which are "
        f"{space.longest}.",
    )
    together = config.env.num_envs // max(config.actor_shards, 1) // config.engine.devices
    yield (
        together % group == 0,
        f"env.kwargs.group={group} must divide the environments of each actor shard on each device, which are "
        f"{together} (env.num_envs={config.env.num_envs}): groups stay whole.",
    )
    size = config.algorithm.advantage_options.get("size", 8)
    yield (
        estimator_of(config) != "group" or size == group,
        f"algorithm.advantage_options.size={size} must be env.kwargs.group={group}, the environments that share a "
        "prompt.",
    )
    yield (
        group == 1 or not is_masked(config),
        f"scaling={config.scaling.name} varies the environments of a round, and so cuts groups of "
        f"env.kwargs.group={group}; accepted: scaling=fixed, or a group of 1.",
    )
    yield (
        not (config.env.normalize_observation or config.env.frame_stack),
        f"env.normalize_observation and env.frame_stack change tokens of env.name={name}; accepted: false and 0.",
    )
