"""Environment speed: what an adapter costs over its suite alone, with a policy, and in training.

Four figures per environment, in env steps per second, taken in turn within one process:

- `suite`: the suite's own vectorised step and automatic reset, random actions, none of this package;
- `adapter`: the same random actions through `VecEnv.step` or a `HostPool`;
- `policy`: actors rolling fragments;
- `training`: all of it, one central learner; for host environments with overlap and without.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.config.tree import Config
from stellaris_jax.envs.base import Box, Discrete, HostEnv, VecEnv
from stellaris_jax.envs.registry import from_config
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.sources.compiled import repeated
from stellaris_jax.sources.source import Run

Figures = dict[str, Any]

ENVS: dict[str, list[str]] = {
    "gymnax/CartPole-v1": ["env=gymnax/cartpole", "env.num_envs=512", "algorithm.rollout_length=64"],
    "gymnax/SpaceInvaders-MinAtar": ["env=gymnax/spaceinvaders_minatar", "env.num_envs=64"],
    "brax/hopper": [
        "env=brax/hopper",
        "env.num_envs=256",
        "algorithm.rollout_length=32",
        "algorithm.epochs=4",
        "algorithm.minibatches=8",
    ],
    "envpool/Hopper-v4": ["env=envpool/hopper", "env.num_envs=64", "algorithm.epochs=4", "algorithm.minibatches=8"],
    "envpool/SpaceInvaders-v5": ["env=envpool/spaceinvaders", "env.num_envs=8", "algorithm.rollout_length=128"],
}


def measure(name: str, repeats: int) -> Figures:
    """Median env steps per second of the module's figures, and compile seconds where something is compiled."""
    overrides = [*ENVS[name], "system=central", "evaluation.points=0", "total_steps=1e12"]
    config = load_config(overrides)
    env = from_config(config.env)
    steps = config.env.num_envs * config.algorithm.rollout_length
    runs: dict[str, Run] = {}
    compile_seconds: dict[str, float] = {}
    if isinstance(env, HostEnv):
        runs |= {
            "suite": _host_suite(env, config),
            "adapter": host_adapter(env, config),
            "policy": policy(env, config)[0],
        }
        trainers = {"training": "true", "training, no overlap": "false"}
    else:
        for kind, build in (("suite", _suite), ("adapter", _adapter), ("policy", policy)):
            runs[kind], compile_seconds[kind] = build(env, config)
        trainers = {"training": "true"}
    for kind, overlap in trainers.items():
        trainer = Trainer(load_config([*overrides, f"env.overlap={overlap}"]))
        compile_seconds[kind] = trainer.compile()
        runs[kind] = _rounds(trainer)
    times: dict[str, list[float]] = {kind: [] for kind in runs}
    for run in runs.values():
        run()  # what happens once
    for _ in range(repeats):
        for kind, run in runs.items():
            begin = time.perf_counter()
            run()
            times[kind].append(time.perf_counter() - begin)
    per_run = {kind: steps * (config.engine.chunk_rounds if "training" in kind else 1) for kind in runs}
    return {
        "env": name,
        "num_envs": config.env.num_envs,
        "steps_per_second": {kind: per_run[kind] / statistics.median(t) for kind, t in times.items()},
        "adapter_to_suite": statistics.median(s / a for s, a in zip(times["suite"], times["adapter"], strict=True)),
        "compile_seconds": compile_seconds,
    }


def policy(env: VecEnv | HostEnv, config: Config) -> tuple[Run, float]:
    """Actors rolling fragments, and the seconds it took to compile them."""
    trainer = Trainer(config)
    return trainer.source.timed_rollout(trainer.members)


def _rounds(trainer: Trainer) -> Run:
    rounds = trainer.config.engine.chunk_rounds

    def run() -> None:
        trainer.run(rounds)

    return run


# JAX environments -----------------------------------------------------------------------------------------------------


def random_action(env: VecEnv, key: jax.Array, num: int) -> jax.Array:
    """Actions of so many environments, all equally likely."""
    space = env.action_space
    if isinstance(space, Discrete):
        return jax.random.randint(key, (num,), 0, space.n)
    assert isinstance(space, Box)
    return jax.random.uniform(key, (num, *space.shape), minval=jnp.array(space.low), maxval=jnp.array(space.high))


def _scanned(
    step: Callable[..., Any], config: Config, env: VecEnv, prepare: Callable[[jax.Array], Any]
) -> Callable[..., Any]:
    """A fragment of random actions: `step(keys, state, action, prepare(key)) -> (state, reward)`."""
    num, length = config.env.num_envs, config.algorithm.rollout_length

    def fragment(state: Any, key: jax.Array) -> Any:
        prepared = prepare(key)

        def one(state: Any, key: jax.Array) -> Any:
            keys = jax.random.split(key, num + 1)
            return step(keys[1:], state, random_action(env, keys[0], num), prepared)

        state, rewards = jax.lax.scan(one, state, jax.random.split(key, length))
        return state, rewards.sum()

    return fragment


def _suite(env: Any, config: Config) -> tuple[Run, float]:
    """gymnax's own `step`, which resets by itself; brax's own wrappers for episodes, batches and resets."""
    keys = jax.random.split(jax.random.key(0), config.env.num_envs)
    if env.name.startswith("brax/"):
        from brax.envs.wrappers import training

        own = training.wrap(env._env, episode_length=env.max_episode_steps, action_repeat=1)
        state = jax.jit(own.reset)(jax.vmap(jax.random.key_data)(keys))
        state = jax.tree.map(lambda x: x.astype(x.dtype), state)

        def step(keys: jax.Array, state: Any, action: jax.Array, _: None) -> Any:
            state = own.step(state, action)
            return state, state.reward
    else:
        state = jax.vmap(env._env.reset, in_axes=(0, None))(keys, env._params)[1]

        def step(keys: jax.Array, state: Any, action: jax.Array, _: None) -> Any:
            stepped = jax.vmap(env._env.step, in_axes=(0, 0, 0, None))(keys, state, action, env._params)
            return stepped[1], stepped[2]

    return repeated(_scanned(step, config, env, lambda key: None), state)


def _adapter(env: VecEnv, config: Config) -> tuple[Run, float]:
    state, _ = env.reset(jax.random.split(jax.random.key(0), config.env.num_envs))

    def step(keys: jax.Array, state: Any, action: jax.Array, starts: Any) -> Any:
        state, outcome = env.step(keys, state, action, starts)
        return state, outcome.reward

    return repeated(_scanned(step, config, env, env.starts), state)


# Host environments ----------------------------------------------------------------------------------------------------


def _host_suite(env: Any, config: Config) -> Run:
    """envpool's own `step`."""
    import envpool

    num, length = config.env.num_envs, config.algorithm.rollout_length
    batch = envpool.make(env.name.split("/")[1], env_type="gymnasium", num_envs=num, seed=0, **env.options)
    batch.reset()
    actions = env.action_space.sample(np.random.default_rng(0), num)

    def run() -> None:
        for _ in range(length):
            batch.step(actions)

    return run


def host_adapter(env: HostEnv, config: Config) -> Run:
    """A fragment of random actions."""
    pool = env.open(config.env.num_envs, seed=0)
    pool.recv()
    actions = env.action_space.sample(np.random.default_rng(0), config.env.num_envs)

    def run() -> None:
        for _ in range(config.algorithm.rollout_length):
            pool.send(actions)
            pool.recv()

    return run
