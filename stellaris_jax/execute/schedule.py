"""Schedule of a run: its rounds, when evaluations and checkpoints are due, and who takes part in the next round."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk import Chunk, Following
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.engine.wave import RoundMetrics
from stellaris_jax.execute.recording import RecordedRounds
from stellaris_jax.execute.records import Accounts
from stellaris_jax.report.runs import planned_evaluations
from stellaris_jax.timeline import Round, Timeline, Usage
from stellaris_jax.timeline.scaling import RoundSummary, is_adaptive, is_scaled, limits_of, scaling_of


class Participants(NamedTuple):
    """Participants of a round.

    Attributes:
      actors: `[S]`, participating actors.
      envs: `[S]`, participating environments.
      widths: number of environments that each block of seeds is compiled for.
    """

    actors: list[int]
    envs: list[int]
    widths: list[int]


class Executed(NamedTuple):
    """Rounds that an executor has carried out.

    Attributes:
      chunk: the rounds, and the states of the timelines after them.
      metrics: metrics of the rounds, NumPy arrays `[R, S]`.
      before: `[S]`, usage before the rounds.
      seconds: real seconds that they took, without compilation.
      probes: `[S]`, measurements that the scaling rules requested; empty without any.
      data_versions: `[S]`, versions of the policies that rolled data from the host; `None` as the rounds say.
      values: further values of the last round's record.
    """

    chunk: Chunk
    metrics: RoundMetrics
    before: list[Usage]
    seconds: float
    probes: list[list[float]]
    data_versions: list[int] | None = None
    values: Mapping[str, Any] = MappingProxyType({})


class Schedule:
    """Position of a run in its rounds, and what the next ones need: size, participants, learning rate factor.

    It lists the rounds after which evaluations and checkpoints are due, and passes results to the scaling rules. Its
    `pause` is a number of rounds after which the caller does something else, so that no chunk goes beyond it.

    Args:
      config: configuration of the run.
      spec: settings that shape the run's program.
      seeds: one per agent.
      timelines: one per seed, at the beginning of the run: simulated ones, recorded ones, or a live run's conductor.
      recorded: rounds that dictate the participants and the schedule of the learning rate; `None` to choose them.
    """

    def __init__(
        self,
        config: Config,
        spec: ProgramSpec,
        seeds: list[int],
        timelines: Sequence[Any],
        recorded: RecordedRounds | None = None,
    ):
        self.config, self.spec, self.seeds, self.timelines = config, spec, seeds, list(timelines)
        self.accounts, self.limits, self.recorded = Accounts(config), limits_of(config), recorded
        self.blocks = spec.blocks(len(seeds))
        self.total_rounds = config.rounds
        self.adaptive = recorded is None and is_adaptive(config)
        self.scalings = [scaling_of(config) for _ in seeds]
        self.round = self.pause = 0
        self.states: list[dict[str, Any]] = [timeline.state() for timeline in self.timelines]

    @property
    def finished(self) -> bool:
        """True once all rounds are done, or every seed has reached its target or spent its budget."""
        return self.round >= self.total_rounds or all(scaling.finished for scaling in self.scalings)

    @property
    def usages(self) -> list[Usage]:
        """Usage of each seed up to the current round."""
        return [Timeline.usage_of(state) for state in self.states]

    def state(self) -> dict[str, Any]:
        """State that the next rounds depend on, as JSON data."""
        return {
            "round": self.round,
            "timelines": self.states,
            "scalings": [scaling.state() for scaling in self.scalings],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state()` returned; executors restore the timelines when they need them."""
        self.round, self.states = state["round"], state["timelines"]
        for scaling, saved in zip(self.scalings, state["scalings"], strict=True):
            scaling.restore(saved)

    # Rounds --------------------------------------------------------------------------------------------------------

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

    def size(self, begin: int) -> int:
        """Rounds of the chunk that begins at round `begin`; evaluations, checkpoints and a pause end it."""
        return min([self.spec.chunk_rounds, *(stop - begin for stop in self._due_after(begin))])

    def is_due(self, round_: int) -> bool:
        """Whether an evaluation, a checkpoint or a pause is due after `round_` rounds."""
        return round_ in self._due_after(round_ - 1)

    def _due_after(self, round_: int) -> list[int]:
        """Next rounds after `round_` with an evaluation, a checkpoint and a pause due, as far as there are any."""
        due = (self.evaluation_rounds, self.checkpoint_rounds, [self.pause])
        return [rounds[place] for rounds in due if (place := bisect(rounds, round_)) < len(rounds)]

    def learning_rate_factor(self, round_: int) -> float:
        """Factor on the learning rate in a round, as the engine has it: a number of float32."""
        if self.recorded is not None and self.recorded.factors is not None:
            return float(np.float32(self.recorded.factors[round_]))
        return float(np.float32(1.0 - round_ / self.total_rounds)) if self.config.algorithm.anneal else 1.0

    # Participants --------------------------------------------------------------------------------------------------

    def participants(self, in_flight: list[int] | None = None) -> Participants:
        """Participants of the next round; `in_flight` `[S]` gives actors whose fragments are already under way."""
        unfinished = [not scaling.finished for scaling in self.scalings]
        if not is_scaled(self.config):
            total, most = self.spec.envs, self.limits.maximum
            actors, envs = ([number * active for active in unfinished] for number in (most, total))
            return Participants(actors, envs, [total] * len(self.blocks))
        chosen = in_flight or [scaling.actors for scaling in self.scalings]
        actors = [number * active for number, active in zip(chosen, unfinished, strict=True)]
        if self.recorded is not None and (number := self.recorded.actors()) is not None:
            actors = [number]
        widths = [self.width(max(actors[block])) for block in self.blocks]
        return Participants(actors, [number * self.limits.envs for number in actors], widths)

    def width(self, actors: int) -> int:
        """Number of environments that a round of `actors` actors is compiled for, if rounds differ in it."""
        # Fragments from the host keep their shape. On several devices all environments stay in place, so that the
        # first ones are the same on any number of devices.
        narrow = self.spec.devices == 1 and not self.spec.host_fragments
        return (self.limits.bucket(actors) if narrow else self.limits.maximum) * self.limits.envs

    def following(self, chunk: Chunk) -> Following:
        """Round after a chunk, as known before the chunk is over."""
        actors, envs, _ = self.participants()
        return Following(actors, envs if chunk.end < self.total_rounds else None)

    # After rounds --------------------------------------------------------------------------------------------------

    def advance(self, chunk: Chunk) -> None:
        """Move to the end of an executed chunk."""
        self.round, self.states = chunk.end, chunk.timelines

    def observe(self, done: Executed) -> None:
        """Pass executed rounds to every seed's scaling rule."""
        before = done.before
        for r, row in enumerate(done.chunk.rounds if self.adaptive else ()):
            costs = self.accounts.money([round_.usage for round_ in row])["cost_usd"]
            for s, (scaling, round_) in enumerate(zip(self.scalings, row, strict=True)):
                if not scaling.finished:
                    probe = tuple(done.probes[s]) if done.probes else ()
                    scaling.observe(_summary(round_, done.metrics, (r, s), before[s], costs[s], probe))
            before = [round_.usage for round_ in row]


def _summary(
    round_: Round, metrics: RoundMetrics, place: tuple[int, int], before: Usage, cost: float, probe: tuple[float, ...]
) -> RoundSummary:
    """Summary of one seed's round for its scaling rule.

    Args:
      round_: the round.
      metrics: metrics of the chunk, `[R, S]`.
      place: indices of the round and the seed.
      before: usage before the round.
      cost: dollars since the run began.
      probe: measurements that the rule requested.
    """
    ended = float(metrics.episodes.ended[place])
    return RoundSummary(
        round=round_.index + 1,
        actors=round_.actors,
        reward=float(metrics.episodes.total_return[place]) / ended if ended else math.nan,
        loss=float(sum(metrics.loss[name][place] for name in ("policy_loss", "value_loss") if name in metrics.loss)),
        kl=float(metrics.loss["kl"][place]) if "kl" in metrics.loss else math.nan,
        learner_seconds=round_.usage.learner_busy - before.learner_busy,
        actor_seconds=round_.actor_seconds,
        seconds=round_.usage.seconds - before.seconds,
        cost_usd=cost,
        probe=probe,
    )
