"""What an environment must be and do, with a sentence for each thing that one is not or does not.

`check_declared` reads attributes and `check_traced` has JAX look at shapes: both run when an environment is made.
`check_env` plays episodes as well.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.config.schema import ConfigError, shown
from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import (
    Array,
    Box,
    Discrete,
    HostEnv,
    HostPool,
    HostStep,
    MultiBinary,
    MultiDiscrete,
    TimeStep,
    VecEnv,
    bounded,
)
from stellaris_jax.envs.names import retold

NUM = 4
"""Environments that are played."""
LEAST_STEPS, MOST_STEPS = 50, 1000
"""Steps of each: twice the time limit between these bounds."""
SEED = 20


class CheckWarning(UserWarning):
    """What is possible, but seldom meant."""


def check_env(env: VecEnv | HostEnv) -> None:
    """Check what an environment declares, and by random actions what it does.

    Shapes and dtypes; resets, at the start and where episodes end; time limits; the observations at ends; and that the
    same seed gives the same episodes. Observations out of bounds, and time limits that end as if the task did, are
    told as a `CheckWarning`.

    Args:
      env: an environment of either protocol, such as `make` returns.

    Raises:
      ConfigError: for the first thing that is wrong, in one sentence.
    """
    check_declared(env)
    try:
        if _is_host(env):
            _check_pools(cast(HostEnv, env))
        else:
            check_traced(cast(VecEnv, env))
            _check_steps(cast(VecEnv, env))
    except ConfigError:
        raise
    except Exception as error:  # whatever somebody else's environment does
        raise _fault(env, f"fails when it is stepped ({retold(error)})") from error


def _is_host(env: Any) -> bool:
    return callable(getattr(env, "open", None))


def _fault(env: Any, what: str) -> ConfigError:
    return ConfigError(f"env.name={_name(env)} {what}.")


def _name(env: Any) -> str:
    name = getattr(env, "name", None)
    return name if isinstance(name, str) else type(env).__name__


# What it declares --------------------------------------------------------------------------------------------------


def check_declared(env: Any) -> None:
    """Check the attributes. Raises ConfigError."""
    if not _is_host(env):
        missing = [name for name in ("reset", "starts", "step") if not callable(getattr(env, name, None))]
        if missing:
            raise _fault(env, f"has no method {' or '.join(missing)} of a VecEnv, and no open of a HostEnv")
    for name in ("name", "observation_space", "action_space", "max_episode_steps"):
        if not hasattr(env, name):
            raise _fault(env, f"has no attribute {name}")
    if not isinstance(env.name, str):
        raise _fault(env, f"has a name that is no text: {shown(env.name)}")
    if not _is_count(env.max_episode_steps):
        raise _fault(env, f"has max_episode_steps={shown(env.max_episode_steps)}, not an integer of at least 1")
    if not isinstance(env.observation_space, Box):
        raise _fault(env, f"has as observation_space a {_kind(env.observation_space)}, not a {_kind(Box)}")
    _check_box(env, "observation_space", ("float32", "uint8"))
    space = env.action_space
    if isinstance(space, Box):
        _check_box(env, "action_space", ("float32",))
        if len(space.shape) != 1:
            raise _fault(env, f"has actions of shape {space.shape}, where a Box must have one axis")
    elif isinstance(space, MultiDiscrete):
        if not (isinstance(space.nvec, tuple) and space.nvec and all(map(_is_count, space.nvec))):
            raise _fault(env, f"has action_space={shown(space)}, whose nvec must be a tuple of integers from 1")
    elif not isinstance(space, Discrete | MultiBinary):
        accepted = f"Discrete, MultiDiscrete, MultiBinary or Box of {_HOME}"
        raise _fault(env, f"has as action_space a {_kind(space)}, not a {accepted}")
    elif not _is_count(space.n):
        raise _fault(env, f"has action_space={shown(space)}, whose n must be an integer of at least 1")


_HOME = "stellaris_jax.envs"


def _kind(space: Any) -> str:
    kind = space if isinstance(space, type) else type(space)
    home = _HOME if kind.__module__.startswith(f"{_HOME}.") else kind.__module__
    return f"{home}.{kind.__qualname__}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


def _check_box(env: Any, key: str, dtypes: Sequence[str]) -> None:
    space: Box = getattr(env, key)
    if not (isinstance(space.shape, tuple) and space.shape and all(map(_is_count, space.shape))):
        raise _fault(env, f"has in {key} the shape {shown(space.shape)}, not a tuple of integers from 1")
    for bound in ("low", "high"):
        numbers = getattr(space, bound)
        if not isinstance(numbers, tuple) or len(numbers) != math.prod(space.shape):
            kind = f"{len(numbers)}" if isinstance(numbers, tuple) else f"a {type(numbers).__name__}"
            raise _fault(env, f"has in {key} as {bound} {kind}, not a tuple of {math.prod(space.shape)} numbers")
    if not all(low <= high for low, high in zip(space.low, space.high, strict=True)):
        raise _fault(env, f"has in {key} a lower bound above the upper one")
    if space.dtype not in dtypes:
        raise _fault(env, f"has in {key} the dtype {shown(space.dtype)}, not {' or '.join(dtypes)}")


# What JAX makes of it ----------------------------------------------------------------------------------------------


def check_traced(env: VecEnv) -> None:
    """Check the shapes and dtypes of a JAX environment, which computes nothing. Raises ConfigError."""
    if isinstance(env, AutoResetEnv):
        _check_one(env)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), NUM))
    state, obs = _pair(env, "reset", _traced(env, "reset", env.reset, keys), "(state, observations)")
    _check_leaf(env, "reset", "observations", obs, env.observation_space.shape, (NUM,), env.observation_space.dtype)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if leaf.shape[:1] != (NUM,):
            where = jax.tree_util.keystr(path)
            raise _fault(env, f"has in its state{where} the shape {leaf.shape}, not ({NUM}, ...), for {NUM} keys")
    starts = _traced(env, "starts", env.starts, jax.eval_shape(lambda: jax.random.key(0)))
    action = jax.ShapeDtypeStruct((NUM, *env.action_space.shape), env.action_space.dtype)
    after, step = _pair(env, "step", _traced(env, "step", env.step, keys, state, action, starts), "(state, TimeStep)")
    if not isinstance(step, TimeStep):
        raise _fault(env, f"returns from step as second a {type(step).__name__}, not a {_HOME}.TimeStep")
    for name in ("obs", "final_obs"):
        space = env.observation_space
        _check_leaf(env, "step", name, getattr(step, name), space.shape, (NUM,), space.dtype)
    for name, dtype in (("reward", "float32"), ("terminated", "bool"), ("truncated", "bool")):
        _check_leaf(env, "step", name, getattr(step, name), (), (NUM,), dtype)
    _check_state(env, "step", state, after)


def _check_one(env: AutoResetEnv) -> None:
    """The same of `reset_one` and `step_one`, which know of no batch, and whose dtypes are put right."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    shape = env.observation_space.shape
    state, obs = _pair(env, "reset_one", _traced(env, "reset_one", env.reset_one, key), "(state, observation)")
    _check_leaf(env, "reset_one", "an observation", obs, shape)
    action = jax.ShapeDtypeStruct(env.action_space.shape, env.action_space.dtype)
    result = _traced(env, "step_one", env.step_one, key, state, action)
    if not isinstance(result, tuple) or len(result) != 5:
        raise _fault(env, "does not return (state, observation, reward, terminated, truncated) from step_one")
    after, obs, *rest = result
    _check_leaf(env, "step_one", "an observation", obs, shape)
    for name, leaf in zip(("reward", "terminated", "truncated"), rest, strict=True):
        _check_leaf(env, "step_one", name, leaf, ())
    _check_state(env, "step_one", state, after, dtypes=False)


