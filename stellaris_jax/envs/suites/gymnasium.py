"""gymnasium: every environment that is registered there, those of other packages as `module:id` (gymnasium 1.x).

They are stepped by gymnasium's own vector environments, one after the other or each in a process of its own.
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

from stellaris_jax.config.commands import command
from stellaris_jax.config.env_texts import check_files
from stellaris_jax.config.gym_wrappers import ARGUMENT, KEY, GymWrapper, wrappers_of
from stellaris_jax.config.machine import BOUND, Part, check_fits
from stellaris_jax.config.schema import ConfigError, RunError, shown
from stellaris_jax.envs import gym_returns, mujoco_warnings
from stellaris_jax.envs.base import Box, Discrete, HostStep, MultiBinary, MultiDiscrete, Space
from stellaris_jax.envs.gym_returns import Returns, check_inside
from stellaris_jax.envs.mujoco_warnings import warn_once
from stellaris_jax.envs.names import positive_int, raised, retold
from stellaris_jax.registry import searched

REFUSED: dict[str, str] = {}

FLATTEN = "gymnasium.wrappers.FlattenObservation"
MODES = ("sync", "async")
SAFE_PATH = "PYTHONSAFEPATH"
"""Environment variable by which Python leaves the current folder out of its path."""
STEPS_PER_SECOND = 30.0
"""Of films, where an environment's metadata do not say."""


def available() -> list[str]:
    """The ids of all environments that are registered by now."""
    return list(gymnasium.registry)


def candidates(name: str) -> list[str]:
    """What `name` may mean: the ids, or for `module:id` those there are after an import of the module, behind its name.

    Raises ConfigError if it cannot be imported.
    """
    module, colon, _ = name.rpartition(":")
    if colon:
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever somebody else's module does
            reason = f"{raised(error)}{searched(error, module)}"
            raise ConfigError(f"env.name=gymnasium/{name}: {module} cannot be imported ({reason}).") from error
    return [module + colon + id_ for id_ in available()]


def make(name: str, **kwargs: Any) -> GymnasiumEnv:
    """The environment `name`; see `GymnasiumEnv` for the arguments."""
    return GymnasiumEnv(name, **kwargs)


