"""Every adapter: a truncated episode is bootstrapped from its own final observation, a terminated one from nothing."""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from settings import hyper_of

from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.config.sections import AlgorithmConfig, EnvConfig, NetworkConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.prepare import prepare
from stellaris_jax.engine.rollout import Fragment, Trajectory, episode_totals, init_normalizers
from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import Box, HostEnv
from stellaris_jax.envs.registry import from_config
from stellaris_jax.sources.host_actors import Actors, Behaviour

T, N = 14, 3
ALGORITHM = AlgorithmConfig(rollout_length=T, gamma=0.9, gae_lambda=0.8)
CASES: dict[str, EnvConfig] = {
    "diagnostic": EnvConfig("diagnostic/truncation"),
    "gymnax": EnvConfig("gymnax/CartPole-v1", kwargs={"max_steps_in_episode": 5}),
    "minatar": EnvConfig("gymnax/Breakout-MinAtar", kwargs={"max_steps_in_episode": 5}),
    "stacked": EnvConfig("gymnax/CartPole-v1", kwargs={"max_steps_in_episode": 5}, frame_stack=3, sticky_actions=0.3),
    "brax": EnvConfig("brax/inverted_pendulum", kwargs={"episode_length": 5, "backend": "spring"}),
    "mjx": EnvConfig("mjx/hopper", kwargs={"episode_length": 5, "start_pool": 4}),
    "envpool": EnvConfig("envpool/CartPole-v1", kwargs={"max_episode_steps": 5}, overlap=False),
    "envpool-mujoco": EnvConfig("envpool/Hopper-v4", kwargs={"max_episode_steps": 5}, overlap=False),
}


def roll(env: AutoResetEnv, network: ActorCritic, params: jax.Array) -> tuple[Trajectory, jax.Array]:
    """A fragment, and what every step led to `[T, N, ...]`: the same step taken without the adapter's reset."""
    tree = network.unravel(params)
    bounds = (env.action_space.low, env.action_space.high) if isinstance(env.action_space, Box) else (0, 10**6)

    def step(carry: Any, keys: jax.Array) -> Any:
        state, obs = carry
        distribution = network.policy(tree, obs)
        action = network.distribution.perturb(distribution, network.distribution.noise(keys[0], (N,)))
        led_to = jax.vmap(env.step_one)(keys, state, jnp.clip(action, *map(jnp.array, bounds)))[1]
        state, outcome = env.step(keys, state, action, starts)
        return (state, outcome.obs), (obs, action, distribution, outcome, led_to)

    keys = jax.random.split(jax.random.key(1), (T + 1, N))
    starts = env.starts(keys[0, 1])
    (_, last), (obs, action, distribution, steps, led_to) = jax.lax.scan(step, env.reset(keys[0]), keys[1:])
    ends = (steps.terminated, steps.truncated)
    return Trajectory(obs, action, distribution, steps.reward, *ends, steps.final_obs, None, last), led_to


def roll_host(env: HostEnv, network: ActorCritic, params: jax.Array, config: EnvConfig) -> tuple[Trajectory, Any]:
    """The same through the actors: there the row after a step holds what it led to."""
    actors = Actors(env, network, Config(env=replace(config, num_envs=N), algorithm=ALGORITHM), [0], Event())
    normalizers = jax.tree.map(lambda x: np.asarray(x)[None], init_normalizers(env.observation_space))
    actors.open(0)
    actors.request(Behaviour([0], np.asarray(params)[None], normalizers))
    trajectory = jax.tree.map(lambda x: x[0], actors.receive().fragment.trajectory)
    actors.close()
    return trajectory, np.concatenate([trajectory.obs[1:], trajectory.last_obs[None]])


@pytest.mark.filterwarnings("ignore:Brax System")
@pytest.mark.parametrize(
    "case",
    # Physics compiles for long; its last observations are in test_mjx.py and test_envs.py, the reset is the others'.
    [pytest.param(case, marks=pytest.mark.slow) if case in ("mjx", "brax") else case for case in CASES],
)
def test_bootstrap(case: str) -> None:
    env = from_config(CASES[case])
    network = ActorCritic(env.observation_space, env.action_space, NetworkConfig(hidden=[8]))
    params = network.init(jax.random.key(2))
    if isinstance(env, HostEnv):
        trajectory, led_to = roll_host(env, network, params, CASES[case])
    else:
        trajectory, led_to = jax.jit(lambda: roll(env, network, params))()
    trajectory, led_to = jax.tree.map(np.asarray, (trajectory, led_to))
    done = trajectory.terminated | trajectory.truncated
    valid = np.ones((T, N), bool) if trajectory.valid is None else trajectory.valid
    cut = trajectory.truncated & ~trajectory.terminated
    assert cut.any()

    @jax.jit
    def targets(trajectory: Trajectory) -> jax.Array:
        ends = trajectory.terminated | trajectory.truncated
        totals, _ = episode_totals(trajectory.reward, jnp.float32(valid), ends, jnp.zeros((N, 3)), ALGORITHM.gamma)
        seen = init_normalizers(env.observation_space)
        trajectory = trajectory._replace(totals=totals)
        return prepare(network, hyper_of(ALGORITHM), EnvConfig(), Fragment(trajectory, params, seen), seen)[0].target

    @jax.jit
    def values(obs: jax.Array) -> jax.Array:
        return network.value(network.unravel(params), obs)

    def value(obs: np.ndarray) -> np.ndarray:
        flat = obs.reshape(-1, *env.observation_space.shape)
        return np.asarray(values(flat)).reshape(obs.shape[:2])

    now, after = value(trajectory.obs), value(led_to)
    following = np.concatenate([now[1:], value(trajectory.last_obs[None])])
    if trajectory.valid is None and case != "diagnostic":  # which observes nothing
        assert np.abs(after - following)[cut].max() > 1e-3  # it matters which of the two is taken
    target = np.zeros((T, N))
    for n in range(N):
        running = 0.0
        for t in reversed(range(T)):
            if valid[t, n]:
                follows = 0.0 if trajectory.terminated[t, n] else after[t, n]
                chain = 0.0 if done[t, n] else running
                running = trajectory.reward[t, n] + ALGORITHM.gamma * follows - now[t, n]
                running += ALGORITHM.gamma * ALGORITHM.gae_lambda * chain
                target[t, n] = running + now[t, n]
    found = np.asarray(targets(trajectory)).reshape(T, N)
    np.testing.assert_allclose(found[valid], target[valid], rtol=1e-4, atol=1e-4)