def _traced(env: Any, method: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The shapes of what a method returns."""
    try:
        return jax.eval_shape(function, *arguments)
    except Exception as error:  # whatever somebody else's environment does
        raise _fault(env, f"cannot be traced by JAX: its {method} fails ({retold(error)})") from error


def _pair(env: Any, method: str, result: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise _fault(env, f"does not return {what} from {method}")
    return result


def _check_leaf(
    env: Any, method: str, name: str, leaf: Any, shape: tuple[int, ...], lead: tuple[int, ...] = (), dtype: str = ""
) -> None:
    """`leaf`, what a method returns as `name`, has the shape `[*lead, *shape]` and, if one is given, the dtype."""
    found = getattr(leaf, "shape", None)
    if found != (*lead, *shape):
        of = f" for {lead[0]} environments" if lead else ""
        what = f"a {type(leaf).__name__}" if found is None else f"shape {found}"
        space = ", the shape of observation_space" if shape else ""
        raise _fault(env, f"returns {name} of {what} from {method}{of}, not of {(*lead, *shape)}{space}")
    if dtype and leaf.dtype != dtype:
        raise _fault(env, f"returns {name} of dtype {leaf.dtype} from {method}, not {dtype}")


def _check_state(env: Any, method: str, before: Any, after: Any, dtypes: bool = True) -> None:
    """A step leaves the state's structure, shapes and dtypes as they were."""
    structure: Any = jax.tree.structure(before)
    if structure != jax.tree.structure(after):
        raise _fault(env, f"returns from {method} a state of another structure than from its reset")
    for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        if one.shape != other.shape or (dtypes and one.dtype != other.dtype):
            was, is_ = (f"{leaf.dtype}{list(leaf.shape)}" for leaf in (one, other))
            where = jax.tree_util.keystr(path)
            raise _fault(env, f"returns from {method} a state{where} of {is_}, which was {was} at its reset")


# What it does ------------------------------------------------------------------------------------------------------


class _Played(NamedTuple):
    """`T` steps of `N` environments, arrays `[T, N, ...]`.

    before, final: the observations that steps began from and led to. next: the first one of the next episode where one
    has ended. dead: steps that start an episode and do nothing else.
    """

    before: np.ndarray
    final: np.ndarray
    next: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    dead: np.ndarray

    @property
    def done(self) -> np.ndarray:
        return self.terminated | self.truncated


def _length(env: VecEnv | HostEnv) -> int:
    return min(max(2 * env.max_episode_steps + 2, LEAST_STEPS), MOST_STEPS)


def _actions(env: VecEnv | HostEnv, length: int) -> np.ndarray:
    """Random ones `[T, N, ...]`."""
    drawn = env.action_space.sample(np.random.default_rng(SEED), length * NUM)
    return drawn.reshape(length, NUM, *env.action_space.shape)


def _check_episodes(env: VecEnv | HostEnv, played: _Played) -> None:
    """What holds for either protocol."""
    if not np.isfinite(played.before[0]).all():
        raise _fault(env, "begins an episode with an observation that is not finite")
    moved = (played.final != played.before)[~played.done & ~played.dead].any()
    same = (played.final == played.next)[played.done]
    if len(same) and same.all() and moved:
        raise _fault(
            env,
            "shows one observation twice where an episode ends, which must be the last one of that episode and then "
            "the first one of the next",
        )
    lengths = [_lengths(done, dead) for done, dead in zip(played.done.T, played.dead.T, strict=True)]
    first, later = [own[0] for own in lengths], [length for own in lengths for length in own[1:-1]]
    if len(later) >= NUM and max(later) == 1 < min(first):
        raise _fault(env, "ends every episode but the first with its first step, as if its state were not reset")
    limit = env.max_episode_steps
    if max(map(max, lengths)) > limit:
        raise _fault(env, f"goes on for more steps than max_episode_steps={limit}, at which it must truncate episodes")
    # The flags of those that have taken that many steps.
    truncated = [
        flag
        for own, done, flags in zip(lengths, played.done.T, played.truncated.T, strict=True)
        for length, flag in zip(own[:-1], flags[done], strict=True)
        if length == limit
    ]
    if limit > 1 and truncated and not any(truncated):
        _warn(
            env,
            f"is terminated, not truncated, at max_episode_steps={limit}: right only if the task itself ends there, "
            "for what follows is then worth nothing",
        )
    space, axes = env.observation_space, (0, 1)
    low, high = (np.reshape(bound, space.shape) for bound in (space.low, space.high))
    least, most = (np.asarray(bound, np.float64) for bound in (played.before.min(axes), played.before.max(axes)))
    if (least < low - 1e-4 * (1 + np.abs(least))).any() or (most > high + 1e-4 * (1 + np.abs(most))).any():
        _warn(env, "observes what is out of the bounds of observation_space")


def _lengths(done: np.ndarray, dead: np.ndarray) -> list[int]:
    """How many steps the episodes of one environment take; the last one is still under way."""
    taken = np.cumsum(~dead)
    lengths: list[int] = np.diff([0, *taken[done], taken[-1]]).tolist()
    return lengths


def _warn(env: VecEnv | HostEnv, what: str) -> None:
    warnings.warn(f"env.name={_name(env)} {what}.", CheckWarning, stacklevel=4)


def _equal(first: Any, second: Any) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))


