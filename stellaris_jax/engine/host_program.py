"""Engine of independent actors whose environments are on the host: it executes rounds step by step.

The host rolls a step's waves with the policies of their ring slots. The device stores them, forms batches and computes
gradients. If a step's versions exist already, the host rolls it while the device computes the gradients before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.networks.normalizer import RunningStatistics
from stellaris_jax.engine.host_rollout import Recorder, trajectory_of
from stellaris_jax.engine.mesh import compile_for_backend
from stellaris_jax.engine.program import CompileKey, Engine
from stellaris_jax.engine.round_steps import RoundSteps, SoFar, loop
from stellaris_jax.engine.shards import HostData, Segments
from stellaris_jax.engine.state import PLAN_SPECS, REPLICATED, EngineInputs, EngineState, of_one_seed
from stellaris_jax.engine.versions import lookup
from stellaris_jax.engine.wave import Call, RoundMetrics
from stellaris_jax.timeline.plan import Plan

T = TypeVar("T")

BOUNDS = np.zeros(2, np.int32)
"""Example of the bounds of steps."""
AHEAD_BYTES = 2**28
"""Largest size of the policies that are fetched before the gradients beside which the host rolls with them."""


class HostWave(NamedTuple):
    """Wave that one seed's shards roll on the host.

    Attributes:
      whole: whether it is a whole wave, with one policy for all shards.
      number: number of each shard's fragment, `[A]`.
      segment: index of its segment, `[A]`.
      row: row of the store for the fragment, `[A]`.
      rolls: whether a shard takes part, bool `[A]`.
      params: flat parameters of the policies, `[K, P]`: K is 1 for a whole wave, else A.
      statistics: observation statistics that they act with, arrays `[K, ...]`; `None` unless they are normalised.
    """

    whole: bool
    number: np.ndarray
    segment: np.ndarray
    row: np.ndarray
    rolls: np.ndarray
    params: np.ndarray
    statistics: RunningStatistics | None


class Roller(Protocol):
    """Shards of one seed, which step their environments on the host."""

    def submit(self, wave: HostWave) -> None:
        """Begin to roll a wave."""
        ...

    def result(self) -> HostData:
        """Wait for the oldest wave that was submitted; its arrays are NumPy's."""
        ...


class PlannedWave(NamedTuple):
    """Wave of a plan, for all seeds of a block.

    Attributes:
      whole: whether it is a whole wave.
      slot: ring slots of its versions, `[S, K]`; K is 1 for a whole wave, else A.
      number: numbers of fragments, `[S, A]`.
      segment: indices of segments, `[S, A]`.
      row: rows of the store, `[S, A]`.
      rolls: whether a shard takes part, bool `[S, A]`.
    """

    whole: bool
    slot: np.ndarray
    number: np.ndarray
    segment: np.ndarray
    row: np.ndarray
    rolls: np.ndarray

    @classmethod
    def of_step(cls, plan: Plan, step: int, rows: int) -> list[PlannedWave]:
        """Waves of a plan's step; the store has so many rows."""
        chosen, bounds = plan.collection, plan.steps
        assert chosen is not None, "actors are not independent"
        assert bounds is not None, "actors are not independent"
        waves = []
        for i in range(*bounds.whole[step]):
            row = chosen.whole_rows[i]
            number = np.broadcast_to(chosen.whole_number[i][:, None], row.shape)
            slot, nothing = chosen.whole_slot[i][:, None], np.zeros_like(row)
            waves.append(cls(True, slot, number, nothing, row, nothing == 0))
        for i in range(*bounds.waves[step]):
            row = chosen.row[i]
            waves.append(cls(False, chosen.slot[i], chosen.number[i], chosen.segment[i], row, row < rows))
        return waves

    def of_seed(self, seed: int, params: np.ndarray, statistics: RunningStatistics | None) -> HostWave:
        """Wave of one seed of the block; the policies are those of all seeds."""
        shards = (self.number, self.segment, self.row, self.rolls, params)
        return HostWave(self.whole, *jax.tree.map(lambda x: x[seed], (*shards, statistics)))

    def waits(self, ring: int, before: np.ndarray, updates: np.ndarray) -> bool:
        """Whether a version that it needs is made by the next updates.

        Args:
          ring: length H of the version ring.
          before: newest versions before these updates, `[S]`.
          updates: their numbers, `[S]`.
        """
        made = (self.slot - before[:, None] - 1) % ring < updates[:, None]
        return bool((made & self.rolls).any())


