"""Engine: executes any plan of one shape, with one compiled program for each width of rounds.

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
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import Metrics, Samples, adapt_kl_coefficient
from stellaris_jax.agent.networks import PolicyNetwork
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.engine import learner, versions
from stellaris_jax.engine.aggregator import aggregator_of, rows
from stellaris_jax.engine.corrections import Context, kl_needed
from stellaris_jax.engine.exploration import chance
from stellaris_jax.engine.keys import FragmentKeys
from stellaris_jax.engine.learner import Cache
from stellaris_jax.engine.mesh import AXIS
from stellaris_jax.engine.prepare import EpisodeStatistics, prepare
from stellaris_jax.engine.processes import put
from stellaris_jax.engine.replay_buffer import store_transitions
from stellaris_jax.engine.rollout import Fragment, RolloutInputs, rollout
from stellaris_jax.engine.round_steps import RoundSteps, counted_waves, loop
from stellaris_jax.engine.shards import Shards, published, with_totals
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.engine.state import PLAN_SPECS, REPLICATED, EngineInputs, EngineState, StateLayout, of_one_seed
from stellaris_jax.engine.stored_programs import NONE, StoredPrograms
from stellaris_jax.engine.wave import Call, GradientSums, RoundInputs, RoundMetrics, UpdateSums, Wave, WaveCarry
from stellaris_jax.envs.base import VecEnv
from stellaris_jax.timeline.plan import Plan

T = TypeVar("T")
CompileKey = tuple[int, ...]
"""Sizes that select one of an engine's programs."""