def _check_steps(env: VecEnv) -> None:
    length = _length(env)
    actions = _actions(env, length)

    def play(key: Array) -> tuple[Array, TimeStep]:
        reset_key, start_key, step_key = jax.random.split(key, 3)
        state, obs = env.reset(jax.random.split(reset_key, NUM))
        starts = env.starts(start_key)

        def step(state: Any, x: tuple[Array, Array]) -> tuple[Any, TimeStep]:
            return env.step(x[0], state, x[1], starts)

        return obs, jax.lax.scan(step, state, (jax.random.split(step_key, (length, NUM)), jnp.asarray(actions)))[1]

    # What is drawn beside the keys is drawn while JAX traces: a second trace then gives another program.
    key = jax.random.key(SEED)
    program, other = (jax.jit(lambda key: play(key)).lower(key) for _ in range(2))
    first, steps = jax.device_get(program.compile()(key))
    if program.as_text() != other.as_text():
        again, others = jax.device_get(other.compile()(key))
        if not _equal((first, *steps), (again, *others)):
            raise _fault(env, "gives other episodes for the same keys, which must be all the randomness there is")
    done = steps.terminated | steps.truncated
    if not np.array_equal(steps.obs[~done], steps.final_obs[~done], equal_nan=True):
        raise _fault(env, "returns an obs other than final_obs from a step that ends no episode")
    before = np.concatenate([first[None], steps.obs[:-1]])
    dead = np.zeros_like(done)
    _check_episodes(env, _Played(before, steps.final_obs, steps.obs, steps.terminated, steps.truncated, dead))


