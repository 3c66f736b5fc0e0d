"""MuJoCo tasks on MJX: every step against gymnasium's own environments on MuJoCo itself."""

from __future__ import annotations

import functools
import math
import sys
import types
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import ks_2samp

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.envs import Box, make
from stellaris_jax.envs.suites.mjx import MjxEnv, MjxState

mujoco = pytest.importorskip("mujoco")
mjx = pytest.importorskip("mujoco.mjx")

# Largest errors of one step: of an observation `o`, relative to 1 + |o|, and of the reward. MJX is in float32.
TOLERANCE = {
    "Hopper-v5": (2e-4, 1e-4),
    "Walker2d-v5": (5e-4, 1e-4),
    "HalfCheetah-v5": (1e-3, 1e-4),
    "Ant-v5": (5e-2, 1e-3),
    "Humanoid-v5": (1e-2, 1e-2),
}
# In space, MuJoCo and MJX turn the friction pyramid of a steep capsule on the ground differently. Ant is therefore
# compared with the elliptic friction cone, which is the same however it is turned. MJX lacks that for Humanoid, whose
# feet are spheres: it is compared until it falls.
OBLIQUE = ("Ant-v5", "Humanoid-v5")
# gymnasium's options at other values than its own.
OPTIONS: dict[str, dict[str, Any]] = {
    "Hopper-v5": {
        "forward_reward_weight": 2.0,
        "ctrl_cost_weight": 0.1,
        "healthy_reward": 3,
        "healthy_state_range": (-3.0, 3.0),
        "healthy_z_range": (1.2, 1.5),
        "healthy_angle_range": (-0.1, 0.3),
        "exclude_current_positions_from_observation": False,
        "frame_skip": 2,
    },
    "Ant-v5": {
        "contact_cost_weight": 0.1,
        "contact_force_range": (-2.0, 3.0),
        "terminate_when_unhealthy": False,
        "include_cfrc_ext_in_observation": False,
    },
    "Humanoid-v5": {
        "contact_cost_weight": 1e-3,
        "contact_cost_range": (-1.0, 2.0),
        "include_cinert_in_observation": False,
        "include_qfrc_actuator_in_observation": False,
    },
}
STEPS, EPISODE = 64, 12


class Run(NamedTuple):
    """Steps of gymnasium's environment, `[T, ...]`: the state before, the action, and what came of it."""

    state: MjxState
    action: np.ndarray
    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray


def gymnasium_env(name: str, **kwargs: Any) -> Any:
    # gymnasium imports imageio for saving pictures, of which there are none here.
    sys.modules.setdefault("imageio", types.ModuleType("imageio"))
    import gymnasium

    return gymnasium.make(name, **kwargs).unwrapped


def elliptic(name: str) -> Any:
    """gymnasium's environment with elliptic friction cones."""
    reference = gymnasium_env(name)
    reference.model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    return reference


@functools.cache
def compiled(name: str) -> tuple[MjxEnv, Any]:
    """The environment, `elliptic` if it is Ant, and its step, compiled once for all tests."""
    env = make(f"mjx/{name}", {"episode_length": EPISODE, "start_pool": 8})
    assert isinstance(env, MjxEnv)
    if name == "Ant-v5":
        model = elliptic(name).model
        env._model, env._data = mjx.put_model(model, impl="jax"), mjx.make_data(model, impl="jax")
    return env, jax.jit(env.step)


def state_of(reference: Any) -> MjxState:
    """gymnasium's state as ours. Its bodies lag behind its joints, so it is read off and never computed anew."""
    from gymnasium.envs.mujoco.humanoid_v5 import HumanoidEnv, mass_center

    data, forward = reference.data, reference.data.qpos[0]
    if isinstance(reference, HumanoidEnv):
        forward = mass_center(reference.model, data)[0]
    elif reference.spec.id == "Ant-v5":
        forward = data.body("torso").xpos[0]
    arrays = data.qpos, data.qvel, data.qacc_warmstart, forward - data.qpos[0]
    return MjxState(*(np.array(array, np.float32) for array in arrays), np.int32(0))


