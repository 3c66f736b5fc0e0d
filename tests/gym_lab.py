"""A user's own package of gymnasium environments, for `env=gymnasium/gym_lab:Drift-v0`."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

ACTIONS: dict[str, spaces.Space] = {
    "discrete": spaces.Discrete(3),
    "numbered from 5": spaces.Discrete(3, start=5),
    "choices": spaces.MultiDiscrete([2, 3]),
    "choices from 1": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 2], [3, 4]]),
    "switches": spaces.MultiBinary(3),
    "table of switches": spaces.MultiBinary([2, 2]),
    "box": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
    "number": spaces.Box(-1.0, 1.0, (), np.float32),
    "integers": spaces.Box(0, 5, (2,), np.int64),
    "text": spaces.Text(3),
}
OBSERVATIONS: dict[str, spaces.Space] = {
    "box": spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "bytes": spaces.Box(0, 255, (2, 2, 3), np.uint8),
    "number": spaces.Box(-np.inf, np.inf, (), np.float32),
    "discrete": spaces.Discrete(9, start=-1),
    "dict": spaces.Dict({"a": spaces.Discrete(2)}),
    "tuple": spaces.Tuple([spaces.Discrete(2)]),
    "text": spaces.Text(3),
}


class Drift(gymnasium.Env):
    """Walks at random and ends at random; observes the walk, the steps and the weighted sum of the last action.

    With `fails` it breaks in the step of that number.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 12}

    def __init__(
        self, action: str = "discrete", observation: str = "box", render_mode: str | None = None, fails: int = -1
    ):
        self.action_space, self.observation_space = ACTIONS[action], OBSERVATIONS[observation]
        self.render_mode, self.fails = render_mode, fails

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps, self.done = self.np_random.normal(), 0, 0.0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert np.asarray(action) in self.action_space, f"{action!r} is not in {self.action_space}"
        if self.steps + 1 == self.fails:
            raise OSError("the cable is out")
        weights = 1.0 + np.arange(np.size(action))
        self.steps, self.done = self.steps + 1, float(np.ravel(action) @ weights)
        self.place += self.np_random.normal()
        return self._observe(), self.place + self.done, bool(self.np_random.random() < 0.1), False, {}

    def _observe(self) -> Any:
        space = self.observation_space
        if space == OBSERVATIONS["discrete"]:
            return self.steps - 1
        if space == OBSERVATIONS["bytes"]:
            return np.full((2, 2, 3), self.steps, np.uint8)
        if space == OBSERVATIONS["number"]:
            return np.float32(self.steps)
        return np.array([self.place, self.steps, self.done])

    def render(self) -> np.ndarray:
        return np.full((4, 6, 3), self.steps, np.uint8)


class Right(gymnasium.Env):
    """One step, observed as -1 or 1 at random, like the diagnostics of this package: 1 for all that is right."""

    metadata: ClassVar = {"render_modes": []}
    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, action: str):
        self.action_space = ACTIONS[action]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.sign = self.np_random.choice([-1, 1])
        return np.array([self.sign], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = RIGHT[self.action_space.shape[0]][int(self.sign)]
        return np.zeros(1, np.float32), float(np.sum(np.where(action == np.array(right), 1.0, -1.0))), True, False, {}


RIGHT = {2: {-1: [0, 1], 1: [1, 2]}, 3: {-1: [0, 1, 0], 1: [1, 0, 0]}}
"""The right actions on each observation, by how many elements they have."""


class Scaled(gymnasium.RewardWrapper):
    """Every reward is the factor."""

    def __init__(self, env: gymnasium.Env, factor: float):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward: Any) -> float:
        return self.factor


class Broken(gymnasium.Env):
    observation_space, action_space = OBSERVATIONS["box"], ACTIONS["discrete"]

    def __init__(self) -> None:
        raise OSError("there is no\nsimulator")


class Faulty(gymnasium.Env):
    """Ends after five steps; from the third on it returns what it must not, or breaks."""

    observation_space, action_space = spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, fault: str):
        self.fault = fault

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        bad = self.steps > 2
        if bad and self.fault == "dies":
            os._exit(3)
        if bad and self.fault == "raises":
            raise OSError("the cable is out")
        obs = np.nan if bad and self.fault == "observation" else float(self.steps)
        reward = np.inf if bad and self.fault == "reward" else 1.0
        info: Any = None if bad and self.fault == "info" else {}
        return np.array([obs], np.float32), reward, self.steps == 5, False, info


gymnasium.register("Drift-v0", entry_point="gym_lab:Drift", max_episode_steps=7)
gymnasium.register("Endless-v0", entry_point="gym_lab:Drift")
gymnasium.register("Right-v0", entry_point="gym_lab:Right", max_episode_steps=1)
gymnasium.register("Broken-v0", entry_point="gym_lab:Broken", max_episode_steps=1)
gymnasium.register("Faulty-v0", entry_point="gym_lab:Faulty", max_episode_steps=9)
