"""MuJoCo Playground: steps against the library itself, the ends of episodes, and sentences for mistakes."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.envs import Box, make
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.trainer import Trainer

pytest.importorskip("mujoco_playground")
from mujoco_playground import registry

N, T = 3, 5
CARTPOLE, JAX = "playground/CartpoleBalance", {"impl": "jax"}
KEYS = jax.random.split(jax.random.key(0), N)
ACTIONS = 1.5 * jax.random.uniform(jax.random.key(1), (T, N, 1), minval=-1.0)  # partly out of bounds


@pytest.mark.slow  # MJX compiles slowly
def test_steps_equal_those_of_playground_until_the_limit() -> None:
    env, theirs = make(CARTPOLE, JAX | {"episode_length": T}), registry.load("CartpoleBalance", config_overrides=JAX)
    starts = mine, first = jax.jit(env.reset)(KEYS)
    state = jax.jit(jax.vmap(theirs.reset))(jax.random.key_data(KEYS))
    np.testing.assert_allclose(first, state.obs, rtol=1e-6, atol=1e-7)
    step, own_step = jax.jit(env.step), jax.jit(jax.vmap(theirs.step))
    for t in range(T):
        mine, out = step(KEYS, mine, ACTIONS[t], starts)
        state = own_step(state, jnp.clip(ACTIONS[t], -1.0, 1.0))
        np.testing.assert_allclose(out.final_obs, state.obs, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(out.reward, state.reward, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(out.truncated, [t + 1 == T] * N)
        assert not out.terminated.any()
    assert all((start == first).all(-1).any() for start in out.obs)


def test_spaces_and_defaults() -> None:
    env = make("playground/cartpole balance", JAX)
    assert (env.name, env.max_episode_steps, env.start_pool) == (CARTPOLE, 1000, 64)
    assert env.observation_space.shape == (5,) and env.action_space == Box((1,), (-1.0,), (1.0,))


class Counter:
    """In playground's place: it counts its steps, pays the count, and is done at 3; reading it takes `state`."""

    action_size = 1
    n_substeps = 1

    def __init__(self, config: Any):
        self.config = config

    def reset(self, key: jax.Array) -> Any:
        return self._state(jnp.float32(0))

    def step(self, state: Any, action: jax.Array) -> Any:
        return self._state(state["count"] + 1)

    def _state(self, count: jax.Array) -> Any:
        obs = {"state": count[None], "privileged_state": jnp.zeros(7)}
        return State(obs=obs, reward=count, done=jnp.float32(count == 3), count=count)


@jax.tree_util.register_pytree_node_class
class State(dict):
    """A dict whose entries are attributes, too."""

    __getattr__ = dict.__getitem__

    def tree_flatten(self) -> Any:
        return tuple(self.values()), tuple(self)

    @classmethod
    def tree_unflatten(cls, keys: Any, values: Any) -> State:
        return cls(zip(keys, values, strict=True))


def load_counter(monkeypatch: pytest.MonkeyPatch, **kwargs: Any) -> Any:
    monkeypatch.setattr(registry, "load", lambda name, config: Counter(config))
    return make(CARTPOLE, kwargs)


def test_done_terminates_and_an_observed_dict_is_read_by_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    env = load_counter(monkeypatch)
    starts = state, _ = env.reset(KEYS)
    assert env.observation_space.shape == (1,)
    for count in (1, 2, 3):
        state, step = env.step(KEYS, state, ACTIONS[0], starts)
        np.testing.assert_array_equal(step.final_obs, np.full((N, 1), count))
        np.testing.assert_array_equal(step.terminated, [count == 3] * N)
    assert not step.truncated.any() and not step.obs.any()


def test_an_episode_is_truncated_at_its_length_and_keeps_its_last_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    env = load_counter(monkeypatch, episode_length=2)
    starts = state, _ = env.reset(KEYS)
    for count, next_obs in ((1, 1), (2, 0)):
        state, step = env.step(KEYS, state, ACTIONS[0], starts)
        np.testing.assert_array_equal(step.final_obs, np.full((N, 1), count))
        np.testing.assert_array_equal(step.obs, np.full((N, 1), next_obs))
        np.testing.assert_array_equal(step.truncated, [count == 2] * N)
    assert not step.terminated.any()


def test_a_repeated_action_earns_the_sum_and_counts_against_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    env = load_counter(monkeypatch, action_repeat=2, episode_length=7)
    starts = state, _ = env.reset(KEYS)
    state, step = env.step(KEYS, state, ACTIONS[0], starts)
    np.testing.assert_array_equal(step.reward, [1 + 2] * N)
    assert env.max_episode_steps == 4


