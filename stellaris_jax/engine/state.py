"""State of the engine: its fields, its initialisation, and its placement on the mesh."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import AdvantageInputs, Samples, Steps, Transition
from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.engine import versions
from stellaris_jax.engine.aggregator import StalenessWeightedState
from stellaris_jax.engine.frames import REFERENCE, Frames, stored_once
from stellaris_jax.engine.keys import SeedKeys
from stellaris_jax.engine.learner import Cache, DataLoader
from stellaris_jax.engine.mesh import AXIS, compile_plainly, make_mesh
from stellaris_jax.engine.processes import put
from stellaris_jax.engine.rollout import ActorState, Normalizers, init_actor, init_normalizers, viewed
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.engine.store import PARTIAL_SUMS, Store, init_store
from stellaris_jax.engine.stored_programs import NONE, StoredPrograms
from stellaris_jax.engine.transitions import Window
from stellaris_jax.envs.base import VecEnv
from stellaris_jax.timeline.plan import Plan


class EngineState(NamedTuple):
    """Training state, one pytree; every leaf has a leading axis `[S]` of seeds.

    Attributes:
      params: newest policy, `[P]`.
      version: number of the newest version, from 0.
      ring: the last versions, target networks included, `[H, P]`; `params` is written into it before the next read.
      aggregator: state of the current group and of the optimizer.
      actor: states of the environments.
      loader: fragments and their minibatches.
      normalizers: statistics of observations and returns.
      kl_coefficient: weight of the KL penalty.
      key: the seed's key.
      round: number of completed rounds.
      store: fragments of independent actors; `None` for other actors.
      targets: target networks made of the parameters; `None` unless the algorithm has them.
      partial: sums over the executed part of a round, a vector (`engine.round_steps.Sums`), if rounds have several
        stretches; else `None`.
    """

    params: jax.Array
    version: jax.Array
    ring: jax.Array
    aggregator: StalenessWeightedState
    actor: ActorState
    loader: DataLoader
    normalizers: Normalizers
    kl_coefficient: jax.Array
    key: jax.Array
    round: jax.Array
    store: Store | None = None
    partial: Any = None
    targets: versions.Targets | None = None

    def cache(self) -> Cache:
        """Cache from which learners fetch, of one seed whose newest version has been published in the ring."""
        return Cache(self.ring, self.version, self.loader, self.kl_coefficient, self.targets)


class EngineInputs(NamedTuple):
    """Inputs of an engine's program: arrays, or for `lower` and `compile` their shapes (`jax.ShapeDtypeStruct`).

    Attributes:
      state: training state; `run` donates it.
      hyper: hyper-parameters, arrays `[S]`.
      plan: plan of the chunk; it has one round if the environments are host environments.
      fragment: data from host environments, every leaf with a leading axis `[S]`; `None` if the program makes its own,
        and a list of rollers if shards roll them (`stellaris_jax.engine.host_program`).
      width: number of environments compiled for, at least the number that takes part; `None` for all.
    """

    state: EngineState
    hyper: Hyper
    plan: Plan
    fragment: Any = None
    width: int | None = None


def of_one_seed(plan: Plan) -> Plan:
    """Plan of one seed without the axis of seeds."""
    squeezed = {name: value for name, value in plan._asdict().items() if name not in SHARED}
    return plan._replace(**jax.tree.map(lambda x: x[:, 0], squeezed))


SHARED = ("bounds", "learning_rate", "steps", "ends")
"""Fields of a plan that are the same for all seeds."""
REPLICATED = PartitionSpec()
PLACED = PartitionSpec(None, None, AXIS)
"""Partition of arrays with an axis of places, which is sharded over devices."""
PLAN_SPECS = Plan(**{field: PLACED if field in ("invocations", "weights") else REPLICATED for field in Plan._fields})  # type: ignore[arg-type]
"""Partition of a plan's fields."""


def policies(state: EngineState, slots: np.ndarray) -> jax.Array:
    """Policies `[S, P]` in ring slots `[S]`."""
    return jax.vmap(versions.lookup)(state.ring, state.version, state.params, jnp.asarray(slots))


