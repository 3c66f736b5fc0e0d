"""Executor of simulated rounds whose durations follow the data: a round is executed in several stretches.

How long a fragment takes depends on its episodes (`delays.by=episodes`). So the simulation stops wherever a segment
begins, the engine executes everything up to there and rolls it, and the simulation goes on with its length.
"""

from __future__ import annotations

import time
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from stellaris_jax.agent.advantages import EQUAL
from stellaris_jax.engine.chunk import Chunk
from stellaris_jax.engine.seed_states import passed
from stellaris_jax.engine.state import EngineInputs, EngineState
from stellaris_jax.engine.wave import RoundMetrics
from stellaris_jax.execute.executor import ExecutorInputs, about
from stellaris_jax.execute.schedule import Executed, Schedule
from stellaris_jax.timeline import Round, Timeline, minibatch_order
from stellaris_jax.timeline.collection import CollectionSizes, Collector, Step, occupancy
from stellaris_jax.timeline.plan import Plan, build_collection_plan


class SeedRound(NamedTuple):
    """Round of one seed, once it is executed.

    Attributes:
      round_: its record.
      metrics: its metrics, arrays `[1, 1]`.
      computed: gradients computed, padding included.
      occupancy: see `Chunk.collect_occupancy`.
    """

    round_: Round
    metrics: RoundMetrics
    computed: int
    occupancy: float


class StretchedExecutor:
    """Executor of rounds in stretches; see `stellaris_jax.execute.executor.Executor`.

    Args:
      inputs: inputs of the trainer.
      schedule: schedule of the rounds, with timelines of independent actors.
    """

    under_way = False

    def __init__(self, inputs: ExecutorInputs, schedule: Schedule):
        self.inputs, self.schedule = inputs, schedule
        shape = inputs.spec.shape
        assert shape.collection is not None, "actors are not independent"
        self.collectors = [Collector(shape.collection, shape.ring) for _ in schedule.seeds]
        self.sizes = CollectionSizes.least(shape)
        # Episodes of a group if dynamic sampling asks for their returns; else 0.
        self.group = inputs.config.group if inputs.config.system.dynamic_sampling else 0

    @property
    def compiled(self) -> bool:
        return bool(self.inputs.engine.compiled)

    def compile(self) -> float:
        state, hyper = self.inputs.seed_states.states[0], self.inputs.seed_states.hyper
        return self.inputs.engine.compile(EngineInputs(state, hyper, self._plan(0, [Step()], 1.0, True)))

    def about_next(self) -> str:
        return about(self.schedule, self.schedule.round, self.schedule.round + 1, [self.inputs.spec.envs])

    def step(self, ahead: bool) -> Executed:
        begun, schedule, before = time.perf_counter(), self.schedule, self.schedule.usages
        compiling = self.inputs.engine.compile_seconds
        actors, envs, _ = schedule.participants()
        factor = schedule.learning_rate_factor(schedule.round)

        def execute(seed: int, state: EngineState) -> tuple[EngineState, SeedRound]:
            if actors[seed] == 0:
                state, metrics = passed(state, 1, self.inputs.spec.metrics)
                return state, SeedRound(schedule.timelines[seed].next_round(0), metrics, 0, 1.0)
            return Stretches(self, seed, factor, state).run()

        done = self.inputs.seed_states.advance(execute)
        metrics: RoundMetrics = jax.tree.map(
            lambda *x: np.concatenate(x, axis=1), *jax.device_get([one.metrics for one in done])
        )
        chunk = Chunk(
            begin=schedule.round,
            rounds=[[one.round_ for one in done]],
            factors=[factor],
            envs=envs,
            computed=[sum(one.computed for one in done)],
            timelines=[timeline.state() for timeline in schedule.timelines],
            collect_occupancy=[sum(one.occupancy for one in done) / len(done)],
        )
        schedule.advance(chunk)
        compiling = self.inputs.engine.compile_seconds - compiling  # larger capacities than those so far
        return Executed(chunk, metrics, before, max(time.perf_counter() - begun - compiling, 1e-9), [])

    def restart(self) -> None:
        for timeline, state in zip(self.schedule.timelines, self.schedule.states, strict=True):
            timeline.restore(deepcopy(state))

    def write(self, run_dir: Path) -> None:
        pass

    def close(self) -> None:
        pass

    def _plan(self, seed: int, steps: list[Step], factor: float, ends: bool) -> Plan:
        """Plan of a stretch; `ends`: with the round."""
        spec, number = self.inputs.spec, self.schedule.seeds[seed]

        def order(_: int, batch: int) -> np.ndarray:
            return minibatch_order(number, batch, spec.minibatch_layout)

        plan, sizes = build_collection_plan(spec.shape, [[steps]], order, [factor], self.sizes, ends)
        # All seeds share the largest capacities so far, so that few sizes are compiled.
        self.sizes = CollectionSizes(*map(max, self.sizes, sizes))
        return plan


