"""Planner of a run: every seed's timeline and scaling rule, and the chunks built from them."""

from __future__ import annotations

import gc
import math
from bisect import bisect
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cached_property, wraps
from typing import Any, NamedTuple, TypeVar, cast

from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk import Chunk, Following
from stellaris_jax.engine.plans import Plans, shared_by
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.engine.wave import RoundMetrics
from stellaris_jax.execute.records import Accounts
from stellaris_jax.report.runs import planned_evaluations
from stellaris_jax.sources.source import Source
from stellaris_jax.timeline import Plan, Timeline, Usage, build_plan, minibatch_order
from stellaris_jax.timeline.scaling import RoundSummary, is_adaptive, is_scaled, limits_of, scaling_of

UNKNOWN = -1

F = TypeVar("F", bound=Callable[..., Any])


def without_collection(function: F) -> F:
    """Decorator: run a function without Python's garbage collector; it makes many objects and no reference cycles.

    The collector would take a third of the time, because it also traverses all of JAX's objects.
    """

    @wraps(function)
    def run(*arguments: Any) -> Any:
        enabled = gc.isenabled()
        gc.disable()
        try:
            return function(*arguments)
        finally:
            if enabled:
                gc.enable()

    return cast(F, run)


class Allotment(NamedTuple):
    """Participants of a round.

    Attributes:
      actors: `[S]`, participating actors.
      envs: `[S]`, participating environments.
      widths: number of environments that each block is compiled for.
    """

    actors: list[int]
    envs: list[int]
    widths: list[int]


