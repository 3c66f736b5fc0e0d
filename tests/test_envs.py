"""Environments: every adapter against its own library, the diagnostics against their known answers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris_jax.envs import Box, Discrete, TimeStep, VecEnv, check_env, make

N, T, POOL = 4, 64, 8
SPRING = {"backend": "spring"}
# Limits short enough that every case sees several ends; where both kinds of end can occur, both do.
KWARGS: dict[str, dict[str, Any]] = {
    "gymnax/CartPole-v1": {"max_steps_in_episode": 20},
    "gymnax/Pendulum-v1": {"max_steps_in_episode": 7},
    "gymnax/MountainCarContinuous-v0": {"max_steps_in_episode": 9},
    "gymnax/Breakout-MinAtar": {"max_steps_in_episode": 12},
    "gymnax/FourRooms-misc": {"max_steps_in_episode": 15},  # its step is random, its observations are integers
    "brax/fast": {"episode_length": 7},
    "brax/inverted_pendulum": SPRING | {"episode_length": 9},
    "brax/reacher": SPRING | {"episode_length": 5},
    "diagnostic/observation_action_reward": {},
    "diagnostic/delayed_reward": {},
    "diagnostic/truncation": {},
    "diagnostic/terminating": {},
}
BRAX = pytest.mark.skipif(importlib.util.find_spec("brax") is None, reason="brax is not installed")


def cases(*suites: str) -> list[Any]:
    marks = {"brax/fast": [BRAX], "brax/inverted_pendulum": [BRAX], "brax/reacher": [BRAX, pytest.mark.slow]}
    return [pytest.param(name, marks=marks.get(name, [])) for name in KWARGS if name.startswith(suites)]


KEYS = jax.random.split(jax.random.key(0), N)
RESET_KEYS = jax.random.split(jax.random.key(4), POOL)


class Rollout(NamedTuple):
    env: VecEnv
    starts: Any  # states and observations of a reset, [POOL, ...]; the rollout begins from the first N
    base: jax.Array  # [T, N], keys from which `keys` are split
    keys: jax.Array  # [T, N]
    actions: jax.Array  # [T, N, ...], of a Box space partly out of bounds
    first: np.ndarray  # observations at the beginning, [N, ...]
    steps: TimeStep  # [T, N, ...]


def random_actions(env: VecEnv, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    space = env.action_space
    if isinstance(space, Discrete):
        return jax.random.randint(key, shape, 0, space.n)
    return 1.5 * jax.random.uniform(key, shape + space.shape, minval=jnp.array(space.low), maxval=jnp.array(space.high))


def scan(env: VecEnv, state: Any, keys: jax.Array, actions: jax.Array, starts: Any) -> TimeStep:
    return jax.lax.scan(lambda state, x: env.step(x[0], state, x[1], starts), state, (keys, actions))[1]


@cache
def rollout(name: str) -> Rollout:
    env = make(name, KWARGS[name])
    base, action = jax.random.split(jax.random.key(1), (T, N)), jax.random.key(2)
    # gymnax's step splits its key and steps with the first half; the adapter steps with its key itself.
    keys, actions = jax.vmap(jax.vmap(jax.random.split))(base)[:, :, 0], random_actions(env, action, (T, N))

    # One reset gives both the pool and, by its first N, the states to begin from: physics is slow to compile.
    starts = jax.jit(env.reset)(RESET_KEYS)
    state, first = jax.tree.map(lambda leaf: leaf[:N], starts)
    steps = jax.jit(lambda: scan(env, state, keys, actions, starts))()
    return Rollout(env, starts, base, keys, actions, *jax.tree.map(np.asarray, (first, steps)))


@pytest.mark.parametrize("name", cases("gymnax", "brax", "diagnostic"))
def test_shapes_types_and_leading_axis(name: str) -> None:
    env = make(name, KWARGS[name])
    assert isinstance(env, VecEnv)
    keys = jax.random.split(jax.random.key(0), N)
    actions = random_actions(env, keys[0], (N,))

    def one_step() -> Any:
        state, obs = env.reset(keys)
        return (state, obs), env.step(keys, state, actions, env.starts(keys[0]))

    (state, obs), (next_state, step) = jax.eval_shape(one_step)
    assert all(leaf.shape[0] == N for leaf in jax.tree.leaves(state))
    assert [obs.shape, step.obs.shape, step.final_obs.shape] == [(N, *env.observation_space.shape)] * 3
    assert {obs.dtype, step.obs.dtype, step.final_obs.dtype, step.reward.dtype} == {jnp.dtype(jnp.float32)}
    assert [leaf.shape for leaf in (step.reward, step.terminated, step.truncated)] == [(N,)] * 3
    assert step.terminated.dtype == step.truncated.dtype == jnp.bool_
    # A weak type on either side would make scan refuse the carry and jit compile a second time.
    kinds = [[(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(s)] for s in (state, next_state)]
    assert kinds[0] == kinds[1] and not any(weak for _, _, weak in kinds[0])


@pytest.mark.parametrize("name", cases("gymnax", "brax", "diagnostic"))
def test_ends_are_told_apart_and_reset_in_the_same_step(name: str) -> None:
    run = rollout(name)
    steps, (_, start_obs) = run.steps, run.starts
    done = steps.terminated | steps.truncated
    assert done.sum() >= 2 * N

    age, expected = np.zeros(N, int), np.zeros_like(done)
    for t in range(T):
        age += 1
        expected[t] = age >= run.env.max_episode_steps
        age[done[t]] = 0
    if name in ("diagnostic/observation_action_reward", "diagnostic/delayed_reward", "diagnostic/terminating"):
        np.testing.assert_array_equal(steps.terminated, expected)  # these end by themselves, after a fixed time
        assert not steps.truncated.any()
    else:
        np.testing.assert_array_equal(steps.truncated, expected)
    if name in ("gymnax/CartPole-v1", "gymnax/Breakout-MinAtar", "brax/inverted_pendulum"):
        assert steps.truncated.any() and (steps.terminated & ~steps.truncated).any()

    differs = (steps.obs != steps.final_obs).reshape(T, N, -1).any(-1)
    assert not differs[~done].any()
    ended = steps.obs[done].reshape(done.sum(), 1, -1)
    assert (ended == start_obs.reshape(1, len(start_obs), -1)).all(-1).any(-1).all()


def clipped(run: Rollout) -> jax.Array:
    space = run.env.action_space
    return jnp.clip(run.actions, jnp.array(space.low), jnp.array(space.high)) if isinstance(space, Box) else run.actions


def gymnax_reference(name: str, run: Rollout) -> tuple[Any, Any]:
    """The library's own reset and step: first observations and (final_obs, reward, terminated) of every step."""
    import gymnax

    env, params = gymnax.make(name)
    params = params.replace(**KWARGS[f"gymnax/{name}"])
    obs, state = jax.vmap(env.reset, (0, None))(RESET_KEYS[:N], params)

    def step(state: Any, x: Any) -> Any:
        _, state, reward, terminated, _, info = jax.vmap(env.step, (0, 0, 0, None))(x[0], state, x[1], params)
        return state, (info["final_observation"], reward, terminated)

    return obs, jax.jit(lambda: jax.lax.scan(step, state, (run.base, clipped(run)))[1])()


