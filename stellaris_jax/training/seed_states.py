"""The members of a run: one agent per seed, each with its own state, executed by one compiled program.

Beside each other under `vmap` they fill an accelerator. On a CPU they are executed apart, each by a thread of its own
as far as there are cores: products of small matrices are no faster in batches, and nobody waits for the longest round.
A member that is executed apart is the same to the bit whatever runs beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.networks.normalizer import RunningStatistics
from stellaris_jax.config.machine import cores
from stellaris_jax.engine.program import Engine
from stellaris_jax.engine.rollout import Fragment, Normalizers
from stellaris_jax.engine.state import EngineState, policies
from stellaris_jax.engine.wave import RoundMetrics
from stellaris_jax.timeline import Plan, Usage
from stellaris_jax.training.chunk import Chunk

T = TypeVar("T")


class Running(NamedTuple):
    """A chunk of so many rounds that the device executes: of each block its state and metrics, or who computes them."""

    rounds: int
    blocks: list[Any]

    @property
    def over(self) -> bool:
        """Whether all of it is computed; the outputs of a program are there at the same time."""

        def is_over(one: Any) -> bool:
            return one.done() if isinstance(one, Future) else all(x.is_ready() for x in jax.tree.leaves(one[1]))

        return all(map(is_over, self.blocks))


class UnderWay(NamedTuple):
    """A chunk that the device executes, its data, what had been used before it, and when it was begun."""

    chunk: Chunk
    received: Any
    running: Running
    before: list[Usage]
    begun: float


class SeedStates:
    """The states of all seeds, in blocks of those that one program runs side by side.

    Args:
      engine: compiled for blocks of `engine.spec.seeds`.
      hyper: numbers of every one of them.
      seeds: S of them, a multiple of that.
    """

    def __init__(self, engine: Engine, hyper: Hyper, seeds: Sequence[int]):
        self.engine, self.seeds, self.hyper = engine, list(seeds), hyper.rows(engine.spec.seeds)
        self._states: list[EngineState] | None = None
        self._running = False
        self._single = len(engine.spec.blocks(len(self.seeds))) == 1
        # ProgramCache over several devices wait for each other, so no two of them may be under way.
        alone = engine.spec.devices > 1 or self._single
        self._threads = None if alone else threads()

    def begin(self, params: np.ndarray, statistics: RunningStatistics) -> None:
        """Begin anew with given policies.

        Args:
          params: parameters `[S, P]`.
          statistics: of observations, arrays `[S, *obs]`.
        """
        layout, states = self.engine.layout, []
        for seeds, (block, seen) in zip(self.blocks(self.seeds), self.blocks((params, statistics)), strict=True):
            state = layout.init(seeds, self.hyper, block)
            states.append(layout.place(state._replace(normalizers=state.normalizers._replace(obs=seen))))
        self._states = states

    @property
    def states(self) -> list[EngineState]:
        """States of all blocks; the first ones are compiled when they are first asked for, never for a restored run."""
        if self._running:
            raise RuntimeError("The device is executing a chunk, and the states with it; finish that first.")
        if self._states is None:
            self._states = [self.engine.init(block, self.hyper) for block in self.blocks(self.seeds)]
        return self._states

    def blocks(self, rows: Any) -> list[Any]:
        """Rows `[S, ...]` of all seeds, a list or a tree of arrays, as those of each block."""
        parts = self.engine.spec.blocks(len(self.seeds))
        if isinstance(rows, list):
            return [rows[part] for part in parts]
        return [jax.tree.map(lambda x, part=part: x[part], rows) for part in parts]

    def gather(self, pick: Callable[[EngineState], T]) -> T:
        """What `pick` takes of the states, with an axis `[S]` over all seeds."""
        return joined([pick(state) for state in self.states])

    @property
    def state(self) -> EngineState:
        """The state of all seeds, every leaf `[S, ...]`: a copy where they are executed apart."""
        return self.gather(lambda state: state)

    @state.setter
    def state(self, state: EngineState) -> None:
        layout = self.engine.layout
        self._states = [state] if self._single else [layout.place(block) for block in self.blocks(state)]

    @property
    def learned(self) -> tuple[jax.Array, Normalizers]:
        """The newest policies `[S, P]` and what normalises their observations."""
        return self.gather(lambda state: (state.params, state.normalizers))

    def behaviour(self, chunk: Chunk) -> jax.Array:
        """The policies `[S, P]` that the first fragment of a chunk is rolled with."""
        slots = (plan.behaviour[0] for plan in chunk.plans)
        return joined([policies(*pair) for pair in zip(self.states, slots, strict=True)])

    def forget_episodes(self) -> None:
        """Episodes under way are gone, and so is what they had earned."""

        def without(state: EngineState) -> EngineState:
            totals = jax.device_put(np.zeros(state.actor.totals.shape, np.float32), state.actor.totals.sharding)
            return state._replace(actor=state.actor._replace(totals=totals))

        self._states = [without(state) for state in self.states]

    def start(self, chunk: Chunk, fragment: Fragment | None) -> Running:
        """Have the device execute a chunk for all seeds; there are no states until that is over (`finish`).

        Args:
          chunk: what is planned.
          fragment: its data `[S, ...]` where that has come from the host.
        """
        states = self.states
        fragments = [None] * len(states) if fragment is None else self.blocks(fragment)
        rounds = len(chunk.rounds)

        def execute(
            state: EngineState, plan: Plan, fragment: Fragment | None, width: int, envs: list[int]
        ) -> tuple[EngineState, RoundMetrics]:
            if not any(envs):
                return passed(state, rounds)
            return self.engine.run(state, self.hyper, plan, rounds, fragment, width)

        work = zip(states, chunk.plans, fragments, chunk.widths, self.blocks(chunk.envs), strict=True)
        self._states, self._running = None, True
        if self._threads is None:
            return Running(rounds, [execute(*one) for one in work])  # returns before it is computed
        return Running(rounds, [self._threads.submit(computed, execute, *one) for one in work])

    def finish(self, running: Running) -> RoundMetrics:
        """Metrics of the rounds of a chunk, arrays `[R, S]` of NumPy, once it is over."""
        done = [one.result() if isinstance(one, Future) else one for one in running.blocks]
        self._states, self._running = [state for state, _ in done], False
        metrics = jax.device_get([metrics for _, metrics in done])
        whole: RoundMetrics = jax.tree.map(lambda *x: np.concatenate(x, axis=1)[: running.rounds], *metrics)
        return whole

    def each(self, function: Callable[..., T], *rows: Iterable[Any]) -> list[T]:
        """What a function returns for the state of each block, and the block's element of each of `rows`."""
        return list((map if self._threads is None else self._threads.map)(function, self.states, *rows))


def joined(parts: list[T]) -> T:
    """Trees of arrays of several blocks as one, with an axis `[S]` over all seeds; a copy where there are several."""
    if len(parts) == 1:
        return parts[0]
    whole: T = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
    return whole


def passed(state: EngineState, rounds: int) -> tuple[EngineState, RoundMetrics]:
    """Rounds of seeds that are finished: they pass, and nothing else."""
    nothing = RoundMetrics.zeros((rounds, *state.round.shape))
    nothing = nothing._replace(
        rejected=nothing.rejected + state.aggregator.rejected,
        kl_coefficient=nothing.kl_coefficient + state.kl_coefficient,
    )
    return state._replace(round=state.round + rounds), nothing


def computed(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, once it is computed."""
    return jax.block_until_ready(function(*arguments))


@cache
def threads() -> ThreadPoolExecutor:
    """Those that execute members, of whichever runs: as many as there are cores."""
    return ThreadPoolExecutor(cores(), "members")