class Programs(NamedTuple):
    """Compiled programs for any plan, each with a version for whole waves and one for other waves.

    Attributes:
      fetch: (state, slots `[S, K]`) -> (policies `[S, K, P]`, their observation statistics).
      store: (state so far, hyper-parameters, wave, data) -> state so far, with a wave's data.
      finish: (state, state so far without it, hyper-parameters) -> (state after the round, metrics `[1, S]`).
    """

    fetch: dict[bool, Callable[..., Any]]
    store: dict[bool, Callable[..., Any]]
    finish: Callable[..., Any]


class HostEngine(Engine):
    """Engine whose rounds are executed step by step, because the host rolls the steps' waves; see `Engine`.

    A failure within a round leaves no state, so callers keep the one before it.
    """

    loses_state = True
    programs: Programs | None = None

    def key(self, plan: Plan, width: int | None) -> CompileKey:
        collection = plan.collection
        assert collection is not None, "actors are not independent"
        return (len(plan.sizes), len(collection.buffer), len(collection.dropped))

    def compile(self, inputs: EngineInputs) -> float:
        key = self.key(inputs.plan, inputs.width)
        with self._compiling:
            if key in self.compiled:
                return 0.0
            begin = time.perf_counter()
            start, plan = partial(SoFar.start, names=self.spec.metrics), learned_part(inputs.plan)
            so_far = jax.eval_shape(start, inputs.state)
            if self.programs is None:
                self.programs = self._programs(so_far, inputs.hyper)
            self.compiled[key] = self._compiled((0,), self._learn, so_far, inputs.hyper, plan, BOUNDS)
            seconds = time.perf_counter() - begin
            self.compile_seconds += seconds
            return seconds

    def placed(self, inputs: EngineInputs, rounds: int) -> Call:
        """The call that executes the round of a plan; it waits for the host, and not for the device's last gradients.

        Args:
          inputs: inputs, whose `fragment` has the `Roller` of each seed of the block.
          rounds: 1, as every chunk with host environments has it.
        """
        self.compile(inputs)
        return HostRound(self, inputs).executed

    # Programs ------------------------------------------------------------------------------------------------------

    def _programs(self, so_far: SoFar, hyper: Hyper) -> Programs:
        """Compiled programs for any plan."""
        collection, seeds = self.spec.collection, self.shape.seeds
        assert collection is not None, "actors are not independent"
        table = np.zeros((seeds, collection.shards), np.int32)
        fetch, store = {}, {}
        for whole, slots, length in ((True, table[:, :1], self.spec.steps), (False, table, self.spec.segment_steps)):
            fetch[whole] = self._compiled((), self._fetch, so_far.state, slots)
            wave, data = Segments(table, slots, table, table, table), self.example(length)
            store[whole] = self._compiled((0,), partial(self._store, whole), so_far, hyper, wave, data)
        state, rest = so_far.state, so_far._replace(state=None)  # type: ignore[arg-type]
        return Programs(fetch, store, self._compiled((0,), self._finish, state, rest, hyper))

    def example(self, length: int) -> HostData:
        """Shapes and dtypes of a wave of so many steps, `[S, A, ...]`."""
        network, spec, collection = self.network, self.spec, self.spec.collection
        assert collection is not None, "actors are not independent"
        part = Recorder(length, network, network.distribution.size, spec.shard_envs)  # type: ignore[arg-type]
        first = np.zeros((length + 1, spec.shard_envs), bool) if network.recurrent else None
        trajectory = trajectory_of(list(part.columns), part.obs[0])._replace(first=first)
        data = HostData(trajectory, jax.eval_shape(partial(network.initial_carry, spec.shard_envs)))
        lead = (spec.seeds, collection.shards)
        shapes: HostData = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype), data)
        return shapes

    def _compiled(self, donate: tuple[int, ...], function: Callable[..., Any], *inputs: Any) -> Callable[..., Any]:
        """Compiled function, which donates some inputs.

        Args:
          donate: places of the donated inputs.
          function: function for one device.
          inputs: arrays or shapes, with the axis of seeds; or a plan.
        """
        specs = tuple(PLAN_SPECS if isinstance(one, Plan) else REPLICATED for one in inputs)
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=REPLICATED, check_vma=False)

        def shaped(spec: Any, part: Any) -> Any:
            sharding = NamedSharding(self.mesh, spec)
            return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), part)

        return compile_for_backend(jax.jit(mapped, donate_argnums=donate).lower(*jax.tree.map(shaped, specs, inputs)))

    def _squeezed(self, tree: T) -> T:
        """Arrays of a block without the axis of seeds if there is a single one."""
        return jax.tree.map(lambda x: x[0], tree) if self.shape.seeds == 1 else tree

    def _expanded(self, tree: T) -> T:
        """Arrays of a block with the axis of seeds."""
        return jax.tree.map(lambda x: x[None], tree) if self.shape.seeds == 1 else tree

    def _fetch(self, state: EngineState, slots: jax.Array) -> tuple[jax.Array, RunningStatistics | None]:
        def fetch(state: EngineState, slots: jax.Array) -> tuple[jax.Array, RunningStatistics | None]:
            assert state.store is not None, "actors are not independent"
            params = jax.vmap(partial(lookup, state.ring, state.version, state.params))(slots)
            return params, jax.tree.map(lambda x: x[slots], state.store.statistics)

        return jax.vmap(fetch)(state, slots)

    def _store(self, whole: bool, so_far: SoFar, hyper: Hyper, wave: Segments, data: HostData) -> SoFar:
        so_far, hyper, wave, data = self._squeezed((so_far, hyper, wave, data))
        assert self.shards is not None, "actors are not independent"
        if whole:
            slot = wave.slot[..., 0]
            state = self.over_seeds(self.shards.host_whole_wave)(hyper, so_far.state, slot, wave.row, data)
        else:
            state = self.over_seeds(self.shards.host_wave)(hyper, so_far.state, wave, data)
        return self._expanded(so_far._replace(state=state))

    def _learn(self, so_far: SoFar, hyper: Hyper, plan: Plan, bounds: jax.Array) -> SoFar:
        so_far, hyper = self._squeezed((so_far, hyper))
        plan = of_one_seed(plan) if self.shape.seeds == 1 else plan
        assert self.shards is not None, "actors are not independent"
        steps = RoundSteps(self.shards, self.over_seeds, hyper, plan, partial(self.planned_wave, plan))
        return self._expanded(loop(bounds, partial(steps.learn, jnp.int32(0)), so_far))

    def _finish(self, state: EngineState, rest: SoFar, hyper: Hyper) -> tuple[EngineState, RoundMetrics]:
        state, rest, hyper = self._squeezed((state, rest, hyper))
        so_far = rest._replace(state=state)
        state, metrics = self.over_seeds(self.finish)(hyper, state, so_far.waves, so_far.episodes)
        state, metrics = self._expanded((state, metrics._replace(dropped_episodes=so_far.dropped)))
        return state, jax.tree.map(lambda x: x[None], metrics)


