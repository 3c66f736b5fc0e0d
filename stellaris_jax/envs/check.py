"""Checks of an environment's behaviour in random episodes, with an error message for each violation."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.envs.base import Array, HostEnv, HostPool, HostStep, TimeStep, VecEnv, bounded
from stellaris_jax.envs.names import raised
from stellaris_jax.envs.ranges import Ranges, ranges_of, warned
from stellaris_jax.envs.shapes import HOME, NUM, check_declared, check_leaf, check_traced, fault, is_host, name_of

LEAST_STEPS, MOST_STEPS = 50, 1000
"""Bounds of the steps of each environment: twice the time limit, within these bounds. Those in JAX take at least the
most, since steps cost next to nothing beside compilation, and up to twice as many, so that episodes of 1,000 end."""
UNLIMITED_STEPS = 200
"""Steps of each environment on the host whose episodes have no time limit."""
SEED = 20


class CheckWarning(UserWarning):
    """Warning of a valid but probably unintended property of an environment."""


def check_env(env: VecEnv | HostEnv | str) -> Ranges:
    """Check an environment's declarations, and its behaviour under random actions.

    The checks cover shapes and dtypes, resets at the start and at the end of episodes, time limits, final observations,
    and that the same seed gives the same episodes. A `CheckWarning` reports observations out of bounds, time limits
    that terminate instead of truncating, and actions that a policy would hardly explore.

    Args:
      env: an environment of either protocol, for example from `make`, or its name, such as `gymnasium/CartPole-v1`.

    Returns:
      Ranges of observations and rewards in these episodes, and their returns.

    Raises:
      ConfigError: the first violation, in one sentence.
    """
    if isinstance(env, str):
        from stellaris_jax.envs.registry import make  # imported here because it imports all suites

        env = make(env, {})
    check_declared(env)
    if (warning := warned(env)) is not None:
        _warn(env, warning)
    try:
        if is_host(env):
            return _check_pools(cast(HostEnv, env))
        check_traced(cast(VecEnv, env))
        return _check_steps(cast(VecEnv, env))
    except ConfigError:
        raise
    except Exception as error:  # third-party environments may raise anything
        raise fault(env, f"fails when it is stepped ({raised(error)})") from error


class _Played(NamedTuple):
    """Record of `T` steps of `N` environments, arrays `[T, N, ...]`.

    Attributes:
      before: observations before the steps.
      final: observations after the steps, before any reset.
      next: observations after the steps and any reset.
      terminated: whether the step ended the task.
      truncated: whether a time limit ended the episode.
      dead: whether the step only starts an episode.
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
    limit = env.max_episode_steps
    if not is_host(env):
        return min(max(2 * (limit or 0), MOST_STEPS), 2 * MOST_STEPS)
    return UNLIMITED_STEPS if limit is None else min(max(2 * limit + 2, LEAST_STEPS), MOST_STEPS)


def _actions(env: VecEnv | HostEnv, length: int) -> np.ndarray:
    """Random actions `[T, N, ...]`."""
    drawn = env.action_space.sample(np.random.default_rng(SEED), length * NUM)
    return drawn.reshape(length, NUM, *env.action_space.shape)


