"""Adapter of brax: locomotion and manipulation on spring, positional, generalized and mjx physics (brax 0.14)."""

from __future__ import annotations

import contextlib
import inspect
import io
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import Array, Box, EnvState
from stellaris_jax.envs.drawing import Renderer, mujoco_renderer
from stellaris_jax.envs.mujoco_warnings import warn_once
from stellaris_jax.envs.names import check_options, like, positive_int, suggest

BACKENDS = ("generalized", "mjx", "positional", "spring")

REFUSED = {"swimmer": "brax's fluid model calls jnp.clip with an argument that JAX no longer has"}


def available() -> list[str]:
    """Names of the available environments, as in brax."""
    return [name for name in _library()._envs if name not in REFUSED]


def make(name: str, **kwargs: Any) -> BraxEnv:
    """Environment of a name; see `BraxEnv` for the arguments."""
    return BraxEnv(name, **kwargs)


class BraxEnv(AutoResetEnv):
    """brax environment.

    Args:
      name: name in brax, e.g. `hopper`.
      episode_length: steps after which an episode is truncated; brax's own `done` terminates it.
      start_pool: number of start states drawn per fragment.
      kwargs: arguments of the brax class: `backend` (spring, positional, generalized, mjx), and options of the
        environment (`healthy_reward`, `reset_noise_scale`, ...).

    Raises:
      ConfigError: an argument or the backend is unknown, or observations are not one array.
    """

    def __init__(self, name: str, *, episode_length: int = 1000, start_pool: int = 64, **kwargs: Any):
        self.name = f"brax/{name}"
        self.max_episode_steps = positive_int("episode_length", episode_length)
        self.start_pool = positive_int("start_pool", start_pool)
        library = _library()
        known = _arguments(library, name)
        check_options(self.name, kwargs, ["episode_length", "start_pool", *known])
        for key, value in kwargs.items():
            like(key, value, known[key])
        if kwargs.get("backend", BACKENDS[0]) not in BACKENDS:
            backend = kwargs["backend"]
            raise ConfigError(f"env.kwargs.backend={backend} is not a brax backend: {suggest(str(backend), BACKENDS)}")
        with _quiet():
            self._env = library.get_environment(name, **kwargs)
        obs = jax.eval_shape(self._env.reset, jax.random.key(0)).obs
        if not isinstance(obs, jax.ShapeDtypeStruct):
            raise ConfigError(f"env.name={self.name} cannot be trained on: with these arguments it observes a dict.")
        unbounded = (float("inf"),) * obs.size
        self.observation_space = Box(obs.shape, tuple(-bound for bound in unbounded), unbounded)
        actions = self._env.action_size
        self.action_space = Box((actions,), (-1.0,) * actions, (1.0,) * actions)

    def reset_one(self, key: Array) -> tuple[EnvState, Array]:
        state = self._env.reset(key)
        return (state, jnp.int32(0)), state.obs

    def step_one(self, key: Array, state: EnvState, action: Array) -> tuple[EnvState, Array, Array, Array, Array]:
        brax_state, steps = state
        brax_state = self._env.step(brax_state, action)
        steps = steps + 1
        terminated, truncated = brax_state.done != 0, steps >= self.max_episode_steps
        return (brax_state, steps), brax_state.obs, brax_state.reward, terminated, truncated

    def renderer(self) -> Renderer:
        """Renderer of the bodies, for all physics. Raises ConfigError without OpenGL."""
        return mujoco_renderer(self._env.sys.mj_model, lambda state: state[0].pipeline_state.q, 1 / float(self._env.dt))


def _library() -> ModuleType:
    with _quiet():
        import brax.envs
    warn_once()  # brax uses MuJoCo models
    return brax.envs


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context that suppresses brax's notices: that Warp is absent (it is not needed), and that brax is unmaintained."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _arguments(library: ModuleType, name: str) -> dict[str, Any]:
    """Arguments of an environment's class and of brax's PipelineEnv, with their defaults."""
    specific = inspect.signature(library._envs[name].__init__).parameters
    shared = inspect.signature(library.PipelineEnv.__init__).parameters
    return {key: p.default for key, p in {**shared, **specific}.items() if key not in ("self", "sys", "kwargs")}