def learned_part(plan: Plan) -> Plan:
    """Plan without what only the host and `Programs` read."""
    collection = plan.collection
    assert collection is not None, "actors are not independent"
    fields = ("whole_slot", "whole_number", "whole_rows", "shard", "slot", "number", "segment", "row")
    return plan._replace(collection=collection._replace(**dict.fromkeys(fields)))


class Policies(NamedTuple):
    """Policies that were fetched for a wave: `[S, K, P]`, and their observation statistics."""

    params: jax.Array
    statistics: RunningStatistics | None


class HostRound:
    """Execution of one round: the host's waves in turn with the device's programs.

    Args:
      engine: the engine.
      inputs: its inputs; see `HostEngine.run`.
    """

    def __init__(self, engine: HostEngine, inputs: EngineInputs):
        assert engine.programs is not None, "nothing is compiled"
        self.engine, self.programs, self.plan = engine, engine.programs, inputs.plan
        self.rollers: list[Roller] = inputs.fragment  # type: ignore[assignment]
        self.learn = engine.compiled[engine.key(inputs.plan, inputs.width)]
        self.hyper = engine.replicated(inputs.hyper)
        start = SoFar.start(inputs.state, engine.spec.metrics)
        # Each sum has an array of its own, because programs take them over.
        sums: SoFar = jax.tree.map(jnp.copy, start._replace(state=None))  # type: ignore[arg-type]
        self.so_far: SoFar = engine.replicated(sums._replace(state=start.state))

    def executed(self) -> tuple[EngineState, RoundMetrics]:
        """State after the round and metrics `[1, S]`."""
        learned, version = self.engine.put(learned_part(self.plan)), np.asarray(self.so_far.state.version)
        ahead: list[Policies] = []
        for first, end in self._parts():
            self._collect(first, ahead)
            updates = self._updates(first, end)
            ahead = self._fetched_ahead(end, version, updates)
            bounds = self.engine.replicated(np.array([first, end], np.int32))
            self.so_far = self.learn(self.so_far, self.hyper, learned, bounds)
            version = version + updates
        rest = self.so_far._replace(state=None)  # type: ignore[arg-type]
        done: tuple[EngineState, RoundMetrics] = self.programs.finish(self.so_far.state, rest, self.hyper)
        return done

    def _parts(self) -> Iterator[tuple[int, int]]:
        """Bounds of the round's parts: steps of which only the first one collects."""
        first, end = self.plan.bounds[0].tolist()
        collects = [step for step in range(first + 1, end) if self._waves(step)]
        return pairwise([first, *collects, end])

    def _waves(self, step: int) -> list[PlannedWave]:
        assert self.engine.spec.collection is not None, "actors are not independent"
        return PlannedWave.of_step(self.plan, step, self.engine.spec.collection.rows)

    def _updates(self, first: int, end: int) -> np.ndarray:
        """Number of updates in steps, `[S]`."""
        assert self.plan.steps is not None, "actors are not independent"
        bounds = self.plan.steps.gradients
        updates: np.ndarray = (self.plan.sizes[bounds[first, 0] : bounds[end - 1, 1]] > 0).sum(axis=0)
        return updates

    def _fetched_ahead(self, step: int, version: np.ndarray, updates: np.ndarray) -> list[Policies]:
        """Policies of a step's waves if they exist before the next updates and are small; else an empty list."""
        waves = self._waves(step) if step < self.plan.bounds[0, 1] else []
        ring = self.engine.shape.ring.length
        size = sum(wave.slot.size for wave in waves) * self.engine.network.size * 4
        if size > AHEAD_BYTES or any(wave.waits(ring, version, updates) for wave in waves):
            return []
        return list(map(self._fetched, waves))

    def _fetched(self, wave: PlannedWave) -> Policies:
        return Policies(*self.programs.fetch[wave.whole](self.so_far.state, self.engine.replicated(wave.slot)))

    def _collect(self, step: int, ahead: list[Policies]) -> None:
        """Roll and store a step's waves, with policies that were fetched `ahead` or are fetched now."""
        for i, wave in enumerate(self._waves(step)):
            policies = jax.device_get(ahead[i] if ahead else self._fetched(wave))
            for seed, roller in enumerate(self.rollers):
                roller.submit(wave.of_seed(seed, *policies))
            rolled = [roller.result() for roller in self.rollers]
            data: HostData = jax.tree.map(lambda *x: np.stack(x), *rolled)
            shards = np.broadcast_to(np.arange(wave.row.shape[-1], dtype=np.int32), wave.row.shape)
            segments = Segments(shards, wave.slot, wave.number, wave.segment, wave.row)
            inputs = self.engine.replicated((segments, data))
            self.so_far = self.programs.store[wave.whole](self.so_far, self.hyper, *inputs)