def test_fields_reach_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    nested = {"vision_config": {"nworld": 3, "cam_res": [8, 8]}}
    for kwargs in (nested, {"vision_config.nworld": 3, "vision_config.cam_res": [8, 8]}):
        config = load_counter(monkeypatch, sim_dt=1, **kwargs)._env.config
        assert (config.vision_config.nworld, config.vision_config.cam_res, config.sim_dt) == (3, (8, 8), 1.0)


@pytest.mark.parametrize(
    ("kind", "impl"), [("NVIDIA H200", "warp"), ("Tesla V100-SXM2-16GB", "warp"), ("cpu", "jax"), ("TPU v4", "jax")]
)
def test_nvidia_gpus_use_warp(monkeypatch: pytest.MonkeyPatch, kind: str, impl: str) -> None:
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind=kind)])
    assert load_counter(monkeypatch)._env.config.impl == impl
    assert load_counter(monkeypatch, impl="jax")._env.config.impl == "jax"


def test_with_warp_every_array_of_the_state_has_the_leading_axis() -> None:
    """Warp shares the buffers of contacts between environments; seeds side by side are a second axis. Checkpoints
    hold no array without elements."""
    env = make("playground/PointMass", {"impl": "warp", "naconmax": 1234})
    action = jnp.zeros((2, N, 2))

    def one_step(keys: Any) -> Any:
        return jax.vmap(env.reset)(keys), jax.vmap(env.step)(keys, *start(keys))

    def start(keys: Any) -> Any:
        state = jax.vmap(env.reset)(keys)
        return state[0], action, state

    (state, _), (stepped, _) = jax.eval_shape(one_step, jnp.stack([KEYS, KEYS]))
    assert all(leaf.shape[:2] == (2, N) and leaf.size for leaf in jax.tree.leaves(state))
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, stepped)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("CartpoleBalanc", {}, "is not an environment of playground: did you mean CartpoleBalance"),
        ("CartpoleBalance", {"epsiode_length": 5}, "epsiode_length is not an option of .*: did you mean epi"),
        ("CartpoleBalance", {"vision_config": {"nwrld": 5}}, r"kwargs.vision_config.nwrld is not an option of"),
        ("CartpoleBalance", {"episode_length": 0}, "episode_length=0 must be an integer of at least 1"),
        ("CartpoleBalance", {"action_repeat": True}, "action_repeat=True must be an integer of at least 1"),
        ("CartpoleBalance", {"start_pool": "8"}, "start_pool='8' must be an integer of at least 1"),
        ("CartpoleBalance", {"ctrl_dt": "0.1"}, "env.kwargs.ctrl_dt='0.1' must be of type float"),
        ("CartpoleBalance", {"vision_config": 5}, "env.kwargs.vision_config is not an option of"),
        ("CartpoleBalance", {"impl": "c"}, "env.kwargs.impl='c' must be jax or warp"),
        ("CartpoleBalance", {"vision": True}, "with vision it observes a dict of pixels"),
    ],
)
def test_errors_are_one_clear_sentence(name: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make(f"playground/{name}", JAX | kwargs)
    assert "\n" not in str(error.value)


def test_a_dict_without_state_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = State(obs={"pixels": jnp.zeros(3)}, reward=jnp.zeros(()), done=jnp.zeros(()))
    monkeypatch.setattr(Counter, "_state", lambda self, count: pixels)
    with pytest.raises(ConfigError, match="it observes a dict without state"):
        load_counter(monkeypatch)


@pytest.mark.parametrize("error", [subprocess.CalledProcessError(128, ["git", "clone"]), FileNotFoundError("git")])
def test_models_that_cannot_be_downloaded(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: Exception
) -> None:
    def download() -> None:
        print("Downloading...")
        print("Error", file=sys.stderr)
        raise error

    monkeypatch.setattr("mujoco_playground._src.mjx_env.ensure_menagerie_exists", download)
    with pytest.raises(ConfigError) as caught:
        make("playground/Go1JoystickFlatTerrain", {})
    assert str(caught.value) == (
        "env.name=playground/Go1JoystickFlatTerrain cannot be made: its models could not be downloaded "
        f"({error}); the tasks of the DM control suite, such as CartpoleBalance, need no download."
    )
    assert capfd.readouterr() == ("", "")


def test_a_missing_package_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco_playground", None)
    with pytest.raises(ConfigError) as error:
        make(CARTPOLE, {})
    assert str(error.value) == (
        f"env.name={CARTPOLE} needs the playground extra: pip install 'stellaris-jax[playground]'"
    )


def test_the_tuned_file_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `Counter` instead of physics, which takes long to compile."""
    monkeypatch.setattr(registry, "load", lambda name, config: Counter(config))
    small = ["env.num_envs=8", "algorithm.rollout_length=16", "network.hidden=[8]", "total_steps=256"]
    trainer = Trainer(load_config(["env=playground/cartpole_balance", *small]))
    records = trainer.run()
    assert records[-1]["env_steps"] == 256 and trainer.counters.nonfinite == 0
