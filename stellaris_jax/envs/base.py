"""Environment protocols and spaces of all adapters: vectorised, functional, with resets inside the step.

An adapter separates three things that many libraries merge:

- `terminated`: the task ended, so the value of the next state is zero.
- `truncated`: a time limit ended the episode, so the value of the next state is not zero.
- `final_obs`: the observation before any reset, from which a truncated episode is bootstrapped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

Array = jax.Array
EnvState = Any
Bound = float | Sequence[float] | np.ndarray | jax.Array
"""A bound of a `Box`: of all its elements, or of each."""


@dataclass(frozen=True)
class Discrete:
    """Space of `n` actions, numbered from 0; an action is an int32 scalar."""

    n: int

    dtype = "int32"

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def compact(self) -> np.dtype:
        """Smallest dtype that holds an action."""
        return np.min_scalar_type(self.n - 1)

    def sample(self, generator: np.random.Generator, num: int) -> np.ndarray:
        """Uniform actions `[num]`."""
        return generator.integers(0, self.n, num).astype(self.dtype)


@dataclass(frozen=True)
class MultiDiscrete:
    """Space of several choices: an action is an int32 vector whose element i is one of `nvec[i]`, numbered from 0."""

    nvec: tuple[int, ...]

    dtype = "int32"

    def __post_init__(self) -> None:
        if isinstance(self.nvec, list | np.ndarray):
            object.__setattr__(self, "nvec", tuple(np.ravel(self.nvec).tolist()))

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.nvec),)

    @property
    def compact(self) -> np.dtype:
        """Smallest dtype that holds an action's elements."""
        return np.min_scalar_type(max(self.nvec) - 1)

    def sample(self, generator: np.random.Generator, num: int) -> np.ndarray:
        """Uniform actions `[num, len(nvec)]`."""
        return generator.integers(0, self.nvec, (num, *self.shape)).astype(self.dtype)


@dataclass(frozen=True)
class MultiBinary:
    """Space of `n` switches: an action is an int32 vector of zeros and ones."""

    n: int

    dtype = "int32"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n,)

    @property
    def compact(self) -> np.dtype:
        """Smallest dtype that holds an action's elements."""
        return np.min_scalar_type(1)

    def sample(self, generator: np.random.Generator, num: int) -> np.ndarray:
        """Uniform actions `[num, n]`."""
        return generator.integers(0, 2, (num, *self.shape)).astype(self.dtype)


@dataclass(frozen=True, init=False)
class Box:
    """Space of real arrays of a fixed shape, with bounds for each element. Actions have one axis.

    `low` and `high` are given as one number for all elements, or as a number for each. They are kept as flat tuples in
    row-major order (so that spaces compare and hash). `dtype` is float32, or uint8, which networks read as fractions
    of `unit`. Actions are vectors of one axis. `frames` is how many consecutive observations of the environment are
    joined along the last axis.

    >>> Box((2, 2), 0.0, 1.0) == Box((2, 2), (0.0,) * 4, np.ones((2, 2)))
    True
    """

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str
    frames = 1  # not a field: the space is the same, however its elements are made

    def __init__(self, shape: Sequence[int], low: Bound, high: Bound, dtype: str = "float32", frames: int = 1):
        shape = tuple(shape) if isinstance(shape, list) else shape
        bounds = {"low": _flat(low, shape), "high": _flat(high, shape)}
        values = {"shape": shape, **bounds, "dtype": dtype, "frames": frames}
        for key, value in values.items():
            object.__setattr__(self, key, value)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def unit(self) -> float:
        """Divisor of bytes in a network's input: 255 for images, the largest declared bound for vectors.

        >>> Box((2,), (0.0, 0.0), (3.0, 1.0), "uint8").unit, Box((8, 8, 3), (0.0,) * 192, (255.0,) * 192, "uint8").unit
        (3.0, 255.0)
        """
        return 255.0 if len(self.shape) > 1 else max(1.0, *self.high)

    @property
    def compact(self) -> np.dtype:
        """Smallest dtype that holds an action's elements."""
        return np.dtype(self.dtype)

    def sample(self, generator: np.random.Generator, num: int) -> np.ndarray:
        """Uniform actions `[num, *shape]` between the bounds; an infinite bound is replaced by the other one plus 2.

        >>> torques = Box((2,), low=(-1.0, 5.0), high=(1.0, math.inf))
        >>> actions = torques.sample(np.random.default_rng(0), 1000)
        >>> actions.min(axis=0).round(1).tolist(), actions.max(axis=0).round(1).tolist()
        ([-1.0, 5.0], [1.0, 7.0])
        """
        low, high = (np.reshape(np.asarray(bound, np.float64), self.shape) for bound in (self.low, self.high))
        low = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high - 2.0, -1.0))
        high = np.where(np.isfinite(high), high, low + 2.0)
        return generator.uniform(low, high, (num, *self.shape)).astype(self.dtype)


