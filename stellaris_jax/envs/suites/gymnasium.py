"""Adapter of gymnasium: every registered environment, and those of other packages as `module:id` (gymnasium 1.x).

gymnasium's vector environments step them, either one after the other or each in its own process.
"""

from __future__ import annotations

import importlib
import math
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from stellaris_jax.base.commands import command
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.machine import BOUND, Part, check_fits
from stellaris_jax.base.registry import searched
from stellaris_jax.config.env_texts import check_files
from stellaris_jax.config.gym_wrappers import ARGUMENT, KEY, GymWrapper, wrappers_of
from stellaris_jax.config.schema import shown
from stellaris_jax.envs import gym_returns, mujoco_warnings
from stellaris_jax.envs.base import Box, Discrete, HostStep, MultiBinary, MultiDiscrete, Space
from stellaris_jax.envs.gym_returns import Returns, check_inside
from stellaris_jax.envs.mujoco_warnings import warn_once
from stellaris_jax.envs.names import positive_int, raised, retold

REFUSED: dict[str, str] = {}

FLATTEN = "gymnasium.wrappers.FlattenObservation"
MODES = ("sync", "async")
SAFE_PATH = "PYTHONSAFEPATH"
"""Environment variable that removes the current folder from Python's path."""
STEPS_PER_SECOND = 30.0
"""Default steps per second of films, for environments without this number in their metadata."""


def available() -> list[str]:
    """Ids of all environments that are registered so far."""
    return list(gymnasium.registry)


def candidates(name: str) -> list[str]:
    """Candidates for a name: all ids, or for `module:id` all ids after the module's import, with its name as prefix.

    Raises ConfigError if the module cannot be imported.
    """
    module, colon, _ = name.rpartition(":")
    if colon:
        try:
            importlib.import_module(module)
        except Exception as error:  # third-party modules may raise anything
            reason = f"{raised(error)}{searched(error, module)}"
            raise ConfigError(f"env.name=gymnasium/{name}: {module} cannot be imported ({reason}).") from error
    return [module + colon + id_ for id_ in available()]


def make(name: str, **kwargs: Any) -> GymnasiumEnv:
    """Environment of an id; see `GymnasiumEnv` for the arguments."""
    return GymnasiumEnv(name, **kwargs)