def _check_episodes(env: VecEnv | HostEnv, played: _Played) -> None:
    """Check the properties that both protocols share. Raises ConfigError."""
    if not np.isfinite(played.before[0]).all():
        raise fault(env, "begins an episode with an observation that is not finite")
    if not np.isfinite(played.final[~played.dead]).all():
        raise fault(env, "leads to an observation that is not finite")
    moved = (played.final != played.before)[~played.done & ~played.dead].any()
    same = (played.final == played.next)[played.done]
    if len(same) and same.all() and moved:
        raise fault(
            env,
            "shows one observation twice where an episode ends, which must be the last one of that episode and then "
            "the first one of the next",
        )
    lengths = [_lengths(done, dead) for done, dead in zip(played.done.T, played.dead.T, strict=True)]
    first, later = [row[0] for row in lengths], [length for row in lengths for length in row[1:-1]]
    if len(later) >= NUM and max(later) == 1 < min(first):
        raise fault(env, "ends every episode but the first with its first step, as if its state were not reset")
    if env.max_episode_steps is not None:
        _check_limit(env, played, lengths, env.max_episode_steps)
    space, axes = env.observation_space, (0, 1)
    low, high = (np.reshape(bound, space.shape) for bound in (space.low, space.high))
    least, most = (np.asarray(bound, np.float64) for bound in (played.before.min(axes), played.before.max(axes)))
    if (least < low - 1e-4 * (1 + np.abs(least))).any() or (most > high + 1e-4 * (1 + np.abs(most))).any():
        _warn(env, "observes what is out of the bounds of observation_space")


def _check_limit(env: VecEnv | HostEnv, played: _Played, lengths: list[list[int]], limit: int) -> None:
    """Check the behaviour at a time limit. Raises ConfigError."""
    if max(map(max, lengths)) > limit:
        raise fault(env, f"goes on for more steps than max_episode_steps={limit}, at which it must truncate episodes")
    # Truncation flags of the episodes that reached the limit.
    truncated = [
        flag
        for row, done, flags in zip(lengths, played.done.T, played.truncated.T, strict=True)
        for length, flag in zip(row[:-1], flags[done], strict=True)
        if length == limit
    ]
    if limit > 1 and truncated and not any(truncated):
        _warn(
            env,
            f"is terminated, not truncated, at max_episode_steps={limit}: right only if the task itself ends there, "
            "for what follows is then worth nothing",
        )


def _lengths(done: np.ndarray, dead: np.ndarray) -> list[int]:
    """Lengths in steps of one environment's episodes; the last one is incomplete."""
    taken = np.cumsum(~dead)
    lengths: list[int] = np.diff([0, *taken[done], taken[-1]]).tolist()
    return lengths


def _warn(env: VecEnv | HostEnv, what: str) -> None:
    warnings.warn(f"env.name={name_of(env)} {what}.", CheckWarning, stacklevel=5)


def _equal(first: Any, second: Any) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))


def _check_steps(env: VecEnv) -> Ranges:
    length = _length(env)
    actions = _actions(env, length)

    def play(key: Array) -> tuple[Array, TimeStep]:
        reset_key, start_key, step_key = jax.random.split(key, 3)
        state, obs = env.reset(jax.random.split(reset_key, NUM))
        starts = env.starts(start_key)

        def step(state: Any, x: tuple[Array, Array]) -> tuple[Any, TimeStep]:
            return env.step(x[0], state, x[1], starts)

        return obs, jax.lax.scan(step, state, (jax.random.split(step_key, (length, NUM)), jnp.asarray(actions)))[1]

    # Random numbers that do not come from the keys are drawn while JAX traces: a second trace then differs.
    key = jax.random.key(SEED)
    program, second = (jax.jit(lambda key: play(key)).lower(key) for _ in range(2))
    first, steps = jax.device_get(program.compile()(key))
    if program.as_text() != second.as_text():
        again, steps_again = jax.device_get(second.compile()(key))
        if not _equal((first, *steps), (again, *steps_again)):
            raise fault(env, "gives other episodes for the same keys, which must be all the randomness there is")
    if not np.isfinite(steps.reward).all():
        raise fault(env, "gives a reward that is not finite")
    done = steps.terminated | steps.truncated
    if not np.array_equal(steps.obs[~done], steps.final_obs[~done], equal_nan=True):
        raise fault(env, "returns an obs other than final_obs from a step that ends no episode")
    before = np.concatenate([first[None], steps.obs[:-1]])
    dead = np.zeros_like(done)
    _check_episodes(env, _Played(before, steps.final_obs, steps.obs, steps.terminated, steps.truncated, dead))
    return ranges_of(before, steps.reward, done, dead, env.max_episode_steps)