class Planner:
    """Planner of a run's chunks, each planned on demand or while the chunk before it is executed.

    Args:
      config: configuration of the run.
      spec: settings that shape the run's program.
      seeds: one per agent.
      source: source of the run's data.
      accounts: money and usage of the run.
      plans: plans of other runs that this run may execute as well.
    """

    def __init__(
        self,
        config: Config,
        spec: ProgramSpec,
        seeds: list[int],
        source: Source,
        accounts: Accounts,
        plans: Plans | None = None,
    ):
        self.config, self.spec, self.seeds = config, spec, seeds
        self.source, self.accounts, self.plans = source, accounts, plans or Plans()
        self.shape, self.cut, self.limits = spec.shape, spec.minibatch_layout, limits_of(config)
        self.blocks = spec.blocks(len(seeds))
        self.total_rounds, self.adaptive = config.rounds, is_adaptive(config)
        self.timelines = list(self._timelines())
        self.scalings = [scaling_of(config) for _ in seeds]
        self.round = 0
        self.states = [timeline.state() for timeline in self.timelines]
        self._simulated = 0  # rounds simulated so far; UNKNOWN while a round is under way
        self._shared_by = shared_by(config, spec)
        self._chunks: deque[Chunk] = deque()  # planned, in order, not executed yet

    def _timelines(self) -> Sequence[Any]:
        """Timelines, one per seed."""
        return [Timeline.of(self.config, seed) for seed in self.seeds]

    # State of the run ----------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """True once all rounds are done, or every seed has reached its target or spent its budget."""
        return self.round >= self.total_rounds or all(scaling.finished for scaling in self.scalings)

    @property
    def usages(self) -> list[Usage]:
        """Usage of each seed up to the current round."""
        return [Timeline.usage_of(state) for state in self.states]

    @cached_property
    def evaluation_rounds(self) -> list[int]:
        """Rounds after which the policy is evaluated, spread evenly; they include the last round."""
        points = self.config.evaluation.points if self.config.evaluation.episodes > 0 else 0
        return planned_evaluations(self.total_rounds, points)

    @cached_property
    def checkpoint_rounds(self) -> list[int]:
        """Rounds after which a checkpoint is due; they include the last round."""
        interval = self.config.checkpoint.interval
        due = self.evaluation_rounds if interval == 0 else range(interval, self.total_rounds, interval)
        return sorted({*due, self.total_rounds})

    def state(self) -> dict[str, Any]:
        """State that the next rounds depend on, as JSON data."""
        return {
            "round": self.round,
            "timelines": self.states,
            "scalings": [scaling.state() for scaling in self.scalings],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state()` returned."""
        self.round, self.states = state["round"], state["timelines"]
        self._chunks.clear()
        self._simulate_from(self.round)
        for scaling, saved in zip(self.scalings, state["scalings"], strict=True):
            scaling.restore(saved)

    # Chunks --------------------------------------------------------------------------------------------------------

    @property
    def next(self) -> Chunk:
        """Next chunk to execute; planned now if it was not."""
        if not self._chunks:
            self._chunks.append(self.plan(self.round, self._size(self.round)))
        return self._chunks[0]

    def plan_ahead(self) -> None:
        """Plan the chunk after the next one, unless that depends on the next one's results."""
        begin = self.next.end
        if len(self._chunks) > 1:
            return
        if begin < self.total_rounds and not self.adaptive:
            self._chunks.append(self.plan(begin, self._size(begin)))

    def executed(self) -> None:
        """Mark the next chunk as executed."""
        chunk = self._chunks.popleft()
        self.round, self.states = chunk.end, chunk.timelines

    def _size(self, begin: int) -> int:
        """Size of the chunk that begins at round `begin`; it ends when an evaluation or a checkpoint is due."""
        return min([self.shape.rounds, *(stop - begin for stop in self._due_after(begin))])

    def is_due(self, round_: int) -> bool:
        """Whether an evaluation or a checkpoint is due after `round_` rounds."""
        return round_ in self._due_after(round_ - 1)

    def _due_after(self, round_: int) -> list[int]:
        """Next rounds after `round_` with an evaluation and with a checkpoint due, as far as there are any."""
        due = (self.evaluation_rounds, self.checkpoint_rounds)
        return [rounds[place] for rounds in due if (place := bisect(rounds, round_)) < len(rounds)]

    def plan(self, begin: int, size: int) -> Chunk:
        """Simulate rounds `begin` to `begin + size - 1` and lay them out for the engine."""
        return self.plans.chunk(self._shared_by, begin, size, lambda: self._plan(begin, size))

    def _simulate_from(self, begin: int) -> None:
        """Restore the timelines to the end of the planned rounds, which is round `begin`."""
        states = self._chunks[-1].timelines if self._chunks else self.states
        for timeline, state in zip(self.timelines, states, strict=True):
            timeline.restore(deepcopy(state))
        self._simulated = begin

    @without_collection
    def _plan(self, begin: int, size: int) -> Chunk:
        if begin != self._simulated:  # another run has planned the rounds between
            self._simulate_from(begin)
        self._simulated = UNKNOWN
        actors, envs, widths = self._allot(self.source.asked)
        counts = [self.cut.epochs * self.cut.count(n) for n in envs]
        simulated = list(zip(self.timelines, actors, counts, strict=True))
        rounds = [[timeline.next_round(i, count) for timeline, i, count in simulated] for _ in range(size)]
        self._simulated = begin + size
        factors = [self._learning_rate_factor(begin + r) for r in range(size)]

        def plan(block: slice, width: int) -> Plan:
            cuts = list(zip(self.seeds[block], envs[block], strict=True))
            # Drawn one at a time when they are laid out, so that none keeps memory for long.
            orders = ((minibatch_order(seed, begin + r, self.cut, n, width) for seed, n in cuts) for r in range(size))
            return build_plan(self.shape, [row[block] for row in rounds], orders, factors, [envs[block]] * size)

        plans = list(map(plan, self.blocks, widths))
        waves = [sum(int(plan.bounds[r, 1] - plan.bounds[r, 0]) for plan in plans) for r in range(size)]
        return Chunk(
            begin=begin,
            plans=plans,
            widths=widths,
            envs=envs,
            rounds=rounds,
            computed=[self.shape.wave_size * self.shape.seeds * number for number in waves],
            timelines=[timeline.state() for timeline in self.timelines],
        )

    def following(self, chunk: Chunk) -> Following:
        """Round after a chunk, as known before the chunk is over."""
        actors, envs, _ = self._allot(None)
        return Following(actors, envs if chunk.end < self.total_rounds else None)

    def _allot(self, in_flight: list[int] | None) -> Allotment:
        """Participants of the next round; `in_flight` gives the actors whose fragments are already under way."""
        if not is_scaled(self.config):
            unfinished, total = [not scaling.finished for scaling in self.scalings], self.spec.envs
            actors = [self.limits.maximum * is_active for is_active in unfinished]
            return Allotment(actors, [total * is_active for is_active in unfinished], [total] * len(self.blocks))
        actors = in_flight or [scaling.actors for scaling in self.scalings]
        actors = [n * (not scaling.finished) for n, scaling in zip(actors, self.scalings, strict=True)]
        widths = [self.source.width(max(actors[block])) for block in self.blocks]
        return Allotment(actors, [n * self.limits.envs for n in actors], widths)

    def _learning_rate_factor(self, round_: int) -> float:
        return 1.0 - round_ / self.total_rounds if self.config.algorithm.anneal else 1.0

    # Scaling -------------------------------------------------------------------------------------------------------

    def observe(self, chunk: Chunk, metrics: RoundMetrics, before: list[Usage], probes: list[list[float]]) -> None:
        """Pass the rounds of a finished chunk to every seed's scaling rule.

        Args:
          chunk: the chunk.
          metrics: its metrics, `[R, S]`.
          before: `[S]`, usage before the chunk.
          probes: `[S]`, measurements that the rules requested, taken after the chunk.
        """
        if not self.adaptive:
            return
        for r, row in enumerate(chunk.rounds):
            costs = self.accounts.money([record.usage for record in row])["cost_usd"]
            for s, (scaling, record) in enumerate(zip(self.scalings, row, strict=True)):
                if scaling.finished:
                    continue
                ended = float(metrics.episodes.ended[r, s])
                scaling.observe(
                    RoundSummary(
                        round=record.index + 1,
                        actors=record.actors,
                        reward=float(metrics.episodes.total_return[r, s]) / ended if ended else math.nan,
                        loss=float(metrics.loss.policy_loss[r, s] + metrics.loss.value_loss[r, s]),
                        kl=float(metrics.loss.kl[r, s]),
                        learner_seconds=record.usage.learner_busy - before[s].learner_busy,
                        actor_seconds=record.actor_seconds,
                        seconds=record.usage.seconds - before[s].seconds,
                        cost_usd=costs[s],
                        probe=tuple(probes[s]) if probes else (),
                    )
                )
            before = [record.usage for record in row]
