"""Forecast of a configuration: duration, staleness, waste and cost, from its timeline alone, without learning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.statistics import mean_ci95
from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.billing import bill
from stellaris_jax.timeline.plan import MinibatchLayout
from stellaris_jax.timeline.records import Round, Usage
from stellaris_jax.timeline.scaling import is_scaled, limits_of, scaling_of
from stellaris_jax.timeline.simulate import Timeline

MILLION = 1e6
SHORT = 10
"""Inverse of the largest share of rounds that are warm-up, unless the user sets it."""


class Window(NamedTuple):
    """Rounds of a forecast.

    Attributes:
      rounds: rounds that are simulated.
      warmup: first rounds, which the figures leave out.
    """

    rounds: int = 200
    warmup: int = 20

    @classmethod
    def of(cls, rounds: int | None, warmup: int | None) -> Window:
        """Window with defaults for what is `None`. Raises ConfigError if the warm-up leaves no round."""
        whole = cls() if rounds is None else cls(rounds)
        if warmup is None:
            return whole._replace(warmup=min(whole.warmup, whole.rounds // SHORT))
        if warmup >= whole.rounds:
            raise ConfigError(f"--warmup={warmup} must be less than --rounds={whole.rounds}.")
        return whole._replace(warmup=warmup)

    def within(self, rounds: int) -> Window:
        """Window of a run of so many rounds: no more than it has, and of a shorter run at most a tenth as warm-up."""
        return self if rounds >= self.rounds else Window(rounds, min(self.warmup, rounds // SHORT))


class Participants(NamedTuple):
    """Participants of every round of a configuration whose rounds are all alike.

    Attributes:
      actors: number of actors.
      gradients: minibatches of a fragment, over all epochs.
      steps: env steps of a fragment.
    """

    actors: int
    gradients: int
    steps: int

    @classmethod
    def of(cls, config: Config) -> Participants:
        """Participants of a configuration; imports its algorithm, which knows the sizes of minibatches."""
        limits, layout = limits_of(config), MinibatchLayout.of(config)
        actors, envs = limits.maximum, layout.envs
        if is_scaled(config):
            actors = scaling_of(config).actors
            envs = actors * limits.envs
        return cls(actors, layout.epochs * layout.count(envs), layout.steps * envs)


@dataclass(frozen=True)
class Forecast:
    """Figures of one seed; NaN where a figure is not defined, such as the staleness of no gradient.

    Attributes:
      round_seconds: mean simulated seconds of a round, from one batch of data to the next.
      round_updates: mean number of updates of the policy in a round.
      learner_utilisation: share of the time that a learner computes, data passing included.
      actor_utilisation: share of the time that an actor rolls out, data passing included.
      staleness_mean: mean staleness of aggregated gradients, in versions.
      staleness_max: largest staleness of an aggregated gradient, in versions.
      data_lag_mean: mean number of versions from the policy that acted to the one that a gradient is computed on.
      data_lag_max: largest number of these versions.
      learner_waste: share of learners' busy seconds that was spent on dropped gradients.
      actor_waste: share of actors' busy seconds that was spent on dropped fragments.
      steps_rolled_per_learned: env steps rolled out per env step learned from; 1 if nothing is dropped. Each of a
        step's epochs counts as its share of the step.
      usd_per_million_steps: dollars per million env steps learned from, by the system's own billing.
      run_seconds: simulated seconds of the whole run (`total_steps`), as if all its rounds were like these.
      run_usd: dollars of the whole run, likewise.
    """

    round_seconds: float
    round_updates: float
    learner_utilisation: float
    actor_utilisation: float
    staleness_mean: float
    staleness_max: float
    data_lag_mean: float
    data_lag_max: float
    learner_waste: float
    actor_waste: float
    steps_rolled_per_learned: float
    usd_per_million_steps: float
    run_seconds: float
    run_usd: float

    @classmethod
    def of(
        cls,
        config: Config,
        seed: int,
        window: Window,
        prefetched: bool = False,
        each_round: Callable[[], None] = lambda: None,
    ) -> Forecast:
        """Simulate the rounds of a window.

        Args:
          config: checked configuration, with the same number of actors in all rounds.
          seed: seed of the durations.
          window: the rounds.
          prefetched: whether actors roll a fragment out with the policy of the round before, as those of host
            environments do with `env.overlap`.
          each_round: is called after each round.

        Raises:
          RunError: a rule or a delay model of the configuration fails.
        """
        timeline, takes_part = Timeline.of(config, seed), Participants.of(config)
        counts, before = _Counts(config.system.actors == "independent", prefetched), Usage()
        for number in range(window.rounds):
            if number == window.warmup:
                before = timeline.usage
            counts.add(timeline.next_round(takes_part.actors, takes_part.gradients), number >= window.warmup)
            each_round()
        used, rounds = _difference(timeline.usage, before), window.rounds - window.warmup
        cost = bill(config.system, config.prices, used, limits_of(config).buckets[-1]).total
        gradients, batches = len(counts.staleness), counts.batched
        delivered = gradients + counts.dropped
        # A fragment of a shard takes as many invocations as the shard has actors.
        fragments = used.actor_invocations * config.actor_shards / takes_part.actors
        rolled = _ratio(fragments, batches) if counts.independent else 1.0
        learned = gradients * takes_part.steps / takes_part.gradients
        return cls(
            round_seconds=used.seconds / rounds,
            round_updates=counts.updates / rounds,
            learner_utilisation=_ratio(used.learner_busy, config.system.learners * used.seconds),
            actor_utilisation=_ratio(used.actor_busy, takes_part.actors * used.seconds),
            staleness_mean=_ratio(sum(counts.staleness), gradients),
            staleness_max=max(counts.staleness, default=math.nan),
            data_lag_mean=_ratio(sum(counts.lags), gradients),
            data_lag_max=max(counts.largest_lags, default=math.nan),
            learner_waste=_ratio(used.learner_dropped, used.learner_busy, empty=0.0),
            actor_waste=_ratio(getattr(used, "actor_dropped", 0.0), used.actor_busy, empty=0.0),
            steps_rolled_per_learned=rolled * _ratio(delivered, gradients),
            usd_per_million_steps=_ratio(cost * MILLION, learned),
            run_seconds=used.seconds / rounds * config.rounds,
            run_usd=cost / rounds * config.rounds,
        )


class _Counts:
    """Counts over the rounds of a window: gradients with their staleness and data lag, and batches of data.

    Args:
      independent: whether actors do not wait for rounds, so that a batch has fragments of several versions.
      prefetched: see `Forecast.of`.
    """

    def __init__(self, independent: bool, prefetched: bool):
        self.independent, self.prefetched = independent, prefetched
        self.staleness: list[int] = []
        self.lags: list[float] = []
        self.largest_lags: list[int] = []
        self.updates = self.dropped = 0
        self.batched = 0  # fragments
        self._acted: dict[int, list[int]] = {}  # versions that acted, by the fragment or batch of a gradient

    def add(self, round_: Round, counted: bool) -> None:
        """Add a round; one that is not counted only tells which versions acted in it."""
        batches = getattr(round_, "batches", ()) if self.independent else ()
        for batch in batches:
            self._acted[batch.index] = [version for fragment in batch.fragments for version in fragment.versions]
        if not self.independent:
            self._acted.setdefault(round_.index, [round_.behaviour_version])
            if self.prefetched:
                self._acted[round_.index + 1] = [round_.behaviour_version]
        if not counted:
            return
        self.batched += sum(len(batch.fragments) for batch in batches)
        self.updates += len(round_.groups)
        self.dropped += len(round_.dropped)
        for group in round_.groups:
            for gradient in group.gradients:
                acted = self._acted[gradient.fragment]
                self.staleness.append(gradient.staleness)
                self.lags.append(gradient.version - sum(acted) / len(acted))
                self.largest_lags.append(gradient.version - min(acted))


def _difference(after: Usage, before: Usage) -> Usage:
    """Usage between two moments of a run; its largest staleness means nothing."""
    return Usage(**{entry.name: getattr(after, entry.name) - getattr(before, entry.name) for entry in fields(Usage)})


def _ratio(part: float, whole: float, empty: float = math.nan) -> float:
    """Ratio of two figures, or `empty` if the second one is 0."""
    return part / whole if whole else empty


def over_seeds(forecasts: Iterable[Forecast]) -> dict[str, tuple[float, float]]:
    """Figures over seeds by name, each with half the width of its 95 % interval; the largest value of `*_max`.

    The half-width is NaN for one seed and for a largest value.
    """
    seeds = list(forecasts)
    figures = {}
    for entry in fields(Forecast):
        values = [getattr(forecast, entry.name) for forecast in seeds]
        figures[entry.name] = (max(values), math.nan) if entry.name.endswith("_max") else mean_ci95(values)
    return figures
