"""Lower bounds on the memory of a run, so that impossible sizes are refused before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.base.machine import Part, check_fits, cores, of_device, of_host
from stellaris_jax.base.registry import register
from stellaris_jax.config.optioned import options_of
from stellaris_jax.config.options import value_of
from stellaris_jax.config.schema import plain
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.frames import REFERENCE, frame_batches, stored_once
from stellaris_jax.engine.rollout import viewed
from stellaris_jax.engine.spec import ProgramSpec, in_program
from stellaris_jax.envs.base import EnvState, HostEnv, VecEnv
from stellaris_jax.timeline.collection import CollectionSizes

SPARE = 0.5
"""Share of memory that concurrent runs may need by this estimate; the rest is left to compilers and libraries, whose
needs are unknown beforehand."""
PROCESS = 2**29
"""Bytes of a process that has only started JAX."""
SAVED = 2
"""Number of copies that saving makes of seeds that run in separate blocks. With default settings on CartPole, the peak
of resident memory rose by 6.3 MB a seed from 50 to 200 seeds, 4.2 times a seed's state (docs/limits.md)."""
WORD = 4
"""Bytes of a number on a device."""
OBJECT = 64
"""Approximate bytes of a Python object in a container."""


class Sizes(NamedTuple):
    """Sizes that the configuration alone does not determine; the defaults are lower bounds.

    Attributes:
      observation: bytes of an observation as the environment returns it.
      viewed: bytes of an observation as the network receives it.
      state: bytes of one environment's state.
      starts: number of start states drawn for a fragment.
      action: numbers in an action.
      distribution: numbers in an action distribution.
      parameters: numbers in a policy.
      carry: numbers in a network's recurrent state.
      stored: numbers of it that learners need.
      host: True if fragments come from a host environment.
      frames: frames of an observation if a replay buffer stores each once, else 1.
    """

    observation: int = WORD
    viewed: int = WORD
    state: int = 0
    starts: int = 0
    action: int = 1
    distribution: int = 1
    parameters: int = 0
    carry: int = 0
    stored: int = 0
    host: bool = True
    frames: int = 1


def check_run(config: Config, env: VecEnv | HostEnv | None = None, network: PolicyNetwork | None = None) -> None:
    """Raise ConfigError, with the sum, if a run needs more memory than the machine has.

    Args:
      config: configuration of the run.
      env: its environment.
      network: its network. Without both, only parts that do not depend on them are counted.
    """
    if env is None or network is None:
        check_fits(parts(config, _least(config)))
    else:
        check_fits(parts(config, _sizes(config, env, network)))


def _least(config: Config) -> Sizes:
    """Sizes that are certain without the environment and the network."""
    return Sizes(parameters=sum(a * b for a, b in pairwise([1, *config.network.hidden])))


def max_concurrent_runs(configs: Sequence[Config]) -> int:
    """Number of these runs that can train concurrently: one per core, as far as memory allows.

    Runs whose engines use several devices train one at a time.
    """
    if any(config.engine.devices > 1 for config in configs):
        return 1
    device = jax.local_devices()[0]
    whole = [list(parts(config, _least(config))) for config in configs]
    host = max((sum(part.host for part in run_parts) for run_parts in whole), default=0)
    inside = max((sum(part.device for part in run_parts) for run_parts in whole), default=0)
    ratios = [of_host() / max(1, host + inside if device.platform == "cpu" else host)]
    if device.platform != "cpu":
        ratios.append(of_device(device) / max(1, inside))
    return max(1, min(cores(), int(SPARE * min(ratios))))


def needed(configs: Sequence[Config]) -> int:
    """Bytes of memory that a process needs to train any one of these runs."""
    most = (sum(part.host + part.device for part in parts(config, _least(config))) for config in configs)
    return PROCESS + int(max(most, default=0) / SPARE)