class GymnasiumEnv:
    """A gymnasium environment by its id, e.g. `CartPole-v1` or `my_package:MyEnv-v0`: a `HostEnv`.

    max_episode_steps: steps after which an episode is truncated, by default those it is registered with, if any.
    vectorization_mode: `sync` steps a pool's environments one after the other, which suits light ones; `async` gives
    each a process of its own.
    wrappers: gymnasium wrappers around the environment, the first innermost, by dotted paths; see
    `config.gym_wrappers`.
    Other keyword arguments go to `gymnasium.make`.

    Observations are a `Box`, or a `Discrete`, which is read as a one-hot vector. Actions may be any of `Space`; those
    of several axes are vectors here, and what is numbered from another `start` is numbered from 0.

    Raises ConfigError for other spaces, and where it cannot be made.
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
        named = wrappers_of({ARGUMENT: wrappers})
        around = [(_wrapper(one), one.arguments) for one in named]
        self._wrappers = [one.path for one in named]
        self._make = partial(_made, spec, around, max_episode_steps=self.max_episode_steps, **kwargs)
        if wrappers:
            kwargs = {**kwargs, ARGUMENT: wrappers}
        try:
            env = self._make()
        except Exception as error:  # whatever somebody else's environment does
            given = f" with env.kwargs={shown(kwargs)}" if kwargs else ""
            raise ConfigError(f"env.name={self.name} cannot be made{given} ({raised(error)}).") from error
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
        """The command that makes a Box of observations, as the end of a sentence; empty where nothing does."""
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
        """A batch `[n, ...]` of the environment's own observations as `observation_space` has it."""
        if isinstance(self._given, spaces.Discrete):
            return np.equal(obs[:, None] - self._given.start, np.arange(int(self._given.n))).astype(np.float32)
        return np.reshape(obs, (len(obs), *self.observation_space.shape)).astype(self.observation_space.dtype)

    def act(self, action: np.ndarray) -> np.ndarray:
        """Actions `[n, ...]` of `action_space` as the environment has them."""
        own = np.reshape(action, (len(action), *(self._taken.shape or ())))
        return (own + getattr(self._taken, "start", 0)).astype(self._taken.dtype)

    def open(self, num_envs: int, seed: int, evaluation: bool = False) -> GymnasiumPool:
        """A pool of environments at the start of an episode, seeded with `seed`, `seed + 1`, ..."""
        return self._open(num_envs, seed, self._mode)

    def stage(self, seed: int) -> GymnasiumPool:
        """A pool of one environment that can be looked at with `render`; ConfigError where there is no drawing."""
        try:
            return self._open(1, seed, "sync", render_mode="rgb_array")
        except Exception as error:
            raise ConfigError(f"env.name={self.name} cannot be drawn ({retold(error)}).") from error

    def _open(self, num_envs: int, seed: int, mode: str, **extra: Any) -> GymnasiumPool:
        # What gymnasium has to say of the environment it has said of the one that was made first.
        make = partial(self._make, disable_env_checker=True, **extra)
        makers = [partial(_make_pausable, make, os.getpid(), self.name)] * num_envs
        vector: VectorEnv
        if mode == "async":
            # A fork would take the locks of JAX's threads with it.
            with _safe_path():
                vector = AsyncVectorEnv(makers, context="spawn", autoreset_mode=AutoresetMode.NEXT_STEP)
            for process in vector.processes:
                # Deaf to SIGTERM, as they are: gymnasium sends it to what it ends, and so does Python to what is left.
                process._popen.terminate = process._popen.kill  # type: ignore[attr-defined]
        else:
            vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
        return GymnasiumPool(self, vector, seed)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Processes that are started within do not look for modules in the current folder first, which may be anybody's.

    They get the path of this process before they import anything of it.
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
    """The class of a wrapper. Raises ConfigError."""
    own, name = named.exported, named.path.rpartition(".")[2]
    try:
        found = getattr(gymnasium.wrappers if own else importlib.import_module(named.module), name)
    except Exception as error:  # whatever somebody else's module does
        reason = f"{retold(error)}{searched(error, named.module)}"
        raise ConfigError(f"{KEY} has {named.path}, which cannot be imported ({reason}).") from error
    if not (isinstance(found, type) and issubclass(found, gymnasium.Wrapper)):
        raise ConfigError(f"{KEY} has {named.path}, which is no subclass of gymnasium.Wrapper.")
    return found


def _made(spec: Any, wrappers: list[tuple[type[gymnasium.Wrapper], dict[str, Any]]], **kwargs: Any) -> gymnasium.Env:
    """An environment behind its wrappers."""
    entry = str(spec.entry_point)
    if "mujoco" in entry or not entry.startswith("gymnasium.envs."):
        with suppress(ImportError):
            warn_once()
    env: gymnasium.Env = gymnasium.make(spec, **kwargs)
    for wrapper, arguments in wrappers:
        env = wrapper(env, **arguments)
    return env


class Pausable(gymnasium.Wrapper):
    """Takes actions `(go, action)`; without `go` nothing happens, and the last observation is returned again."""

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
        # Ctrl-C and the end of a terminal reach all of its processes, scancel all of a job's; the round under way is to
        # be finished.
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
    return Pausable(make(), name)


class GymnasiumPool:
    """A vector environment of `Pausable`s.

    The step after an episode's end resets the environment (`NEXT_STEP`). gymnasium would reset one that pauses then,
    too: the observation waits for the step that is due.
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
        """A picture `[H, W, 3]` uint8 of the first environment; RuntimeError where gymnasium draws none."""
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
            # It would wait for the step that failed, and fail once more, with its processes left behind.
            for process in self._vector.processes:
                process.terminate()
                process.join()
            self._vector.closed = True
        else:
            self._vector.close()
