"""Adapter of envpool: MuJoCo, Atari and many more suites, stepped by C++ threads on the host (envpool 1.2).

The adapter uses NumPy `send` and `recv`. It avoids envpool's XLA interface: with MuJoCo tasks, whose observations are
float64, that interface corrupts the heap of a 32-bit JAX process.
"""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import envpool
import numpy as np

from stellaris_jax.base import inputs
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.machine import BOUND, Part, check_fits
from stellaris_jax.base.outputs import refuse_links
from stellaris_jax.config.env_texts import check_files
from stellaris_jax.config.schema import shown
from stellaris_jax.envs.base import AS_GIVEN, Box, Discrete, HostStep, Preprocessing, Space
from stellaris_jax.envs.names import check_options

REFUSED: dict[str, str] = {}

# Options that this package sets itself.
MANAGED = ("num_envs", "batch_size", "seed", "env_seed", "max_num_players", "base_path", "gym_reset_return_info")
# Options that help training but distort the score, with their values in evaluations.
TRAINING_ONLY = {"episodic_life": False, "zero_discount_on_life_loss": False}
# envpool's names of options that have their own key below `env`.
NATIVE = {
    "frame_stack": "stack_num",
    "sticky_actions": "repeat_action_probability",
    "life_loss": "episodic_life",
    "clip_reward": "reward_clip",
}
# Seconds of a physics step in Gymnasium's MuJoCo tasks; an environment step has `frame_skip` physics steps.
TIMESTEP = {
    **dict.fromkeys(("Ant", "HalfCheetah", "InvertedDoublePendulum", "Pusher", "Reacher", "Swimmer"), 0.01),
    **dict.fromkeys(("Hopper", "Walker2d"), 0.002),
    **dict.fromkeys(("Humanoid", "HumanoidStandup"), 0.003),
    "InvertedPendulum": 0.02,
}

TRIAL_SECONDS = 60
LOG = "MUJOCO_LOG.TXT"
"""File in the current folder to which envpool's MuJoCo appends its warnings."""


def available() -> list[str]:
    """Ids of the available tasks, as in envpool."""
    return list(envpool.list_all_envs())


def make(name: str, **kwargs: Any) -> EnvpoolEnv:
    """Task of an id; see `EnvpoolEnv` for the arguments."""
    return EnvpoolEnv(name, **kwargs)


class EnvpoolEnv:
    """envpool task as a `HostEnv`. Images have their channels last.

    If a task ends at the same step as its time limit, envpool reports only the time limit.

    Args:
      name: id of the task, e.g. `Hopper-v4` or `SpaceInvaders-v5`.
      preprocessing: options for Atari games. A lost life ends an episode in training only.
      kwargs: options of the task: `max_episode_steps`, `num_threads`, `frame_skip`, and so on.

    Raises:
      ConfigError: an option is unknown, has an invalid value, or a network cannot read the task's spaces.
    """

    def __init__(self, name: str, *, preprocessing: Preprocessing = AS_GIVEN, **kwargs: Any):
        self.name = f"envpool/{name}"
        self._task, self._kwargs = name, kwargs
        check_files(kwargs)
        try:
            refuse_links(Path(LOG))  # envpool has its own copy of MuJoCo, without our handler of warnings
        except OSError as error:
            raise ConfigError(f"env.name={self.name} cannot be used in this folder: {inputs.reason(error)}.") from None
        known = envpool.make_spec(name).config._asdict()
        for key, native in NATIVE.items():
            if native in kwargs and native in known:
                raise ConfigError(f"env.kwargs.{native}={kwargs[native]} is to be written env.{key}.")
            if key in preprocessing.asked and native not in known:
                raise ConfigError(f"env.{key}={preprocessing.asked[key]} is not possible: {self.name} is not Atari.")
        check_options(self.name, kwargs, sorted(set(known) - set(MANAGED)))
        for key, value in kwargs.items():
            _check_option(key, value, known[key])
        if kwargs:
            _try(name, pickle.dumps(kwargs))
        self.options = kwargs | {NATIVE[key]: value for key, value in preprocessing.asked.items()}
        with _quiet():
            spec = envpool.make_spec(name, **self.options)
            observation, action = spec.observation_space, spec.action_space
        self._images = len(getattr(observation, "shape", None) or ()) == 3
        self._action_dtype = getattr(action, "dtype", None)
        self.observation_space = self._observed(observation, spec.config)
        self.action_space = self._acted(action)
        self.max_episode_steps = int(spec.config.max_episode_steps)
        self.steps_per_second = self._pace(spec.config)

    def preprocessed(self, options: Preprocessing) -> EnvpoolEnv:
        """Same task with preprocessing. Raises ConfigError if it is not an Atari game."""
        return EnvpoolEnv(self._task, preprocessing=options, **self._kwargs)

    def _observed(self, space: Any, config: Any) -> Box:
        shape = getattr(space, "shape", None)
        if type(space).__name__ != "Box" or not shape or len(shape) not in (1, 3):
            raise ConfigError(f"env.name={self.name} cannot be trained on: it observes neither a vector nor an image.")
        check_fits([Part("an observation", 0, BOUND * math.prod(shape), (f"env.kwargs={self._kwargs}",))])
        low, high = (np.broadcast_to(np.asarray(bound, np.float64), shape) for bound in (space.low, space.high))
        if self._images:
            low, high = np.moveaxis(low, 0, -1), np.moveaxis(high, 0, -1)
        dtype = "uint8" if space.dtype == np.uint8 else "float32"
        frames = getattr(config, "stack_num", 1) if self._images else 1
        return Box(low.shape, tuple(low.ravel().tolist()), tuple(high.ravel().tolist()), dtype, frames)

    def _acted(self, space: Any) -> Space:
        if type(space).__name__ == "Discrete":
            return Discrete(int(space.n))
        if type(space).__name__ == "Box" and len(space.shape) == 1:
            return Box(tuple(space.shape), tuple(space.low.tolist()), tuple(space.high.tolist()))
        raise ConfigError(f"env.name={self.name} cannot be trained on: actions must be a vector Box or Discrete.")

    def _pace(self, config: Any) -> float:
        """Environment steps per second of the game or of the physics; 30 physics steps if unknown."""
        timestep = TIMESTEP.get(self._task.rpartition("-v")[0], 1 / 60 if self._images else 1 / 30)
        return 1 / (timestep * getattr(config, "frame_skip", 1))

    def open(self, num_envs: int, seed: int, evaluation: bool = False, **extra: Any) -> EnvpoolPool:
        """Pool of environments at the start of an episode; `extra` are arguments of envpool (`render_mode`, ...)."""
        options = dict(self.options)
        if "num_threads" in options:
            options["num_threads"] = min(options["num_threads"], num_envs)  # further threads would be idle
        if evaluation:
            options |= {key: value for key, value in TRAINING_ONLY.items() if key in options}
        with _quiet():
            batch = envpool.make(self._task, env_type="gymnasium", num_envs=num_envs, seed=seed, **options, **extra)
        return EnvpoolPool(batch, self._images, self.observation_space.dtype, self._action_dtype)

    def stage(self, seed: int) -> EnvpoolPool:
        """Pool of one environment for evaluation that supports `render`."""
        return self.open(1, seed, evaluation=True, render_mode="rgb_array")