def _sizes(config: Config, env: VecEnv | HostEnv, network: PolicyNetwork) -> Sizes:
    inside, space = in_program(env), env.observation_space
    state = [] if inside is None else jax.tree.leaves(jax.eval_shape(partial(_state, inside)))
    return Sizes(
        observation=space.size * np.dtype(space.dtype).itemsize,
        viewed=space.size * np.dtype(viewed(space, config.env)).itemsize,
        state=sum(leaf.size * leaf.dtype.itemsize for leaf in state),
        starts=getattr(env, "start_pool", 0),
        action=sum(env.action_space.shape) or 1,
        distribution=network.distribution.size,
        parameters=network.size,
        carry=_numbers(jax.eval_shape(lambda: network.initial_carry(1))),
        stored=_numbers(jax.eval_shape(lambda: network.stored(network.initial_carry(1)))),
        host=inside is None,
        frames=space.frames if stored_once(ProgramSpec.of(config, inside is None), space, config.env) else 1,
    )


def _numbers(tree: Any) -> int:
    """Numbers in the arrays of a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _state(env: VecEnv) -> EnvState:
    """State of one environment."""
    return env.reset(jax.random.split(jax.random.key(0), 1))[0]


def parts(config: Config, sizes: Sizes) -> Iterator[Part]:
    """Parts of a run's memory at its peak, without the compiler's own needs.

    The state exists twice during a save, and on a CPU once more for every further emulated device. Blocks of seeds that
    run separately are gathered for a save, which makes two more copies. A plan exists three times: as minibatch orders,
    as the engine's layout and on the device.

    Args:
      config: configuration of the run.
      sizes: sizes of its environment and network.
    """
    spec = ProgramSpec.of(config, sizes.host)
    shape, kind = spec.shape, spec.algorithm
    seeds, envs = config.num_seeds, spec.envs
    copies = seeds * (1 + (spec.devices if jax.default_backend() == "cpu" else 1))
    saved = seeds * SAVED if len(spec.blocks(seeds)) > 1 else 0
    order = shape.gradients * shape.batch * WORD

    def of(*keys: str) -> tuple[str, ...]:
        """Settings of these keys and of num_seeds, without values that add nothing."""
        settings = {key: value_of(config, key) for key in (*keys, "num_seeds")}
        return tuple(f"{key}={plain(value)}" for key, value in settings.items() if value not in (0, 1, (), {}))

    collection = shape.collection
    # log mu, the critic's value, what the recipe makes, reward and next value of sequences, and the version.
    made = len(spec.recipe.made) + spec.recipe.sequences * (1 + spec.critic)
    numbers = sizes.action + sizes.distribution + 1 + spec.critic + made + (collection is not None)
    where: tuple[str, ...] = ("env.num_envs", "algorithm.rollout_length")
    if spec.buffer is None:
        samples = spec.buffers * envs * spec.steps * (sizes.viewed + WORD * numbers)
        yield Part("training samples", copies * samples, saved * samples, of(*where, "env.frame_stack"))
    else:
        # Observations before and after, action, reward, discount, version; the last steps of each environment.
        once = sizes.frames > 1
        observation = WORD * REFERENCE if once else sizes.viewed
        transition = 2 * observation + WORD * (sizes.action + 3) + 1
        samples = envs * (spec.steps * spec.buffer.stored + spec.buffer.steps - 1) * transition
        if once:
            batches = frame_batches(spec.steps, spec.buffer, sizes.frames)
            samples += envs * spec.steps * batches * sizes.viewed // sizes.frames
        where = ("algorithm.options.buffer_size", *where)
        held = copies * samples
        if spec.buffer_axis is not None:  # all devices together hold it once
            held = seeds * 2 * samples // (1 if jax.default_backend() == "cpu" else spec.devices)
        yield Part("replay buffer", held, saved * samples, of(where[0], "env.frame_stack"))
    orders = spec.buffers * order
    yield Part("minibatches", copies * orders, saved * orders, of("algorithm.epochs", *where))

    carried = envs * WORD * (sizes.carry + spec.buffers * sizes.stored)
    yield Part("what networks carry", copies * carried, saved * carried, of("env.num_envs", "network.memory_size"))

    if collection is not None:
        yield from _store(config, sizes, spec, Multiples(copies, saved), of)

    policy = WORD * sizes.parameters
    limits = ("system.versions", *(["algorithm.options.target_interval"] if kind.target == "version" else []))
    ring = shape.ring.length * policy * (2 if kind.target == "polyak" else 1)
    yield Part("policy versions", copies * ring, saved * ring, of(*limits, "network.hidden"))
    # Policy, gradient sum and two moments; two more for each part with an optimizer of its own.
    vectors = 4 + 2 * len(spec.part_optimizers) + (kind.target == "reference")
    yield Part("policies and optimizers", copies * vectors * policy, saved * vectors * policy, of("network.hidden"))
    yield Part("gradients", seeds * spec.lanes * policy, 0, of("engine.lanes", "network.hidden"))

    rule = register.scaling[config.scaling.rule]
    if rule.probe == "curvature":
        vectors = min(value_of(config, "scaling.options.lanczos"), sizes.parameters)
        basis = seeds * vectors * (policy + WORD * vectors)
        yield Part("Lanczos vectors", basis, 0, of("scaling.options.lanczos", "network.hidden"))

    each = sizes.state + sizes.observation
    yield Part("environments", copies * envs * each, saved * envs * each, of("env.num_envs", "env.frame_stack"))
    yield Part("start states", seeds * sizes.starts * each, 0, of("env.kwargs", "env.frame_stack"))
    played = config.evaluation.episodes * (1 if sizes.host else seeds)
    yield Part("evaluations", played * (each + WORD * sizes.carry), 0, of("evaluation.episodes", "env.frame_stack"))

    peers = 1 + shape.peers if shape.peers else 0
    waves = shape.capacity * (shape.wave_size * (5 + peers) + 1) * WORD
    chunk = ("engine.chunk_rounds",) if shape.rounds > 1 else ()
    wave = of(*chunk, "algorithm.epochs", "algorithm.minibatches", "engine.lanes", "engine.devices")
    yield Part("waves of gradients", seeds * waves, seeds * waves, wave)
    planned = shape.rounds if collection is None else CollectionSizes.least(shape).batches
    order *= seeds * planned
    yield Part("orders of minibatches", order, 2 * order, of(*chunk, "algorithm.epochs", *where))

    crowd = seeds * 8 * (config.platform.actors + 2 * config.system.learners)
    yield Part("actors and learners", 0, crowd, of("platform.actors", "system.learners"))
    interval = config.checkpoint.interval
    due = OBJECT * (config.rounds // interval) if interval else 0
    yield Part("the schedule of checkpoints", 0, due, of("checkpoint.interval", "total_steps"))
    if config.executor == "live":
        yield from register.pool[config.live.pool].memory(config, live_actors(config))


class Multiples(NamedTuple):
    """Number of times that a part of the state exists: during a run, and more while it is saved."""

    copies: int
    saved: int


def _store(
    config: Config, sizes: Sizes, spec: ProgramSpec, times: Multiples, of: Callable[..., tuple[str, ...]]
) -> Iterator[Part]:
    """Parts of independent actors: the store of fragments, the statistics of each version, and plans of collection."""
    shape, env, system = spec.collection, config.env, config.system
    assert shape is not None, "actors are not independent"
    numbers = sizes.action + sizes.distribution + 3 + env.normalize_reward
    sample = sizes.viewed + sizes.observation * bool(env.normalize_observation) + WORD * numbers + 2
    row = spec.shard_envs * (spec.steps * sample + WORD * sizes.stored)
    store = (shape.rows + 1) * row
    admission = register.data_admission[system.data_admission]
    lengths = ["system.data_queue"]
    if system.data_queue == 0:
        options = [f"system.data_admission_options.{name}" for name in options_of(admission)]
        lengths = [key for key in options if isinstance(value_of(config, key), int)]
    keys = of(*lengths, "system.actor_shards", "env.num_envs", "algorithm.rollout_length", "env.frame_stack")
    yield Part("fragments of independent actors", times.copies * store, times.saved * store, keys)
    if env.normalize_observation:
        elements = 3 * spec.shape.ring.length * sizes.viewed
        where = of("system.versions", "env.frame_stack")
        yield Part("statistics of each version", times.copies * elements, times.saved * elements, where)
    least, seeds = CollectionSizes.least(spec.shape), config.num_seeds
    places = least.whole * (2 + shape.shards) + least.waves * 5 * shape.width + least.batches * (1 + shape.shards)
    plan = WORD * (places + least.steps * (shape.rows + 1))
    yield Part("plans of collection", seeds * plan, seeds * plan, of(*lengths, "engine.chunk_rounds"))


def live_actors(config: Config) -> int:
    """Number of actors of a live run without scaling; one for each shard of independent actors."""
    return config.actor_shards or min(config.live.actors or min(config.platform.actors, cores()), config.env.num_envs)
