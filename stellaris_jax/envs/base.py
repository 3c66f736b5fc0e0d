"""The environment protocol every adapter speaks: vectorised, functional, reset inside the step.

An adapter keeps three things apart that many libraries merge: `terminated` (the task ended, the value of
what follows is zero), `truncated` (a time limit cut the episode, the value of what follows is not zero)
and `final_obs` (the observation before any reset, from which a truncated episode is bootstrapped).
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
    """`n` actions, numbered from 0; an action is an int32 scalar."""

    n: int

    dtype = "int32"

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def compact(self) -> np.dtype:
        """The smallest dtype that holds an action."""
        return np.min_scalar_type(self.n - 1)

    def sample(self, generator: np.random.Generator, num: int) -> np.ndarray:
        """Uniform actions `[num]`."""
        return generator.integers(0, self.n, num).astype(self.dtype)


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once: an action is an int32 vector whose element i is one of `nvec[i]`, numbered from 0."""

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
        """The smallest dtype that holds an action's elements."""
        return np.min_scalar_type(max(self.nvec) - 1)

    def sample(self, generator: np.random.Generator, num: int) -> np.ndarray:
        """Uniform actions `[num, len(nvec)]`."""
        return generator.integers(0, self.nvec, (num, *self.shape)).astype(self.dtype)


@dataclass(frozen=True)
class MultiBinary:
    """`n` switches: an action is an int32 vector of zeros and ones."""

    n: int

    dtype = "int32"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n,)

    @property
    def compact(self) -> np.dtype:
        """The smallest dtype that holds an action's elements."""
        return np.min_scalar_type(1)

    def sample(self, generator: np.random.Generator, num: int) -> np.ndarray:
        """Uniform actions `[num, n]`."""
        return generator.integers(0, 2, (num, *self.shape)).astype(self.dtype)


