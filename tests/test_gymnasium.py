"""Suite gymnasium: equal to stepping by hand, for every space, one after the other and in processes; its sentences."""

from __future__ import annotations

import re
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

import gymnasium
import jax
from gym_lab import Drift

from stellaris_jax import Trainer, load_config, train
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.cli import evaluate
from stellaris_jax.engine.evaluate import HostEvaluator
from stellaris_jax.engine.rollout import init_normalizers
from stellaris_jax.envs import available, check_env, resolve
from stellaris_jax.envs.base import Box, Discrete, HostEnv, HostPool, HostStep, MultiBinary, MultiDiscrete
from stellaris_jax.envs.registry import from_config, make
from stellaris_jax.runs.checkpoint import Checkpoints

N, T, LIMIT = 4, 40, 7
DRIFT = "gymnasium/gym_lab:Drift-v0"


def play(pool: HostPool, actions: np.ndarray) -> HostStep:
    """The steps of a pool, `[1 + T, N, ...]`, the first observations before them."""
    steps = [pool.recv()]
    for action in actions:
        pool.send(action)
        steps.append(pool.recv())
    pool.close()
    return HostStep(*(np.stack(column) for column in zip(*steps, strict=True)))


def by_hand(env: gymnasium.Env, seed: int, actions: list[Any]) -> list[tuple[Any, float, bool, bool]]:
    """An environment of gymnasium with its own actions, reset in the step after an end; the action is lost then."""
    obs, _ = env.reset(seed=seed)
    steps, over = [(obs, 0.0, False, False)], False
    for action in actions:
        if over:
            obs, _ = env.reset()
            steps.append((obs, 0.0, False, False))
        else:
            obs, reward, terminated, truncated, _ = env.step(action)
            steps.append((obs, float(reward), terminated, truncated))
        over = steps[-1][2] or steps[-1][3]
    return steps


# Our space of each of gymnasium's, and an action of it as gymnasium wants it.
SPACES: dict[str, tuple[Any, Any]] = {
    "discrete": (Discrete(3), int),
    "numbered from 5": (Discrete(3), lambda a: int(a) + 5),
    "choices": (MultiDiscrete((2, 3)), np.int64),
    "choices from 1": (MultiDiscrete((2, 3, 4, 2)), lambda a: np.array([[a[0] + 1, a[1] + 2], [a[2] + 3, a[3] + 4]])),
    "switches": (MultiBinary(3), np.int8),
    "table of switches": (MultiBinary(4), lambda a: np.array([[a[0], a[1]], [a[2], a[3]]], np.int8)),
    "box": (Box((4,), (-1.0,) * 4, (1.0,) * 4), lambda a: np.array([[a[0], a[1]], [a[2], a[3]]], np.float64)),
    "number": (Box((1,), (-1.0,), (1.0,)), lambda a: np.array(a[0], np.float32)),
}


@pytest.mark.parametrize("action", SPACES)
def test_equals_stepping_by_hand(action: str) -> None:
    env = make(DRIFT, {"action": action})
    space, own = SPACES[action]
    assert isinstance(env, HostEnv) and env.name == DRIFT and env.max_episode_steps == LIMIT
    assert env.action_space == space
    actions = space.sample(np.random.default_rng(0), T * N).reshape(T, N, *space.shape)
    steps = play(env.open(N, seed=11), actions)
    for n in range(N):
        hand = by_hand(gymnasium.make("Drift-v0", action=action), 11 + n, [own(a) for a in actions[:, n]])
        for ours, theirs in zip(steps, zip(*hand, strict=True), strict=True):
            np.testing.assert_array_equal(ours[:, n], np.asarray(theirs).astype(ours.dtype))
    assert [column.dtype for column in steps] == ["float32", "float32", "bool", "bool"]
    assert (steps.terminated & ~steps.truncated).any() and (steps.truncated & ~steps.terminated).any()


@pytest.mark.parametrize("name", ["LunarLander-v3", "BipedalWalker-v3"])
def test_box2d_equals_stepping_by_hand(name: str) -> None:
    pytest.importorskip("Box2D")
    env = make(f"gymnasium/{name}", {})
    assert isinstance(env, HostEnv)
    actions = env.action_space.sample(np.random.default_rng(0), T * 2).reshape(T, 2, *env.action_space.shape)
    steps = play(env.open(2, seed=11), actions)
    for n in range(2):
        hand = by_hand(gymnasium.make(name), 11 + n, [a if np.ndim(a) else int(a) for a in actions[:, n]])
        for ours, theirs in zip(steps, zip(*hand, strict=True), strict=True):
            np.testing.assert_array_equal(ours[:, n], np.asarray(theirs).astype(ours.dtype))


