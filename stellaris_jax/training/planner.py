"""What comes next in a run: every seed's timeline and scaling rule, and the chunks that are laid out of them."""

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
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.engine.wave import RoundMetrics
from stellaris_jax.report.runs import planned_evaluations
from stellaris_jax.timeline import Plan, Timeline, Usage, build_plan, minibatch_order
from stellaris_jax.timeline.scaling import RoundSummary, is_adaptive, is_scaled, limits_of, scaling_of
from stellaris_jax.training.chunk import Chunk, Following
from stellaris_jax.training.plans import Plans, shared_by
from stellaris_jax.training.records import Accounts
from stellaris_jax.training.sources.source import Source

UNKNOWN = -1

F = TypeVar("F", bound=Callable[..., Any])


def without_collection(function: F) -> F:
    """Run a function without Python's garbage collector: it makes many objects, and no circles of them.

    The collector takes a third of the time otherwise, for it goes through all of JAX's objects as well.
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
    """Actors and environments `[S]` that take part in a round, and the environments that blocks are compiled for."""

    actors: list[int]
    envs: list[int]
    widths: list[int]


class Planner:
    """Plans the chunks of a run, each when it is asked for or while the one before it is executed.

    Args:
      config: the run's.
      spec: what shapes its program.
      seeds: one per agent.
      source: of its data.
      accounts: its books.
      plans: what other runs have planned that it may execute as well.
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
        self._simulated = 0  # rounds that the timelines have come to, unless one of them is under way
        self._shared_by = shared_by(config, spec)
        self._chunks: deque[Chunk] = deque()  # planned, in order, and not executed

    def _timelines(self) -> Sequence[Any]:
        """One per seed: what is lived through, round by round."""
        return [Timeline.of(self.config, seed) for seed in self.seeds]

    # Where the run stands ------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """All rounds are done, or every seed has reached its target or spent its budget."""
        return self.round >= self.total_rounds or all(scaling.finished for scaling in self.scalings)

    @property
    def usages(self) -> list[Usage]:
        """What each seed has used up to the current round."""
        return [Timeline.usage_of(state) for state in self.states]

    @cached_property
    def evaluation_rounds(self) -> list[int]:
        """Rounds after which the policy is evaluated, spread evenly, the last round among them."""
        points = self.config.evaluation.points if self.config.evaluation.episodes > 0 else 0
        return planned_evaluations(self.total_rounds, points)

    @cached_property
    def checkpoint_rounds(self) -> list[int]:
        """Rounds after which a checkpoint is due, the last round among them."""
        interval = self.config.checkpoint.interval
        due = self.evaluation_rounds if interval == 0 else range(interval, self.total_rounds, interval)
        return sorted({*due, self.total_rounds})

    def state(self) -> dict[str, Any]:
        """Everything the next rounds depend on, as JSON data."""
        return {
            "round": self.round,
            "timelines": self.states,
            "scalings": [scaling.state() for scaling in self.scalings],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state()` returned."""
        self.round, self.states = state["round"], state["timelines"]
        self._chunks.clear()
        self._simulate_from(self.round)
        for scaling, saved in zip(self.scalings, state["scalings"], strict=True):
            scaling.restore(saved)

    # Chunks --------------------------------------------------------------------------------------------------------

    @property
    def next(self) -> Chunk:
        """The next chunk to be executed, which is planned if it was not."""
        if not self._chunks:
            self._chunks.append(self.plan(self.round, self._size(self.round)))
        return self._chunks[0]

    def plan_ahead(self) -> None:
        """Plan the chunk after the next one, unless that takes knowing what comes of the next one."""
        begin = self.next.end
        if len(self._chunks) > 1:
            return
        if begin < self.total_rounds and not self.adaptive:
            self._chunks.append(self.plan(begin, self._size(begin)))

    def executed(self) -> None:
        """Told that the next chunk has become part of the run."""
        chunk = self._chunks.popleft()
        self.round, self.states = chunk.end, chunk.timelines

    def _size(self, begin: int) -> int:
        """Rounds of the chunk that begins at round `begin`: it ends where an evaluation or a checkpoint is due."""
        return min([self.shape.rounds, *(stop - begin for stop in self._due_after(begin))])

    def is_due(self, round_: int) -> bool:
        """Whether an evaluation or a checkpoint is due after so many rounds."""
        return round_ in self._due_after(round_ - 1)

    def _due_after(self, round_: int) -> list[int]:
        """The next rounds after `round_` that an evaluation and a checkpoint are due after, as far as there are any."""
        due = (self.evaluation_rounds, self.checkpoint_rounds)
        return [rounds[place] for rounds in due if (place := bisect(rounds, round_)) < len(rounds)]

    def plan(self, begin: int, size: int) -> Chunk:
        """Simulate the next `size` rounds, of which the first is `begin`, and lay them out for the engine."""
        return self.plans.chunk(self._shared_by, begin, size, lambda: self._plan(begin, size))

    def _simulate_from(self, begin: int) -> None:
        """Bring the timelines to where the planned rounds end, of which there are `begin`."""
        states = self._chunks[-1].timelines if self._chunks else self.states
        for timeline, state in zip(self.timelines, states, strict=True):
            timeline.restore(deepcopy(state))
        self._simulated = begin

    @without_collection
    def _plan(self, begin: int, size: int) -> Chunk:
        if begin != self._simulated:  # another run has planned what lies between
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
            # Drawn where they are laid out, one at a time: none of them takes memory of its own for long.
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
        """The round after a chunk, from what is known before that one is over."""
        actors, envs, _ = self._allot(None)
        return Following(actors, envs if chunk.end < self.total_rounds else None)

    def _allot(self, asked: list[int] | None) -> Allotment:
        """What takes part in the next round; `asked` are the actors whose fragments are under way already."""
        if not is_scaled(self.config):
            going, all_ = [not scaling.finished for scaling in self.scalings], self.spec.envs
            taking_part = [self.limits.maximum * go for go in going]
            return Allotment(taking_part, [all_ * go for go in going], [all_] * len(self.blocks))
        actors = asked or [scaling.actors for scaling in self.scalings]
        actors = [n * (not scaling.finished) for n, scaling in zip(actors, self.scalings, strict=True)]
        widths = [self.source.width(max(actors[block])) for block in self.blocks]
        return Allotment(actors, [n * self.limits.envs for n in actors], widths)

    def _learning_rate_factor(self, round_: int) -> float:
        return 1.0 - round_ / self.total_rounds if self.config.algorithm.anneal else 1.0

    # Scaling -------------------------------------------------------------------------------------------------------

    def observe(self, chunk: Chunk, metrics: RoundMetrics, before: list[Usage], probes: list[list[float]]) -> None:
        """Tell every seed's scaling rule of the rounds of a chunk that is over.

        `before` `[S]` is what had been used before it, `probes` `[S]` what the rules asked to be measured after it.
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
