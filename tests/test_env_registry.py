"""Environments by name: spelling, sentences for mistakes, missing packages, a user's own environments."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import textwrap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.envs import VecEnv, available, make, register, registry, resolve
from stellaris_jax.envs.names import match

N = 4
KEYS = jax.random.split(jax.random.key(0), N)
BRAX = pytest.mark.skipif(importlib.util.find_spec("brax") is None, reason="brax is not installed")


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("gymnax/acrobot", "gymnax/Acrobot-v1"),
        ("Gymnax/CARTPOLE_V1", "gymnax/CartPole-v1"),
        ("gymnax/mountain car", "gymnax/MountainCar-v0"),
        ("gymnax/breakout_minatar", "gymnax/Breakout-MinAtar"),
        ("gymnax/breakout-minatar", "gymnax/Breakout-MinAtar"),
        ("diagnostic/constant-reward", "diagnostic/constant_reward"),
        pytest.param("brax/reacher", "brax/reacher", marks=BRAX),
        pytest.param("brax/InvertedPendulum", "brax/inverted_pendulum", marks=BRAX),
    ],
)
def test_names_match_as_people_type_them(name: str, canonical: str) -> None:
    assert resolve(name) == canonical


def test_the_highest_version_is_meant_where_none_is_given() -> None:
    assert match("hopper", ["Hopper-v2", "Hopper-v10", "Hopper-v4"]) == "Hopper-v10"
    assert match("hopper-v4", ["Hopper-v2", "Hopper-v10", "Hopper-v4"]) == "Hopper-v4"


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("CartPole-v1", {}, "env.name=CartPole-v1 must be of the form suite/name"),
        ("gymnac/hopper", {}, "unknown suite gymnac: did you mean gymnax"),
        ("zzz/hopper", {}, "unknown suite zzz: choose from brax, diagnostic, envpool, gymnasium, gymnax, job, mjx, "),
        ("gymnax/cartpool", {}, "env.name=gymnax/cartpool is not an environment of gymnax: did you mean CartPole-v1"),
        ("gymnax/CartPole-v0", {}, "did you mean CartPole-v1"),  # another version is another task
        ("gymnax/MNISTBandit-bsuite", {}, "gymnax/MNISTBandit-bsuite is not offered: it downloads its data"),
        ("gymnax/mnist_bandit_bsuite", {}, "MNISTBandit-bsuite is not offered: it downloads"),
        (
            "gymnax/acrobot",
            {"max_steps": 5},
            "env.kwargs.max_steps is not an option of gymnax/Acrobot-v1: did you mean",
        ),
        ("gymnax/acrobot", {"max_steps_in_episode": "5"}, "max_steps_in_episode='5' must be of type int"),
        ("gymnax/acrobot", {"available_torque": [1.0]}, r"available_torque=\[1.0\] must have the shape \(3,\)"),
        ("gymnax/acrobot", {"max_steps_in_episode": 0}, "max_steps_in_episode=0 must be an integer of at least 1"),
        ("gymnax/acrobot", {"start_pool": True}, "start_pool=True must be an integer of at least 1"),
        ("diagnostic/truncation", {"length": 3}, "env.kwargs.length is not an option of diagnostic/truncation"),
        pytest.param("brax/hoper", {}, "is not an environment of brax: did you mean hopper", marks=BRAX),
        pytest.param("brax/swimmer", {}, "brax/swimmer is not offered: brax's fluid model", marks=BRAX),
        pytest.param(
            "brax/fast", {"backend": "springs"}, "springs is not a brax backend: did you mean spring", marks=BRAX
        ),
        pytest.param("brax/hopper", {"helthy_reward": 2.0}, "did you mean healthy_reward", marks=BRAX),
        pytest.param("brax/fast", {"obs_mode": "dict_state"}, "it observes a dict", marks=BRAX),
    ],
)
def test_errors_are_one_clear_sentence(name: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make(name, kwargs)
    assert "\n" not in str(error.value)


def test_a_missing_package_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("brax", "brax.envs"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError) as error:
        make("brax/hopper", {})
    assert str(error.value) == "env.name=brax/hopper needs the brax extra: pip install 'stellaris-jax[brax]'"


def test_everything_available_in_gymnax_can_be_made() -> None:
    names = available("gymnax")
    assert len(names) >= 20 and names == sorted(names)
    for name in names:
        env = make(f"gymnax/{name}", {})
        assert jax.eval_shape(env.reset, KEYS)[1].shape == (N, *env.observation_space.shape)


def test_gymnax_parameters_reach_the_environment() -> None:
    torque = [-2.0, 0.0, 2.0]
    env = make("gymnax/acrobot", {"available_torque": torque, "dt": 1, "max_steps_in_episode": 3})
    assert env.max_episode_steps == 3
    strong, weak = env, make("gymnax/acrobot", {"dt": 1})
    state, _ = env.reset(KEYS)
    push = jnp.full(N, 2)
    moved = [jax.jit(e.step)(KEYS, state, push, jax.jit(e.starts)(KEYS[0]))[1].final_obs for e in (strong, weak)]
    assert (np.abs(moved[0] - moved[1]) > 1e-3).any(-1).all()


def test_the_documented_example_of_register_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.kinds.environment, "_entries", {})
    _, example = inspect.cleandoc(register.__doc__ or "").split("Example:\n")
    example, _ = example.split("Raises ConfigError")
    scope: dict[str, Any] = {}
    exec("from stellaris_jax.envs import *\nimport jax.numpy as jnp\n" + textwrap.dedent(example), scope)

    env = make("mine/Corridor", {"length": 3})
    assert isinstance(env, VecEnv) and available("mine") == ["corridor"]
    (state, _), starts, right = env.reset(KEYS), env.starts(KEYS[0]), jnp.ones(N, jnp.int32)
    _, steps = jax.lax.scan(lambda state, _: env.step(KEYS, state, right, starts), state, length=6)
    np.testing.assert_array_equal(steps.final_obs[:, 0, 0], [1, 2, 3, 1, 2, 3])
    np.testing.assert_array_equal(steps.terminated[:, 0], [False, False, True] * 2)
    with pytest.raises(ConfigError, match="not an environment of mine: did you mean corridor"):
        make("mine/coridor", {})