def stack(rows: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def play(reference: Any, actions: np.ndarray) -> Run:
    """`actions` `[T, A]` from a reset of gymnasium's environment, also beyond the end of the episode."""
    reference.reset(seed=0)
    rows = []
    for action in actions:
        before = state_of(reference)
        obs, reward, terminated, _, _ = reference.step(action)
        rows.append(Run(before, action, obs, reward, terminated))
    return stack(rows)


def random_actions(reference: Any, steps: int) -> np.ndarray:
    space = reference.action_space
    return np.random.default_rng(0).uniform(space.low, space.high, (steps, *space.shape)).astype(np.float32)


def gait(reference: Any, steps: int, candidates: int = 20) -> np.ndarray:
    """The best of some sinusoidal actions `[T, A]`: hops, strides and falls at speed, unlike random actions."""
    space, dt = reference.action_space, reference.dt

    def candidate(seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        turns = rng.uniform(1, 4) * dt * np.arange(steps)[:, None] + rng.uniform(0, 1, space.shape)
        wave = rng.normal(0, 0.3, space.shape) + rng.uniform(0.2, 1.5, space.shape) * np.sin(2 * math.pi * turns)
        return np.clip(space.high * wave, space.low, space.high).astype(np.float32)

    def score(seed: int) -> float:
        run = play(reference, candidate(seed))
        return run.reward[: np.argmax(run.terminated) if run.terminated.any() else steps].sum()

    return candidate(max(range(candidates), key=score))


def equal_steps(name: str, env: Any, step: Any, run: Run) -> np.ndarray:
    """Which steps from gymnasium's own states come out as gymnasium's, `[T]`."""
    keys = jax.random.split(jax.random.key(0), len(run.reward))
    starts = jax.jit(env.starts)(keys[0])
    _, after = step(keys, jax.tree.map(jnp.asarray, run.state), jnp.asarray(run.action), starts)
    observation, reward = TOLERANCE[name]
    equal = (abs(after.final_obs - run.obs) < observation * (1 + abs(run.obs))).all(-1)
    return equal & (abs(after.reward - run.reward) < reward) & (after.terminated == run.terminated)


def slow(names: Iterable[str]) -> list[Any]:
    """The names as parameters, all but the Hopper's marked as slow: MJX compiles for long."""
    return [name if name == "Hopper-v5" else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", slow(TOLERANCE))
def test_steps_equal_those_of_gymnasium(name: str) -> None:
    env, step = compiled(name)
    reference = elliptic(name) if name == "Ant-v5" else gymnasium_env(name)
    for actions in (random_actions(reference, STEPS), gait(reference, STEPS)):
        run = play(reference, actions)
        assert run.obs.shape == (STEPS, *env.observation_space.shape)
        fallen = run.terminated if name == "Humanoid-v5" else np.bool_(False)
        assert (equal_steps(name, env, step, run) | fallen).all() and not fallen.all()


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_options_mean_what_they_mean_in_gymnasium(name: str) -> None:
    env = make(f"mjx/{name}", OPTIONS[name])
    reference = gymnasium_env(name, **OPTIONS[name])
    run = play(reference, random_actions(reference, STEPS))
    assert run.obs.shape == (STEPS, *env.observation_space.shape)
    assert equal_steps(name, env, jax.jit(env.step), run).mean() >= (0.5 if name in OBLIQUE else 1.0)


@pytest.mark.parametrize("name", slow(TOLERANCE))
def test_spaces_and_starts_equal_those_of_gymnasium(name: str) -> None:
    env, reference = make(f"mjx/{name}", {}), gymnasium_env(name)
    assert isinstance(env.action_space, Box)
    for bound in ("low", "high"):
        ours, theirs = getattr(env.action_space, bound), getattr(reference.action_space, bound)
        np.testing.assert_array_equal(np.float32(ours), theirs)
    assert env.observation_space.shape == reference.observation_space.shape
    assert env.max_episode_steps == 1000  # as gymnasium registers all of them

    state, obs = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 500))
    for index in range(3):
        reference.reset(seed=0)
        reference.set_state(np.float64(state.qpos[index]), np.float64(state.qvel[index]))
        np.testing.assert_allclose(obs[index], reference._get_obs(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(state.lead[index], state_of(reference).lead, atol=1e-6)

    theirs = []
    for seed in range(500):
        reference.reset(seed=seed)
        theirs.append(state_of(reference))
    for key in ("qpos", "qvel"):
        noise = [getattr(batch, key) - getattr(reference, f"init_{key}") for batch in (state, stack(theirs))]
        assert ks_2samp(*(array.ravel() for array in noise)).pvalue > 0.01


def test_an_episode_is_truncated_at_its_length_and_keeps_its_last_observation() -> None:
    env, step = compiled("Hopper-v5")
    keys = jax.random.split(jax.random.key(3), STEPS)
    starts, (state, obs) = jax.jit(env.starts)(keys[0]), jax.jit(env.reset)(keys)
    for number in range(1, EPISODE + 1):
        state, after = step(keys, state, jnp.zeros((STEPS, 3)), starts)
        assert not after.terminated.any() and (after.truncated == (number == EPISODE)).all()
        if number < EPISODE:
            np.testing.assert_array_equal(after.obs, after.final_obs)
    assert np.abs(after.final_obs - obs).max() > 0.05  # it sags under its own weight
    for seen in after.obs:
        assert (seen == starts[1]).all(-1).any()
    assert not state.steps.any()


def test_it_does_not_matter_how_far_from_the_start_a_step_is() -> None:
    env, step = compiled("Hopper-v5")
    reference = gymnasium_env("Hopper-v5")
    run = play(reference, random_actions(reference, STEPS))
    far = run._replace(state=run.state._replace(qpos=run.state.qpos + 500 * np.eye(1, 6, dtype=np.float32)))
    assert equal_steps("Hopper-v5", env, step, far).all()


def test_a_diverged_simulation_ends_its_episode() -> None:
    env, step = compiled("Hopper-v5")
    keys = jax.random.split(jax.random.key(3), STEPS)
    starts, (state, _) = jax.jit(env.starts)(keys[0]), jax.jit(env.reset)(keys)
    state = state._replace(qvel=state.qvel.at[0].set(jnp.nan))
    state, after = step(keys, state, jnp.zeros((STEPS, 3)), starts)
    assert after.terminated.tolist() == [True] + [False] * (STEPS - 1)
    assert after.reward[0] == 0 and not after.final_obs[0].any()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state, after)))


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("Hopper-v4", {}, "mjx/Hopper-v4 is not an environment of mjx: did you mean Hopper-v5"),
        ("hopper", {"helthy_reward": 1}, "env.kwargs.helthy_reward is not an option of mjx/Hopper-v5: did you mean"),
        ("halfcheetah", {"healthy_reward": 1}, "env.kwargs.healthy_reward is not an option of mjx/HalfCheetah-v5"),
        ("hopper", {"healthy_reward": "1"}, "env.kwargs.healthy_reward='1' must be a number."),
        ("hopper", {"healthy_z_range": [2.0, 1.0]}, r"z_range=\[2.0, 1.0\] must be two numbers, the lower first."),
        ("hopper", {"terminate_when_unhealthy": 1}, "env.kwargs.terminate_when_unhealthy=1 must be true or false."),
        ("hopper", {"episode_length": 0}, "env.kwargs.episode_length=0 must be an integer of at least 1."),
        ("hopper", {"start_pool": 0}, "env.kwargs.start_pool=0 must be an integer of at least 1."),
        ("hopper", {"iterations": 0}, "env.kwargs.iterations=0 must be an integer of at least 1."),
        ("hopper", {"ls_iterations": 1.5}, "env.kwargs.ls_iterations=1.5 must be an integer of at least 1."),
        ("hopper", {"frame_skip": True}, "env.kwargs.frame_skip=True must be an integer of at least 1."),
    ],
)
def test_errors_are_one_clear_sentence(name: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make(f"mjx/{name}", kwargs)
    assert "\n" not in str(error.value)
