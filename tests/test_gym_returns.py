"""Returns of `reset` and `step` of gymnasium environments: each wrong one is one sentence with file and line."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.envs import check_env, make

VECTOR, NUMBER = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(4, start=1)
ZEROS = np.zeros(3, np.float32)


class Returning(gymnasium.Env):
    """Ends after ten steps; `reset` returns `first`, and `step` returns `then` from the second step on."""

    action_space = spaces.Discrete(2)

    def __init__(self, first: Any = (ZEROS, {}), then: Any = (ZEROS, 1.0, False, False, {}), space: Any = VECTOR):
        self.observation_space, self.first, self.then = space, first, then

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.first

    def step(self, action: Any) -> Any:
        self.steps += 1
        ends = self.steps >= 10
        if ends or self.steps == 1:
            return self.first[0], 1.0, ends, False, {}
        return self.then


class Unresetting(gymnasium.Env):
    observation_space, action_space = VECTOR, spaces.Discrete(2)


gymnasium.register("Returning-v0", Returning, max_episode_steps=10)
gymnasium.register("Unresetting-v0", Unresetting)

STEP = r"\(observation, reward, terminated, truncated, info\)"
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "only an observation": ({"first": ZEROS}, r"from reset a value of shape \(3,\).*, not \(observation, info\)"),
    "three values": ({"first": (ZEROS, {}, {})}, r"returns 3 values from reset, not \(observation, info\)"),
    "no info of a reset": ({"first": (ZEROS, None)}, "returns an info of None from reset, not a dict"),
    "shape of a reset": ({"first": (np.zeros(4), {})}, r"of shape \(4,\) .* from reset, not numbers of shape \(3,\)"),
    "text": ({"first": (np.array(["a", "b", "c"]), {})}, "dtype <U1 from reset, not numbers"),
    "unequal lists": ({"first": ([[0], [1, 2]], {})}, "an observation of type list from reset, not numbers"),
    "number out of range": (
        {"first": (5, {}), "space": NUMBER},
        "the observation 5 from reset, not an integer from 1 to",
    ),
    "no number": (
        {"first": (ZEROS, {}), "space": NUMBER},
        r"the observation of shape .* from reset, not an integer from 1",
    ),
    "four values": ({"then": (ZEROS, 1.0, False, {})}, f"returns 4 values from step, not {STEP}"),
    "nothing": ({"then": None}, f"returns from step a value of None, not {STEP}"),
    "info": ({"then": (ZEROS, 1.0, False, False, [])}, "returns an info of type list from step, not a dict"),
    "reward of an axis": ({"then": (ZEROS, np.ones(1), False, False, {})}, r"a reward of shape \(1,\) .* not a number"),
    "no reward": ({"then": (ZEROS, None, False, False, {})}, "returns a reward of None from step, not a number"),
    "terminated": ({"then": (ZEROS, 1.0, None, False, {})}, "returns terminated of None from step, not true or false"),
    "truncated": ({"then": (ZEROS, 1.0, False, "no", {})}, "returns truncated of type str from step, not true or"),
    "shape of a step": ({"then": (np.zeros(2), 1.0, False, False, {})}, r"of shape \(2,\) .* from step, not numbers"),
}


@pytest.mark.parametrize(("given", "sentence"), WRONG.values(), ids=WRONG)
def test_wrong_returns_are_one_sentence_with_file_and_line(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as error:
        check_env(make("gymnasium/Returning-v0", given))
    place = r"; /[^\n]*/test_gym_returns\.py, line \d+\."
    assert re.fullmatch(rf"env\.name=gymnasium/Returning-v0 [^\n]+{place}", str(error.value))


@pytest.mark.filterwarnings("ignore:.*(Worker|last exception|Traceback)")
def test_processes_say_the_same() -> None:
    pool = make("gymnasium/gym_lab:Faulty-v0", {"fault": "info", "vectorization_mode": "async"}).open(2, seed=1)
    pool.recv()
    with pytest.raises(ConfigError, match=r"an info of None from step, not a dict; /.*/gym_lab\.py, line \d+"):
        for _ in range(4):
            pool.send(np.zeros(2, int))
            pool.recv()
    pool.close()


def test_a_missing_reset_is_named() -> None:
    with pytest.raises(ConfigError, match=r"Unresetting-v0 has no method reset, which returns \(observation, info\)"):
        check_env("gymnasium/Unresetting-v0")


RIGHT: dict[str, dict[str, Any]] = {
    "arrays without axes": {"then": (ZEROS, np.float64(1.0), np.bool_(False), np.array(False), {})},
    "integers": {"then": (ZEROS, 1, 0, 0, {})},
    "lists": {"first": ([0.0, 0.0, 0.0], {})},
    "another dtype": {"first": (np.zeros(3), {})},
    "discrete": {"first": (np.int64(4), {}), "then": (4, 1.0, False, False, {}), "space": NUMBER},
}


@pytest.mark.parametrize("given", RIGHT.values(), ids=RIGHT)
def test_right_returns_pass(given: dict[str, Any]) -> None:
    check_env(make("gymnasium/Returning-v0", given))


def test_ranges_leave_out_the_steps_that_only_reset() -> None:
    """Such steps have reward 0, which the environment itself never gives."""
    assert check_env("gymnasium/Returning-v0").reward == (1.0, 1.0)