class EnvpoolPool:
    """Pool of envpool's environments in its synchronous mode, which returns results in the environments' order."""

    def __init__(self, batch: Any, images: bool, dtype: str, action_dtype: Any):
        self.batch, self._images, self._dtype, self._action_dtype = batch, images, dtype, action_dtype
        self.batch.async_reset()

    def send(self, action: np.ndarray) -> None:
        self.batch.send(np.ascontiguousarray(action, self._action_dtype), np.arange(len(action), dtype=np.int32))

    def recv(self) -> HostStep:
        obs, reward, terminated, truncated, _ = self.batch.recv()
        obs = np.moveaxis(obs, 1, -1) if self._images else obs
        return HostStep(obs.astype(self._dtype), reward.astype(np.float32), terminated, truncated)

    def render(self) -> np.ndarray:
        """Colour picture, uint8 `[H, W, 3]`, of the first environment. Raises RuntimeError if envpool draws none."""
        return self.batch.render()[0]

    def close(self) -> None:
        self.batch.close()


def _check_option(key: str, value: Any, default: Any) -> None:
    """Raise ConfigError for a value of another type than the default, or an integer that is too small.

    The minimum is 1 if the default is at least 1 (`frame_skip`), else the default: 0 may let envpool choose
    (`num_threads`).
    """
    kind = type(default)
    truth = isinstance(value, bool) and kind is not bool
    if truth or not (isinstance(value, kind) or (kind is float and isinstance(value, int))):
        raise ConfigError(f"env.kwargs.{key}={shown(value)} must be of type {kind.__name__}, as is {default!r}.")
    if kind is int and not min(default, 1) <= value < 2**31:
        raise ConfigError(f"env.kwargs.{key}={value} must be at least {min(default, 1)}, and below 2**31.")


@cache
def _try(task: str, options: bytes) -> None:
    """Raise ConfigError for pickled options that envpool does not accept.

    Some options crash the process without an exception, so they are tried in a subprocess.
    """
    command = [sys.executable, "-P", "-c", "from stellaris_jax.envs.suites.envpool import _trial; _trial()"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JAX_PLATFORMS": "cpu"}
    try:
        done = subprocess.run(
            command, input=pickle.dumps((task, options)), capture_output=True, env=environ, timeout=TRIAL_SECONDS
        )
    except subprocess.TimeoutExpired:
        reason = f"its first steps take more than {TRIAL_SECONDS} s"
    else:
        if done.returncode == 0:
            return
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["without a word"]
        reason = f"envpool ends ({lines[-1].strip()[:200]})"
    raise ConfigError(f"env.kwargs={shown(pickle.loads(options))} cannot be used with envpool/{task}: {reason}.")


def _trial() -> None:
    """Main function of the subprocess: the first steps of the task and options from its standard input."""
    task, options = pickle.load(sys.stdin.buffer)
    try:
        pool = envpool.make(task, env_type="gymnasium", num_envs=1, seed=0, **pickle.loads(options))
        pool.async_reset()
        pool.recv()
        for _ in range(2):
            pool.send(np.asarray([pool.action_space.sample()]), np.zeros(1, np.int32))
            pool.recv()
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else type(error).__name__)


@contextmanager
def _quiet() -> Iterator[None]:
    """Context that suppresses gymnasium's warnings about the precision of bounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