def test_box2d_that_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for module in [module for module in sys.modules if module.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ConfigError, match=r"pip install 'stellaris-jax\[box2d\]'"):
        make("gymnasium/LunarLander-v3", {})


def test_processes_do_what_one_process_does() -> None:
    actions = np.random.default_rng(0).integers(0, 3, (T, N))
    alone, apart = (play(make(DRIFT, {"vectorization_mode": m}).open(N, 3), actions) for m in ("sync", "async"))
    for one, other in zip(alone, apart, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_environments_that_take_no_part_stay_put(mode: str) -> None:
    """Even where they have just ended: their first step afterwards is the one that starts the next episode."""
    pool = make(DRIFT, {"vectorization_mode": mode}).open(N, seed=5)
    generator = np.random.default_rng(0)
    given: list[list[Any]] = [[] for _ in range(N)]
    got: list[list[Any]] = [[tuple(column[n] for column in pool.recv())] for n in range(N)]
    for _ in range(80):
        action = generator.integers(0, 3, generator.integers(1, N + 1))
        pool.send(action)
        step = pool.recv()
        assert {len(column) for column in step} == {len(action)}
        for n, a in enumerate(action):
            given[n].append(int(a))
            got[n].append(tuple(column[n] for column in step))
    pool.close()
    for n in range(N):
        hand = by_hand(gymnasium.make("Drift-v0"), 5 + n, given[n])
        for ours, theirs in zip(got[n], hand, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(one, np.asarray(other).astype(one.dtype))
    assert len(given[0]) == 80 > len(given[N - 1]) > 10


def test_observations_are_vectors_or_bytes() -> None:
    """A number of `Discrete` is one-hot, counted from its start; what has no axis gets one; bytes stay bytes."""
    idle = np.zeros((5, 1), int)

    def seen(observation: str) -> tuple[Box, np.ndarray]:
        env = make("gymnasium/gym_lab:Endless-v0", {"observation": observation, "max_episode_steps": 5})
        steps = play(env.open(1, seed=1), idle)
        assert not steps.terminated.any() and steps.truncated[:, 0].tolist() == [False] * 5 + [True]
        return env.observation_space, steps.obs[:, 0]

    space, obs = seen("discrete")
    assert space == Box((9,), (0.0,) * 9, (1.0,) * 9)
    np.testing.assert_array_equal(obs, np.eye(9, dtype=np.float32)[:6])
    space, obs = seen("number")
    assert space.shape == (1,) and obs.dtype == np.float32
    np.testing.assert_array_equal(obs[:, 0], np.arange(6))
    space, obs = seen("bytes")
    assert (space.shape, space.dtype, obs.dtype) == ((2, 2, 3), "uint8", np.uint8)
    np.testing.assert_array_equal(obs[:, 1, 1, 2], np.arange(6))


@pytest.mark.parametrize(
    ("name", "kwargs", "sentence"),
    [
        ("Drift-v0", {"observation": "dict"}, "it observes a Dict, not a Box or Discrete"),
        ("Drift-v0", {"observation": "tuple"}, "it observes a Tuple, not a Box or Discrete"),
        ("Drift-v0", {"observation": "text"}, "it observes a Text"),
        ("Drift-v0", {"action": "integers"}, r"its actions are a Box\(0, 5, \(2,\), int64\), not a Discrete"),
        ("Drift-v0", {"action": "text"}, "its actions are a Text"),
        ("Drift-v0", {"colour": 1}, "cannot be made with env.kwargs={'colour': 1} .*colour"),
        ("Drift-v0", {"vectorization_mode": "threads"}, "vectorization_mode='threads' must be one of sync, async"),
        ("Drift-v0", {"max_episode_steps": 0}, "max_episode_steps=0 must be an integer of at least 1"),
        ("Broken-v0", {}, r"cannot be made .OSError: there is no simulator; /.*/gym_lab\.py, line \d+"),
        ("Drift-v0", {"wrappers": "gymnasium.wrappers.ClipReward"}, "must be a list of dotted paths"),
        ("Drift-v0", {"wrappers": ["FlattenObservation"]}, "must be a list of dotted paths"),
        (
            "Drift-v0",
            {"wrappers": ["gymnasium.wrappers.Nothing"]},
            "gymnasium.wrappers.Nothing, which cannot be imported",
        ),
        ("Drift-v0", {"wrappers": ["no_lab.Wrapper"]}, "no_lab.Wrapper, which cannot be imported .*; tried: installed"),
        (
            "Drift-v0",
            {"wrappers": ["os.system"]},
            "env.kwargs.wrappers has os.system, which is no subclass of gymnasium",
        ),
        ("Drift-v0", {"wrappers": ["gymnasium.wrappers.vector"]}, "wrappers.vector, which is no subclass"),
        ("Drift-v0", {"wrappers": ["gymnasium.wrappers.RepeatAction"]}, "cannot be made with env.kwargs=.*num_repeats"),
        ("Drif-v0", {}, "is not an environment of gymnasium: did you mean gym_lab:Drift-v0"),
    ],
)
def test_mistakes_are_one_sentence(name: str, kwargs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as error:
        make(f"gymnasium/gym_lab:{name}", kwargs)
    assert "\n" not in str(error.value) and ("env.kwargs" in str(error.value) or name in str(error.value))


def test_wrappers_go_around_in_order() -> None:
    """By path, or by a mapping with arguments; in processes, too."""
    scaled = {"name": "gym_lab.Scaled", "factor": 2.0}
    clipped = {"name": "gymnasium.wrappers.ClipReward", "max_reward": 1.5}
    for wrappers, expected in (
        ([scaled], 2.0),
        ([clipped, scaled], 2.0),
        ([scaled, clipped], 1.5),
        ([scaled, "gymnasium.wrappers.RecordEpisodeStatistics", clipped], 1.5),
    ):
        kwargs = {"wrappers": wrappers, "vectorization_mode": "async" if len(wrappers) == 3 else "sync"}
        env = make(DRIFT, kwargs)
        assert isinstance(env, HostEnv)
        assert play(env.open(1, seed=1), np.zeros((1, 1), int)).reward[1, 0] == expected


def test_observations_that_are_no_box_come_with_the_command_that_works() -> None:
    with pytest.raises(ConfigError, match="it observes a Dict, not a Box or Discrete; this flattens it: ") as error:
        make(DRIFT, {"observation": "dict"})
    command = str(error.value).rpartition(": ")[2].rstrip(".")
    words = shlex.split(command)[-2:]
    assert words == [f"env={DRIFT}", "env.kwargs.wrappers=[gymnasium.wrappers.FlattenObservation]"]
    config = load_config([*words, "env.kwargs.observation=dict"])
    assert from_config(config.env).observation_space.shape == (2,)


def test_wrappers_of_ours_are_for_environments_in_jax() -> None:
    with pytest.raises(
        ConfigError, match=r"env.wrappers=positions is for environments in JAX.*, not for gymnasium/Cart"
    ):
        from_config(load_config(["env.name=gymnasium/CartPole-v1", "env.wrappers=[positions]"]).env)


@pytest.mark.parametrize(
    "name", ["gymnasium/gym_lab:Endless-v0", "gymnasium/Blackjack-v1", "gymnasium/CliffWalking-v1"]
)
def test_an_environment_without_a_time_limit_is_fine(name: str) -> None:
    flat = {"wrappers": ["gymnasium.wrappers.FlattenObservation"]} if "Blackjack" in name else {}
    env = make(name, flat)
    assert env.max_episode_steps is None
    check_env(env)


def test_an_evaluation_ends_where_episodes_do_not() -> None:
    config = load_config(["env=gymnasium/CliffWalking-v1", "evaluation.episodes=3", "evaluation.episode_limit=5",
                          "network.hidden=[4]"])  # fmt: skip
    env = from_config(config.env)
    assert isinstance(env, HostEnv)
    network = ActorCritic(env.observation_space, env.action_space, config.network)
    params = network.init(jax.random.key(0))[None]
    normalizers = jax.tree.map(lambda x: x[None], init_normalizers(env.observation_space))
    result = HostEvaluator(env, network, config, 3)(params, normalizers, [0], 0)
    assert result.lengths.tolist() == [[5, 5, 5]]


def test_evaluations_cut_episodes_without_a_time_limit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small = ["env.num_envs=2", "algorithm.rollout_length=4", "algorithm.epochs=1", "algorithm.minibatches=2",
             "network.hidden=[4]", "system=stellaris", "system.learners=2", "total_steps=8", "evaluation.episodes=3",
             "evaluation.points=1", "run.progress=false", "run.loggers=[]"]  # fmt: skip
    run = tmp_path / "run"
    config = load_config([*small, "env=gymnasium/CliffWalking-v1", "evaluation.episode_limit=5", f"run.dir={run}"])
    train(config)
    out = capsys.readouterr().out
    assert re.search(r"evaluation at 8 steps: return .*greedy", out) and "greedy actions" in out
    evaluate.main([str(run), "--episodes", "3", "--sample"])
    out = capsys.readouterr().out
    assert "sampled actions; length 5.0" in out
    assert "3 of 3 episodes reached evaluation.episode_limit=5, where they were cut" in out


def test_environments_that_have_moved_are_told_so() -> None:
    with pytest.raises(ConfigError, match=r"Ant-v2 cannot be made .*moved to the gymnasium-robotics project"):
        make("gymnasium/Ant-v2", {})


def test_mujoco_warns_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Not once for each environment; another warning is printed, too."""
    mujoco = pytest.importorskip("mujoco")
    pool = make("gymnasium/HalfCheetah-v5", {}).open(3, seed=0)  # type: ignore[union-attr]
    pool.close()
    warn = mujoco.get_mju_user_warning()
    for text in ("one of this test", "one of this test", "another of this test"):
        warn(text)
    err = capsys.readouterr().err
    assert err.count("one of this test") == err.count("another of this test") == 1 and err.count("settotalmass") <= 1


def test_names_keep_the_module_that_registers_them() -> None:
    """On the command line, too; a module that is not there is named."""
    assert resolve("gymnasium/cartpole") == "gymnasium/CartPole-v1" and "CartPole-v1" in available("gymnasium")
    assert resolve("Gymnasium/gym_lab:drift") == DRIFT
    for key in ("env", "env.name"):
        assert load_config([f"{key}={DRIFT}"]).env.name == DRIFT
    with pytest.raises(ConfigError, match=r"gymnasium/no_lab:Drift-v0: no_lab cannot be imported .*No module named"):
        load_config(["env=gymnasium/no_lab:Drift-v0"])


def test_a_stage_can_be_looked_at() -> None:
    env = make(DRIFT, {"vectorization_mode": "async"})
    assert env.steps_per_second == 12
    pool = env.stage(seed=1)
    for expected in range(3):
        pool.recv()
        assert pool.render().shape == (4, 6, 3) and (pool.render() == expected).all()
        pool.send(np.zeros(1, int))
    pool.close()
    with pytest.warns(UserWarning, match="render_mode"), pytest.raises(ConfigError, match="cannot be drawn"):
        make("gymnasium/gym_lab:Right-v0", {"action": "choices"}).stage(0)


@pytest.mark.filterwarnings("ignore:.*(Worker|last exception|Traceback)")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_fails_in_an_environment_is_raised_by_its_pool(mode: str) -> None:
    pool = make(DRIFT, {"vectorization_mode": mode, "fails": 3}).open(2, seed=1)
    with pytest.raises(OSError, match="the cable is out"):
        play(pool, np.zeros((5, 2), int))
    pool.close()


def test_runs_train_evaluate_and_resume(tmp_path: Path) -> None:
    """Restored from a checkpoint, the environments are brought back to where they stood, by the actions logged."""
    settings = [f"env={DRIFT}", "env.kwargs.action=choices", "env.num_envs=4", "network.hidden=[4]"]
    settings += [
        "algorithm.rollout_length=4",
        "algorithm.minibatches=2",
        "algorithm.epochs=1",
        "system=stellaris",
        "system.learners=2",
    ]
    settings += ["system.versions=4", "evaluation.episodes=3", "checkpoint.interval=2", "total_steps=64"]
    whole = Trainer(load_config(settings))
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    whole.run(2)
    whole.save(checkpoints)
    records = whole.run()
    resumed = Trainer(load_config(settings))
    assert resumed.restore(checkpoints) == 2
    again = resumed.run()
    result = resumed.evaluate()
    for trainer in (whole, resumed):
        trainer.close()
    checkpoints.close()
    np.testing.assert_array_equal(whole.state.params, resumed.state.params)
    assert [record["policy_loss"] for record in records] == [record["policy_loss"] for record in again]
    assert result.lengths.max() <= LIMIT and np.isfinite(result.returns).all()


def test_the_laboratory_is_one_gymnasium_accepts() -> None:
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bounds are infinite
        for action in SPACES:
            check_env(Drift(action), skip_render_check=True)