class GymnasiumEnv:
    """gymnasium environment as a `HostEnv`.

    Observations are a `Box`, or a `Discrete`, which becomes a one-hot vector. Actions may be of any `Space`. Actions
    with several axes are flattened, and numbering always starts at 0.

    Args:
      name: id, e.g. `CartPole-v1` or `my_package:MyEnv-v0`.
      max_episode_steps: steps after which an episode is truncated; the registered number by default.
      vectorization_mode: `sync` steps a pool's environments one after the other, which suits fast ones; `async` runs
        each in its own process.
      wrappers: gymnasium wrappers by dotted paths, the first innermost; see `config.gym_wrappers`.
      kwargs: arguments of `gymnasium.make`.

    Raises:
      ConfigError: the spaces are not supported, or the environment cannot be made.
    """

    def __init__(
        self,
        name: str,
        *,
        max_episode_steps: int | None = None,
        vectorization_mode: str = "sync",
        wrappers: Sequence[Any] = (),
        **kwargs: Any,
    ):
        self.name = f"gymnasium/{name}"
        if vectorization_mode not in MODES:
            mode = shown(vectorization_mode)
            raise ConfigError(f"env.kwargs.vectorization_mode={mode} must be one of {', '.join(MODES)}.")
        check_files(kwargs)
        spec = gymnasium.spec(name.rpartition(":")[2])
        limit = spec.max_episode_steps if max_episode_steps is None else max_episode_steps
        self.max_episode_steps = None if limit is None else positive_int("max_episode_steps", limit)
        self._mode = vectorization_mode
        specs = wrappers_of({ARGUMENT: wrappers})
        classes = [(_wrapper(wrapper), wrapper.arguments) for wrapper in specs]
        self._wrappers = [wrapper.path for wrapper in specs]
        self._make = partial(_made, spec, classes, max_episode_steps=self.max_episode_steps, **kwargs)
        if wrappers:
            kwargs = {**kwargs, ARGUMENT: wrappers}
        try:
            env = self._make()
        except Exception as error:  # third-party environments may raise anything
            given = f" with env.kwargs={shown(kwargs)}" if kwargs else ""
            extra = "; pip install 'stellaris-jax[box2d]'" if "gymnasium[box2d]" in str(error) else ""
            raise ConfigError(f"env.name={self.name} cannot be made{given} ({raised(error)}){extra}.") from error
        self._given, self._taken = env.observation_space, env.action_space
        self.steps_per_second = float(env.metadata.get("render_fps") or STEPS_PER_SECOND)
        env.close()
        self.observation_space = self._observed(self._given)
        self.one_hot = isinstance(self._given, spaces.Discrete)
        self.action_space = self._acted(self._taken)

    def _observed(self, space: spaces.Space) -> Box:
        if isinstance(space, spaces.Box):
            self._check_size(math.prod(space.shape))
            low, high = (tuple(np.ravel(bound).astype(float).tolist()) for bound in (space.low, space.high))
            return Box(space.shape or (1,), low, high, "uint8" if space.dtype == np.uint8 else "float32")
        if isinstance(space, spaces.Discrete):
            n = int(space.n)
            self._check_size(n)
            return Box((n,), (0.0,) * n, (1.0,) * n)
        raise ConfigError(
            f"env.name={self.name} cannot be trained on: it observes a {type(space).__name__}, not a Box or Discrete"
            f"{self._flattened(space)}."
        )

    def _flattened(self, space: spaces.Space) -> str:
        """Command that flattens observations to a Box, as the end of a sentence; empty if that is impossible."""
        try:
            if not isinstance(spaces.utils.flatten_space(space), spaces.Box):
                return ""
        except NotImplementedError:
            return ""
        wrappers = shlex.quote(f"{KEY}=[{','.join([*self._wrappers, FLATTEN])}]")
        return f"; this flattens it: {command('train')} env={shlex.quote(self.name)} {wrappers}"

    def _check_size(self, numbers: int) -> None:
        check_fits([Part("an observation", 0, BOUND * numbers, (f"env.name={self.name}",))])

    def _acted(self, space: spaces.Space) -> Space:
        if isinstance(space, spaces.Discrete):
            return Discrete(int(space.n))
        if isinstance(space, spaces.MultiDiscrete):
            return MultiDiscrete(tuple(np.ravel(space.nvec).tolist()))
        if isinstance(space, spaces.MultiBinary):
            return MultiBinary(math.prod(space.shape))
        if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
            low, high = (tuple(np.ravel(bound).astype(float).tolist()) for bound in (space.low, space.high))
            return Box((len(low),), low, high)
        raise ConfigError(
            f"env.name={self.name} cannot be trained on: its actions are a {space}, "
            "not a Discrete, MultiDiscrete, MultiBinary or a Box of real numbers."
        )

    def observe(self, obs: np.ndarray) -> np.ndarray:
        """Observations `[n, ...]` of the environment, converted to `observation_space`."""
        if isinstance(self._given, spaces.Discrete):
            return np.equal(obs[:, None] - self._given.start, np.arange(int(self._given.n))).astype(np.float32)
        return np.reshape(obs, (len(obs), *self.observation_space.shape)).astype(self.observation_space.dtype)

    def act(self, action: np.ndarray) -> np.ndarray:
        """Actions `[n, ...]` of `action_space`, converted to the environment's space."""
        shaped = np.reshape(action, (len(action), *(self._taken.shape or ())))
        return (shaped + getattr(self._taken, "start", 0)).astype(self._taken.dtype)

    def open(self, num_envs: int, seed: int, evaluation: bool = False) -> GymnasiumPool:
        """Pool of environments at the start of an episode, seeded with `seed`, `seed + 1`, ..."""
        return self._open(num_envs, seed, self._mode)

    def stage(self, seed: int) -> GymnasiumPool:
        """Pool of one environment that supports `render`. Raises ConfigError if the environment cannot be drawn."""
        try:
            return self._open(1, seed, "sync", render_mode="rgb_array")
        except Exception as error:
            raise ConfigError(f"env.name={self.name} cannot be drawn ({retold(error)}).") from error

    def _open(self, num_envs: int, seed: int, mode: str, **extra: Any) -> GymnasiumPool:
        # gymnasium has checked the first environment already, so its checker is disabled here.
        make = partial(self._make, disable_env_checker=True, **extra)
        makers = [partial(_make_pausable, make, os.getpid(), self.name)] * num_envs
        vector: VectorEnv
        if mode == "async":
            # A fork would copy locks that JAX's threads hold.
            with _safe_path():
                vector = AsyncVectorEnv(makers, context="spawn", autoreset_mode=AutoresetMode.NEXT_STEP)
            for process in vector.processes:
                # These processes ignore SIGTERM, which gymnasium and Python send to end them: send SIGKILL instead.
                process._popen.terminate = process._popen.kill  # type: ignore[attr-defined]
        else:
            vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
        return GymnasiumPool(self, vector, seed)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Context in which started processes do not import modules from the current folder, which may be untrusted.

    The processes receive this process's path before they import its modules.
    """
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


def _wrapper(named: GymWrapper) -> type[gymnasium.Wrapper]:
    """Class of a wrapper. Raises ConfigError."""
    exported, name = named.exported, named.path.rpartition(".")[2]
    try:
        kind = getattr(gymnasium.wrappers if exported else importlib.import_module(named.module), name)
    except Exception as error:  # third-party modules may raise anything
        reason = f"{retold(error)}{searched(error, named.module)}"
        raise ConfigError(f"{KEY} has {named.path}, which cannot be imported ({reason}).") from error
    if not (isinstance(kind, type) and issubclass(kind, gymnasium.Wrapper)):
        raise ConfigError(f"{KEY} has {named.path}, which is no subclass of gymnasium.Wrapper.")
    return kind


def _made(spec: Any, wrappers: list[tuple[type[gymnasium.Wrapper], dict[str, Any]]], **kwargs: Any) -> gymnasium.Env:
    """Environment in its wrappers."""
    entry = str(spec.entry_point)
    if "mujoco" in entry or not entry.startswith("gymnasium.envs."):
        with suppress(ImportError):
            warn_once()
    env: gymnasium.Env = gymnasium.make(spec, **kwargs)
    for wrapper, arguments in wrappers:
        env = wrapper(env, **arguments)
    return env


class Pausable(gymnasium.Wrapper):
    """Wrapper with actions `(go, action)`; without `go` it does not step, and returns the last observation again."""

    def __init__(self, env: gymnasium.Env, name: str):
        super().__init__(check_inside(env, name))
        self._returns = Returns(name, env)
        self.action_space = spaces.Tuple((spaces.Discrete(2), env.action_space))
        self._obs: Any = None

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(**options)
        self._returns.reset(result)
        self._obs, info = result
        self._returns.observation("reset", self._obs)
        return self._obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        go, action = action
        if not go:
            return self._obs, 0.0, False, False, {}
        result = self.env.step(action)
        self._returns.step(result)
        self._obs, *rest = result
        self._returns.observation("step", self._obs)
        return self._obs, *rest  # type: ignore[return-value]


# The processes of `async` get these classes and functions by their code: they would import all of this package for it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(gym_returns)
cloudpickle.register_pickle_by_value(mujoco_warnings)


def _make_pausable(make: Any, run: int, name: str) -> Pausable:
    if os.getpid() != run:
        # Ctrl-C and the end of a terminal reach all of its processes, and scancel all processes of a job. Ignore these
        # signals, so that the current round can finish.
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
    return Pausable(make(), name)


class GymnasiumPool:
    """Pool around a vector environment of `Pausable`s.

    The step after an episode's end resets the environment (`NEXT_STEP`). gymnasium resets a paused environment then,
    too; `Pausable` keeps its first observation until the environment's next step.
    """

    def __init__(self, env: GymnasiumEnv, vector: VectorEnv, seed: int):
        self._env, self._vector = env, vector
        obs, _ = vector.reset(seed=seed)
        num = vector.num_envs
        self._over, self._count, self._broken = np.zeros(num, bool), num, False
        self._actions = np.zeros((num, *env.action_space.shape), env.action_space.dtype)
        self._result: Any = lambda: (obs, np.zeros(num), np.zeros(num, bool), np.zeros(num, bool), {})

    def send(self, action: np.ndarray) -> None:
        self._count = n = len(action)
        self._actions[:n] = action
        go = ~self._over
        go[n:] = False
        batch: Any = go.astype(np.int64), self._env.act(self._actions)
        if isinstance(self._vector, AsyncVectorEnv):
            with self._watched():
                self._vector.step_async(batch)
            self._result = self._vector.step_wait
        else:
            self._result = partial(self._vector.step, batch)

    def recv(self) -> HostStep:
        n = self._count
        with self._watched():
            obs, reward, terminated, truncated, _ = self._result()
        step = HostStep(self._env.observe(obs)[:n], reward[:n].astype(np.float32), terminated[:n], truncated[:n])
        self._over[:n] = step.terminated | step.truncated
        return step

    def render(self) -> np.ndarray:
        """Picture, uint8 `[H, W, 3]`, of the first environment. Raises RuntimeError if gymnasium draws none."""
        try:
            (picture, *_) = self._vector.render() or (None,)
        except gymnasium.error.Error as error:
            raise RuntimeError(retold(error)) from error
        if picture is None:
            raise RuntimeError("it draws nothing")
        return np.asarray(picture)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError) as error:
            self._broken = True
            raise RunError(f"env.name={self._env.name}: a process that steps it has ended by itself.") from error
        except BaseException:
            self._broken = True
            raise

    def close(self) -> None:
        if self._broken and isinstance(self._vector, AsyncVectorEnv):
            # `close` would wait for the failed step, fail again, and leave its processes running.
            for process in self._vector.processes:
                process.terminate()
                process.join()
            self._vector.closed = True
        else:
            self._vector.close()