@dataclass(frozen=True, init=False)
class Box:
    """Real vectors of a fixed shape with one lower and one upper bound per element.

    `low` and `high` are given as one number for all elements, or as a number for each. They are kept as flat tuples in
    row-major order (so that spaces compare and hash). `dtype` is float32, or uint8, which networks read as fractions
    of `unit`. Actions are vectors of one axis.

    >>> Box((2, 2), 0.0, 1.0) == Box((2, 2), (0.0,) * 4, np.ones((2, 2)))
    True
    """

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str

    def __init__(self, shape: Sequence[int], low: Bound, high: Bound, dtype: str = "float32"):
        shape = tuple(shape) if isinstance(shape, list) else shape
        values = {"shape": shape, "low": _flat(low, shape), "high": _flat(high, shape), "dtype": dtype}
        for key, value in values.items():
            object.__setattr__(self, key, value)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def unit(self) -> float:
        """Divisor of bytes before a network reads them: 255 of images, of vectors the largest bound they declare.

        >>> Box((2,), (0.0, 0.0), (3.0, 1.0), "uint8").unit, Box((8, 8, 3), (0.0,) * 192, (255.0,) * 192, "uint8").unit
        (3.0, 255.0)
        """
        return 255.0 if len(self.shape) > 1 else max(1.0, *self.high)

    @property
    def compact(self) -> np.dtype:
        """The smallest dtype that holds an action's elements."""
        return np.dtype(self.dtype)

    def sample(self, generator: np.random.Generator, num: int) -> np.ndarray:
        """Actions `[num, *shape]`, uniform between the bounds; one that is infinite counts as 2 from the other.

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
"""What actions can be."""


class TimeStep(NamedTuple):
    """What one step of `N` environments returns. Leading axis `[N]` everywhere.

    obs: the observation to act on next (after an automatic reset where the episode ended).
    reward: float32.
    terminated, truncated: bool; both may be true at once, then termination wins (no bootstrap).
    final_obs: the observation the step led to, before any reset; equals `obs` where no episode ended.
    """

    obs: Array
    reward: Array
    terminated: Array
    truncated: Array
    final_obs: Array


@runtime_checkable
class VecEnv(Protocol):
    """A batch of environments as pure functions that trace under `jit`, `scan`, `vmap` and `shard_map`.

    Every environment draws from its own key, so a batch gives the same episodes however it is split
    over devices. `max_episode_steps` is None where episodes have no time limit.
    """

    name: str
    observation_space: Box
    action_space: Space
    max_episode_steps: int | None

    def reset(self, keys: Array) -> tuple[EnvState, Array]:
        """Keys `[N]` -> (state with leading axis `[N]`, observations `[N, ...]`)."""
        ...

    def starts(self, key: Array) -> Any:
        """Start states shared by the automatic resets of one fragment, or `None` if a reset is cheap.

        Called once per fragment with one key (not one per environment); where a reset costs as much as
        many steps, the adapter draws a small pool here and `step` picks from it.
        """
        ...

    def step(self, keys: Array, state: EnvState, action: Array, starts: Any) -> tuple[EnvState, TimeStep]:
        """One step of all environments; an environment whose episode ends is reset in the same step."""
        ...


class HostStep(NamedTuple):
    """What one step of n host environments returns, NumPy arrays with a leading axis `[n]`; see `HostPool`."""

    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class HostPool(Protocol):
    """`N` environments that run outside JAX, stepped in the background between `send` and `recv`.

    The step that ends an episode returns its final observation. The step after it takes no notice of the action and
    returns the next episode's first observation, with reward 0: nothing is learned from that dead transition.
    """

    def send(self, action: np.ndarray) -> None:
        """Start one step of the first n environments with actions `[n, ...]`; returns at once. The rest stay put."""
        ...

    def recv(self) -> HostStep:
        """Wait for the step that was started last; before any, the first observations of all (reward 0)."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class HostEnv(Protocol):
    """An environment that runs on the host's own threads: policies reach it through `HostPool`s.

    `open` makes a pool of `num_envs` environments at the start of an episode, all they draw determined by `seed`, for
    evaluation without what only helps training (clipped rewards, lives as episodes). Environment i is the first one of
    a pool seeded with `seed + i`: live runs part pools so, and are repeated by one that is whole.
    """

    name: str
    observation_space: Box
    action_space: Space
    max_episode_steps: int | None

    def open(self, num_envs: int, seed: int, evaluation: bool = False) -> HostPool: ...


class Preprocessing(NamedTuple):
    """What is put between a task and the policy, by the names of the keys of `env`; the defaults leave it as it is."""

    frame_stack: int = 0
    sticky_actions: float = 0.0
    life_loss: bool = False

    @property
    def asked(self) -> dict[str, Any]:
        """The options that are not at their defaults."""
        return {key: value for key, value in self._asdict().items() if value != self._field_defaults[key]}


AS_GIVEN = Preprocessing()


def rescaled(action: Any, own: Box) -> Any:
    """Actions `[..., n]` from -1 to 1, of NumPy or JAX, as those between the bounds of `own` that they stand for.

    >>> rescaled(np.array([-1.0, 0.0, 1.0], np.float32), Box((3,), (0.0, -10.0, 5.0), (4.0, 30.0, 7.0))).tolist()
    [0.0, 10.0, 7.0]
    """
    low, high = (np.asarray(bound, np.float32) for bound in (own.low, own.high))
    # Halves first: the distance of two bounds may be more than float32 holds.
    half, middle = high / 2 - low / 2, high / 2 + low / 2
    return (action * half + middle).clip(low, high)


def bounded(action: np.ndarray, space: Space) -> np.ndarray:
    """Actions `[N, ...]` inside the bounds of a `Box`, for policies act unbounded; of another space unchanged."""
    if not isinstance(space, Box):
        return action
    low, high = (np.reshape(bound, space.shape) for bound in (space.low, space.high))
    return np.clip(action, low, high)
