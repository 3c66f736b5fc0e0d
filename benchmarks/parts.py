"""Seconds of a chunk's parts, each compiled alone, on the shapes, the plan and the state of the whole.

- `environment`: random actions, drawn beforehand; `acting`: the policy instead; `collecting`: data prepared and stored
  as well, or, of host environments, that alone;
- `gradients` and `aggregation`: those of the plan; the optimizer is part of the latter;
- `executing`: the chunk's program, all of the above; `step`: all a trainer does for a chunk, waiting for host
  environments included; `planning`: the next chunk, which is planned while one is executed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.config.tree import Config
from stellaris_jax.engine import learner, versions
from stellaris_jax.engine.keys import FragmentKeys
from stellaris_jax.engine.mesh import compile_for_backend
from stellaris_jax.engine.rollout import (
    ActorState,
    Fragment,
    Normalizers,
    RolloutInputs,
    Trajectory,
    init_actor,
    rollout,
)
from stellaris_jax.engine.state import EngineState
from stellaris_jax.envs.base import Box, Discrete, HostEnv, VecEnv
from stellaris_jax.execute.simulated import planner_of
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.sources.source import Run
from stellaris_jax.timeline.plan import Plan

Seconds = dict[str, float]
Part = Callable[[], Seconds]


def profile(trainer: Trainer, repeats: int) -> Seconds:
    """Seconds per chunk of the module's parts, medians over `repeats` turns; the trainer is closed then.

    Parts take turns, but for the steps of a trainer on host environments, whose actors go on after a step: they come
    first.
    """
    step = partial(_timed, "step", trainer.step)
    if not trainer.spec.host_fragments:
        seconds = medians([step, *parts(trainer)], repeats)
        trainer.close()
        return seconds
    seconds = medians([step], repeats)
    trainer.close()
    return seconds | medians(parts(trainer), repeats)


def medians(parts: Sequence[Part], repeats: int) -> Seconds:
    """Median seconds of parts that take turns, after one turn for what happens once."""
    turns = [[part() for part in parts] for _ in range(1 + repeats)][1:]
    whole = [{name: seconds for part in turn for name, seconds in part.items()} for turn in turns]
    return {name: statistics.median(turn[name] for turn in whole) for name in whole[0]}


def parts(trainer: Trainer) -> list[Part]:
    """All of the module's parts but `step`, on trainers of their own that share the programs of this one."""
    whole = Trainer(trainer.config.replace({"env.overlap": False}), programs=trainer.programs)
    whole.step()  # data to learn from
    runs = {"collecting": collecting(whole), "gradients": gradients(whole), "aggregation": aggregation(whole)}
    if isinstance(trainer.env, HostEnv):
        runs["environment"] = host_fragment(trainer.env, trainer.config)
        actors = Trainer(trainer.config, programs=trainer.programs)
        runs["acting"] = actors.source.timed_rollout(actors.seed_states)[0]
    else:
        runs |= {"environment": environment(whole, trainer.env), "acting": acting(whole, trainer.env)}
    return [partial(executing, whole), *(partial(_timed, name, run) for name, run in runs.items())]


def _timed(name: str, run: Callable[[], Any]) -> Seconds:
    begin = time.perf_counter()
    run()
    return {name: time.perf_counter() - begin}


def executing(trainer: Trainer) -> Seconds:
    """Train one chunk, with each thing at its time: `planning`, then data from the host, then `executing`."""
    begin = time.perf_counter()
    chunk = planner_of(trainer.executor).next()
    planned = time.perf_counter() - begin
    received = trainer.source.receive(trainer.seed_states, chunk, trainer.schedule.following(chunk))
    fragment = None if received is None else received.fragment
    begin = time.perf_counter()
    trainer.seed_states.finish(trainer.seed_states.start(chunk, fragment))
    seconds = time.perf_counter() - begin
    planner_of(trainer.executor).executed()
    return {"planning": planned, "executing": seconds}


def looped(one: Callable[[jax.Array, Any, Any], Any], carry: Any, times: int, data: Any) -> Run:
    """Run `one(i, carry, data) -> carry` many times in one program; the next call goes on from the carry."""

    def program(carry: Any, data: Any) -> Any:
        return jax.lax.fori_loop(0, times, lambda i, carry: one(i, carry, data), carry)

    carry = jax.tree.map(jnp.copy, carry)  # which is donated
    compiled = compile_for_backend(jax.jit(program, donate_argnums=0).lower(carry, data))
    held = [carry]

    def run() -> None:
        held[0] = jax.block_until_ready(compiled(held[0], data))

    return run


def single(trainer: Trainer) -> tuple[Hyper, EngineState]:
    """The numbers and the state of a trainer's first seed."""
    states = trainer.seed_states
    alone: tuple[Hyper, EngineState] = jax.tree.map(lambda x: x[0], (states.hyper, states.states[0]))
    return alone


# Fragments ------------------------------------------------------------------------------------------------------------


