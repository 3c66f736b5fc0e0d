"""States of a run's seeds: one agent per seed, all executed by one compiled program.

On an accelerator, seeds run side by side under `vmap` and fill the device. On a CPU, each seed runs in its own thread,
as far as there are cores: batching small matrix products saves no time there, and no seed waits for the slowest round.
A seed in its own thread gives the same bits, regardless of concurrent work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.networks.normalizer import RunningStatistics
from stellaris_jax.base.machine import cores
from stellaris_jax.engine import store
from stellaris_jax.engine.chunk import Chunk
from stellaris_jax.engine.program import Engine
from stellaris_jax.engine.rollout import Normalizers
from stellaris_jax.engine.state import EngineInputs, EngineState, policies
from stellaris_jax.engine.store import every_version_acts_with
from stellaris_jax.engine.wave import Call, RoundMetrics
from stellaris_jax.timeline import Plan

T = TypeVar("T")


class Running(NamedTuple):
    """Chunk in execution on the device.

    Attributes:
      rounds: number of rounds.
      blocks: for each block its state and metrics, or the future that computes them.
    """

    rounds: int
    blocks: list[Any]

    @property
    def over(self) -> bool:
        """Whether all blocks are computed; all outputs of a program become ready together."""

        def is_over(block: Any) -> bool:
            return block.done() if isinstance(block, Future) else all(x.is_ready() for x in jax.tree.leaves(block[1]))

        return all(map(is_over, self.blocks))


class SeedStates:
    """States of all seeds, in blocks of seeds that one program runs side by side.

    Args:
      engine: engine compiled for blocks of `engine.spec.seeds`.
      hyper: hyper-parameters, the same for every seed.
      seeds: S seeds; S is a multiple of the block size.
    """

    def __init__(self, engine: Engine, hyper: Hyper, seeds: Sequence[int]):
        self.engine, self.seeds, self.hyper = engine, list(seeds), hyper.rows(engine.spec.seeds)
        self._states: list[EngineState] | None = None
        self._before: list[EngineState] | None = None
        self._running = False
        self._single = len(engine.spec.blocks(len(self.seeds))) == 1
        # Programs on several devices wait for each other, so only one of them may run at a time.
        alone = engine.spec.devices > 1 or self._single
        self._threads = None if alone else threads()

    def begin(self, params: np.ndarray, statistics: RunningStatistics) -> None:
        """Start again from given policies.

        Args:
          params: `[S, P]`, flat parameters.
          statistics: observation statistics, arrays `[S, *obs]`.
        """
        layout, states = self.engine.layout, []
        for seeds, (block, seen_obs) in zip(self.blocks(self.seeds), self.blocks((params, statistics)), strict=True):
            state = layout.init(seeds, self.hyper, block)
            normalizers = state.normalizers._replace(obs=seen_obs)
            store = None if state.store is None else jax.vmap(every_version_acts_with)(state.store, seen_obs)
            states.append(layout.place(state._replace(normalizers=normalizers, store=store)))
        self._states = states

    @property
    def states(self) -> list[EngineState]:
        """States of all blocks; initial states are compiled at first access, and never for a restored run."""
        if self._running:
            raise RuntimeError("The device is executing a chunk, and the states with it; finish that first.")
        if self._states is None:
            self._states = [self.engine.init(block, self.hyper) for block in self.blocks(self.seeds)]
        return self._states

    def blocks(self, rows: Any) -> list[Any]:
        """Split rows `[S, ...]` of all seeds, a list or a tree of arrays, into the rows of each block."""
        parts = self.engine.spec.blocks(len(self.seeds))
        if isinstance(rows, list):
            return [rows[part] for part in parts]
        return [jax.tree.map(lambda x, part=part: x[part], rows) for part in parts]

    def gather(self, pick: Callable[[EngineState], T]) -> T:
        """Gather `pick(state)` over all blocks, with an axis `[S]` over all seeds."""
        return joined([pick(state) for state in self.states])

    @property
    def state(self) -> EngineState:
        """State of all seeds, every leaf `[S, ...]`; a copy if there are several blocks."""
        return self.gather(lambda state: state)

    @state.setter
    def state(self, state: EngineState) -> None:
        layout = self.engine.layout
        self._states = [state] if self._single else [layout.place(block) for block in self.blocks(state)]

    @property
    def learned(self) -> tuple[jax.Array, Normalizers]:
        """Newest policies `[S, P]` and their observation normalizers."""
        return self.gather(lambda state: (state.params, state.normalizers))

    def behaviour(self, chunk: Chunk) -> jax.Array:
        """Policies `[S, P]` that roll the first fragment of a chunk."""
        slots = (plan.behaviour[0] for plan in chunk.plans)
        return joined([policies(*pair) for pair in zip(self.states, slots, strict=True)])

    def forget_episodes(self, broken: Sequence[Sequence[tuple[int, int]]] = ()) -> None:
        """Reset the return of each unfinished episode, because the episodes are lost.

        Args:
          broken: row of the store and last step of each fragment in whose middle its episodes are lost, for each seed.
            The step becomes the end of an episode, and is no sample.
        """

        def without(state: EngineState, broken: Any) -> EngineState:
            totals = jax.device_put(np.zeros(state.actor.totals.shape, np.float32), state.actor.totals.sharding)
            state = state._replace(actor=state.actor._replace(totals=totals).with_windows_cut())
            for seed, places in enumerate(broken):
                for place in places:
                    state = state._replace(store=store.cut(state.store, (seed, *place)))
            return state

        rows = self.blocks(list(broken)) if broken else [()] * len(self.states)
        self._states = list(map(without, self.states, rows))

    def start(self, chunk: Chunk, fragment: Any) -> Running:
        """Start a chunk on the device for all seeds; states are unavailable until `finish`.

        Args:
          chunk: planned chunk.
          fragment: `[S, ...]`, its data if it comes from the host; a list of `[S]` rollers if shards roll them.

        After a failure of an engine that `loses_state`, here or in `finish`, the states are those before the chunk.
        """
        states = self.states
        fragments = [None] * len(states) if fragment is None else self.blocks(fragment)
        rounds = len(chunk.rounds)

        def placed(state: EngineState, plan: Plan, fragment: Any, width: int, envs: list[int]) -> Call:
            if not any(envs):
                return partial(passed, state, rounds, self.engine.spec.metrics)
            return self.engine.placed(EngineInputs(state, self.hyper, plan, fragment, width), rounds)

        def execute(*arguments: Any) -> tuple[EngineState, RoundMetrics]:
            return placed(*arguments)()

        if self.engine.loses_state:
            self._before = states
            states = jax.tree.map(lambda x: x.copy(), states)
        work = zip(states, chunk.plans, fragments, chunk.widths, self.blocks(chunk.envs), strict=True)
        self._states, self._running = None, True
        if self._threads is not None:
            return Running(rounds, [self._threads.submit(computed, execute, *arguments) for arguments in work])
        try:
            if calls_wait() and self._single and not self.engine.loses_state:
                # Placed here: another thread's Python would hold up every array.
                return Running(rounds, [begun(call) for call in [placed(*arguments) for arguments in work]])
            return Running(rounds, [execute(*arguments) for arguments in work])  # returns before the result is computed
        except BaseException:
            self._step_back()
            raise

    def finish(self, running: Running) -> RoundMetrics:
        """Wait for a chunk and return its rounds' metrics, NumPy arrays `[R, S]`."""
        try:
            done = [block.result() if isinstance(block, Future) else block for block in running.blocks]
        except Exception:
            wait([block for block in running.blocks if isinstance(block, Future)])
            self._step_back()
            raise
        self._states, self._running, self._before = [state for state, _ in done], False, None
        metrics = jax.device_get([metrics for _, metrics in done])
        whole: RoundMetrics = jax.tree.map(lambda *x: np.concatenate(x, axis=1)[: running.rounds], *metrics)
        return whole

    def advance(self, function: Callable[[int, EngineState], tuple[EngineState, T]]) -> list[T]:
        """Replace each block's state by calls of `function(place, state) -> (state, result)`; returns the results."""
        states, self._states, self._running = self.states, None, True
        over = map if self._threads is None else self._threads.map
        done = list(over(function, range(len(states)), states))
        self._states, self._running = [state for state, _ in done], False
        return [result for _, result in done]

    def _step_back(self) -> None:
        """Restore the states before a chunk that failed, if they were kept."""
        if self._before is not None:
            self._states, self._running, self._before = self._before, False, None

    def each(self, function: Callable[..., T], *rows: Iterable[Any]) -> list[T]:
        """Call a function for each block with its state and its element of each of `rows`; returns the results."""
        return list((map if self._threads is None else self._threads.map)(function, self.states, *rows))