def brax_reference(name: str, run: Rollout) -> tuple[Any, Any]:
    """The library's own environment, stepped on without any reset."""
    from brax.envs import get_environment

    kwargs = {key: value for key, value in KWARGS[f"brax/{name}"].items() if key == "backend"}
    env = get_environment(name, **kwargs)
    strong = lambda state: jax.tree.map(lambda x: jnp.asarray(x, x.dtype), state)  # noqa: E731
    state = strong(jax.jit(jax.vmap(env.reset))(RESET_KEYS[:N]))

    def step(state: Any, action: jax.Array) -> Any:
        state = strong(jax.vmap(env.step)(state, action))
        return state, (state.obs, state.reward, state.done.astype(bool))

    return state.obs, jax.jit(lambda: jax.lax.scan(step, state, clipped(run))[1])()


@pytest.mark.filterwarnings("ignore:Brax System")
@pytest.mark.parametrize("name", cases("gymnax", "brax"))
def test_equals_the_library_until_the_first_end(name: str) -> None:
    run = rollout(name)
    suite, env_name = name.split("/")
    reference = {"gymnax": gymnax_reference, "brax": brax_reference}[suite]
    first, (final_obs, reward, terminated) = jax.tree.map(np.asarray, reference(env_name, run))
    np.testing.assert_allclose(run.first, first, rtol=1e-6, atol=1e-7)

    done = run.steps.terminated | run.steps.truncated
    before = np.cumsum(done, axis=0) - done == 0  # up to and with the step that ends the first episode
    assert before.sum() >= 2 * N
    for ours, theirs in ((run.steps.final_obs, final_obs), (run.steps.reward, reward)):
        np.testing.assert_allclose(ours[before], theirs[before], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(run.steps.terminated[before], terminated[before])


@pytest.mark.parametrize("name", cases("gymnax/CartPole", "gymnax/FourRooms", "brax/fast", "diagnostic/observation"))
def test_a_split_batch_gives_the_same_episodes(name: str) -> None:
    env, starts, _, keys, actions, _, whole = rollout(name)

    @jax.jit
    def part(state: Any, keys: jax.Array, actions: jax.Array) -> TimeStep:
        return scan(env, state, keys, actions, starts)

    for half in (slice(0, 2), slice(2, 4)):
        steps = part(jax.tree.map(lambda leaf, half=half: leaf[half], starts[0]), keys[:, half], actions[:, half])
        for ours, theirs in zip(steps, whole, strict=True):
            np.testing.assert_allclose(ours, theirs[:, half], rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(jax.device_count() < 2, reason="one device")
def test_a_batch_spread_over_devices_gives_the_same_episodes() -> None:
    env, starts, _, keys, actions, _, whole = rollout("gymnax/CartPole-v1")
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    spread, by_step = jax.P("data"), jax.P(None, "data")
    run = jax.shard_map(
        lambda state, keys, actions: scan(env, state, keys, actions, starts),
        mesh=mesh,
        in_specs=(spread, by_step, by_step),
        out_specs=by_step,
        check_vma=False,
    )
    state = jax.tree.map(lambda leaf: leaf[:N], starts[0])
    inputs = [
        jax.device_put(value, jax.NamedSharding(mesh, spec))
        for value, spec in ((state, spread), (keys, by_step), (actions, by_step))
    ]
    steps = jax.jit(run)(*inputs)
    for ours, theirs in zip(steps, whole, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_discrete_observations_are_one_hot() -> None:
    env = make("gymnax/FrozenLake-misc", {"max_steps_in_episode": 9})
    assert env.observation_space == Box((16,), (0.0,) * 16, (1.0,) * 16)
    check_env(env)
    _, obs = env.reset(KEYS)
    np.testing.assert_array_equal(obs, np.eye(16, dtype=np.float32)[[0] * len(KEYS)])


def test_deterministic_and_moved_by_every_key() -> None:
    env, starts, _, keys, actions, _, first = rollout("gymnax/FourRooms-misc")
    state = jax.tree.map(lambda leaf: leaf[:N], starts[0])
    again = jax.jit(lambda keys: scan(env, state, keys, actions, starts))
    for ours, theirs in zip(again(keys), first, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    other = again(keys.at[:, 1].set(keys[:, 0]))
    changed = (other.obs != first.obs).reshape(T, N, -1).any((0, 2))
    np.testing.assert_array_equal(changed, [False, True, False, False])


def test_seeds_side_by_side_equal_seeds_alone() -> None:
    env = rollout("gymnax/CartPole-v1").env

    def run(key: jax.Array) -> TimeStep:
        starts = env.starts(key)
        state = jax.tree.map(lambda leaf: leaf[:N], starts[0])
        return scan(env, state, jax.random.split(key, (T, N)), jnp.ones((T, N), jnp.int32), starts)

    seeds = jax.random.split(jax.random.key(5), 2)
    both, alone = jax.jit(jax.vmap(run))(seeds), [jax.jit(run)(seed) for seed in seeds]
    for i in range(2):
        for ours, one in zip(both, alone[i], strict=True):
            np.testing.assert_allclose(ours[i], one, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", cases("gymnax/CartPole", "gymnax/Pendulum", "brax/fast", "diagnostic/truncation"))
def test_step_compiles_once(name: str) -> None:
    env = make(name, KWARGS[name])
    traces = []

    @jax.jit
    def step(keys: jax.Array, state: Any, action: jax.Array, starts: Any) -> Any:
        traces.append(1)
        return env.step(keys, state, action, starts)

    starts = jax.jit(env.starts)(KEYS[0])
    state, _ = jax.jit(env.reset)(KEYS)
    for _ in range(3):
        state, _ = step(KEYS, state, random_actions(env, KEYS[0], (N,)), starts)
    assert len(traces) == 1


def test_starts_are_chosen_uniformly() -> None:
    """Pendulum cut after every step: each step takes a start, and a start is told by its observation."""
    env = make("gymnax/pendulum", {"max_steps_in_episode": 1})
    n, t = 64, 64
    keys = jax.random.split(jax.random.key(7), (t, n))
    starts = env.starts(jax.random.key(8))
    steps = jax.jit(lambda: scan(env, env.reset(keys[0])[0], keys, jnp.zeros((t, n, 1)), starts))()
    angles, counts = np.unique(np.asarray(steps.obs[..., 1]), return_counts=True)
    assert len(starts[1]) == 256 == len(angles)
    chi_squared = ((counts - 16.0) ** 2 / 16.0).sum()
    assert abs(chi_squared - 255) < 5 * np.sqrt(2 * 255)


GAMMA = 0.9
ALWAYS_1 = lambda obs: jnp.ones(len(obs), jnp.int32)  # noqa: E731
# Environment: a best policy, and the value of each observation under it as its docstring gives it.
ANSWERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "constant_reward": (ALWAYS_1, lambda o: 1 + 0 * o),
    "observation_reward": (ALWAYS_1, lambda o: o),
    "delayed_reward": (ALWAYS_1, lambda o: np.where(o == 0, GAMMA, 1)),
    "action_reward": (ALWAYS_1, lambda o: 1 + 0 * o),
    "observation_action_reward": (lambda obs: (obs[:, 0] > 0).astype(jnp.int32), lambda o: 1 + 0 * o),
    "truncation": (ALWAYS_1, lambda o: 1 / (1 - GAMMA) + 0 * o),
    "terminating": (ALWAYS_1, lambda o: (1 - GAMMA ** (5 - o)) / (1 - GAMMA)),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_diagnostics_have_the_documented_value(name: str) -> None:
    """The documented value meets the Bellman equation on every transition; a truncated one is bootstrapped."""
    env = make(f"diagnostic/{name}", {})
    policy, value = ANSWERS[name]
    starts = env.starts(jax.random.key(1))

    def step(carry: Any, keys: jax.Array) -> Any:
        state, obs = carry
        state, time_step = env.step(keys, state, policy(obs), starts)
        return (state, time_step.obs), (obs, time_step)

    keys = jax.random.split(jax.random.key(2), (12, 16))
    _, (obs, steps) = jax.tree.map(np.asarray, jax.lax.scan(step, env.reset(keys[0]), keys))
    target = steps.reward + GAMMA * ~steps.terminated * value(steps.final_obs[..., 0])
    np.testing.assert_allclose(value(obs[..., 0]), target, rtol=1e-6)
    if name.startswith("observation"):
        assert set(np.unique(obs)) == {-1.0, 1.0}


def test_diagnostics_pay_for_the_right_action_only() -> None:
    for name, worst in (("action_reward", lambda o: 0 * o), ("observation_action_reward", lambda o: o < 0)):
        env = make(f"diagnostic/{name}", {})
        state, obs = env.reset(KEYS)
        _, step = env.step(KEYS, state, worst(obs[:, 0]).astype(jnp.int32), env.starts(KEYS[0]))
        np.testing.assert_array_equal(step.reward, -np.ones(N))


def test_nonfinite_pays_nan_about_once_in_32_steps() -> None:
    env = make("diagnostic/nonfinite", {})
    keys = jax.random.split(jax.random.key(0), 4096)
    state, _ = env.reset(keys)
    _, step = jax.jit(env.step)(keys, state, jnp.ones(4096, jnp.int32), env.starts(keys[0]))
    broken = np.isnan(step.reward)
    assert 80 <= broken.sum() <= 176  # 128 expected, deviation 11
    np.testing.assert_array_equal(step.reward[~broken], 1.0)
