"""Checks of an environment's attributes, shapes and dtypes, with a sentence for each that is wrong.

`check_declared` reads attributes, and `check_traced` has JAX look at shapes without computing anything: both run when
an environment is made. `stellaris_jax.envs.check` plays episodes as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.schema import shown
from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import Box, Discrete, MultiBinary, MultiDiscrete, TimeStep, VecEnv
from stellaris_jax.envs.names import raised, users_place

NUM = 4
"""Environments that are looked at together."""
HOME = "stellaris_jax.envs"


def is_host(env: Any) -> bool:
    return callable(getattr(env, "open", None))


def fault(env: Any, what: str) -> ConfigError:
    return ConfigError(f"env.name={name_of(env)} {what}.")


def name_of(env: Any) -> str:
    name = getattr(env, "name", None)
    return name if isinstance(name, str) else type(env).__name__


# What it declares --------------------------------------------------------------------------------------------------


def check_declared(env: Any) -> None:
    """Check the attributes. Raises ConfigError."""
    if not is_host(env):
        missing = [name for name in ("reset", "starts", "step") if not callable(getattr(env, name, None))]
        if missing:
            raise fault(env, f"has no method {' or '.join(missing)} of a VecEnv, and no open of a HostEnv")
    for name in ("name", "observation_space", "action_space", "max_episode_steps"):
        if not hasattr(env, name):
            raise fault(env, f"has no attribute {name}")
    if not isinstance(env.name, str):
        raise fault(env, f"has a name that is no text: {shown(env.name)}")
    if env.max_episode_steps is not None and not _is_count(env.max_episode_steps):
        limit = shown(env.max_episode_steps)
        raise fault(env, f"has max_episode_steps={limit}, not an integer of at least 1, or None for no time limit")
    if not isinstance(env.observation_space, Box):
        raise fault(env, f"has as observation_space a {_kind(env.observation_space)}, not a {_kind(Box)}")
    _check_box(env, "observation_space", ("float32", "uint8"))
    space = env.action_space
    if isinstance(space, Box):
        _check_box(env, "action_space", ("float32",))
        if len(space.shape) != 1:
            raise fault(env, f"has actions of shape {space.shape}, where a Box must have one axis")
    elif isinstance(space, MultiDiscrete):
        if not (isinstance(space.nvec, tuple) and space.nvec and all(map(_is_count, space.nvec))):
            raise fault(env, f"has action_space={shown(space)}, whose nvec must be a tuple of integers from 1")
    elif not isinstance(space, Discrete | MultiBinary):
        accepted = f"Discrete, MultiDiscrete, MultiBinary or Box of {HOME}"
        raise fault(env, f"has as action_space a {_kind(space)}, not a {accepted}")
    elif not _is_count(space.n):
        raise fault(env, f"has action_space={shown(space)}, whose n must be an integer of at least 1")


def _kind(space: Any) -> str:
    kind = space if isinstance(space, type) else type(space)
    home = HOME if kind.__module__.startswith(f"{HOME}.") else kind.__module__
    return f"{home}.{kind.__qualname__}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


def _check_box(env: Any, key: str, dtypes: Sequence[str]) -> None:
    space: Box = getattr(env, key)
    if not (isinstance(space.shape, tuple) and space.shape and all(map(_is_count, space.shape))):
        raise fault(env, f"has in {key} the shape {shown(space.shape)}, not a tuple of integers from 1")
    for bound in ("low", "high"):
        numbers = getattr(space, bound)
        if not isinstance(numbers, tuple) or len(numbers) != math.prod(space.shape):
            kind = f"{len(numbers)}" if isinstance(numbers, tuple) else f"a {type(numbers).__name__}"
            raise fault(env, f"has in {key} as {bound} {kind}, not a tuple of {math.prod(space.shape)} numbers")
    if not all(low <= high for low, high in zip(space.low, space.high, strict=True)):
        raise fault(env, f"has in {key} a lower bound above the upper one")
    if space.dtype not in dtypes:
        raise fault(env, f"has in {key} the dtype {shown(space.dtype)}, not {' or '.join(dtypes)}")


# What JAX makes of it ----------------------------------------------------------------------------------------------


def check_traced(env: VecEnv) -> None:
    """Check the shapes and dtypes of a JAX environment, which computes nothing. Raises ConfigError."""
    if isinstance(env, AutoResetEnv):
        _check_one(env)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), NUM))
    state, obs = _pair(env, "reset", _traced(env, "reset", env.reset, keys), "(state, observations)")
    check_leaf(env, "reset", "observations", obs, env.observation_space.shape, (NUM,), env.observation_space.dtype)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if leaf.shape[:1] != (NUM,):
            where = jax.tree_util.keystr(path)
            raise fault(env, f"has in its state{where} the shape {leaf.shape}, not ({NUM}, ...), for {NUM} keys")
    starts = _traced(env, "starts", env.starts, jax.eval_shape(lambda: jax.random.key(0)))
    action = jax.ShapeDtypeStruct((NUM, *env.action_space.shape), env.action_space.dtype)
    after, step = _pair(env, "step", _traced(env, "step", env.step, keys, state, action, starts), "(state, TimeStep)")
    if not isinstance(step, TimeStep):
        raise fault(env, f"returns from step as second a {type(step).__name__}, not a {HOME}.TimeStep")
    for name in ("obs", "final_obs"):
        space = env.observation_space
        check_leaf(env, "step", name, getattr(step, name), space.shape, (NUM,), space.dtype)
    for name, dtype in (("reward", "float32"), ("terminated", "bool"), ("truncated", "bool")):
        check_leaf(env, "step", name, getattr(step, name), (), (NUM,), dtype)
    _check_state(env, "step", state, after)


def _check_one(env: AutoResetEnv) -> None:
    """The same of `reset_one` and `step_one`, which know of no batch, and whose dtypes are put right."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    shape = env.observation_space.shape
    state, obs = _pair(env, "reset_one", _traced(env, "reset_one", env.reset_one, key), "(state, observation)")
    check_leaf(env, "reset_one", "an observation", obs, shape)
    action = jax.ShapeDtypeStruct(env.action_space.shape, env.action_space.dtype)
    result = _traced(env, "step_one", env.step_one, key, state, action)
    if not isinstance(result, tuple) or len(result) != 5:
        wanted = "(state, observation, reward, terminated, truncated)"
        raise fault(env, f"does not return {wanted} from step_one{_place(env, 'step_one')}")
    after, obs, *rest = result
    check_leaf(env, "step_one", "an observation", obs, shape)
    for name, leaf in zip(("reward", "terminated", "truncated"), rest, strict=True):
        check_leaf(env, "step_one", name, leaf, ())
    _check_state(env, "step_one", state, after, dtypes=False)


