"""Adapter of MuJoCo Playground: control, locomotion and manipulation tasks on MJX (playground 0.2).

MJX has two implementations: `warp`, for NVIDIA GPUs, and `jax`, which runs everywhere.
"""

from __future__ import annotations

import contextlib
import io
import logging
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import Array, Box, EnvState
from stellaris_jax.envs.drawing import Renderer, mujoco_renderer
from stellaris_jax.envs.mujoco_warnings import warnings_to
from stellaris_jax.envs.names import check_options, positive_int

REFUSED: dict[str, str] = {}


def available() -> list[str]:
    """Names of the available tasks, as in playground."""
    return list(_library().ALL_ENVS)


def make(name: str, **kwargs: Any) -> PlaygroundEnv:
    """Task of a name; see `PlaygroundEnv` for the arguments."""
    return PlaygroundEnv(name, **kwargs)


class PlaygroundEnv(AutoResetEnv):
    """playground task.

    If observations are a dict, policy and critic both read `state`. Locomotion and manipulation tasks download their
    models at the first use.

    Args:
      name: name in playground, e.g. `CartpoleBalance`.
      start_pool: number of start states drawn per fragment.
      kwargs: fields of the task's config, nested or with dots (`reward_config.scales.energy`). `impl` is `warp` or
        `jax`, by default warp on NVIDIA GPUs; with warp, the contacts of all environments share `naconmax`. An action
        is repeated for `action_repeat` steps of the task, whose rewards are summed. After `episode_length` steps of
        the task an episode is truncated; playground's own `done` terminates it.

    Raises:
      ConfigError: a field is unknown, a value has the wrong type, observations have no `state` (pixels), or models
        cannot be downloaded.
    """

    def __init__(self, name: str, *, start_pool: int = 64, **kwargs: Any):
        self.name = f"playground/{name}"
        self.start_pool = positive_int("start_pool", start_pool)
        library = _library()
        config = library.get_default_config(name)
        fields, given = _flat(config.to_dict()), _flat(kwargs)
        check_options(self.name, given, ["start_pool", *fields])
        if "impl" in fields:
            given = {"impl": _fastest(), **given}
            if given["impl"] not in ("jax", "warp"):
                raise ConfigError(f"env.kwargs.impl={given['impl']!r} must be jax or warp.")
        steps, self._repeat = (positive_int(k, (fields | given)[k]) for k in ("episode_length", "action_repeat"))
        self.max_episode_steps = -(-steps // self._repeat)
        for key, value in given.items():
            _override(config, key, value, fields[key])
        if config.get("vision"):  # refuse early: even making an environment with pixels needs a GPU
            raise ConfigError(f"env.name={self.name} cannot be trained on: with vision it observes a dict of pixels.")
        if config.get("impl") == "warp":
            _hush_warp()
        try:
            with _quiet():
                self._env = library.load(name, config)
        except (subprocess.CalledProcessError, OSError) as error:
            raise ConfigError(
                f"env.name={self.name} cannot be made: its models could not be downloaded ({error}); the tasks of the "
                "DM control suite, such as CartpoleBalance, need no download."
            ) from error
        if self._env.n_substeps < 1:
            raise ConfigError(f"env.kwargs.ctrl_dt={config.ctrl_dt} must be at least sim_dt, {config.sim_dt}.")

        # Leave out of the state: MJX's buffers that with warp are shared by all environments and have no batch axis,
        # and empty arrays, which checkpoints cannot store.
        keys = jax.eval_shape(lambda: jax.random.key_data(jax.random.split(jax.random.key(0), 2)))
        single = jax.eval_shape(lambda keys: self._env.reset(keys[0]), keys)
        batch = jax.eval_shape(jax.vmap(self._env.reset), keys)
        leaves, self._structure = jax.tree.flatten(single)
        pairs = zip(leaves, jax.tree.leaves(batch), strict=True)
        self._left_out = [leaf if leaf.ndim == batched.ndim or not leaf.size else None for leaf, batched in pairs]

        if isinstance(single.obs, Mapping) and "state" not in single.obs:
            raise ConfigError(
                f"env.name={self.name} cannot be trained on: with these arguments it observes a dict without state."
            )
        obs = _observed(single)
        unbounded = (float("inf"),) * obs.size
        self.observation_space = Box(obs.shape, tuple(-bound for bound in unbounded), unbounded)
        actions = self._env.action_size
        self.action_space = Box((actions,), (-1.0,) * actions, (1.0,) * actions)

    def reset_one(self, key: Array) -> tuple[EnvState, Array]:
        # playground stores its key in the state, which can only hold plain arrays.
        state = self._env.reset(jax.random.key_data(key))
        return (self._pack(state), jnp.int32(0)), _observed(state)

    def step_one(self, key: Array, state: EnvState, action: Array) -> tuple[EnvState, Array, Array, Array, Array]:
        packed, steps = state
        play, reward = self._unpack(packed), jnp.float32(0)
        for _ in range(self._repeat):
            play = self._env.step(play, action)
            reward += play.reward
        steps = steps + 1
        terminated, truncated = play.done != 0, steps >= self.max_episode_steps
        return (self._pack(play), steps), _observed(play), reward, terminated, truncated

    def renderer(self) -> Renderer:
        """Renderer of the bodies. Raises ConfigError without OpenGL."""
        pace = 1 / float(self._env.dt * self._repeat)
        return mujoco_renderer(self._env.mj_model, lambda state: self._unpack(state[0]).data.qpos, pace)

    def _pack(self, state: Any) -> list[Array]:
        """Arrays of a playground state that belong to one environment."""
        leaves = zip(jax.tree.leaves(state), self._left_out, strict=True)
        return [leaf for leaf, left_out in leaves if left_out is None]

    def _unpack(self, packed: list[Array]) -> Any:
        """Playground state from `packed`; arrays left out are scratch, which every step writes before reading."""
        rest = iter(packed)
        leaves = [next(rest) if spec is None else jnp.zeros(spec.shape, spec.dtype) for spec in self._left_out]
        return jax.tree.unflatten(self._structure, leaves)


def _library() -> ModuleType:
    with _quiet():
        from mujoco_playground import registry
    return registry


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context that suppresses playground's notices on downloads, and MuJoCo's on playground's models."""
    silent = io.StringIO()
    with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with warnings_to(silent.write):
            yield


def _hush_warp() -> None:
    """Suppress Warp's notices on every loaded kernel, which it prints while programs run."""
    import warp

    warp.config.log_level = logging.WARNING


def _fastest() -> str:
    kind = jax.devices()[0].device_kind
    return "warp" if kind.startswith(("NVIDIA", "Tesla")) else "jax"  # older drivers report no vendor


def _flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields as a flat dict with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in fields.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def _override(config: Any, key: str, value: Any, default: Any) -> None:
    """Set the field `key` of a playground config. Raises ConfigError for a value of the wrong type."""
    try:
        config.update_from_flattened_dict({key: value})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"env.kwargs.{key}={value!r} must be of type {type(default).__name__}.") from error


def _observed(state: Any) -> Any:
    return state.obs["state"] if isinstance(state.obs, Mapping) else state.obs
