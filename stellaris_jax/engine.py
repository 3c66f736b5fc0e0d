"""The engine: one compiled program that executes any plan.

A chunk is several rounds of: collect a fragment; run the round's waves of lagged gradients through the aggregator,
publishing a version whenever a group is complete; reduce metrics. No architecture has a code path of its own here:
synchronous or asynchronous, all is in the plan. State is donated, metrics leave the device once per chunk.

Seeds are mapped inside the loops (`vmap`), so all seeds share the loop bounds. Lanes are mapped inside each device;
devices share the waves' slots and the environments through `shard_map` over one mesh axis.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from stellaris_jax import learner, versions
from stellaris_jax.aggregator import StalenessWeightedState, staleness_weighted
from stellaris_jax.backend import AXIS, compile_for_backend, make_mesh
from stellaris_jax.config import Config
from stellaris_jax.envs.base import HostEnv, VecEnv
from stellaris_jax.learner import DataLoader
from stellaris_jax.losses import ALGORITHMS
from stellaris_jax.losses.common import LossMetrics, Samples, Steps, adapt_kl_coefficient
from stellaris_jax.networks import ActorCritic
from stellaris_jax.rollout import (
    ActorState,
    EpisodeStatistics,
    Fragment,
    Normalizers,
    episode_totals,
    init_actor,
    init_normalizers,
    prepare,
    rollout,
)
from stellaris_jax.timeline.plan import Plan, PlanShape

WaveCarry = tuple[jax.Array, jax.Array, jax.Array, StalenessWeightedState, jax.Array | None, jax.Array]
"""The first fields of `EngineState`, and sums over the round's gradients: loss metrics, norm, count."""


class EngineState(NamedTuple):
    """All that training changes, one pytree; every leaf has a leading axis `[S]` of seeds.

    params: newest policy `[P]`. slot: its place in the ring (it is written there when next something reads). ring: the
    last H versions `[H, P]`. target: the target network `[P]`; `None` for algorithms without one. key: the seed's key.
    round: rounds completed.
    """

    params: jax.Array
    slot: jax.Array
    ring: jax.Array
    aggregator: StalenessWeightedState
    target: jax.Array | None
    actor: ActorState
    loader: DataLoader
    normalizers: Normalizers
    kl_coefficient: jax.Array
    key: jax.Array
    round: jax.Array


class RoundMetrics(NamedTuple):
    """One round, arrays `[R, S]`; means over the round's gradients, `rejected` counts over the run so far."""

    loss: LossMetrics
    gradient_norm: jax.Array
    gradients: jax.Array
    rejected: jax.Array
    kl_coefficient: jax.Array
    episodes: EpisodeStatistics


def optimizer(config: Config) -> optax.GradientTransformation:
    """Adam at the base learning rate alpha_0, behind a clip of the aggregated gradient's norm."""
    algorithm = config.algorithm
    adam = optax.adam(algorithm.learning_rate, eps=algorithm.adam_eps)
    if algorithm.max_grad_norm > 0.0:
        return optax.chain(optax.clip_by_global_norm(algorithm.max_grad_norm), adam)
    return adam


