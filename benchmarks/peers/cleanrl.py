"""Times CleanRL's PPO (PyTorch); `install.sh` makes its environment, and puts CleanRL's files into it.

CleanRL is files, not a package: `ppo.py`, `ppo_continuous_action.py` and `ppo_atari_envpool.py` of its repository at
fe8d8a03. They are looked for beside `bin/` and run as they are, in this process. Adapters give them today's gymnasium
and envpool with the interfaces that they were written for, and read the clocks: a script's training begins where it
resets its environments, and ends where it closes them.

CleanRL evaluates by the episodes it trains on. An evaluation here is the mean of the last of those, as many as an
evaluation of the other programs has, every so many steps.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
import tempfile
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import envpool
import gym
import gymnasium
import numpy as np
from gymnasium.wrappers import vector as wrappers

from benchmarks.peers.contract import Figures, Goal, Stopwatch, main

VERSION = "fe8d8a03"
MAKE = envpool.make

Job = tuple[str, dict[str, Any]]
CARTPOLE = {"env-id": "CartPole-v1", "num-envs": 4, "num-steps": 128, "num-minibatches": 4, "learning-rate": 2.5e-4}
JOBS: dict[str, Job] = {
    "cartpole_small": ("ppo.py", CARTPOLE | {"total-timesteps": 16_384}),
    "cartpole_large": (
        "ppo.py",
        CARTPOLE
        | {"num-envs": 2048, "num-steps": 32, "num-minibatches": 8, "learning-rate": 1e-3, "total-timesteps": 262_144},
    ),
    "hopper_envpool": (
        "ppo_continuous_action.py",
        {"env-id": "Hopper-v4", "num-envs": 16, "num-steps": 128, "num-minibatches": 32, "total-timesteps": 32_768},
    ),
    "atari_spaceinvaders": ("ppo_atari_envpool.py", {"env-id": "SpaceInvaders-v5", "total-timesteps": 8_192}),
    "cartpole": ("ppo.py", {"env-id": "CartPole-v1"}),
    "acrobot": ("ppo.py", {"env-id": "Acrobot-v1"}),
    "hopper": ("ppo_continuous_action.py", {"env-id": "Hopper-v4"}),
}
"""The file of a job and what differs from the file's own settings, which are the best that CleanRL ships."""


class Over(Exception):
    """Ends a script whose goal is reached."""


class Meter:
    """Counts a script's steps and episodes, and reads the clocks."""

    def __init__(self, watch: Stopwatch):
        self.watch, self.goal = watch, watch.goal
        self.steps = 0
        self.episodes: deque[float] = deque(maxlen=watch.goal.episodes if watch.goal else 128)

    def begin(self, num_envs: int) -> None:
        self.running = np.zeros(num_envs)
        self.watch.start()

    def add(self, rewards: np.ndarray, ended: np.ndarray) -> None:
        before = self.steps
        self.steps += len(rewards)
        self.running += rewards
        self.episodes.extend(self.running[ended])
        self.running[ended] = 0
        if self.goal is None or before // self.goal.every == self.steps // self.goal.every:
            return
        if self.watch.evaluated(self.steps, self.mean if len(self.episodes) == self.goal.episodes else -np.inf):
            raise Over

    @property
    def mean(self) -> float:
        return float(np.mean(self.episodes)) if self.episodes else 0.0


class Counted(gymnasium.vector.VectorWrapper):
    """Vectorised environments whose episodes are counted here, and not by the wrappers of older gymnasium."""

    def __init__(self, envs: gymnasium.vector.VectorEnv, meter: Meter):
        super().__init__(envs)
        self.meter = meter

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        found = self.env.reset(**options)
        self.meter.begin(self.num_envs)
        return found

    def step(self, actions: Any) -> tuple[Any, ...]:
        obs, rewards, terminated, truncated, _ = self.env.step(actions)
        self.meter.add(rewards, terminated | truncated)
        return obs, rewards, terminated, truncated, {}

    def close(self, **options: Any) -> None:
        self.meter.watch.stop()
        super().close(**options)


