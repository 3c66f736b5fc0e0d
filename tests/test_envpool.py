"""envpool's tasks behind `HostEnv`: episode ends, images, options, and sentences for what cannot be."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

pytest.importorskip("envpool")

import itertools

from stellaris_jax import Trainer, load_config
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.envs.base import Box, Discrete, HostEnv, HostPool, HostStep, Preprocessing, bounded
from stellaris_jax.envs.registry import make


def play(pool: HostPool, actions: np.ndarray) -> list[HostStep]:
    steps = [pool.recv()]
    for action in actions:
        pool.send(action)
        steps.append(pool.recv())
    pool.close()
    return steps


def test_episodes_end_as_in_gymnasium() -> None:
    """CartPole step by step from the same states: the final observation comes first, then a dead transition."""
    env = make("envpool/CartPole-v1", {"max_episode_steps": 20})
    assert isinstance(env, HostEnv) and env.max_episode_steps == 20
    assert env.observation_space.shape == (4,) and env.action_space == Discrete(2)
    actions = np.random.default_rng(0).integers(0, 2, (90, 8))
    actions[:, 4:] = np.arange(90)[:, None] % 2  # balances long enough for the time limit
    steps = play(env.open(8, seed=3), actions)
    reference = gymnasium.make("CartPole-v1").unwrapped
    ends = {"terminated": 0, "truncated": 0}
    for n in range(8):
        dead, count = False, 0
        for t, (before, after) in enumerate(itertools.pairwise(steps)):
            ended = bool(after.terminated[n]), bool(after.truncated[n])
            if dead:
                assert after.reward[n] == 0.0 and ended == (False, False)
                assert np.abs(after.obs[n]).max() <= 0.05
                dead, count = False, 0
                continue
            reference.reset()
            reference.state = before.obs[n].astype(np.float64)
            obs, reward, terminated, _, _ = reference.step(int(actions[t, n]))
            count += 1
            np.testing.assert_allclose(after.obs[n], obs, rtol=1e-4, atol=1e-5)
            assert after.reward[n] == reward == 1.0
            assert ended == (terminated and count < 20, count == 20)
            ends["terminated"] += ended[0]
            ends["truncated"] += ended[1]
            dead = any(ended)
    assert ends["terminated"] > 5 and ends["truncated"] > 5


def test_seeds_decide() -> None:
    env = make("envpool/hopper", {})
    assert env.name == "envpool/Hopper-v5"  # the newest version, where none is named
    actions = np.random.default_rng(0).uniform(-1, 1, (30, 3, 3)).astype(np.float32)
    one, two, other = (play(env.open(3, seed), actions) for seed in (1, 1, 2))
    for a, b in zip(one, two, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
            assert x.dtype in (np.float32, np.bool_)
    assert not np.array_equal(one[5].obs, other[5].obs)
    assert not np.array_equal(one[0].obs[0], one[0].obs[1])


def test_images_have_their_channels_last_and_evaluations_whole_games() -> None:
    env = make("envpool/SpaceInvaders-v5", {}, Preprocessing(frame_stack=3, sticky_actions=0.25, life_loss=True))
    assert env.observation_space.shape == (84, 84, 3) and env.observation_space.dtype == "uint8"
    actions = np.random.default_rng(0).integers(0, 6, (400, 2))
    steps = play(env.open(2, seed=0), actions)
    assert all(step.obs.dtype == np.uint8 and step.obs.shape == (2, 84, 84, 3) for step in steps)
    moved = 0
    for before, after in itertools.pairwise(steps[50:80]):
        np.testing.assert_array_equal(after.obs[..., :-1], before.obs[..., 1:])
        moved += not np.array_equal(after.obs[..., -1], before.obs[..., -1])
    assert moved > 10
    whole = play(env.open(2, seed=0, evaluation=True), actions)
    assert np.stack([step.reward for step in whole]).max() >= 5.0
    assert sum(step.terminated.sum() for step in steps) > sum(step.terminated.sum() for step in whole)


def test_actions_are_kept_in_bounds() -> None:
    env = make("envpool/Humanoid-v4", {})
    assert isinstance(env.action_space, Box)
    wild = np.full((2, 17), 5.0, np.float32)
    np.testing.assert_allclose(bounded(wild, env.action_space), 0.4, rtol=1e-6)
    assert bounded(np.array([1, 2]), Discrete(3)).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "kwargs", "sentence"),
    [
        ("envpool/Hoper-v4", {}, "did you mean Hopper-v4"),
        ("envpool/SpaceInvader-v5", {}, "did you mean SpaceInvaders-v5"),
        ("envpool/qqqqqqq", {}, "names there resembles it"),
        ("envpool/Hopper-v4", {"frame_skp": 2}, "did you mean frame_skip"),
        ("envpool/Hopper-v4", {"seed": 2}, "env.kwargs.seed is not an option"),
        ("envpool/Hopper-v4", {"frame_skip": "many"}, "must be of type int"),
        ("envpool/FrozenLake-v1", {}, "cannot be trained on"),
    ],
)
def test_mistakes_are_one_sentence(name: str, kwargs: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        make(name, kwargs)
    assert "\n" not in str(caught.value)


def test_trains_and_evaluates() -> None:
    """A few rounds of the real thing, with overlap."""
    overrides = ["env=envpool/cartpole", "env.num_envs=8", "algorithm.rollout_length=32", "network.hidden=[8]"]
    trainer = Trainer(load_config([*overrides, "evaluation.episodes=4", "total_steps=1024"]))
    records = trainer.run()
    assert [record["round"] for record in records] == [1, 2, 3, 4]
    assert all(np.isfinite(record["policy_loss"]) for record in records)
    result = trainer.evaluate()
    assert result.returns.shape == (1, 4)
    np.testing.assert_array_equal(result.returns, result.lengths)
    trainer.close()
