"""brax: locomotion and manipulation on the spring, positional, generalized and mjx physics (brax 0.14)."""

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

from stellaris_jax.config.schema import ConfigError
from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import Array, Box, EnvState
from stellaris_jax.envs.drawing import Renderer, mujoco_renderer
from stellaris_jax.envs.mujoco_warnings import warn_once
from stellaris_jax.envs.names import check_options, like, positive_int, suggest

BACKENDS = ("generalized", "mjx", "positional", "spring")

REFUSED = {"swimmer": "brax's fluid model calls jnp.clip with an argument that JAX no longer has"}


def available() -> list[str]:
    """The environments that can be made, by brax's own names."""
    return [name for name in _library()._envs if name not in REFUSED]


def make(name: str, **kwargs: Any) -> BraxEnv:
    """The environment `name`; see `BraxEnv` for the arguments."""
    return BraxEnv(name, **kwargs)


class BraxEnv(AutoResetEnv):
    """A brax environment by its name, e.g. `hopper`.

    episode_length: steps after which an episode is truncated; brax's own `done` terminates it.
    start_pool: start states drawn per fragment.
    Other keyword arguments go to the brax class: `backend` (spring, positional, generalized, mjx), and
    what the environment defines (`healthy_reward`, `reset_noise_scale`, ...).

    Raises ConfigError for an unknown argument or backend, or if observations are not one array.
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
        """Draws the bodies, whatever the physics; ConfigError where there is no OpenGL."""
        return mujoco_renderer(self._env.sys.mj_model, lambda state: state[0].pipeline_state.q, 1 / float(self._env.dt))


def _library() -> ModuleType:
    with _quiet():
        import brax.envs
    warn_once()  # its models are MuJoCo's
    return brax.envs


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep brax's notices off the terminal: Warp, which it does not need, is absent; brax is hardly maintained."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _arguments(library: ModuleType, name: str) -> dict[str, Any]:
    """What the class of environment `name` accepts, with what it hands on to brax's PipelineEnv, and the defaults."""
    own = inspect.signature(library._envs[name].__init__).parameters
    shared = inspect.signature(library.PipelineEnv.__init__).parameters
    return {key: p.default for key, p in {**shared, **own}.items() if key not in ("self", "sys", "kwargs")}