def given_actions(trainer: Trainer, env: VecEnv, state: Any, key: jax.Array, actions: jax.Array) -> tuple[Any, Any]:
    """The environments' states, and all they said, after a fragment of actions `[T, N, ...]`."""
    starts, keys = env.starts(key), jax.random.split(key, (trainer.spec.steps, trainer.spec.envs))

    def step(state: Any, x: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
        return env.step(x[0], state, x[1], starts)

    return jax.lax.scan(step, state, (keys, actions))


def random_actions(trainer: Trainer, env: VecEnv) -> jax.Array:
    """Actions of a fragment, `[T, N, ...]`, all equally likely."""
    shape, space, key = (trainer.spec.steps, trainer.spec.envs), env.action_space, jax.random.key(2)
    if isinstance(space, Discrete):
        return jax.random.randint(key, shape, 0, space.n)
    assert isinstance(space, Box)
    low, high = jnp.array(space.low), jnp.array(space.high)
    return jax.random.uniform(key, (*shape, *space.shape), minval=low, maxval=high)


def host_fragment(env: HostEnv, config: Config) -> Run:
    """A fragment of random actions in environments on the host."""
    pool = env.open(config.env.num_envs, seed=0)
    pool.recv()
    actions = env.action_space.sample(np.random.default_rng(0), config.env.num_envs)

    def run() -> None:
        for _ in range(config.algorithm.rollout_length):
            pool.send(actions)
            pool.recv()

    return run


def environment(trainer: Trainer, env: VecEnv) -> Run:
    """The fragments of a chunk, of random actions, which are drawn beforehand."""
    state = env.reset(jax.random.split(jax.random.key(0), trainer.spec.envs))[0]
    return _fragments(trainer, partial(given_actions, trainer, env), state, random_actions(trainer, env))


def acting(trainer: Trainer, env: VecEnv) -> Run:
    """The fragments of a chunk, all of the newest policy."""
    envs, steps, options = trainer.spec.envs, trainer.spec.steps, trainer.config.env
    hyper, state = single(trainer)

    def fragment(
        actor: ActorState, key: jax.Array, params: jax.Array, normalizers: Normalizers, gamma: jax.Array
    ) -> tuple[ActorState, Trajectory]:
        keys = FragmentKeys(key, jax.random.split(key, envs))
        inputs = RolloutInputs(params, normalizers, actor, keys, gamma)
        return rollout(env, trainer.network, options, steps, inputs)

    actor = init_actor(env, trainer.network, jax.random.split(jax.random.key(0), envs))
    return _fragments(trainer, fragment, actor, state.params, state.normalizers, hyper.gamma)


def _fragments(trainer: Trainer, fragment: Callable[..., tuple[Any, Any]], state: Any, *given: Any) -> Run:
    """As many fragments as a chunk has rounds, each `fragment(state, key, *given) -> (state, what was seen)`."""

    def one(r: jax.Array, carry: Any, data: Any) -> Any:
        key, *given = data
        return fragment(carry[0], jax.random.fold_in(key, r), *given)

    key = jax.random.key(0)
    # The last fragment is carried along, so that all of it has to be computed.
    seen = zeros(jax.eval_shape(fragment, state, key, *given)[1])
    return looped(one, (state, seen), len(planner_of(trainer.executor).next().rounds), (key, *given))


def collecting(trainer: Trainer) -> Run:
    """The data of a chunk, as the program collects it; of host environments, a fragment of zeros becomes data."""
    chunk, example = planner_of(trainer.executor).next(), trainer.source.example(1)
    hyper, state = single(trainer)

    def one(r: jax.Array, carry: Any, data: tuple[Hyper, Plan, Fragment | None]) -> Any:
        hyper, plan, fragment = data
        chosen = (plan.behaviour[r, 0], plan.envs[r, 0], plan.order[r, 0])
        state, episodes = trainer.engine.collect(trainer.spec.envs, hyper, carry[0], *chosen, fragment)
        return state._replace(round=state.round + 1), episodes

    data = (hyper, chunk.plans[0], jax.tree.map(lambda x: x[0], example))
    data = jax.tree.map(jnp.asarray, data)
    episodes = zeros(jax.eval_shape(one, jnp.int32(0), (state, None), data)[1])
    return looped(one, (state, episodes), len(chunk.rounds), data)


# Waves, with one lane -------------------------------------------------------------------------------------------------


def gradients(trainer: Trainer) -> Run:
    """The gradients of a chunk, all on the versions and the data there are."""
    hyper, state = single(trainer)

    def one(w: jax.Array, sums: Any, data: Any) -> Any:
        hyper, cache, invocations = data
        given = (hyper, cache, jax.tree.map(lambda x: x[w, 0, 0], invocations))
        return jax.tree.map(jnp.add, sums, learner.gradient(trainer.network, trainer.spec, *given))

    invocations = jax.tree.map(jnp.asarray, planner_of(trainer.executor).next().plans[0].invocations)
    first = jax.tree.map(lambda x: x[0, 0, 0], invocations)
    learned = (hyper, state.cache())
    sums = zeros(jax.eval_shape(partial(learner.gradient, trainer.network, trainer.spec), *learned, first))
    return looped(one, sums, waves(trainer), (*learned, invocations))


def aggregation(trainer: Trainer) -> Run:
    """The aggregations of a chunk, published in the ring; its gradients are two that take turns."""
    hyper, state = single(trainer)
    plan = planner_of(trainer.executor).next().plans[0]

    def one(w: jax.Array, carry: Any, data: Any) -> Any:
        params, version, ring, aggregator = carry
        hyper, gradients, weights, sizes = data
        ring = versions.publish(ring, version, params)
        update = trainer.engine.aggregator(hyper).update
        sums, size = gradients[w % 2], sizes[w, 0]
        updates, aggregator = update(sums, aggregator, params, weights=weights[w, 0], size=size)
        return params + updates, version + (size > 0), ring, aggregator

    gradients = jax.random.normal(jax.random.key(0), (2, trainer.spec.shape.wave_size, *state.params.shape))
    data = (hyper, gradients, jnp.asarray(plan.weights), jnp.asarray(plan.sizes))
    return looped(one, (state.params, state.version, state.ring, state.aggregator), waves(trainer), data)


def waves(trainer: Trainer) -> int:
    """Waves of gradients of the next chunk."""
    chunk = planner_of(trainer.executor).next()
    return int(chunk.plans[0].bounds[len(chunk.rounds) - 1, 1])


def zeros(shapes: Any) -> Any:
    """Arrays of zeros of these shapes."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