class Engine:
    """Compiles `config` for plans of one shape and runs them.

    Args:
      config: a validated configuration.
      env, network: built from it.
      shape: the static sizes of its plans.
    """

    def __init__(self, config: Config, env: VecEnv | HostEnv, network: ActorCritic, shape: PlanShape):
        self.config, self.env, self.network, self.shape = config, env, network, shape
        self.algorithm = ALGORITHMS[config.algorithm.name]
        self.mesh = make_mesh(config.engine.devices)
        # On one device collectives would be copies with a rendezvous: leave them out.
        self.axis = AXIS if config.engine.devices > 1 else None
        self.aggregator = staleness_weighted(optimizer(config), config.system.aggregation, self.axis)
        self.samples = config.env.num_envs * config.algorithm.rollout_length
        # Seeds are mapped only if there are several: an axis of length one would turn slices into gathers.
        self.over_seeds: Callable = jax.vmap if shape.seeds > 1 else lambda f, in_axes=0: f
        self._compiled: Any = None
        self.compile_seconds = 0.0

    # State ---------------------------------------------------------------------------------------------------------

    def init(self, seeds: list[int]) -> EngineState:
        """The state before the first round, one row per seed, laid out over the mesh."""
        # One seed after the other: under vmap the QR of orthogonal initialisation is batched, and two batched QRs at
        # once can starve XLA's CPU thread pool for ever.
        init = jax.jit(self._init_one)
        states = [init(jax.random.key(seed)) for seed in seeds]
        return jax.device_put(jax.tree.map(lambda *rows: jnp.stack(rows), *states), self._shardings(self._shapes()))

    def _init_one(self, key: jax.Array) -> EngineState:
        params_key, env_key, run_key = jax.random.split(key, 3)
        params = self.network.init(params_key)
        actor = init_actor(self.env, jax.random.split(env_key, self.config.env.num_envs))
        rows = self.samples * self.shape.buffers
        action = jnp.zeros((rows, *self.env.action_space.shape), self._action_dtype())
        zeros, never = jnp.zeros(rows), jnp.zeros(rows, bool)
        fragments = Samples(
            obs=jnp.zeros((rows, *self.env.observation_space.shape), self.env.observation_space.dtype),
            action=action,
            distribution=jnp.zeros((rows, self.network.distribution.size)),
            log_prob=zeros,
            value=zeros,
            advantage=zeros,
            target=zeros,
            valid=never if isinstance(self.env, HostEnv) else None,
            steps=Steps(zeros, zeros, never, never) if self.algorithm.sequences else None,
        )
        order = jnp.zeros((self.shape.buffers, self.shape.gradients, self.shape.batch), jnp.int32)
        return EngineState(
            params=params,
            slot=jnp.int32(0),
            ring=versions.init(params, self.shape.versions),
            aggregator=self.aggregator.init(params),
            target=params if self.algorithm.target_network else None,
            actor=actor,
            loader=DataLoader(fragments, order),
            normalizers=init_normalizers(self.env.observation_space),
            kl_coefficient=jnp.float32(self.config.algorithm.kl_coefficient),
            key=run_key,
            round=jnp.int32(0),
        )

    def _action_dtype(self) -> Any:
        parameters = jnp.zeros((1, self.network.distribution.size))
        return jax.eval_shape(self.network.distribution.mode, parameters).dtype

    def _shapes(self) -> EngineState:
        keys = jax.random.split(jax.random.key(0), self.shape.seeds)
        return jax.eval_shape(jax.vmap(self._init_one), keys)

    def _specs(self, state: EngineState) -> EngineState:
        specs = jax.tree.map(lambda _: PartitionSpec(), state)
        if isinstance(self.env, HostEnv):
            return specs
        return specs._replace(actor=jax.tree.map(lambda _: PartitionSpec(None, AXIS), state.actor))

    def _shardings(self, state: EngineState) -> EngineState:
        """Where each leaf of the state lives: environments over the mesh, everything else on every device."""
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), self._specs(state))

    def abstract_state(self) -> EngineState:
        """Shapes, dtypes and shardings of the state, for restoring."""
        shapes = self._shapes()
        return jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, self._shardings(shapes)
        )

    # One round, for one seed and one device ------------------------------------------------------------------------

    def _collect(
        self, state: EngineState, behaviour: jax.Array, order: jax.Array, fragment: Fragment | None
    ) -> tuple[EngineState, EpisodeStatistics]:
        """Fragment `state.round` becomes training data; actors roll it here unless it has come from the host."""
        state = state._replace(ring=versions.publish(state.ring, state.slot, state.params))
        if fragment is None:
            state, fragment = self._roll(state, versions.fetch(state.ring, behaviour))
        else:
            state, fragment = self._receive(state, fragment)
        samples, normalizers, episodes = prepare(
            self.network,
            fragment.params,
            fragment.normalizers,
            state.normalizers,
            fragment.trajectory,
            self.config.algorithm,
            self.config.env,
        )
        loader = learner.store(state.loader, state.round % self.shape.buffers, samples, order)
        return state._replace(loader=loader, normalizers=normalizers), episodes

    def _roll(self, state: EngineState, params: jax.Array) -> tuple[EngineState, Fragment]:
        """Step this device's environments with a policy, and gather what all devices saw."""
        config, algorithm = self.config, self.config.algorithm
        start_key, actor_key = jax.random.split(jax.random.fold_in(state.key, state.round))
        keys = jax.random.split(actor_key, config.env.num_envs)
        local = config.env.num_envs // config.engine.devices
        assert isinstance(self.env, VecEnv)
        if self.axis is not None:
            keys = jax.lax.dynamic_slice_in_dim(keys, jax.lax.axis_index(self.axis) * local, local)
        actor, trajectory = rollout(
            self.env,
            self.network,
            params,
            state.normalizers,
            state.actor,
            keys,
            start_key,
            algorithm.rollout_length,
            algorithm.gamma,
            config.env,
        )
        if self.axis is not None:
            rows = trajectory._replace(last_obs=trajectory.last_obs[None])
            rows = jax.tree.map(lambda x: jax.lax.all_gather(x, self.axis, axis=1, tiled=True), rows)
            trajectory = rows._replace(last_obs=rows.last_obs[0])
        return state._replace(actor=actor), Fragment(trajectory, params, state.normalizers)

    def _receive(self, state: EngineState, fragment: Fragment) -> tuple[EngineState, Fragment]:
        """Account for the episodes of a fragment from the host."""
        trajectory = fragment.trajectory
        done = trajectory.terminated | trajectory.truncated
        totals, carried = episode_totals(
            trajectory.reward,
            trajectory.valid.astype(jnp.float32),
            done,
            state.actor.totals,
            self.config.algorithm.gamma,
        )
        actor = state.actor._replace(totals=carried)
        return state._replace(actor=actor), fragment._replace(trajectory=trajectory._replace(totals=totals))

    def _wave(
        self,
        loader: DataLoader,
        kl_coefficient: jax.Array,
        step_scale: jax.Array,
        carry: WaveCarry,
        slots: jax.Array,
        peers: jax.Array,
        weights: jax.Array,
        size: jax.Array,
        refresh: jax.Array,
    ) -> WaveCarry:
        """Compute the wave's gradients on their versions and aggregate; a new version if the wave completes a group."""
        params, newest, ring, aggregator, target, sums = carry
        ring = versions.publish(ring, newest, params)
        one = partial(
            learner.gradient,
            self.network,
            self.config.algorithm,
            self.config.system,
            ring,
            target,
            loader,
            kl_coefficient,
        )
        if slots.shape[0] > 1:
            gradients, metrics = jax.vmap(one)(slots, peers)
        else:
            gradients, metrics = jax.tree.map(lambda x: x[None], one(slots[0], peers[0]))
        updates, aggregator = self.aggregator.update(
            gradients, aggregator, params, weights=weights, size=size, step_scale=step_scale
        )
        params = params + updates
        newest = jnp.where(size > 0, (newest + 1) % self.shape.versions, newest)
        if target is not None:
            target = jnp.where(refresh, params, target)

        norm = jnp.sqrt(jnp.sum(jnp.square(gradients), axis=1))
        used = (weights > 0) & jnp.isfinite(norm)
        rows = jnp.stack([*metrics, norm, jnp.ones_like(norm)], axis=1)
        wave = jnp.sum(jnp.where(used[:, None], rows, 0.0), axis=0)
        sums += wave if self.axis is None else jax.lax.psum(wave, self.axis)
        return params, newest, ring, aggregator, target, sums

    def _finish(
        self, state: EngineState, sums: jax.Array, episodes: EpisodeStatistics
    ) -> tuple[EngineState, RoundMetrics]:
        gradients = sums[-1]
        *means, norm = sums[:-1] / jnp.maximum(gradients, 1.0)
        loss = LossMetrics(*means)
        coefficient = state.kl_coefficient
        if self.config.algorithm.kl_coefficient > 0.0:
            adapted = adapt_kl_coefficient(coefficient, loss.kl, self.config.algorithm.kl_target)
            coefficient = jnp.where(gradients > 0, adapted, coefficient)
        metrics = RoundMetrics(loss, norm, gradients, state.aggregator.rejected, coefficient, episodes)
        return state._replace(kl_coefficient=coefficient, round=state.round + 1), metrics

    # A chunk -------------------------------------------------------------------------------------------------------

    def _chunk(
        self, state: EngineState, plan: Plan, rounds: jax.Array, fragment: Fragment | None
    ) -> tuple[EngineState, RoundMetrics]:
        seeds = self.shape.seeds
        if seeds == 1:
            state, fragment = jax.tree.map(lambda x: x[0], (state, fragment))
            squeezed = {name: getattr(plan, name)[:, 0] for name in plan._fields if name not in SHARED}
            plan = plan._replace(**squeezed)
        lead = () if seeds == 1 else (seeds,)

        def round_body(r: jax.Array, carry: tuple[EngineState, RoundMetrics]) -> tuple[EngineState, RoundMetrics]:
            state, history = carry
            state, episodes = self.over_seeds(self._collect)(state, plan.behaviour[r], plan.order[r], fragment)
            step_scale = plan.learning_rate[r]
            loader, coefficient = state.loader, state.kl_coefficient

            def wave_body(w: jax.Array, carry: Any) -> Any:
                wave = (plan.slots[w], plan.peers[w], plan.weights[w], plan.sizes[w], plan.refresh[w])
                mapped = self.over_seeds(self._wave, in_axes=(0, 0, None, 0, 0, 0, 0, 0, 0))
                return mapped(loader, coefficient, step_scale, carry, *wave)

            sums = jnp.zeros((*lead, len(LossMetrics._fields) + 2))
            start = (state.params, state.slot, state.ring, state.aggregator, state.target, sums)
            *carried, sums = jax.lax.fori_loop(plan.bounds[r, 0], plan.bounds[r, 1], wave_body, start)
            state = EngineState(*carried, *state[len(carried) :])
            state, metrics = self.over_seeds(self._finish)(state, sums, episodes)
            return state, jax.tree.map(lambda all_, one: all_.at[r].set(one), history, metrics)

        zeros = jnp.zeros((self.shape.rounds, *lead))
        history = RoundMetrics(
            LossMetrics(*[zeros] * len(LossMetrics._fields)),
            zeros,
            zeros,
            jnp.zeros(zeros.shape, jnp.int32),
            zeros,
            EpisodeStatistics(zeros, zeros, zeros),
        )
        state, history = jax.lax.fori_loop(0, rounds, round_body, (state, history))
        if seeds == 1:
            state = jax.tree.map(lambda x: x[None], state)
            history = jax.tree.map(lambda x: x[:, None], history)
        return state, history

    def compile(self, state: EngineState, plan: Plan, fragment: Fragment | None = None) -> None:
        """Compile for the shapes of `state`, `plan` and `fragment`; sets `compile_seconds`."""
        begin = time.perf_counter()
        specs = self._specs(state)
        sharded, whole = PartitionSpec(None, None, AXIS), PartitionSpec()
        specs_of: dict[str, Any] = {name: sharded if name in SLOTTED else whole for name in plan._fields}
        plan_specs = plan._replace(**specs_of)
        mapped = jax.shard_map(
            self._chunk,
            mesh=self.mesh,
            in_specs=(specs, plan_specs, PartitionSpec(), PartitionSpec()),
            out_specs=(specs, PartitionSpec()),
            check_vma=False,
        )
        self._plan_shardings = jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), plan_specs)
        data = self._replicated((np.int32(0), fragment))
        lowered = jax.jit(mapped, donate_argnums=0).lower(state, self.put(plan), *data)
        self._compiled = compile_for_backend(lowered)
        self.compile_seconds = time.perf_counter() - begin

    def behaviour(self, state: EngineState, slots: np.ndarray) -> jax.Array:
        """The policies `[S, P]` in ring slots `[S]`."""

        def fetch(ring: jax.Array, newest: jax.Array, params: jax.Array, slot: jax.Array) -> jax.Array:
            return jnp.where(slot == newest, params, versions.fetch(ring, slot))

        return jax.vmap(fetch)(state.ring, state.slot, state.params, jnp.asarray(slots))

    def put(self, plan: Plan) -> Plan:
        return jax.device_put(plan, self._plan_shardings)

    def _replicated(self, tree: Any) -> Any:
        return jax.device_put(tree, NamedSharding(self.mesh, PartitionSpec()))

    def run(
        self, state: EngineState, plan: Plan, rounds: int, fragment: Fragment | None = None
    ) -> tuple[EngineState, RoundMetrics]:
        """Execute the first `rounds` rounds of a plan. Donates `state`; returns at once, before it is computed.

        With host environments a plan has one round, and `fragment` (every leaf with a leading axis `[S]`) is its data.
        """
        if self._compiled is None:
            self.compile(state, plan, fragment)
        return self._compiled(state, self.put(plan), *self._replicated((np.int32(rounds), fragment)))


SHARED = ("bounds", "learning_rate")
SLOTTED = ("slots", "peers", "weights")
