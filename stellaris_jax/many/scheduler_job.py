"""Training job as an environment: a step is a round, an action the number of its actors (MinionsRL, AAAI'24, §3.2).

`env.name=job/training env.kwargs.job="[env=gymnax/cartpole, ...]"`: the job is one of our own configurations, with
rule central, PPO, and an environment that runs in JAX, so that many jobs train in parallel under one `vmap`. The engine
runs its rounds; durations are drawn on the device, from the delays that its timeline would use. An episode is one job:
it ends at the target, when the budget is spent, or after the last round.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.networks import policy_network
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.schema import shown
from stellaris_jax.config.sections import DelayConfig
from stellaris_jax.engine.keys import SeedKeys
from stellaris_jax.engine.program import Engine
from stellaris_jax.engine.spec import ProgramSpec, in_program
from stellaris_jax.engine.state import EngineState
from stellaris_jax.engine.wave import RoundInputs, Wave, WaveCarry
from stellaris_jax.envs.autoreset import AutoResetEnv
from stellaris_jax.envs.base import Array, Box, Discrete, EnvState
from stellaris_jax.envs.names import like
from stellaris_jax.timeline import Invocation, Usage
from stellaris_jax.timeline.billing import bill
from stellaris_jax.timeline.delays import Measured, delay_of
from stellaris_jax.timeline.scaling.limits import limits_of
from stellaris_jax.timeline.scaling.scheduler import FEATURES, LIMIT, Scales, SchedulerInput, features

REFUSED: dict[str, str] = {}
TRAINING = "training"


def available() -> list[str]:
    return [TRAINING]


def make(name: str, job: list[str] | None = None, beta: float = 0.1, **unknown: Any) -> JobEnv:
    """Environment of the job with the overrides `job`; `beta` is the reward's weight of a second.

    Raises ConfigError for a job that has no schedulable rounds.
    """
    if unknown:
        raise ConfigError(f"env.kwargs.{next(iter(unknown))} is not an argument of job/{name}; accepted: job, beta.")
    if not isinstance(job, list | None) or not all(isinstance(override, str) for override in job or ()):
        raise ConfigError(f"env.kwargs.job={shown(job)} must be a list of overrides.")
    return JobEnv(job or [], like("beta", beta, 0.1))


class JobState(NamedTuple):
    """State of a job after some rounds.

    Attributes:
      engine: state of its training, with the key as plain numbers.
      round: rounds done.
      seconds, learner_busy, actor_busy, aggregate_busy: as in `Usage`.
      reward: last mean return of a round.
      best: highest mean return of a round.
    """

    engine: EngineState
    round: Array
    seconds: Array
    learner_busy: Array
    actor_busy: Array
    aggregate_busy: Array
    reward: Array
    best: Array


class JobEnv(AutoResetEnv):
    """Environment of a training job; the observation is `stellaris_jax.timeline.scaling.scheduler.features`.

    The reward of a round is -beta P_k. After the last one, max_k R_k - J is added if the target was missed or the
    budget overspent (§3.2), but never more than zero, since a job that overspends may have exceeded its target.
    """

    max_episode_steps: int
    start_pool = 4  # each start state is a whole job

    def __init__(self, job: list[str], beta: float):
        from stellaris_jax.execute.loading import load_config  # imports all environments

        self.name = f"job/{TRAINING}"
        self.config = config = load_config(["scaling=minionsrl", "system=minionsrl", *job])
        for holds, sentence in (
            (config.system.rule == "central", "rule central: system=minionsrl or system=central"),
            (config.algorithm.name == "ppo", "algorithm=ppo"),
            (config.system.actors == "barrier", "system.actors=barrier"),
        ):
            if not holds:
                raise ConfigError(f"env.kwargs.job={job} is not a job of {self.name}, which needs {sentence}.")
        from stellaris_jax.envs.registry import from_config

        env = from_config(config.env)
        inner = in_program(env)
        if inner is None:
            raise ConfigError(f"env.kwargs.job={job} is not a job of {self.name}: {env.name} does not run in JAX.")
        self.beta, self.limits = beta, limits_of(config)
        # Rule central: every gradient is an update of its own, computed on the newest version.
        spec = ProgramSpec.of(config)
        spec = replace(spec, chunk_rounds=1, seeds=1, lanes=1, devices=1, peers=0, versions=2, buffers=1)
        self.layout = spec.minibatch_layout
        self.scales = Scales.of(config)
        network = policy_network(inner.observation_space, inner.action_space, config.network)
        self.engine = Engine(config.env, inner, network, spec)
        self.observation_space = Box((FEATURES,), (-LIMIT,) * FEATURES, (LIMIT,) * FEATURES)
        self.action_space = Discrete(self.limits.maximum)
        self.max_episode_steps = int(self.scales.rounds)

    def reset(self, keys: Array) -> tuple[EnvState, Array]:
        # One job after the other: vmap would batch the QR of orthogonal initialisation, and two concurrent batched QRs
        # can deadlock XLA's CPU thread pool.
        return jax.lax.map(self.reset_one, keys)

    def reset_one(self, key: Array) -> tuple[JobState, Array]:
        params = self.engine.network.init(SeedKeys.of(key).params)
        engine = self.engine.layout.init_one(params, key, Hyper.of(self.config))
        zero = jnp.float32(0.0)
        state = JobState(
            engine._replace(key=jax.random.key_data(engine.key)),
            jnp.int32(0), zero, zero, zero, zero, zero, jnp.float32(-jnp.inf),
        )  # fmt: skip
        return state, self._features(state, zero, zero, zero, zero, zero)

    def step_one(self, key: Array, state: JobState, action: Array) -> tuple[JobState, Array, Array, Array, Array]:
        order_key, time_key = jax.random.split(key)
        actors = jnp.maximum(action + 1, self.limits.minimum)
        order, count = self._order(order_key, actors * self.limits.envs)
        engine = state.engine._replace(key=jax.random.wrap_key_data(state.engine.key))
        engine, metrics = self._round(engine, state.round, actors * self.limits.envs, order, count)
        learner, actor, slowest, aggregate = self._durations(time_key, actors, self.layout.epochs * count)
        seconds = slowest + learner + aggregate / self.config.platform.parameter_shards

        episodes = metrics.episodes
        ended = episodes.ended > 0
        reward = jnp.where(ended, episodes.total_return / jnp.maximum(episodes.ended, 1.0), state.reward)
        after = JobState(
            engine._replace(key=jax.random.key_data(engine.key)),
            state.round + 1,
            state.seconds + seconds,
            state.learner_busy + learner,
            state.actor_busy + actor,
            state.aggregate_busy + aggregate,
            reward,
            jnp.where(ended, jnp.maximum(state.best, reward), state.best),
        )
        loss = metrics.loss["policy_loss"] + metrics.loss["value_loss"]
        obs = self._features(after, loss, metrics.loss["kl"], learner, actor / actors, seconds)
        reached = ended & (reward >= self.scales.target)
        done = reached | (self.cost(after) >= self.scales.budget) | (after.round >= self.scales.rounds)
        missed = jnp.where(jnp.isfinite(after.best), after.best, 0.0) - self.scales.target
        within_budget = reached & (self.cost(after) <= self.scales.budget)
        gain = -self.beta * seconds + jnp.where(done & ~within_budget, jnp.minimum(missed, 0.0), 0.0)
        return after, obs, gain, done, jnp.bool_(False)

    def _order(self, key: Array, envs: Array) -> tuple[Array, Array]:
        """Order of samples, as `minibatch_order` with the widest rows: int32 `[G, B]`, and minibatches of an epoch."""
        layout = self.layout
        total, places = layout.steps * layout.envs, layout.batch
        size = layout.steps * envs
        count = -(-size // places)
        present = jnp.arange(total) % layout.envs < envs
        full, more = size // count, size % count
        minibatch = jnp.arange(layout.minibatches)
        begin = minibatch * full + jnp.minimum(minibatch, more)
        length = full + (minibatch < more)
        place = jnp.arange(places)

        def epoch(key: Array) -> Array:
            shuffled = jnp.argsort(jnp.where(present, jax.random.uniform(key, (total,)), jnp.inf))
            rows = shuffled[jnp.minimum(begin[:, None] + place, total - 1)]
            return jnp.where((place < length[:, None]) & (minibatch < count)[:, None], rows, -1)

        order = jax.vmap(epoch)(jax.random.split(key, layout.epochs))
        return order.reshape(layout.epochs * layout.minibatches, places).astype(jnp.int32), count

    def _round(self, state: EngineState, round_: Array, envs: Array, order: Array, count: Array) -> tuple[Any, Any]:
        """One round of rule central: every gradient is fresh, and is an update of its own."""
        engine, hyper, layout = self.engine, Hyper.of(self.config), self.layout
        newest = engine.shape.ring.slot(state.version)
        state, episodes = engine.collect(layout.envs, hyper, state, newest, envs, order, None)
        step_scale = 1.0 - round_ / self.scales.rounds if self.config.algorithm.anneal else jnp.float32(1.0)

        inputs = RoundInputs(hyper, state.loader, state.kl_coefficient, step_scale)

        def wave(g: Array, wave_state: WaveCarry) -> WaveCarry:
            index = (g // count) * layout.minibatches + g % count
            newest = engine.shape.ring.slot(wave_state.version)
            invocation = Invocation(jnp.int32(0), index, newest, newest, peers=None)
            alone = Wave(jax.tree.map(lambda x: x[None], invocation), jnp.ones(1), jnp.int32(1))
            return engine.wave(inputs, wave_state, alone)

        wave_state = jax.lax.fori_loop(0, layout.epochs * count, wave, WaveCarry.start(state, engine.spec.metrics))
        return engine.finish(hyper, state, wave_state, episodes)

    def _durations(self, key: Array, actors: Array, gradients: Array) -> tuple[Array, Array, Array, Array]:
        """Seconds of all learner invocations, of all actors, of the slowest actor, and of all aggregations."""
        delays, platform = self.config.delays, self.config.platform
        keys = jax.random.split(key, 3)
        most = self.layout.epochs * self.layout.minibatches
        going, acting = jnp.arange(most) < gradients, jnp.arange(self.limits.maximum) < actors
        learner = jnp.where(going, draw(delays.learner, keys[0], most) + 2 * platform.shared_memory, 0.0)
        actor = jnp.where(acting, draw(delays.actor, keys[1], self.limits.maximum) + 2 * platform.cache, 0.0)
        aggregate = jnp.where(going, draw(delays.aggregate, keys[2], most), 0.0)
        return jnp.sum(learner), jnp.sum(actor), jnp.max(actor), jnp.sum(aggregate)

    def cost(self, state: JobState) -> Any:
        """Dollars by the job's own rule; containers are warm."""
        usage = Usage(
            seconds=state.seconds,  # type: ignore[arg-type]
            learner_busy=state.learner_busy,  # type: ignore[arg-type]
            actor_busy=state.actor_busy,  # type: ignore[arg-type]
            aggregate_busy=state.aggregate_busy,  # type: ignore[arg-type]
        )
        return bill(self.config.system, self.config.prices, usage, self.limits.maximum).total

    def _features(self, state: JobState, loss: Array, kl: Array, learner: Array, actor: Array, seconds: Array) -> Array:
        left = self.scales.budget - self.cost(state)
        return features(
            self.scales, SchedulerInput(state.round, loss, state.reward, kl, learner, actor, seconds, left), jnp
        )


def draw(delay: DelayConfig, key: Array, size: int) -> Array:
    """`size` durations of a delay model, in seconds; those of a table are drawn at random."""
    model = delay_of(delay)
    if isinstance(model, Measured):
        return jax.random.choice(key, jnp.asarray(model.table), (size,))
    noise = getattr(jax.random, model.noise)(key, (size,)) if model.noise else jnp.zeros(size)
    durations: Array = model.durations(noise, jnp)
    return durations