def _check_pools(env: HostEnv) -> Ranges:
    actions = _actions(env, _length(env))
    steps = _play(env, actions)
    if not np.isfinite(steps.reward).all():
        raise fault(env, "gives a reward that is not finite")
    done = steps.terminated | steps.truncated
    dead = done[:-1]
    if done[0].any() or steps.reward[0].any():
        raise fault(env, "returns a reward or an end with the first observations, before any step")
    after_end = "from the step after an episode's end, which only starts the next episode"
    if done[1:][dead].any() or steps.reward[1:][dead].any():
        raise fault(env, f"returns a reward or an end {after_end}")
    if not _equal(steps, _play(env, actions)):
        raise fault(env, "gives other episodes for the same seed, which must be all the randomness there is")
    redrawn = env.action_space.sample(np.random.default_rng(SEED + 1), dead.size).reshape(actions.shape)
    mask = dead.reshape(*dead.shape, *(1,) * (actions.ndim - dead.ndim))
    if not _equal(steps, _play(env, np.where(mask, redrawn, actions))):
        raise fault(env, f"lets an action change what comes {after_end}")
    _check_part(env, actions, steps)
    # Leave out the last step, whose next observation is unknown.
    obs, terminated, truncated = steps.obs, steps.terminated[1:-1], steps.truncated[1:-1]
    _check_episodes(env, _Played(obs[:-2], obs[1:-1], obs[2:], terminated, truncated, dead[:-1]))
    return ranges_of(obs, steps.reward[1:], done[1:], dead, env.max_episode_steps)


def _play(env: HostEnv, actions: np.ndarray) -> HostStep:
    """Results of a fresh pool, at the start and for these actions, arrays `[1 + T, N, ...]`."""
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
    except ConfigError:
        raise
    except Exception as error:  # whatever somebody else's environment does
        raise fault(env, f"cannot be opened ({raised(error)})") from error
    missing = [name for name in ("send", "recv", "close") if not callable(getattr(pool, name, None))]
    if missing:
        raise fault(env, f"opens a pool that has no method {' or '.join(missing)}")
    return pool


def _received(env: HostEnv, pool: HostPool, num: int) -> HostStep:
    """Next step of `num` environments, checked, and copied because the pool may reuse its buffers."""
    step: Any = pool.recv()
    if not isinstance(step, HostStep):
        raise fault(env, f"returns from recv a {type(step).__name__}, not a {HOME}.base.HostStep")
    space = env.observation_space
    check_leaf(env, "recv", "obs", step.obs, space.shape, (num,), space.dtype)
    for name, dtype in (("reward", "float32"), ("terminated", "bool"), ("truncated", "bool")):
        check_leaf(env, "recv", name, getattr(step, name), (), (num,), dtype)
    return HostStep(*(np.array(column) for column in step))


def _check_part(env: HostEnv, actions: np.ndarray, steps: HostStep) -> None:
    """Check that half of a pool steps independently, and that the other half keeps its state meanwhile."""
    half, few = NUM // 2, min(len(actions), 10)
    pool = _open(env)
    try:
        _received(env, pool, NUM)
        for t in range(few):
            pool.send(bounded(actions[t, :half], env.action_space))
            if not _equal(_received(env, pool, half), (column[t + 1, :half] for column in steps)):
                raise fault(env, "steps the first environments of a pool otherwise where the rest take no part")
        both = np.concatenate([actions[min(few, len(actions) - 1), :half], actions[0, half:]])
        pool.send(bounded(both, env.action_space))
        rest = HostStep(*(column[half:] for column in _received(env, pool, NUM)))
        if not _equal(rest, (column[1, half:] for column in steps)):
            raise fault(env, "steps environments of a pool that take no part, which must stay where they are")
    finally:
        pool.close()
