"""Frame stacks, sticky actions, lives and clipped rewards: on every kind of environment, or a clear refusal."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_env import Clockwork
from settings import hyper_of

from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.engine.prepare import prepare
from stellaris_jax.engine.rollout import Fragment, Trajectory, episode_totals, init_normalizers
from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import AS_GIVEN, Box, Discrete, Preprocessing
from stellaris_jax.envs.registry import from_config, make
from stellaris_jax.envs.wrappers import StickyActions, Wrapper, preprocess
from stellaris_jax.execute.loading import load_config

T, N = 40, 5


class Echo(AutoResetEnv):
    """Observes (steps taken, last action done); an episode has 6 steps."""

    name = "test/echo"
    observation_space = Box((2,), (0.0, 0.0), (6.0, 9.0))
    max_episode_steps = 6
    start_pool = 4

    def __init__(self, discrete: bool = True):
        self.action_space = Discrete(10) if discrete else Box((1,), (0.0,), (9.0,))

    def reset_one(self, key: Any) -> Any:
        return jnp.int32(0), jnp.array([0.0, 0.0])

    def step_one(self, key: Any, state: Any, action: Any) -> Any:
        steps = state + 1
        obs = jnp.stack([steps, jnp.float32(action).reshape(())]).astype(jnp.float32)
        return steps, obs, jnp.float32(0), jnp.bool_(False), steps >= 6


def run(env: Any, actions: np.ndarray) -> tuple[np.ndarray, Any]:
    """First observations, and all steps `[T, N]` of `env` under `actions`."""
    keys = jax.random.split(jax.random.key(0), N)

    @jax.jit
    def play() -> Any:
        state, first = env.reset(keys)
        starts = env.starts(keys[0])
        xs = jax.random.split(jax.random.key(1), (len(actions), N)), actions
        return first, jax.lax.scan(lambda state, x: env.step(x[0], state, x[1], starts), state, xs)[1]

    return jax.tree.map(np.asarray, play())


@pytest.mark.parametrize("name", ["gymnax/CartPole-v1", "gymnax/Breakout-MinAtar"])
def test_frames_are_stacked_within_an_episode(name: str) -> None:
    """Against a history kept in NumPy: oldest first, a new episode begins with its first frame throughout."""
    limit = {"max_steps_in_episode": 9}
    plain, stacked = make(name, limit), make(name, limit, Preprocessing(frame_stack=3))
    channels = plain.observation_space.shape[-1]
    assert stacked.observation_space.shape == (*plain.observation_space.shape[:-1], 3 * channels)
    assert stacked.observation_space.size == len(stacked.observation_space.low)
    actions = np.random.default_rng(0).integers(0, 2, (T, N)).astype(np.int32)
    (first, steps), (stacked_first, stacked_steps) = run(plain, actions), run(stacked, actions)
    done = steps.terminated | steps.truncated
    assert done.sum() > N
    frames = np.concatenate([first] * 3, axis=-1)
    np.testing.assert_array_equal(stacked_first, frames)
    for t in range(T):
        final = np.concatenate([frames[..., channels:], steps.final_obs[t]], axis=-1)
        np.testing.assert_array_equal(stacked_steps.final_obs[t], final)
        anew = np.concatenate([steps.obs[t]] * 3, axis=-1)
        frames = np.where(done[t].reshape(-1, *[1] * (final.ndim - 1)), anew, final)
        np.testing.assert_array_equal(stacked_steps.obs[t], frames)


@pytest.mark.parametrize("discrete", [True, False])
def test_actions_stick(discrete: bool) -> None:
    """Done is what was asked for, or what was done before (0 at first), the latter a quarter of the time."""
    env = StickyActions(Echo(discrete), 0.25)
    steps_, generator = 400, np.random.default_rng(0)
    chosen = generator.integers(1, 10, (steps_, N)).astype(np.int32)
    _, steps = run(env, chosen if discrete else chosen[..., None].astype(np.float32))
    position, done = steps.final_obs[..., 0], steps.final_obs[..., 1]
    before = np.where(position == 1, 0, np.concatenate([np.zeros((1, N)), done[:-1]]))
    assert ((done == chosen) | (done == before)).all()
    telling = chosen != before
    stuck = (done == before)[telling].mean()
    assert abs(stuck - 0.25) < 4 * np.sqrt(0.25 * 0.75 / telling.sum())
    assert (done == 0).any()


def test_nothing_asked_nothing_changed() -> None:
    env = Echo()
    assert preprocess(env, AS_GIVEN) is env


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (EnvConfig("gymnax/CartPole-v1", life_loss=True), "env.life_loss=true is not possible: gymnax/CartPole-v1 has"),
        (EnvConfig("envpool/Hopper-v4", sticky_actions=0.25), "env.sticky_actions=0.25 is not possible"),
        (EnvConfig("envpool/Hopper-v4", frame_stack=2), "env.frame_stack=2 is not possible"),
        (EnvConfig("envpool/Pong-v5", kwargs={"stack_num": 2}), "is to be written env.frame_stack"),
        (EnvConfig("envpool/Pong-v5", kwargs={"reward_clip": True}), "is to be written env.clip_reward"),
    ],
)
def test_what_is_not_possible_is_said(config: EnvConfig, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        from_config(config)


def test_environments_of_other_makes_are_refused() -> None:
    with pytest.raises(ConfigError, match="is not derived from AutoResetEnv"):
        preprocess(Clockwork(), Preprocessing(frame_stack=2))


def test_rewards_are_clipped_for_learning_alone() -> None:
    """Targets are those of the rewards' signs; the episodes' returns are the task's."""
    env = Echo()
    network = ActorCritic(env.observation_space, env.action_space, load_config().network)
    params, seen = network.init(jax.random.key(0)), init_normalizers(env.observation_space)
    actions = np.random.default_rng(0).integers(0, 10, (T, N)).astype(np.int32)
    first, steps = run(env, actions)
    obs = np.concatenate([first[None], steps.obs])
    rewards = np.random.default_rng(1).normal(0, 50, (T, N)).astype(np.float32)

    @partial(jax.jit, static_argnums=1)
    def prepared(reward: jax.Array, clip: bool) -> Any:
        totals, _ = episode_totals(reward, jnp.ones((T, N)), steps.truncated, jnp.zeros((N, 3)), 0.99)
        ends = (steps.terminated, steps.truncated)
        distribution = jnp.zeros((T, N, 10))
        trajectory = Trajectory(obs[:-1], actions, distribution, reward, *ends, steps.final_obs, totals, obs[-1])
        fragment = Fragment(trajectory, params, seen)
        return prepare(network, hyper_of(), EnvConfig(clip_reward=clip), fragment, seen)

    (clipped, _, episodes), (signs, *_), (_, _, raw) = (
        prepared(rewards, True),
        prepared(np.sign(rewards), False),
        prepared(rewards, False),
    )
    np.testing.assert_array_equal(clipped.target, signs.target)
    np.testing.assert_array_equal(clipped.advantage, signs.advantage)
    assert float(episodes.total_return) == float(raw.total_return) != 0.0