def _traced(env: Any, method: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The shapes of what a method returns."""
    try:
        return jax.eval_shape(function, *arguments)
    except Exception as error:  # whatever somebody else's environment does
        raise fault(env, f"cannot be traced by JAX: its {method} fails ({raised(error)})") from error


def _place(env: Any, method: str) -> str:
    return users_place(getattr(type(env), method, None))


def _pair(env: Any, method: str, result: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise fault(env, f"does not return {what} from {method}{_place(env, method)}")
    return result


def check_leaf(
    env: Any, method: str, name: str, leaf: Any, shape: tuple[int, ...], lead: tuple[int, ...] = (), dtype: str = ""
) -> None:
    """`leaf`, what a method returns as `name`, has the shape `[*lead, *shape]` and, if one is given, the dtype."""
    found = getattr(leaf, "shape", None)
    if found != (*lead, *shape):
        of = f" for {lead[0]} environments" if lead else ""
        what = f"a {type(leaf).__name__}" if found is None else f"shape {found}"
        space = ", the shape of observation_space" if shape else ""
        raise fault(
            env, f"returns {name} of {what} from {method}{of}, not of {(*lead, *shape)}{space}{_place(env, method)}"
        )
    if dtype and leaf.dtype != dtype:
        raise fault(env, f"returns {name} of dtype {leaf.dtype} from {method}, not {dtype}{_place(env, method)}")


def _check_state(env: Any, method: str, before: Any, after: Any, dtypes: bool = True) -> None:
    """A step leaves the state's structure, shapes and dtypes as they were."""
    structure: Any = jax.tree.structure(before)
    if structure != jax.tree.structure(after):
        raise fault(env, f"returns from {method} a state of another structure than from its reset{_place(env, method)}")
    for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        if one.shape != other.shape or (dtypes and one.dtype != other.dtype):
            was, is_ = (f"{leaf.dtype}{list(leaf.shape)}" for leaf in (one, other))
            where = jax.tree_util.keystr(path)
            raise fault(
                env, f"returns from {method} a state{where} of {is_}, which was {was} at its reset{_place(env, method)}"
            )
