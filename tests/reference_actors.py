"""The literal system with independent actors: shards, a data queue, a data loader, and `reference.py`'s learners.

It is slow on purpose and shares no code with the package's timeline. What it takes from the package is what both must
be given alike: durations (`Stream`) and sections of the configuration. All times are fractions of a second, in whole
nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import count
from math import floor
from operator import add
from typing import Any

from reference import LearnerSystem
from reference_actor_log import ActorLog, ActorTraining, Lengths, Rolled, actor_failures
from reference_admissions import ADMISSIONS, Batch, Fragment, Shard
from reference_events import NANOSECOND, Aggregation, exactly

from stellaris_jax.config.sections import PlatformConfig
from stellaris_jax.timeline.delays import Stream, delay_of


@dataclass
class Settings:
    """Keys of section `system` that the literal system reads, and the keys of independent actors."""

    rule: str = "async"
    rule_options: Mapping[str, Any] = field(default_factory=dict)
    weights: str = "power"
    weight_options: Mapping[str, Any] = field(default_factory=dict)
    learners: int = 1
    versions: int = 32
    overflow: str = "wait"
    actor_shards: int = 0
    sync_steps: int = 0
    publish_every: int = 1
    publish_lag: int = 0
    data_queue: int = 0
    batches_in_flight: int = 2
    data_admission: str = "fifo"
    data_admission_options: Mapping[str, Any] = field(default_factory=dict)


def number_of_shards(settings: Any, num_envs: int, actors: int) -> int:
    """Number of shards: as given, or the largest divisor of the environments, at most 8 and at most the actors."""
    divisors = [n for n in range(1, 9) if num_envs % n == 0 and n <= actors]
    return settings.actor_shards or divisors[-1]


class ActorSystem(LearnerSystem):
    """Everything together. `run(batches)` goes on until so many batches are completed; `step` is one event.

    Args:
      settings: a `Settings`, or a section `system` with its keys.
      platform, delays: sections of the configuration; `delays.actor_failure` is read if it is there.
      minibatches: pointers of a batch (G).
      seed: seed of the durations.
      total_actors: actors of the platform (P).
      rollout_length: steps of a fragment (T).
      num_envs: environments of all shards together.
      training: computations beside the events.
      lengths: lengths of segments, if fragments end with their episodes; asked for once learners have started.
    """

    log: ActorLog

    def __init__(
        self,
        settings: Any,
        platform: PlatformConfig,
        delays: Any,
        minibatches: int,
        seed: int,
        total_actors: int,
        *,
        rollout_length: int = 128,
        num_envs: int = 16,
        training: ActorTraining | None = None,
        lengths: Lengths | None = None,
    ):
        assert not platform.contention and not platform.interference
        super().__init__(settings, platform, delays, minibatches, seed)
        self.training = self.actor_training = training
        self.log = ActorLog()
        shards = number_of_shards(settings, num_envs, total_actors)
        bounds = [a * total_actors // shards for a in range(shards + 1)]
        self.shards = [Shard(a, range(bounds[a], bounds[a + 1])) for a in range(shards)]
        self.segments = rollout_length // settings.sync_steps if settings.sync_steps else 1
        self.room = settings.data_queue or shards
        self.total_actors = total_actors
        self.rollout_length, self.lengths = rollout_length, lengths
        self.unmeasured: list[Callable[[], None]] = []
        self.actor_seconds = Stream(delay_of(delays.actor), seed, "actor")
        self.drawn: list[Fraction] = []
        self.loads = delays.loader.seconds > 0
        self.actor_failure = getattr(delays, "actor_failure", 0.0)
        self.actor_luck: Iterator[float] = actor_failures(seed)
        self.actor_last_used = [self.warm_since] * total_actors
        self.waiting: list[Fragment] = []
        self.loading = False
        self.formed = self.ended = 0
        self.settled = False
        self.begun_with_round: Aggregation | None = None
        self.admission = ADMISSIONS[settings.data_admission](settings.data_admission_options, self)

    # Time -----------------------------------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """Rounds that have ended."""
        return self.ended

    @property
    def completed(self) -> int:
        """Leading batches all of whose gradients have been aggregated or dropped."""
        return next(batch for batch in count() if batch == self.formed or self.unused[batch] > 0)

    def run(self, batches: int) -> None:
        while self.ended < batches:
            self.step()

    def step(self) -> None:
        """Let the next event happen, and everything that it leads to at once, but nothing of the next round.

        What that round begins with in this very moment is left to the next step.
        """
        if self.begun_with_round is not None:
            begun, self.begun_with_round = self.begun_with_round, None
            super().update(begun)
        if not self.settled:
            self.settle()
            if self.end_round() or self.begun_with_round is not None:
                return
        if not self.time.advance():
            assert self.parameter_function.queue, "nothing can ever happen again"
            self.parameter_function.evaluate(nothing_else_can_happen=True)
        if self.begun_with_round is None:
            self.settle()
            self.end_round()

    def end_round(self) -> bool:
        """End the round if its batch is complete; whether it is."""
        ends = self.ended < self.completed
        if ends and self.actor_training:
            self.actor_training.end_round()
        self.ended = self.completed
        return ends

    def update_begins(self) -> None:
        """Once a batch is complete, its round is over: this update is the next round's."""
        if self.end_round():
            self.settled = False

    @property
    def updates(self) -> list[Aggregation]:
        return [one for one in self.log.aggregations if one is not self.begun_with_round]

    def update(self, aggregation: Aggregation) -> None:
        if self.settled:
            super().update(aggregation)
        else:
            self.begun_with_round = aggregation

    def settle(self) -> None:
        self.settled = True
        while True:
            self.settle_data()
            if self.start_learners():
                continue
            begun, self.unmeasured = self.unmeasured, []
            for measure in begun:
                measure()
            if not self.learners_cannot_go_on():
                return
            if self.ended < self.completed:  # an update that must be forced is the next round's
                self.settled = False
                return
            self.parameter_function.evaluate(nothing_else_can_happen=True)

    def learners_cannot_go_on(self) -> bool:
        function = self.parameter_function
        return (
            all(learner.holds is None for learner in self.learners)
            and not function.busy
            and not self.loading
            and len(function.queue) > 0
            and (len(self.pointers) > 0 or not self.next_batch_can_come(self.formed - self.completed))
        )

    def next_batch_can_come(self, unfinished: int) -> bool:
        """Whether what begins now could be part of the next batch: it is as old as there are unfinished batches."""
        return unfinished < self.settings.batches_in_flight and self.admission.accepts(unfinished)

    def settle_data(self) -> None:
        for shard in self.shards:
            if shard.died:
                shard.died = False
                self.begin(shard)
        changed = True
        while changed:
            changed = False
            for fragment in self.admission.evicted():
                self.drop(fragment)
                changed = True
            changed |= self.form_batch()
            for shard in self.shards:
                if self.may_begin(shard):
                    self.begin(shard)
                    changed = True

    def note(self, *words: object) -> None:
        self.log.diary.append(" ".join(map(str, [f"{float(self.time.now):g}:", *words])))

    # Actors ---------------------------------------------------------------------------------------------------------

    def may_begin(self, shard: Shard) -> bool:
        if shard.attempt is not None:
            return False
        has_room = not self.admission.waits_for_room or len(self.waiting) < self.room
        return has_room and self.admission.may_begin(shard)

    def visible_version(self) -> int:
        every = self.settings.publish_every
        return max(0, self.parameter_function.clock - self.settings.publish_lag) // every * every

    def durations(self, shard: Shard) -> list[Fraction]:
        """Seconds of a shard's actors in its present fragment, by the same draws as if all actors took turns."""
        first = shard.fragment * self.total_actors
        while len(self.drawn) < first + self.total_actors:
            self.drawn.append(exactly(next(self.actor_seconds)))
        return [self.drawn[first + actor] for actor in shard.actors]

    def begin(self, shard: Shard) -> None:
        """Begin an attempt: a fetch before each segment, a push after the last one."""
        attempt = Fragment(
            shard.number, shard.fragment, len(self.log.begins), self.completed, self.time.now, [self.visible_version()]
        )
        self.log.begins.append(attempt)
        self.note("begin", f"{shard.number}.{shard.fragment}", f"v{attempt.versions[0]}")
        if self.actor_training:
            self.actor_training.begin(attempt)
        shard.attempt = attempt
        self.log.actor_blocked += len(shard.actors) * (self.time.now - shard.idle_since)
        seconds, cache = self.durations(shard), exactly(self.platform.cache)
        startups = [self.startup(self.actor_last_used[a], 0, self.platform.actor_cold_start) for a in shard.actors]

        def rolled(steps: int) -> Fraction:
            if self.lengths is None:  # the start-up is spread over the steps
                return self.share(max(map(add, startups, seconds)), steps)
            return max(start + self.share(whole, steps) for start, whole in zip(startups, seconds, strict=True))

        whole = (self.segments + 1) * cache + rolled(self.rollout_length)
        finish: Callable[[], None] = partial(self.actors_done, shard, sum(startups, Fraction(0)))
        dies = False
        if self.actor_failure > 0:
            chance, place = next(self.actor_luck), next(self.actor_luck)
            if chance < self.actor_failure:
                dies, finish = True, partial(self.die, shard)
                whole = round(Fraction(place) * whole / NANOSECOND) * NANOSECOND
        fetches = [n * cache + rolled(n * self.rollout_length // self.segments) for n in range(1, self.segments)]
        if dies:
            fetches = [second for second in fetches if second < whole]
        elif self.lengths is not None:
            self.unmeasured.append(partial(self.measure, attempt, rolled, finish))
            return
        self.go_on(attempt, fetches, whole, finish)

    def go_on(self, attempt: Fragment, fetches: list[Fraction], whole: Fraction, finish: Callable[[], None]) -> None:
        """Arrange what comes next of an attempt: its next segment, or its end."""
        passed = self.time.now - attempt.begin
        if fetches:
            self.time.after(fetches[0] - passed, partial(self.next_segment, attempt, fetches, whole, finish))
        else:
            self.time.after(whole - passed, finish)

    def share(self, seconds: Fraction, steps: int) -> Fraction:
        """Part of the seconds for a whole fragment that so many steps take."""
        return floor(seconds * steps / self.rollout_length / NANOSECOND) * NANOSECOND

    def measure(self, attempt: Fragment, rolled: Rolled, finish: Callable[[], None]) -> None:
        """Arrange what comes after a segment that has begun now, whose length is asked for."""
        assert self.lengths is not None
        steps, ended = self.lengths(attempt.shard, attempt.number, len(attempt.versions) - 1)
        attempt.steps += steps
        cache, passed = exactly(self.platform.cache), self.time.now - attempt.begin
        last = ended or len(attempt.versions) == self.segments
        due = (len(attempt.versions) + last) * cache + rolled(attempt.steps)
        self.time.after(due - passed, finish if last else partial(self.next_measured_segment, attempt, rolled, finish))

    def next_measured_segment(self, attempt: Fragment, rolled: Rolled, finish: Callable[[], None]) -> None:
        self.fetch(attempt)
        self.unmeasured.append(partial(self.measure, attempt, rolled, finish))

    def fetch(self, attempt: Fragment) -> None:
        """Begin an attempt's next segment with the version that is visible now."""
        attempt.versions.append(self.visible_version())
        if self.actor_training:
            self.actor_training.segment(attempt)
        self.note("fetch", f"{attempt.shard}.{attempt.number}", f"v{attempt.versions[-1]}")

    def next_segment(
        self, attempt: Fragment, fetches: list[Fraction], whole: Fraction, finish: Callable[[], None]
    ) -> None:
        self.fetch(attempt)
        self.go_on(attempt, fetches[1:], whole, finish)

    def busy_seconds(self, shard: Shard, attempt: Fragment) -> Fraction:
        """Seconds in which a shard's actors were busy with a fragment that has ended: rolling, fetching, pushing."""
        seconds = sum(self.durations(shard), Fraction(0))
        if self.lengths is not None:
            seconds = self.share(seconds, attempt.steps)
        return seconds + len(shard.actors) * (len(attempt.versions) + 1) * exactly(self.platform.cache)

    def stop(self, shard: Shard, fate: str) -> Fragment:
        attempt = shard.attempt
        assert attempt is not None
        attempt.fate, attempt.end, shard.attempt = fate, self.time.now, None
        shard.idle_since = self.time.now
        for actor in shard.actors:
            self.actor_last_used[actor] = self.time.now
        return attempt

    def die(self, shard: Shard) -> None:
        attempt = self.stop(shard, "dead")
        shard.died = True
        self.note("dead", f"{shard.number}.{shard.fragment}")
        self.log.actor_failed += len(shard.actors) * (self.time.now - attempt.begin)
        self.log.actor_failures += 1

    def actors_done(self, shard: Shard, startup: Fraction) -> None:
        attempt = self.stop(shard, "waiting")
        attempt.actor_seconds = self.busy_seconds(shard, attempt)
        shard.fragment += 1
        self.waiting.append(attempt)
        if self.actor_training:
            self.actor_training.end(attempt)
        self.note("end", f"{attempt.shard}.{attempt.number}")
        self.log.actor_busy += attempt.actor_seconds
        self.log.actor_startup += startup
        self.log.actor_invocations += len(shard.actors)

    # Data queue and loader ------------------------------------------------------------------------------------------

    def leave(self, fragment: Fragment, fate: str) -> None:
        self.waiting.remove(fragment)
        fragment.fate, fragment.left = fate, self.time.now

    def drop(self, fragment: Fragment) -> None:
        self.leave(fragment, "dropped")
        self.note("drop", f"{fragment.shard}.{fragment.number}")
        self.log.dropped_fragments.append((self.round, fragment))
        self.log.actor_dropped += fragment.actor_seconds

    def form_batch(self) -> bool:
        """Form the next batch if there may be one; whether there is."""
        full = self.formed - self.completed >= self.settings.batches_in_flight
        chosen = self.admission.chosen()[: len(self.shards)]
        # A batch is formed late, for a learner that waits; a loader that takes time begins before.
        needed = self.loads or any(learner.holds is None for learner in self.learners)
        if not needed or self.loading or self.pointers or full or len(chosen) < len(self.shards):
            return False
        batch = Batch(self.formed, self.round, self.time.now, sorted(chosen, key=lambda fragment: fragment.name))
        for fragment in chosen:
            self.leave(fragment, "used")
            fragment.used_in = batch.index
        self.note(f"batch {batch.index}", *(f"{fragment.shard}.{fragment.number}" for fragment in batch.fragments))
        self.log.batches.append(batch)
        if self.actor_training:
            self.actor_training.form(batch)
        self.unused[batch.index] = self.minibatches
        self.formed += 1
        self.loading = True
        seconds = exactly(next(self.loader_seconds))
        if seconds > 0:
            self.time.after(seconds, partial(self.loaded, batch.index))
        else:
            self.loaded(batch.index)
        return True

    def loaded(self, batch: int) -> None:
        self.loading = False
        self.pointers += [(batch, minibatch) for minibatch in range(self.minibatches)]