def test_presets_replace_what_an_environment_is_tuned_with() -> None:
    tuned = load_config(["env=envpool/qbert"]).env
    assert (tuned.frame_stack, tuned.sticky_actions, tuned.life_loss, tuned.clip_reward) == (0, 0.0, True, True)
    machado = load_config(["preprocessing=machado", "env=envpool/qbert", "env.clip_reward=false"]).env
    values = (machado.frame_stack, machado.sticky_actions, machado.life_loss, machado.clip_reward)
    assert values == (4, 0.25, False, False)
    paper = from_config(load_config(["env=envpool/qbert", "preprocessing=stellaris"]).env)
    assert paper.observation_space.shape == (84, 84, 3)


def test_one_scale_of_rewards() -> None:
    with pytest.raises(ConfigError, match=r"env.clip_reward and env.normalize_reward both"):
        load_config(["env=envpool/qbert", "env.normalize_reward=true"])


# A user's wrappers


class Twice(Wrapper):
    """Every action counts twice."""

    def step_one(self, key: Any, state: Any, action: Any) -> Any:
        return self.env.step_one(key, state, 2 * action)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Registers, for one test."""

    def enter(kind: str, **things: Any) -> None:
        for name, thing in things.items():
            monkeypatch.setitem(vars(register[kind])["_entries"], name.replace("__", "/"), thing)

    return enter


class Bounded(Wrapper):
    """Only actions up to 5."""

    def step_one(self, key: Any, state: Any, action: Any) -> Any:
        return self.env.step_one(key, state, jnp.minimum(action, 5))


def test_wrappers_go_around_in_order(registered: Any) -> None:
    registered("environment", test__echo=Echo)
    registered("wrapper", twice=Twice, bounded=Bounded)
    done = {}
    for wrappers in ((), ("twice",), ("bounded", "twice"), ("twice", "bounded")):
        env = from_config(EnvConfig(name="test/echo", frame_stack=2, wrappers=wrappers))
        _, steps = run(env, np.full((2, N), 4))
        assert steps.obs.shape == (2, N, 4)
        done[wrappers] = steps.obs[0, 0, 3]
    assert done == {(): 4.0, ("twice",): 8.0, ("bounded", "twice"): 5.0, ("twice", "bounded"): 8.0}


def test_wrappers_that_do_not_fit(registered: Any) -> None:
    registered("environment", test__clockwork=Clockwork, test__echo=Echo)
    registered("wrapper", twice=Twice, nothing=lambda env: None)
    for name, wrapper, words in (
        ("test/clockwork", "twice", "env.wrappers=twice is for environments in JAX"),
        ("test/echo", "nothing", "env.wrappers has nothing, behind which"),
    ):
        with pytest.raises(ConfigError, match=words):
            from_config(EnvConfig(name=name, wrappers=(wrapper,)))
    with pytest.raises(ConfigError, match=r"env\.wrappers must be some of positions, twice, nothing, not"):
        load_config(["env.wrappers=[thrice]"])