def joined(parts: list[T]) -> T:
    """Concatenate the blocks' trees of arrays along axis `[S]`; copies if there are several."""
    if len(parts) == 1:
        return parts[0]
    whole: T = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
    return whole


def passed(state: EngineState, rounds: int, names: Sequence[str]) -> tuple[EngineState, RoundMetrics]:
    """State and metrics of finished seeds: only the round counter advances."""
    metrics = RoundMetrics.zeros((rounds, *state.round.shape), names, drops=state.store is not None)
    metrics = metrics._replace(
        rejected=metrics.rejected + state.aggregator.left_out,
        kl_coefficient=metrics.kl_coefficient + state.kl_coefficient,
    )
    return state._replace(round=state.round + rounds), metrics


def computed(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function and wait for its result on the device."""
    return jax.block_until_ready(function(*arguments))


def calls_wait() -> bool:
    """Whether a call of a program returns only when the device is nearly done.

    Accelerators ask the host about every turn of a loop whose length is a value, as a round's number of waves is.
    """
    return jax.default_backend() != "cpu"


def begun(call: Call) -> Future[tuple[EngineState, RoundMetrics]]:
    """Future of a call, which a thread has begun, so that the caller can plan the next chunk meanwhile."""
    has_begun = threading.Event()

    def run() -> tuple[EngineState, RoundMetrics]:
        has_begun.set()
        return jax.block_until_ready(call())

    future = caller().submit(run)
    has_begun.wait()  # the caller's own Python would otherwise keep the thread from beginning for some milliseconds
    return future


@cache
def caller() -> ThreadPoolExecutor:
    """Pool of the one thread that calls programs which keep their caller waiting."""
    return ThreadPoolExecutor(1, "caller")


@cache
def threads() -> ThreadPoolExecutor:
    """Thread pool that executes seeds of all runs, one thread per core."""
    return ThreadPoolExecutor(cores(), "members")