def _flat(bound: Any, shape: Any) -> Any:
    """A bound as a flat tuple. `check_env` has a sentence for whatever is no number, list or array."""
    sized = isinstance(shape, tuple) and all(isinstance(n, int) for n in shape)
    if sized and isinstance(bound, float | int | np.number):
        return (float(bound),) * math.prod(shape)
    return tuple(np.ravel(bound).tolist()) if isinstance(bound, list | np.ndarray | jax.Array) else bound


Space = Discrete | MultiDiscrete | MultiBinary | Box
"""Union of all action spaces."""


class TimeStep(NamedTuple):
    """Result of one step of `N` environments; all fields have a leading axis `[N]`.

    Attributes:
      obs: next observation to act on (after an automatic reset if the episode ended).
      reward: reward, float32.
      terminated: whether the task ended, bool.
      truncated: whether a time limit ended the episode, bool. If both flags are true, termination counts.
      final_obs: observation after the step and before any reset; equals `obs` if no episode ended.
    """

    obs: Array
    reward: Array
    terminated: Array
    truncated: Array
    final_obs: Array


@runtime_checkable
class VecEnv(Protocol):
    """Batch of environments as pure functions that trace under `jit`, `scan`, `vmap` and `shard_map`.

    Every environment draws from its own key, so the episodes do not depend on how a batch is split
    over devices. `max_episode_steps` is None if episodes have no time limit.
    """

    name: str
    observation_space: Box
    action_space: Space
    max_episode_steps: int | None

    def reset(self, keys: Array) -> tuple[EnvState, Array]:
        """Start episodes: keys `[N]` -> (state with leading axis `[N]`, observations `[N, ...]`)."""
        ...

    def starts(self, key: Array) -> Any:
        """Start states shared by the automatic resets of one fragment, or `None` if a reset is cheap.

        Called once per fragment with one key (not one per environment). If a reset costs as much as
        many steps, the adapter draws a small pool here, and `step` picks from it.
        """
        ...

    def step(self, keys: Array, state: EnvState, action: Array, starts: Any) -> tuple[EnvState, TimeStep]:
        """Step all environments once; an environment whose episode ends is reset in the same step."""
        ...


class HostStep(NamedTuple):
    """Result of one step of n host environments, NumPy arrays with a leading axis `[n]`; see `HostPool`."""

    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class HostPool(Protocol):
    """Pool of `N` environments outside JAX, stepped in the background between `send` and `recv`.

    The step that ends an episode returns its final observation. The next step ignores its action and returns the next
    episode's first observation, with reward 0. This dead transition is left out of training.
    """

    def send(self, action: np.ndarray) -> None:
        """Start one step of the first n environments with actions `[n, ...]`; returns immediately.

        The other environments keep their states.
        """
        ...

    def recv(self) -> HostStep:
        """Wait for the last started step; before any step, return the first observations of all (reward 0)."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class HostEnv(Protocol):
    """Environment that runs on the host's threads; policies step it through `HostPool`s.

    `open` makes a pool of `num_envs` environments at the start of an episode. `seed` determines all random numbers.
    Pools for evaluation leave out options that only help training (clipped rewards, lives as episodes). Environment i
    equals the first one of a pool seeded with `seed + i`. Live runs split pools in this way, and a replay uses one
    whole pool.
    """

    name: str
    observation_space: Box
    action_space: Space
    max_episode_steps: int | None

    def open(self, num_envs: int, seed: int, evaluation: bool = False) -> HostPool: ...


class Preprocessing(NamedTuple):
    """Preprocessing between a task and the policy, by keys of `env`; the defaults change nothing.

    Attributes:
      frame_stack: number of stacked observations; 0 for none.
      sticky_actions: probability of repeating the last action.
      life_loss: whether a lost life ends an episode in training.
    """

    frame_stack: int = 0
    sticky_actions: float = 0.0
    life_loss: bool = False

    @property
    def asked(self) -> dict[str, Any]:
        """Options that differ from their defaults."""
        return {key: value for key, value in self._asdict().items() if value != self._field_defaults[key]}


AS_GIVEN = Preprocessing()


def rescaled(action: Any, own: Box) -> Any:
    """Actions `[..., n]` from -1 to 1, in NumPy or JAX, rescaled linearly to the bounds of `own`.

    >>> rescaled(np.array([-1.0, 0.0, 1.0], np.float32), Box((3,), (0.0, -10.0, 5.0), (4.0, 30.0, 7.0))).tolist()
    [0.0, 10.0, 7.0]
    """
    low, high = (np.asarray(bound, np.float32) for bound in (own.low, own.high))
    # Halve first: the difference of two bounds may overflow float32.
    half, middle = high / 2 - low / 2, high / 2 + low / 2
    return (action * half + middle).clip(low, high)


def bounded(action: np.ndarray, space: Space) -> np.ndarray:
    """Actions `[N, ...]` clipped to the bounds of a `Box` (policies are unbounded); unchanged for other spaces."""
    if not isinstance(space, Box):
        return action
    low, high = (np.reshape(bound, space.shape) for bound in (space.low, space.high))
    return np.clip(action, low, high)
