"""Engine: one compiled program that executes any plan.

A chunk is several rounds. A round collects a fragment, runs its waves of gradients through the aggregator, publishes a
version whenever a group is complete, and reduces metrics. Synchronous and asynchronous systems share all code: they
differ only in their plans. State is donated; metrics leave the device once per chunk.

Seeds are mapped inside the loops (`vmap`), so all seeds share the loop bounds. Lanes are mapped inside each device;
devices share the waves' places and the environments through `shard_map` over one mesh axis.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import LossMetrics, adapt_kl_coefficient
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.engine import learner, versions
from stellaris_jax.engine.aggregator import rows, staleness_weighted
from stellaris_jax.engine.corrections import Context, kl_needed, numbers_vary
from stellaris_jax.engine.learner import Cache, DataLoader
from stellaris_jax.engine.mesh import AXIS, compile_for_backend, make_mesh
from stellaris_jax.engine.prepare import EpisodeStatistics, prepare
from stellaris_jax.engine.processes import put
from stellaris_jax.engine.rollout import Fragment, episode_totals, rollout
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.engine.state import EngineState, StateLayout
from stellaris_jax.engine.wave import Moves, RoundMetrics, Sums, Wave, WaveCarry
from stellaris_jax.envs.base import VecEnv
from stellaris_jax.timeline.plan import Plan


class Engine:
    """Engine for plans of one shape: compiles programs and runs them.

    Args:
      options: options of observations and rewards.
      env: environment that actors step inside the program; `None` if fragments come from the host.
      network: network for the environment's spaces.
      spec: static properties of the program.
    """

    def __init__(self, options: EnvConfig, env: VecEnv | None, network: ActorCritic, spec: ProgramSpec):
        self.options, self.env, self.network = options, env, network
        self.spec, self.shape = spec, spec.shape
        self.mesh = make_mesh(spec.devices)
        # On one device, collectives would be copies with a rendezvous, so they are left out.
        self.axis = AXIS if spec.devices > 1 else None
        self.aggregator = partial(aggregator, spec, self.axis)
        self.layout = StateLayout(options, env, network, spec, self.aggregator, self.mesh)
        # Seeds are mapped only if there are several: a batch axis of length one would turn slices into gathers.
        self.over_seeds: Callable = jax.vmap if spec.seeds > 1 else lambda f, in_axes=0: f
        self.compiled_by_width: dict[int, Any] = {}
        self.compile_seconds = 0.0
        self._compiling = threading.Lock()

    def init(self, seeds: list[int], hyper: Hyper) -> EngineState:
        """State before the first round, one row per seed, placed on the mesh; `hyper` holds arrays `[S]`."""
        return self.layout.init(seeds, hyper)

    # One round, for one seed and one device ------------------------------------------------------------------------

    def collect(
        self,
        width: int,
        hyper: Hyper,
        state: EngineState,
        behaviour: jax.Array,
        envs: jax.Array,
        order: jax.Array,
        fragment: Fragment | None,
    ) -> tuple[EngineState, EpisodeStatistics]:
        """Collect fragment `state.round` as training data; actors roll it here unless it comes from the host.

        If the number of environments varies, the first `envs` of the first `width` environments take part.
        """
        state = state._replace(ring=versions.publish(state.ring, state.version, state.params))
        present = jnp.arange(width) < envs if self.spec.masked else None
        if fragment is None:
            state, fragment = self._roll(hyper, state, behaviour, width, present)
        else:
            state, fragment = self.receive(hyper, state, fragment, present)
        samples, normalizers, episodes = prepare(
            self.network,
            hyper,
            self.options,
            fragment,
            state.normalizers,
            self.spec.algorithm.sequences,
            present,
        )
        loader = learner.store(state.loader, state.round % self.spec.buffers, samples, order, fragment.version)
        return state._replace(loader=loader, normalizers=normalizers), episodes

    def _roll(
        self, hyper: Hyper, state: EngineState, behaviour: jax.Array, width: int, present: jax.Array | None
    ) -> tuple[EngineState, Fragment]:
        """Step this device's share of the first `width` environments, and gather the trajectories of all devices.

        The actors use the version in ring slot `behaviour`. Environments that are not `present` `[width]` keep their
        state.
        """
        params = versions.fetch(state.ring, behaviour)
        version = state.version - versions.behind(state.ring, state.version, behaviour)
        start_key, actor_key = jax.random.split(jax.random.fold_in(state.key, state.round))
        keys = jax.random.split(actor_key, self.spec.envs)
        local = width // self.spec.devices
        assert self.env is not None, "fragments come from the host"
        if self.axis is not None:
            device = jax.lax.axis_index(self.axis)
            keys = jax.lax.dynamic_slice_in_dim(keys, device * (len(keys) // self.spec.devices), local)
            if present is not None:
                present = jax.lax.dynamic_slice_in_dim(present, device * local, local)
        whole = state.actor
        before = jax.tree.map(lambda x: x[:local], whole)
        carry = before.carry
        actor, trajectory = rollout(
            self.env,
            self.network,
            params,
            state.normalizers,
            before,
            keys[:local],
            start_key,
            self.spec.steps,
            hyper.gamma,
            self.options,
        )
        if self.axis is not None:
            gathered = trajectory._replace(last_obs=trajectory.last_obs[None])
            gathered = jax.tree.map(lambda x: jax.lax.all_gather(x, self.axis, axis=1, tiled=True), gathered)
            trajectory = gathered._replace(last_obs=gathered.last_obs[0])
            carry = jax.tree.map(lambda x: jax.lax.all_gather(x, self.axis, tiled=True), carry)
        if present is not None:
            actor = jax.tree.map(lambda new, old: jnp.where(rows(present, new), new, old), actor, before)
        if local < whole.totals.shape[0]:
            actor = jax.tree.map(lambda all_, new: jnp.concatenate([new, all_[local:]]), whole, actor)
        return state._replace(actor=actor), Fragment(trajectory, params, state.normalizers, version, carry)

    def receive(
        self, hyper: Hyper, state: EngineState, fragment: Fragment, present: jax.Array | None
    ) -> tuple[EngineState, Fragment]:
        """Compute the episode totals of a fragment from the host."""
        trajectory = fragment.trajectory
        done = trajectory.terminated | trajectory.truncated
        totals, carried = episode_totals(
            trajectory.reward,
            trajectory.valid.astype(jnp.float32),
            done,
            state.actor.totals,
            hyper.gamma,
        )
        if present is not None:
            carried = jnp.where(rows(present, carried), carried, state.actor.totals)
        actor = state.actor._replace(totals=carried)
        return state._replace(actor=actor), fragment._replace(trajectory=trajectory._replace(totals=totals))

    def wave(
        self,
        hyper: Hyper,
        loader: DataLoader,
        kl_coefficient: jax.Array,
        step_scale: jax.Array,
        carry: WaveCarry,
        wave: Wave,
    ) -> WaveCarry:
        """Compute the wave's gradients on their versions, and aggregate them; publish if a group is complete."""
        ring = versions.publish(carry.ring, carry.version, carry.params)
        carry, cache = carry._replace(ring=ring), Cache(ring, carry.version, loader, kl_coefficient)
        invoke = partial(learner.gradient, self.network, self.spec, hyper, cache)
        if wave.weights.shape[0] > 1:
            gradients, metrics = jax.vmap(invoke)(wave.invocations)
        else:
            single = invoke(jax.tree.map(lambda x: x[0], wave.invocations))
            gradients, metrics = jax.tree.map(lambda x: x[None], single)
        return self.aggregated(hyper, cache, step_scale, carry, wave, gradients, metrics)

    def aggregated(
        self,
        hyper: Hyper,
        cache: Cache,
        step_scale: jax.Array,
        carry: WaveCarry,
        wave: Wave,
        gradients: jax.Array,
        metrics: LossMetrics,
    ) -> WaveCarry:
        """Aggregate the wave's gradients `[L, P]`; the cache's ring already holds the newest version."""
        ring = cache.ring
        hyper, context = self._corrected(hyper, cache, carry, wave, metrics)
        updates, aggregator = self.aggregator(hyper).update(
            gradients,
            carry.aggregator,
            carry.params,
            weights=wave.weights,
            size=wave.size,
            step_scale=step_scale,
            context=context,
        )

        norm = jnp.sqrt(jnp.sum(jnp.square(gradients), axis=1))
        used = (wave.weights > 0) & jnp.isfinite(norm)
        known = learner.versions_of(cache, wave.invocations)
        lag = (known.learner - known.behaviour).astype(norm.dtype)
        measured = Sums(metrics, norm, lag, jnp.ones_like(norm)).vector()
        sums = jnp.sum(jnp.where(used[:, None], measured, 0.0), axis=0)
        # The ring holds the previous version; before the first update, its slot holds the initial version.
        before = carry.params - versions.fetch(ring, (carry.version - 1) % ring.shape[0])
        moves = Moves.of(updates, before, wave.size > 0)
        return WaveCarry(
            params=carry.params + updates,
            version=carry.version + (wave.size > 0),
            ring=ring,
            aggregator=aggregator,
            sums=carry.sums + (sums if self.axis is None else jax.lax.psum(sums, self.axis)),
            moves=jax.tree.map(jnp.add, carry.moves, moves),
        )

    def _corrected(
        self, hyper: Hyper, cache: Cache, carry: WaveCarry, wave: Wave, metrics: LossMetrics
    ) -> tuple[Hyper, Context | None]:
        """Hyper-parameters after the corrections, and the corrections' context; `None` without corrections."""
        corrections = self.spec.corrections
        if not corrections:
            return hyper, None
        states = carry.aggregator.corrections
        for correction, options, state in zip(corrections, hyper.corrections, states, strict=True):
            hyper = correction.bound(options).numbers(hyper, state)
        kl = None
        if kl_needed(corrections):
            kl = jax.vmap(partial(learner.drift, self.network, cache, carry.params))(wave.invocations)
        slots = wave.invocations.slot
        fetched = jax.vmap(partial(versions.fetch, cache.ring))(slots)
        staleness = versions.behind(cache.ring, cache.newest_version, slots)
        return hyper, Context(staleness, fetched, carry.params, metrics, kl, self.axis)

    def finish(
        self, hyper: Hyper, state: EngineState, carry: WaveCarry, episodes: EpisodeStatistics
    ) -> tuple[EngineState, RoundMetrics]:
        """State after the round, and the round's metrics."""
        state = carry.end(state)
        gradients = Sums.of(carry.sums).gradients
        means = Sums.of(carry.sums / jnp.maximum(gradients, 1.0))
        adapted = adapt_kl_coefficient(state.kl_coefficient, means.loss.kl, hyper.kl_target)
        coefficient = jnp.where(gradients > 0, adapted, state.kl_coefficient)
        rejected = state.aggregator.rejected
        updates = jnp.maximum(carry.moves.updates, 1.0)
        metrics = RoundMetrics(
            loss=means.loss,
            gradient_norm=means.norm,
            data_lag=means.data_lag,
            update_norm=carry.moves.norm / updates,
            update_cosine=carry.moves.cosine / updates,
            gradients=gradients,
            rejected=rejected,
            kl_coefficient=coefficient,
            episodes=episodes,
        )
        return state._replace(kl_coefficient=coefficient, round=state.round + 1), metrics

    # A chunk -------------------------------------------------------------------------------------------------------

    def _chunk(
        self,
        width: int,
        state: EngineState,
        hyper: Hyper,
        plan: Plan,
        rounds: jax.Array,
        fragment: Fragment | None,
    ) -> tuple[EngineState, RoundMetrics]:
        seeds = self.shape.seeds
        collect = partial(self.collect, width)
        if seeds == 1:
            state, hyper, fragment = jax.tree.map(lambda x: x[0], (state, hyper, fragment))
            squeezed = {name: value for name, value in plan._asdict().items() if name not in SHARED}
            plan = plan._replace(**jax.tree.map(lambda x: x[:, 0], squeezed))
        lead = () if seeds == 1 else (seeds,)

        def round_body(r: jax.Array, so_far: tuple[EngineState, RoundMetrics]) -> tuple[EngineState, RoundMetrics]:
            state, history = so_far
            chosen = (plan.behaviour[r], plan.envs[r], plan.order[r])
            state, episodes = self.over_seeds(collect)(hyper, state, *chosen, fragment)
            step_scale = plan.learning_rate[r]
            loader, coefficient = state.loader, state.kl_coefficient

            def wave_body(w: jax.Array, carry: WaveCarry) -> WaveCarry:
                wave = jax.tree.map(lambda x: x[w], Wave(plan.invocations, plan.weights, plan.sizes))
                mapped = self.over_seeds(self.wave, in_axes=(0, 0, 0, None, 0, 0))
                after: WaveCarry = mapped(hyper, loader, coefficient, step_scale, carry, wave)
                return after

            first, end = plan.bounds[r]
            carry = jax.lax.fori_loop(first, end, wave_body, WaveCarry.start(state))
            state, metrics = self.over_seeds(self.finish)(hyper, state, carry, episodes)
            return state, jax.tree.map(lambda rows_, row: rows_.at[r].set(row), history, metrics)

        history = RoundMetrics.zeros((self.shape.rounds, *lead))
        state, history = jax.lax.fori_loop(0, rounds, round_body, (state, history))
        if seeds == 1:
            state = jax.tree.map(lambda x: x[None], state)
            history = jax.tree.map(lambda x: x[:, None], history)
        return state, history

    def compile(
        self,
        state: EngineState,
        hyper: Hyper,
        plan: Plan,
        fragment: Fragment | None = None,
        width: int | None = None,
    ) -> float:
        """Compile for the shapes of `run`'s arguments, and for rounds of `width` environments (default all).

        Returns the seconds it took, 0 if the program was compiled already; `compile_seconds` is their sum.
        """
        width = width or self.spec.envs
        with self._compiling:
            if width in self.compiled_by_width:
                return 0.0
            begin = time.perf_counter()
            self.compiled_by_width[width] = compile_for_backend(self.lower(state, hyper, plan, fragment, width))
            seconds = time.perf_counter() - begin
            self.compile_seconds += seconds
            return seconds

    def lower(
        self,
        state: EngineState,
        hyper: Hyper,
        plan: Plan,
        fragment: Fragment | None = None,
        width: int | None = None,
    ) -> jax.stages.Lowered:
        """Lowered program, which `compile` compiles."""
        specs = self.layout.specs(state)
        sharded, whole = PartitionSpec(None, None, AXIS), PartitionSpec()
        specs_of: dict[str, Any] = {name: sharded if name in PLACED else whole for name in plan._fields}
        plan_specs = plan._replace(**specs_of)
        mapped = jax.shard_map(
            partial(self._chunk, width or self.spec.envs),
            mesh=self.mesh,
            in_specs=(specs, whole, plan_specs, whole, whole),
            out_specs=(specs, whole),
            check_vma=False,
        )
        self._plan_shardings = jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), plan_specs)
        data = self._replicated((np.int32(0), fragment))
        return jax.jit(mapped, donate_argnums=0).lower(state, self._replicated(hyper), self.put(plan), *data)

    def put(self, plan: Plan) -> Plan:
        return put(plan, self._plan_shardings)

    def _replicated(self, tree: Any) -> Any:
        return put(tree, self.layout.replicated)

    def run(
        self,
        state: EngineState,
        hyper: Hyper,
        plan: Plan,
        rounds: int,
        fragment: Fragment | None = None,
        width: int | None = None,
    ) -> tuple[EngineState, RoundMetrics]:
        """Execute the first `rounds` rounds of a plan. Donates `state`; returns immediately, JAX is asynchronous.

        Hyper-parameters `hyper` are arrays `[S]`. With host environments a plan has one round, and `fragment` (every
        leaf with a leading axis `[S]`) is its data. `width` is the number of environments compiled for, at least the
        number that takes part; all by default. Returns the state after the rounds and metrics `[R, S]`.
        """
        self.compile(state, hyper, plan, fragment, width)
        run = self.compiled_by_width[width or self.spec.envs]
        return run(state, self._replicated(hyper), self.put(plan), *self._replicated((np.int32(rounds), fragment)))


def aggregator(spec: ProgramSpec, axis: str | None, hyper: Hyper) -> optax.GradientTransformationExtraArgs:
    """Parameter function of one seed."""
    corrections = [one.bound(options) for one, options in zip(spec.corrections, hyper.corrections, strict=True)]
    optimizer = hyper.optimizer(spec.aggregation, numbers_vary(corrections))
    return staleness_weighted(optimizer, spec.aggregation, axis, corrections)


SHARED = ("bounds", "learning_rate")
"""Fields of a plan that are the same for all seeds."""
PLACED = ("invocations", "weights")
"""Fields of a plan with an axis of places, which is sharded over devices."""
