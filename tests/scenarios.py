"""Timelines to test: one rule with the settings a test asks for, and hypothesis's choice of all settings;
what rules that scale actors are told, and schedulers for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from settings import delay, system_of

from stellaris_jax.base.registry import register
from stellaris_jax.config.sections import DelayConfig, DelaysConfig, PlatformConfig
from stellaris_jax.timeline import Gradient, Round, Timeline
from stellaris_jax.timeline.scaling import Limits, RoundSummary, Scheduler

GRADIENTS = 16
LEARNER = delay("lognormal", 0.3, sigma=0.5)
HEAVY = delay("pareto", 0.3, alpha=1.1)
INSTANT = delay("constant", 0.0)
ACTOR = delay("lognormal", 2.0, sigma=0.1)
WIDE = Limits(64, 8, 1, (8, 16, 32, 64))

examples = settings(deadline=None, max_examples=60)


def simulate(
    rule: str,
    *,
    gradients: int = GRADIENTS,
    seed: int = 0,
    learner: DelayConfig = LEARNER,
    actor: DelayConfig = ACTOR,
    aggregate: DelayConfig = INSTANT,
    loader: DelayConfig = INSTANT,
    failure: float = 0.0,
    platform: PlatformConfig | None = None,
    **system: Any,
) -> Timeline:
    """A timeline of one rule; `system` overrides fields of `SystemConfig`."""
    learners = 1 if rule == "central" else 8
    config = system_of(rule, **{"learners": learners, **system})
    delays = DelaysConfig(learner=learner, actor=actor, aggregate=aggregate, loader=loader, failure=failure)
    platform = platform or PlatformConfig(actors=2)
    return Timeline(config, platform, delays, gradients_per_round=gradients, seed=seed)


def advance(timeline: Timeline, rounds: int) -> list[Round]:
    return [timeline.next_round() for _ in range(rounds)]


def used(records: list[Round]) -> list[Gradient]:
    return [gradient for record in records for group in record.groups for gradient in group.gradients]


def mean(gradients: list[Gradient]) -> float:
    return sum(g.staleness for g in gradients) / len(gradients)


def watch(timeline: Timeline) -> list[tuple[int, list[int], bool]]:
    """Every verdict of the rule from now on: (round, staleness of the queue, whether it passed)."""
    verdicts: list[tuple[int, list[int], bool]] = []
    ready = timeline.coordinator.rule.ready

    def watched(staleness: Any, view: Any) -> bool:
        passed = ready(staleness, view)
        verdicts.append((timeline.coordinator.rule.round, list(staleness), passed))
        return passed

    timeline.coordinator.rule.ready = watched
    return verdicts


@dataclass
class Scenario:
    rule: str
    options: dict[str, Any]
    rounds: int

    def build(self) -> Timeline:
        return simulate(self.rule, **self.options)


@st.composite
def scenarios(draw: st.DrawFn, rules: tuple[str, ...] = tuple(register.rule)) -> Scenario:
    rule = draw(st.sampled_from(rules))
    learners = 1 if rule == "central" else draw(st.integers(1, 8))
    delays = [delay("constant", 0.3), LEARNER, HEAVY, delay("measured", table=[0.1, 0.7, 2.0])]
    platform = PlatformConfig(
        actors=3,
        keep_alive=draw(st.sampled_from([0.5, 600.0])),
        prewarm=draw(st.booleans()),
        gpus=draw(st.integers(1, 3)),
        gpus_per_vm=draw(st.integers(1, 2)),
        cold_start=draw(st.sampled_from([0.0, 1.5])),
        warm_start=draw(st.sampled_from([0.0, 0.1])),
        actor_cold_start=draw(st.sampled_from([0.0, 2.0])),
        shared_memory=draw(st.sampled_from([0.0, 0.01])),
        rpc=draw(st.sampled_from([0.0, 0.2])),
        cache=draw(st.sampled_from([0.0, 0.3])),
        contention=draw(st.sampled_from([0.0, 0.5])),
        interference=draw(st.sampled_from([0.0, 0.25])),
    )
    options = {
        "learners": learners,
        "c": draw(st.integers(1, learners)),
        "s": draw(st.integers(0, 3)),
        "decay": draw(st.sampled_from([1.0, 0.96, 0.5, 1e-9])),
        "versions": draw(st.sampled_from([2, 3, 5, 32])),
        "overflow": draw(st.sampled_from(["wait", "drop"])),
        "actors": draw(st.sampled_from(["barrier", "pipelined"])),
        "gradients": draw(st.integers(learners, 20)),
        "learner": draw(st.sampled_from(delays)),
        "actor": draw(st.sampled_from([ACTOR, INSTANT])),
        "aggregate": draw(st.sampled_from([INSTANT, delay("constant", 0.2)])),
        "loader": draw(st.sampled_from([INSTANT, delay("constant", 0.15)])),
        "failure": draw(st.sampled_from([0.0, 0.1, 0.6])),
        "seed": draw(st.integers(0, 1000)),
        "platform": platform,
    }
    return Scenario(rule, options, rounds=draw(st.integers(2, 6)))


def seen(round_: int, **values: Any) -> RoundSummary:
    """Summary of a round of eight actors, all zero but `values`."""
    zeros = {"reward": math.nan, "loss": 0.0, "kl": 0.0, "learner_seconds": 0.0, "actor_seconds": 0.0}
    return RoundSummary(round_, **({"actors": 8, **zeros, "seconds": 0.0, "cost_usd": 0.0} | values))


def scheduler(actors: int = 4, seed: int = 0) -> Scheduler:
    """A network of random weights."""
    generator = np.random.default_rng(seed)
    sizes = (8, 16, 16, actors)
    kernels = [generator.normal(size=pair).astype(np.float32) for pair in pairwise(sizes)]
    return Scheduler(kernels, [generator.normal(size=n).astype(np.float32) for n in sizes[1:]])
