"""Training of MinionsRL's scheduler (AAAI'24, §3) with our own PPO, on training jobs as its environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.engine.aggregator import rows
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.many.scheduler_job import JobEnv
from stellaris_jax.timeline.scaling.scheduler import Scheduler

Choice = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""Chooser of actors: (states `[N, 8]`, randomness) -> numbers of actors `[N]`."""


class Outcome(NamedTuple):
    """Results of jobs, arrays `[N]`.

    Attributes:
      seconds: simulated seconds.
      dollars: dollars.
      rounds: rounds.
      reward: last mean return of a round.
      gain: sum of the scheduler's rewards (its objective).
    """

    seconds: np.ndarray
    dollars: np.ndarray
    rounds: np.ndarray
    reward: np.ndarray
    gain: np.ndarray


def train_scheduler(
    job: Sequence[str],
    episodes: int = 100,
    seed: int = 0,
    start: Scheduler | None = None,
    note: Callable[[str], None] = print,
) -> tuple[Scheduler, JobEnv]:
    """Train a scheduler for the job of these overrides.

    Args:
      job: overrides of the job.
      episodes: least number of jobs to run to their end.
      seed: seed of the training.
      start: scheduler to fine-tune, instead of a fresh one.
      note: receives the progress.

    Returns:
      The scheduler, and the job as an environment.

    Raises:
      ConfigError: the job has no rounds to schedule, or `start` is for another number of actors.
    """
    endless = "total_steps=1_000_000_000"  # until enough jobs have ended
    config = load_config(["env=job/training", "system=central", "engine.chunk_rounds=1", endless, f"seed={seed}"])
    trainer = Trainer(config.replace({"env.kwargs": {"job": list(job)}}))
    env = trainer.env
    assert isinstance(env, JobEnv)
    if start is not None:
        if start.actors != env.limits.maximum:
            raise ConfigError(
                f"The scheduler to start from knows of {start.actors} actors, the job has {env.limits.maximum}."
            )
        trainer.state = trainer.state._replace(params=_with_actor(trainer, start))
    ended, begin = 0, time.perf_counter()
    while ended < episodes:
        for row in trainer.step():
            ended += row["episodes"]
            if row["episodes"]:
                seconds = time.perf_counter() - begin
                note(f"{ended} of {episodes} jobs, return {row['train_return']:.1f}, {seconds:.0f} s")
    return _scheduler(trainer), env


def _scheduler(trainer: Trainer) -> Scheduler:
    layers = trainer.network.unravel(trainer.state.params[0])["actor"]
    names = sorted(layers, key=lambda name: int(name.rpartition("_")[2]))
    return Scheduler(
        [np.asarray(layers[name]["kernel"]) for name in names], [np.asarray(layers[name]["bias"]) for name in names]
    )


def _with_actor(trainer: Trainer, start: Scheduler) -> jax.Array:
    tree = trainer.network.unravel(trainer.state.params[0])
    pairs = enumerate(zip(start.kernels, start.biases, strict=True))
    tree["actor"] = {f"Dense_{i}": {"kernel": jnp.asarray(k), "bias": jnp.asarray(b)} for i, (k, b) in pairs}
    return trainer.network.ravel(tree)[None]


def run_jobs(env: JobEnv, choose: Choice, jobs: int, seed: int) -> Outcome:
    """Run some jobs in parallel to their end, with the actors chosen for each from its state.

    Args:
      env: the job.
      choose: chooser of actors.
      jobs: number of jobs.
      seed: seed of the jobs.
    """
    keys = jax.random.split(jax.random.key(seed), jobs)
    reset, advance = _compiled(env)
    state, obs = reset(keys)
    generator = np.random.default_rng(seed)
    going = jnp.ones(jobs, bool)
    gain = jnp.zeros(jobs)
    for k in range(env.max_episode_steps):
        actions = jnp.asarray(choose(np.asarray(obs), generator), jnp.int32) - 1
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), k), jobs)
        state, obs, going, gain = advance(keys, state, obs, actions, going, gain)
        if not np.any(going):
            break
    figures = (state.seconds, jax.vmap(env.cost)(state), state.round, state.reward, gain)
    return Outcome(*(np.asarray(figure) for figure in figures))


@cache
def _compiled(env: JobEnv) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Compiled functions that begin jobs, and that advance them by a round."""

    def advance(keys: Any, state: Any, obs: Any, actions: Any, going: Any, gain: Any) -> Any:
        """Advance unfinished jobs by one round; finished ones stay unchanged."""
        after, seen, reward, done, _ = jax.vmap(env.step_one)(keys, state, actions)

        def keep(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(rows(going, new), new, old)

        state, obs = jax.tree.map(keep, (after, seen), (state, obs))
        return state, obs, going & ~done, gain + jnp.where(going, reward, 0.0)

    return jax.jit(env.reset), jax.jit(advance)


def scheduled(scheduler: Scheduler) -> Choice:
    """Choices of a scheduler."""
    return lambda states, _: np.array([scheduler(state) for state in states])


def constant(actors: int) -> Choice:
    """Choice of a constant number of actors."""
    return lambda states, _: np.full(len(states), actors)


def random(maximum: int) -> Choice:
    """Choice of a uniformly random number of actors."""
    return lambda states, generator: generator.integers(1, maximum + 1, len(states))