class Engine:
    """Engine for plans of one shape: compiles programs and runs them.

    Args:
      options: options of observations and rewards.
      env: environment that actors step inside the program; `None` if fragments come from the host.
      network: network for the environment's spaces.
      spec: static properties of the program.
    """

    loses_state = False  # whether a failure within a chunk leaves no state

    def __init__(
        self,
        options: EnvConfig,
        env: VecEnv | None,
        network: PolicyNetwork,
        spec: ProgramSpec,
        stored: StoredPrograms = NONE,
    ):
        self.options, self.env, self.network = options, env, network
        self.spec, self.shape, self.stored = spec, spec.shape, stored
        # On one device, collectives would be copies with a rendezvous, so they are left out.
        self.axis = AXIS if spec.devices > 1 else None
        self.aggregator = partial(aggregator_of, spec, network, self.axis)
        self.layout = StateLayout(options, env, network, spec, self.aggregator, self.stored)
        self.shards = None if spec.collection is None else Shards(env, network, options, spec)
        # Seeds are mapped only if there are several: a batch axis of length one would turn slices into gathers.
        self.over_seeds: Callable = jax.vmap if spec.seeds > 1 else lambda f, in_axes=0: f
        self.compiled: dict[CompileKey, Any] = {}
        self.compile_seconds = 0.0
        self._compiling = threading.Lock()

    @property
    def mesh(self) -> Mesh:
        """Mesh of the run's devices."""
        return self.layout.mesh

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
        state = published(state)
        present = self.present(width, envs)
        if fragment is None:
            state, fragment, present = self._roll(hyper, state, behaviour, width, present)
        state, episodes, _ = self.store(hyper, state, fragment, order, present)
        return state, episodes

    def present(self, width: int, envs: jax.Array) -> jax.Array | None:
        """Whether each of `width` environments takes part, bool `[width]`; `None` if all always do."""
        return jnp.arange(width) < envs if self.spec.masked else None

    def store(
        self, hyper: Hyper, state: EngineState, fragment: Fragment, order: jax.Array, present: jax.Array | None
    ) -> tuple[EngineState, EpisodeStatistics, Samples]:
        """Store a fragment as training data; also returns its samples `[M, ...]`.

        Of a fragment that actors rolled here, every device has its share of the environments.
        """
        axis = self.axis
        if self.spec.host_fragments:
            axis, (state, fragment) = None, self._with_totals(hyper, state, fragment, present)
        if self.spec.buffer is not None:
            return store_transitions(self.spec, self.options, hyper, state, fragment, order)
        samples, normalizers, episodes = prepare(
            self.network, hyper, self.options, fragment, state.normalizers, self.spec.recipe, present, axis
        )
        buffer = self.shape.fragments.slot(state.round)
        loader = learner.store(state.loader, buffer, samples, order, fragment.version)
        return state._replace(loader=loader, normalizers=normalizers), episodes, samples

    def _roll(
        self, hyper: Hyper, state: EngineState, behaviour: jax.Array, width: int, present: jax.Array | None
    ) -> tuple[EngineState, Fragment, jax.Array | None]:
        """Step this device's share of the first `width` environments; also returns which of the share are present.

        The actors use the version in ring slot `behaviour`. Environments that are not `present` `[width]` keep their
        state.
        """
        params = versions.fetch(state.ring, behaviour)
        version = state.version - versions.behind(state.ring, state.version, behaviour)
        keys = FragmentKeys.of(state.key, state.round, self.spec.envs)
        local = width // self.spec.devices
        assert self.env is not None, "fragments come from the host"
        if self.axis is not None:
            device = jax.lax.axis_index(self.axis)
            keys = keys.part(device * (self.spec.envs // self.spec.devices), local)
            if present is not None:
                present = jax.lax.dynamic_slice_in_dim(present, device * local, local)
        before = jax.tree.map(lambda x: x[:local], state.actor)
        keys = keys._replace(envs=keys.envs[:local])
        first = 0 if self.axis is None else jax.lax.axis_index(self.axis) * local
        chances = chance(self.spec, hyper, state.round, first + jnp.arange(local))
        carry = self.network.stored(before.carry)
        inputs = RolloutInputs(params, state.normalizers, before, keys, hyper.gamma, chance=chances)
        actor, trajectory = rollout(self.env, self.network, self.options, self.spec.steps, inputs)
        if present is not None:
            actor = jax.tree.map(lambda new, old: jnp.where(rows(present, new), new, old), actor, before)
        if local < state.actor.totals.shape[0]:
            actor = jax.tree.map(lambda old, new: jnp.concatenate([new, old[local:]]), state.actor, actor)
        return state._replace(actor=actor), Fragment(trajectory, params, state.normalizers, version, carry), present

    def _with_totals(
        self, hyper: Hyper, state: EngineState, fragment: Fragment, present: jax.Array | None
    ) -> tuple[EngineState, Fragment]:
        """Compute the episode totals of a fragment from the host."""
        trajectory, carried = with_totals(fragment.trajectory, state.actor.totals, hyper.gamma)
        if present is not None:
            carried = jnp.where(rows(present, carried), carried, state.actor.totals)
        state = state._replace(actor=state.actor._replace(totals=carried))
        return state, fragment._replace(trajectory=trajectory)

    def wave(self, inputs: RoundInputs, wave_state: WaveCarry, wave: Wave) -> WaveCarry:
        """Compute the wave's gradients on their versions, and aggregate them; publish if a group is complete."""
        cache = inputs.cache(wave_state := wave_state.published())
        invoke = partial(learner.gradient, self.network, self.spec, inputs.hyper, cache)
        if wave.weights.shape[0] > 1:
            gradients, metrics = jax.vmap(invoke)(wave.invocations)
        else:
            single = invoke(jax.tree.map(lambda x: x[0], wave.invocations))
            gradients, metrics = jax.tree.map(lambda x: x[None], single)
        return self._aggregated(inputs, cache, wave_state, wave, gradients, metrics)

    def aggregate(
        self, inputs: RoundInputs, wave_state: WaveCarry, wave: Wave, gradients: jax.Array, metrics: Metrics
    ) -> WaveCarry:
        """Aggregate a wave's gradients `[L, P]`; publish if a group is complete."""
        wave_state = wave_state.published()
        return self._aggregated(inputs, inputs.cache(wave_state), wave_state, wave, gradients, metrics)

    def _aggregated(
        self,
        inputs: RoundInputs,
        cache: Cache,
        wave_state: WaveCarry,
        wave: Wave,
        gradients: jax.Array,
        metrics: Metrics,
    ) -> WaveCarry:
        hyper, context = self._corrected(inputs.hyper, cache, wave_state, wave, metrics)
        updates, aggregator = self.aggregator(hyper).update(
            gradients,
            wave_state.aggregator,
            wave_state.params,
            weights=wave.weights,
            size=wave.size,
            step_scale=inputs.step_scale,
            context=context,
        )

        norm = jnp.sqrt(jnp.sum(jnp.square(gradients), axis=1))
        used = (wave.weights > 0) & jnp.isfinite(norm)
        known = learner.versions_of(cache, wave.invocations, self.spec.buffer_axis)
        lag = (known.learner - known.behaviour).astype(norm.dtype)
        measured = GradientSums(metrics, norm, lag, jnp.ones_like(norm)).vector()
        sums = jnp.sum(jnp.where(used[:, None], measured, 0.0), axis=0)
        before = wave_state.params - versions.previous(cache.ring, wave_state.version)
        update_sums = UpdateSums.of(updates, before, wave.size > 0)
        params = wave_state.params + updates
        return WaveCarry(
            params=params,
            version=wave_state.version + (wave.size > 0),
            ring=cache.ring,
            aggregator=aggregator,
            sums=wave_state.sums + (sums if self.axis is None else jax.lax.psum(sums, self.axis)),
            update_sums=jax.tree.map(jnp.add, wave_state.update_sums, update_sums),
            targets=versions.moved(cache.targets, params, wave.size > 0, inputs.hyper.options),
        )

    def _corrected(
        self, hyper: Hyper, cache: Cache, wave_state: WaveCarry, wave: Wave, metrics: Metrics
    ) -> tuple[Hyper, Context | None]:
        """Hyper-parameters after the corrections, and the corrections' context; `None` without corrections."""
        corrections = self.spec.corrections
        if not corrections:
            return hyper, None
        states = wave_state.aggregator.corrections
        for correction, options, state in zip(corrections, hyper.corrections, states, strict=True):
            hyper = correction.bound(options).numbers(hyper, state)
        kl = None
        if kl_needed(corrections):
            measure = partial(learner.policy_kl, self.network, self.spec, cache, wave_state.params)
            kl = jax.vmap(measure)(wave.invocations)
        fetched = jax.vmap(partial(versions.fetch, cache.ring))(slots := wave.invocations.slot)
        staleness = versions.behind(cache.ring, cache.newest_version, slots)
        return hyper, Context(staleness, fetched, wave_state.params, metrics, kl, self.axis)

    def finish(
        self, hyper: Hyper, state: EngineState, wave_state: WaveCarry, episodes: EpisodeStatistics
    ) -> tuple[EngineState, RoundMetrics]:
        """State after the round, and the round's metrics."""
        state = wave_state.end(state)
        names, coefficient = self.spec.metrics, state.kl_coefficient
        gradients = GradientSums.of(wave_state.sums, names).gradients
        means = GradientSums.of(wave_state.sums / jnp.maximum(gradients, 1.0), names)
        if "kl" in means.loss:
            adapted = adapt_kl_coefficient(coefficient, means.loss["kl"], hyper.kl_target)
            coefficient = jnp.where(gradients > 0, adapted, coefficient)
        updates = jnp.maximum((sums := wave_state.update_sums).updates, 1.0)
        metrics = RoundMetrics(
            loss=means.loss,
            gradient_norm=means.norm,
            data_lag=means.data_lag,
            update_norm=sums.norm / updates,
            update_cosine=sums.cosine / updates,
            gradients=gradients,
            rejected=state.aggregator.left_out,
            kl_coefficient=coefficient,
            episodes=episodes,
        )
        return state._replace(kl_coefficient=coefficient, round=state.round + 1), metrics

    def planned_wave(self, plan: Plan, inputs: RoundInputs, w: jax.Array, wave_state: WaveCarry) -> WaveCarry:
        """Wave `w` of a plan, for all seeds; see `wave`."""
        wave = Wave.at(plan, w, counted_waves(self.spec) is not None)
        mapped = self.over_seeds(self.wave, in_axes=(RoundInputs(0, 0, 0, None), 0, 0))  # type: ignore[arg-type]
        after: WaveCarry = mapped(inputs, wave_state, wave)
        return after

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
            plan = of_one_seed(plan)
        lead = () if seeds == 1 else (seeds,)

        def round_body(r: jax.Array, so_far: tuple[EngineState, RoundMetrics]) -> tuple[EngineState, RoundMetrics]:
            state, history = so_far
            dropped = None
            if self.shards is None:
                chosen = (plan.behaviour[r], plan.envs[r], plan.order[r])
                state, episodes = self.over_seeds(collect)(hyper, state, *chosen, fragment)
                inputs = RoundInputs(hyper, state.loader, state.kl_coefficient, plan.learning_rate[r])
                body, start = partial(self.planned_wave, plan, inputs), WaveCarry.start(state, self.spec.metrics)
                wave_state = loop(plan.bounds[r], body, start, counted_waves(self.spec))
            else:
                steps = RoundSteps(self.shards, self.over_seeds, hyper, plan, partial(self.planned_wave, plan))
                done = steps.run(state, r)
                state, wave_state, episodes, dropped = done.state, done.waves, done.episodes, done.dropped
            after, metrics = self.over_seeds(self.finish)(hyper, state, wave_state, episodes)
            state = after if self.shards is None else steps.paused(done, after)
            metrics = metrics._replace(dropped_episodes=dropped)
            return state, jax.tree.map(lambda rows_, row: rows_.at[r].set(row), history, metrics)

        history = RoundMetrics.zeros((self.shape.rounds, *lead), self.spec.metrics, drops=self.shards is not None)
        state, history = jax.lax.fori_loop(0, rounds, round_body, (state, history))
        if seeds == 1:
            state = jax.tree.map(lambda x: x[None], state)
            history = jax.tree.map(lambda x: x[:, None], history)
        return state, history

    def key(self, plan: Plan, width: int | None) -> CompileKey:
        """Key of the compiled program for a plan: the width of its rounds, and the capacities that plans choose."""
        chosen = () if plan.collection is None else (plan.sizes, *plan.collection)
        return (width or self.spec.envs, *map(len, chosen))

    def compile(self, inputs: EngineInputs) -> float:
        """Compile for the shapes of these inputs.

        Returns the seconds it took, 0 if the program was compiled already; `compile_seconds` is their sum.
        """
        key = self.key(inputs.plan, inputs.width)
        with self._compiling:
            if key in self.compiled:
                return 0.0
            begin = time.perf_counter()
            lower, devices = partial(self.lower, inputs), self.mesh.devices.flat
            self.compiled[key] = self.stored.compiled("chunk", (key, inputs), lower, devices=devices)
            seconds = time.perf_counter() - begin
            self.compile_seconds += seconds
            return seconds

    def lower(
        self, inputs: EngineInputs, mesh: Mesh | AbstractMesh | None = None, platform: str | None = None
    ) -> jax.stages.Lowered:
        """Lowered program, which `compile` compiles.

        Args:
          inputs: arrays or shapes.
          mesh: mesh of devices, which need not be there; by default that of the run.
          platform: `cpu`, `cuda` or `tpu`, needed for an abstract mesh; by default that of the mesh's devices.
        """
        state, hyper, plan, fragment, width = inputs
        mesh = mesh or self.mesh
        specs = (self.layout.specs(state), REPLICATED, PLAN_SPECS, REPLICATED, REPLICATED)
        mapped = jax.shard_map(
            partial(self._chunk, width or self.spec.envs),
            mesh=mesh,
            in_specs=specs,
            out_specs=(specs[0], REPLICATED),
            check_vma=False,
        )

        def shaped(spec: PartitionSpec, part: Any) -> Any:
            sharding = NamedSharding(mesh, spec)
            return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), part)

        shapes = jax.tree.map(shaped, specs, (state, hyper, plan, np.int32(0), fragment))
        traced = jax.jit(mapped, donate_argnums=0).trace(*shapes)
        return traced.lower(lowering_platforms=None if platform is None else (platform,))

    def run(self, inputs: EngineInputs, rounds: int) -> tuple[EngineState, RoundMetrics]:
        """Execute the first `rounds` rounds of a plan; returns the state after them and metrics `[R, S]`."""
        return self.placed(inputs, rounds)()

    def placed(self, inputs: EngineInputs, rounds: int) -> Call:
        """The call of `run`, its inputs already on the devices. It returns at once on CPUs only (`SeedStates`)."""
        self.compile(inputs)
        hyper, *data = self.replicated((inputs.hyper, np.int32(rounds), inputs.fragment))
        program = self.compiled[self.key(inputs.plan, inputs.width)]
        return partial(program, inputs.state, hyper, self.put(inputs.plan), *data)

    def put(self, plan: Plan) -> Plan:
        """Plan placed on the mesh."""
        return put(plan, jax.tree.map(partial(NamedSharding, self.mesh), PLAN_SPECS))

    def replicated(self, tree: T) -> T:
        """Arrays on all devices."""
        return put(tree, self.layout.replicated)