class StateLayout:
    """Layout of one engine's states: initialisation, shapes and shardings.

    Args:
      options, env, network, spec: arguments of `stellaris_jax.engine.program.Engine`.
      aggregator: function from one seed's hyper-parameters to its parameter function.
      stored: programs kept on disk; none by default.
    """

    def __init__(
        self,
        options: EnvConfig,
        env: VecEnv | None,
        network: PolicyNetwork,
        spec: ProgramSpec,
        aggregator: Callable[[Hyper], optax.GradientTransformationExtraArgs],
        stored: StoredPrograms = NONE,
    ):
        self.options, self.env, self.network = options, env, network
        self.spec, self.shape = spec, spec.shape
        self.aggregator, self.stored = aggregator, stored

    @cached_property
    def mesh(self) -> Mesh:
        """Mesh of the run's devices."""
        return make_mesh(self.spec.devices)

    def init(self, seeds: list[int], hyper: Hyper, params: np.ndarray | None = None) -> EngineState:
        """State before the first round, one row per seed, placed on the mesh.

        Args:
          seeds: the S seeds.
          hyper: hyper-parameters, arrays `[S]`.
          params: initial parameters `[S, P]`; drawn from the seeds by default.
        """
        numbers = np.asarray(seeds, np.uint32)
        drawn = self._drawn(numbers) if params is None else jnp.asarray(params)
        arguments = (drawn, numbers, hyper)
        if self.stored and self.spec.devices == 1:
            # `_init` is asked for only if the program is not on disk: it traces the state's shapes.
            made = self.stored.compiled("state", arguments, lambda: self._init.lower(*arguments), compile_plainly)
        else:
            made = self._init
        state: EngineState = jax.block_until_ready(made(*arguments))
        return state

    def _drawn(self, seeds: np.ndarray) -> jax.Array:
        """Initial parameters `[S, P]`; those of seeds drawn before are on disk, because LAPACK takes long to start."""
        drawn: jax.Array = self.stored.rows("parameters", seeds.tolist(), lambda: self._params(seeds))
        return drawn

    @cached_property
    def _params(self) -> Callable[[np.ndarray | jax.Array], jax.Array]:
        """Function from seeds `[S]` to initial parameters `[S, P]`.

        It is a separate program, because it takes most of the compile time, and all runs of one network find it in the
        compilation cache on disk. Seeds are processed one after the other: under vmap the QR of orthogonal
        initialisation is batched, and two concurrent batched QRs can deadlock XLA's CPU thread pool.
        """
        network = self.network
        return jax.jit(partial(jax.lax.map, lambda seed: network.init(SeedKeys.of(jax.random.key(seed)).params)))

    @cached_property
    def _init(self) -> Any:
        layout = weakref.proxy(self)  # a strong reference would be a cycle, and keep compiled programs alive

        def init(params: jax.Array, seeds: jax.Array, hyper: Hyper) -> EngineState:
            keys = jax.vmap(jax.random.key)(seeds)
            state: EngineState = jax.lax.map(lambda x: layout.init_one(*x), (params, keys, hyper))
            return state

        return jax.jit(init, out_shardings=self._shardings(self.shapes()))

    def place(self, state: EngineState) -> EngineState:
        """State placed on the mesh."""
        return put(state, self._shardings(state))

    def init_one(self, params: jax.Array, key: jax.Array, hyper: Hyper) -> EngineState:
        """Initial state of one seed from its parameters, key and hyper-parameters, without the leading axis."""
        spec, observation, keys = self.spec, self.network.observation_space, SeedKeys.of(key)
        actor = init_actor(self.env, self.network, jax.random.split(keys.envs, spec.envs))
        buffer = spec.buffer
        rows = spec.envs * spec.steps * (spec.buffers if buffer is None else buffer.stored)
        action = jnp.zeros((rows, *self.network.action_space.shape), self._action_dtype())
        obs, frames = jnp.zeros((rows, *observation.shape), viewed(observation, self.options)), None
        if buffer is not None and stored_once(spec, observation, self.options):
            frames = Frames.empty(spec.envs, spec.steps, buffer, observation)
            obs = jnp.zeros((rows, REFERENCE), jnp.int32)
        zeros, never = jnp.zeros(rows), jnp.zeros(rows, bool)
        made = spec.recipe.made
        fragments = Samples(
            obs=obs,
            action=action,
            distribution=jnp.zeros((rows, self.network.distribution.size)),
            log_prob=zeros,
            value=zeros if spec.critic else None,
            advantage=zeros if "advantage" in made else None,
            target=zeros if "target" in made else None,
            valid=never if spec.has_invalid else None,
            steps=Steps(zeros, zeros if spec.critic else None, never, never) if spec.recipe.sequences else None,
            carry=self.network.stored(self.network.initial_carry(spec.envs * spec.buffers)),
            first=never if self.network.recurrent else None,
            own=self._own(hyper, rows),
        )
        if buffer is not None:
            following = Transition(zeros, zeros, fragments.obs)
            version = jnp.zeros(rows, jnp.int32)
            fragments = fragments._replace(distribution=None, log_prob=None, transition=following, version=version)
            window = Window.empty(spec.envs, buffer.steps, fragments.obs, fragments.action)
            actor = actor._replace(window=window)
        order = jnp.full((self.shape.buffers, self.shape.gradients, self.shape.batch), -1, jnp.int32)
        normalizers, store = init_normalizers(observation), None
        if spec.collection is not None:
            actor = jax.tree.map(lambda x: x.reshape(-1, spec.shard_envs, *x.shape[1:]), actor)
            store = init_store(self.network, self.options, spec, fragments, normalizers.obs)
            fragments = fragments._replace(version=jnp.zeros(rows, jnp.int32))
        if spec.episodic:
            actor = actor._replace(alive=jnp.ones(actor.totals.shape[:-1], bool))
        return EngineState(
            params=params,
            version=jnp.int32(0),
            ring=versions.init(params, self.shape.ring.length),
            aggregator=self.aggregator(hyper).init(params),
            actor=actor,
            loader=DataLoader(
                fragments,
                order,
                jnp.zeros(self.shape.buffers, jnp.int32),
                stored=None if buffer is None else jnp.int32(0),
                keys=jax.random.split(keys.run, self.shape.buffers) if spec.algorithm.draws else None,
                frames=frames,
            ),
            normalizers=normalizers,
            kl_coefficient=jnp.asarray(hyper.kl_coefficient),
            key=keys.run,
            round=jnp.int32(0),
            store=store,
            partial=jnp.zeros(len(spec.metrics) + PARTIAL_SUMS) if spec.follows else None,
            targets=versions.Targets.of(spec.algorithm.target, params, self.shape.ring.length),
        )

    def _own(self, hyper: Hyper, rows: int) -> dict[str, jax.Array] | None:
        """Zeros for the algorithm's own fields of samples, `[rows]` by name."""
        zeros = jnp.zeros((self.spec.steps, self.spec.envs))
        value, never = zeros if self.spec.critic else None, zeros > 0
        valid = never if self.spec.has_invalid else None
        steps = AdvantageInputs(zeros, value, value, never, never, valid, None, hyper.gamma, hyper.gae_lambda)
        shapes = jax.eval_shape(lambda: self.spec.recipe.fields(hyper, steps))
        return jax.tree.map(lambda x: jnp.zeros((rows, *x.shape[2:]), x.dtype), shapes)

    def _action_dtype(self) -> Any:
        parameters = jnp.zeros((1, self.network.distribution.size))
        return jax.eval_shape(self.network.distribution.mode, parameters).dtype

    @property
    def replicated(self) -> NamedSharding:
        """Sharding of arrays that are replicated on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    def shapes(self) -> EngineState:
        """Shapes and dtypes of the state of one block of seeds; no device is needed."""
        seeds = np.zeros(self.shape.seeds, np.uint32)
        # Only the shapes matter, and numbers of corrections are never parts of the state.
        none = Hyper.of(Config())._replace(
            corrections=({},) * len(self.spec.corrections),
            part_optimizers={part: {} for part, _ in self.spec.part_optimizers},
        )
        hyper = none.rows(self.shape.seeds)

        def init(seeds: jax.Array, hyper: Hyper) -> EngineState:
            keys = jax.vmap(jax.random.key)(seeds)
            state: EngineState = jax.vmap(self.init_one)(self._params(seeds), keys, hyper)
            return state

        return jax.eval_shape(init, seeds, hyper)

    def specs(self, state: EngineState) -> EngineState:
        """Partition of each leaf of the state: environments and replay buffers over the mesh, all others replicated."""
        specs = jax.tree.map(lambda _: PartitionSpec(), state)
        if self.spec.buffer_axis is not None:
            loader, rows = state.loader, PartitionSpec(None, self.spec.buffer_axis)
            kept = specs.loader._replace(fragments=jax.tree.map(lambda _: rows, loader.fragments))
            if loader.frames is not None:
                kept = kept._replace(frames=kept.frames._replace(pixels=rows))
            specs = specs._replace(loader=kept)
        if self.spec.host_fragments:
            return specs
        envs = PartitionSpec(None, AXIS) if self.spec.collection is None else PartitionSpec(None, None, AXIS)
        return specs._replace(actor=jax.tree.map(lambda _: envs, state.actor))

    def _shardings(self, state: EngineState) -> EngineState:
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), self.specs(state))

    def abstract(self, seeds: int) -> EngineState:
        """Shapes, dtypes and shardings of the state of `seeds` seeds, for restoring checkpoints."""
        shapes = self.shapes()
        return jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct((seeds, *x.shape[1:]), x.dtype, sharding=s),
            shapes,
            self._shardings(shapes),
        )