def _check_pools(env: HostEnv) -> None:
    actions = _actions(env, _length(env))
    steps = _play(env, actions)
    done = steps.terminated | steps.truncated
    dead = done[:-1]
    if done[0].any() or steps.reward[0].any():
        raise _fault(env, "returns a reward or an end with the first observations, before any step")
    after_end = "from the step after an episode's end, which only starts the next episode"
    if done[1:][dead].any() or steps.reward[1:][dead].any():
        raise _fault(env, f"returns a reward or an end {after_end}")
    if not _equal(steps, _play(env, actions)):
        raise _fault(env, "gives other episodes for the same seed, which must be all the randomness there is")
    others = env.action_space.sample(np.random.default_rng(SEED + 1), dead.size).reshape(actions.shape)
    mask = dead.reshape(*dead.shape, *(1,) * (actions.ndim - dead.ndim))
    if not _equal(steps, _play(env, np.where(mask, others, actions))):
        raise _fault(env, f"lets an action change what comes {after_end}")
    _check_part(env, actions, steps)
    # Without the last step, for what comes after it has not been seen.
    obs, terminated, truncated = steps.obs, steps.terminated[1:-1], steps.truncated[1:-1]
    _check_episodes(env, _Played(obs[:-2], obs[1:-1], obs[2:], terminated, truncated, dead[:-1]))


def _play(env: HostEnv, actions: np.ndarray) -> HostStep:
    """What a fresh pool returns at first and for these actions, arrays `[1 + T, N, ...]`."""
    pool = _open(env)
    try:
        steps = [_received(env, pool, NUM)]
        for action in actions:
            pool.send(bounded(action, env.action_space))
            steps.append(_received(env, pool, NUM))
    finally:
        pool.close()
    return HostStep(*(np.stack(column) for column in zip(*steps, strict=True)))


def _open(env: HostEnv) -> HostPool:
    try:
        pool = env.open(NUM, SEED)
    except Exception as error:  # whatever somebody else's environment does
        raise _fault(env, f"cannot be opened ({retold(error)})") from error
    missing = [name for name in ("send", "recv", "close") if not callable(getattr(pool, name, None))]
    if missing:
        raise _fault(env, f"opens a pool that has no method {' or '.join(missing)}")
    return pool


def _received(env: HostEnv, pool: HostPool, num: int) -> HostStep:
    """The next step of `num` environments, checked, and copied from wherever the pool keeps it."""
    step: Any = pool.recv()
    if not isinstance(step, HostStep):
        raise _fault(env, f"returns from recv a {type(step).__name__}, not a {_HOME}.base.HostStep")
    space = env.observation_space
    _check_leaf(env, "recv", "obs", step.obs, space.shape, (num,), space.dtype)
    for name, dtype in (("reward", "float32"), ("terminated", "bool"), ("truncated", "bool")):
        _check_leaf(env, "recv", name, getattr(step, name), (), (num,), dtype)
    return HostStep(*(np.array(column) for column in step))


def _check_part(env: HostEnv, actions: np.ndarray, steps: HostStep) -> None:
    """Half of the environments steps as if there were no others, and the others then begin where they stood."""
    half, few = NUM // 2, min(len(actions), 10)
    pool = _open(env)
    try:
        _received(env, pool, NUM)
        for t in range(few):
            pool.send(bounded(actions[t, :half], env.action_space))
            if not _equal(_received(env, pool, half), (column[t + 1, :half] for column in steps)):
                raise _fault(env, "steps the first environments of a pool otherwise where the rest take no part")
        both = np.concatenate([actions[min(few, len(actions) - 1), :half], actions[0, half:]])
        pool.send(bounded(both, env.action_space))
        rest = HostStep(*(column[half:] for column in _received(env, pool, NUM)))
        if not _equal(rest, (column[1, half:] for column in steps)):
            raise _fault(env, "steps environments of a pool that take no part, which must stay where they are")
    finally:
        pool.close()