class Batch(gymnasium.vector.VectorEnv):
    """envpool's batch of environments as gymnasium's."""

    metadata: dict[str, Any] = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, name: str, num_envs: int, seed: int):
        self.batch, self.num_envs = MAKE(name, env_type="gymnasium", num_envs=num_envs, seed=seed), num_envs
        self.single_observation_space = self.batch.observation_space
        self.single_action_space = self.batch.action_space
        batched = gymnasium.vector.utils.batch_space
        self.observation_space = batched(self.single_observation_space, num_envs)
        self.action_space = batched(self.single_action_space, num_envs)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self.batch.reset()[0], {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        obs, rewards, terminated, truncated, _ = self.batch.step(np.asarray(actions, np.float64))
        return obs, rewards, terminated, truncated, {}


def hopper(num_envs: int, seed: int, meter: Meter) -> gymnasium.vector.VectorEnv:
    """envpool's Hopper with what CleanRL wraps around its own: normalised and clipped, outside of what is counted."""
    envs: Any = Counted(Batch("Hopper-v4", num_envs, seed), meter)
    envs = wrappers.NormalizeObservation(wrappers.ClipAction(envs))
    envs = wrappers.TransformObservation(envs, lambda obs: np.clip(np.asarray(obs), -10, 10))
    envs = wrappers.NormalizeReward(envs, gamma=0.99)
    return wrappers.TransformReward(envs, lambda reward: np.clip(reward, -10, 10))


class Games(gym.Env):
    """envpool's games with gym's step of four values; rewards are given raw in `info`, as envpool 0.6 did."""

    def __init__(self, batch: Any, num_envs: int, meter: Meter):
        self.batch, self.num_envs, self.meter = batch, num_envs, meter
        space = batch.action_space
        self.action_space = gym.spaces.Discrete(int(space.n))
        self.observation_space = gym.spaces.Box(0, 255, batch.observation_space.shape, np.uint8)

    def reset(self, **_: Any) -> np.ndarray:
        obs = self.batch.reset()[0]
        self.meter.begin(self.num_envs)
        return obs

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        obs, reward, terminated, truncated, info = self.batch.step(action)
        info.setdefault("terminated", terminated)
        self.meter.add(info["reward"], info["terminated"].astype(bool))
        return obs, reward, (terminated | truncated).astype(np.float32), info

    def close(self) -> None:
        self.meter.watch.stop()
        self.batch.close()


def adapt(file: str, seed: int, meter: Meter) -> None:
    """Put the adapters where a script will look for what it was written for."""
    sync = gymnasium.vector.SyncVectorEnv
    same = gymnasium.vector.AutoresetMode.SAME_STEP  # as gymnasium did when CleanRL was written

    def games(task: str, env_type: str, num_envs: int, **options: Any) -> Games:
        return Games(MAKE(task, env_type="gymnasium", num_envs=num_envs, **options), num_envs, meter)

    def batch(thunks: list[Any]) -> gymnasium.vector.VectorEnv:
        if file == "ppo_continuous_action.py":
            return hopper(len(thunks), seed, meter)
        return Counted(sync(thunks, autoreset_mode=same), meter)

    setattr(envpool, "make", games)  # noqa: B010
    setattr(gymnasium.vector, "SyncVectorEnv", batch)  # noqa: B010


def run(job: str, seed: int, goal: Goal | None) -> Figures:
    """Run a job's script once."""
    file, settings = JOBS[job]
    if goal is None and file != "ppo_atari_envpool.py":
        settings = settings | {"no-anneal-lr": None}
    watch = Stopwatch(goal)
    meter = Meter(watch)
    adapt(file, seed, meter)
    script = Path(sys.prefix) / file
    given = [f"--{key}" if value is None else f"--{key}={value}" for key, value in settings.items()]
    sys.argv = [str(script), *given, f"--seed={seed}"]
    warnings.simplefilter("ignore")
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        os.chdir(folder)
        try:
            runpy.run_path(str(script), run_name="__main__")
        except Over:
            watch.stop()
        finally:
            os.chdir(here)
    return watch.figures(meter.steps, meter.mean)


if __name__ == "__main__":
    main("cleanrl", VERSION, JOBS, run)
