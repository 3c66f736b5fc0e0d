"""Checks of what gymnasium environments return from `reset` and `step`, with a sentence for each wrong return.

The processes of `vectorization_mode=async` get this module by its code. So it imports the rest of the package only
where something is wrong.
"""

from __future__ import annotations

from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces

RESET, STEP = "(observation, info)", "(observation, reward, terminated, truncated, info)"
# Types that need no closer look: a light environment's step takes some ten microseconds, so every check of it counts.
_NUMBERS = frozenset({float, int, np.float64, np.float32})
_FLAGS = frozenset({bool, np.bool_})


class Returns:
    """Checks of what one environment returns; each of them raises ConfigError.

    Args:
      name: of the environment, for the sentence.
      env: whose methods return it.
    """

    def __init__(self, name: str, env: gymnasium.Env):
        self._name, self._env = name, env
        self._space: Any = env.observation_space
        self._usual = (self._space.shape, self._space.dtype) if isinstance(self._space, spaces.Box) else None

    def reset(self, result: Any) -> None:
        """Check the result of `reset`, but for the observation in it."""
        self._parts("reset", result, RESET, 2)

    def step(self, result: Any) -> None:
        """Check the result of `step`, but for the observation in it."""
        if result.__class__ is not tuple or len(result) != 5 or result[4].__class__ is not dict:
            self._parts("step", result, STEP, 5)
        _, reward, terminated, truncated, _ = result
        if reward.__class__ not in _NUMBERS and not (np.shape(reward) == () and _is_numeric(reward)):
            self._fault("step", f"returns a reward of {_kind(reward)} from step, not a number")
        if terminated.__class__ not in _FLAGS or truncated.__class__ not in _FLAGS:
            for key, flag in (("terminated", terminated), ("truncated", truncated)):
                if not (np.size(flag) == 1 and _is_numeric(flag)):
                    self._fault("step", f"returns {key} of {_kind(flag)} from step, not true or false")

    def observation(self, method: str, obs: Any) -> None:
        """Check an observation that `method` returned against the observation space."""
        if obs.__class__ is np.ndarray and (obs.shape, obs.dtype) == self._usual:
            return
        space = self._space
        if isinstance(space, spaces.Discrete):
            first = int(space.start)
            last = first + int(space.n) - 1
            if np.shape(obs) != () or not _is_numeric(obs) or not first <= obs <= last:
                what = repr(obs) if isinstance(obs, int | np.integer) else f"of {_kind(obs)}"
                wanted = f"an integer from {first} to {last}"
                self._fault(method, f"returns the observation {what} from {method}, not {wanted}")
        elif isinstance(space, spaces.Box) and not (_shape(obs) == space.shape and _is_numeric(obs)):
            wanted = f"numbers of shape {space.shape}, the shape of observation_space"
            self._fault(method, f"returns an observation of {_kind(obs)} from {method}, not {wanted}")

    def _parts(self, method: str, result: Any, wanted: str, count: int) -> None:
        if result is None and getattr(type(self._env.unwrapped), method) is getattr(gymnasium.Env, method):
            self._fault(method, f"has no method {method}, which returns {wanted}")
        if not isinstance(result, tuple | list):
            self._fault(method, f"returns from {method} a value of {_kind(result)}, not {wanted}")
        if len(result) != count:
            self._fault(method, f"returns {len(result)} values from {method}, not {wanted}")
        if not isinstance(result[-1], dict):
            self._fault(method, f"returns an info of {_kind(result[-1])} from {method}, not a dict")

    def _fault(self, method: str, what: str) -> NoReturn:
        from stellaris_jax.base.errors import ConfigError
        from stellaris_jax.envs.names import users_place

        layer: Any = self._env
        place = ""
        while layer is not None and not place:
            # Wrappers of the user's own may have only a method `observation`.
            places = (users_place(getattr(type(layer), name, None)) for name in (method, "observation"))
            place, layer = next(filter(None, places), ""), getattr(layer, "env", None)
        raise ConfigError(f"env.name={self._name} {what}{place}.")


class Checked(gymnasium.Wrapper):
    """Checks returns before gymnasium's own wrappers unpack them."""

    def __init__(self, env: gymnasium.Env, name: str):
        super().__init__(env)
        self._returns = Returns(name, env)

    def reset(self, **options: Any) -> Any:
        result = self.env.reset(**options)
        self._returns.reset(result)
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self._returns.step(result)
        return result


def check_inside(env: gymnasium.Env, name: str) -> gymnasium.Env:
    """The environment with its innermost returns checked, where gymnasium's order enforcer stands around it."""
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.wrappers.OrderEnforcing) and layer.env is layer.unwrapped:
            layer.env = Checked(layer.env, name)
        layer = layer.env
    return env


def _shape(obs: Any) -> tuple[int, ...] | None:
    """The shape of an array or of nested lists; None of lists of unequal lengths."""
    try:
        return np.shape(obs)
    except ValueError:
        return None


def _is_numeric(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "biuf"


def _kind(value: Any) -> str:
    """Type of a value, and of an array its shape and dtype."""
    shape = getattr(value, "shape", None)
    kind = "None" if value is None else f"type {type(value).__name__}"
    return kind if shape is None else f"shape {tuple(shape)} and dtype {getattr(value, 'dtype', 'unknown')}"