def are_equal(returns: np.ndarray, group: int) -> bool:
    """Whether all episodes of each group have equal returns.

    Args:
      returns: returns of a fragment's episodes `[n]`.
      group: episodes of a group, which are adjacent.

    >>> are_equal(np.array([1.0, 1.0, 0.0, 0.0]), 2), are_equal(np.array([1.0, 1.0, 0.0, 1.0]), 2)
    (True, False)
    """
    return bool(np.all(np.ptp(returns.reshape(-1, group), axis=1) < EQUAL))


class Stretches:
    """Execution of one seed's round in stretches.

    Args:
      executor: the executor.
      seed: place of the seed.
      factor: factor on the learning rate.
      state: state before the round, which is donated.
    """

    def __init__(self, executor: StretchedExecutor, seed: int, factor: float, state: EngineState):
        self.executor, self.seed, self.factor, self.state = executor, seed, factor, state
        self.done = 0
        self.computed = 0
        self.steps: list[Step] = []

    def run(self) -> tuple[EngineState, SeedRound]:
        """Execute the round; returns the state after it."""
        timeline: Timeline = self.executor.schedule.timelines[self.seed]
        timeline.measure = self._measure
        round_ = timeline.next_round()
        timeline.measure = None
        metrics = self._execute(round_, ends=True)
        return self.state, SeedRound(round_, metrics, self.computed, occupancy(self.steps))

    def _measure(self, round_: Round, shards: list[int]) -> list[tuple[int, bool]]:
        """Execute a round so far, and return the lengths of the segments that these shards have begun."""
        self._execute(round_, ends=False)
        store, free = self.state.store, self.executor.schedule.timelines[self.seed].free
        assert store is not None and free is not None, "actors are not independent"
        lengths, ended, samples = jax.device_get((store.lengths, store.ended, store.samples))
        for shard in shards:
            free.queue.rolling[shard].samples += int(samples[0, shard])
        whole = [shard for shard in shards if ended[0, shard] or free.segments_left(shard) == 0]
        if self.executor.group and whole:
            reward, valid = jax.device_get((store.data.reward, store.data.valid))
            for shard in whole:
                fragment = free.queue.rolling[shard]
                returns = np.where(valid[0, fragment.row], reward[0, fragment.row], 0.0).sum(axis=0)
                fragment.equal = are_equal(returns, self.executor.group)
        return [(int(lengths[0, shard]), bool(ended[0, shard])) for shard in shards]

    def _execute(self, round_: Round, ends: bool) -> RoundMetrics:
        """Execute what has happened since the last stretch, and roll all segments that have begun."""
        inputs, collector = self.executor.inputs, self.executor.collectors[self.seed]
        steps = collector.steps(round_.sequence[self.done :])
        collector.roll_all(steps)
        self.done = len(round_.sequence)
        self.steps += steps
        plan = self.executor._plan(self.seed, steps, self.factor, ends)
        self.computed += inputs.spec.shape.wave_size * plan.waves(0)
        arguments = EngineInputs(self.state, inputs.seed_states.hyper, plan)
        self.state, metrics = inputs.engine.run(arguments, 1)
        return metrics
