"""Scores and verdicts of a choice against a second implementation, written from docs/choose.md alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stellaris_jax import load_config, load_policy, train
from stellaris_jax.many.choose.arms import Space, one_learner
from stellaris_jax.many.choose.building import candidates
from stellaris_jax.many.choose.files import Options
from stellaris_jax.many.choose.objective import Goal, cut, ranked, to_target
from stellaris_jax.many.choose.screening import Timing
from stellaris_jax.many.choose.verdict import Judged, Scaling, differences, enough, foretold, interval_of, ordered

TIMING = Timing(2.0, 3.0, 0.0, 0.0, 1.0, 1.0, 4.0)
GOAL = Goal("seconds", 1.0)
Points = list[tuple[float, float]]

curves = st.lists(st.tuples(st.floats(0.1, 5), st.integers(-20, 20).map(float)), min_size=1, max_size=8).map(
    lambda steps: [(sum(step for step, _ in steps[: n + 1]), value) for n, (_, value) in enumerate(steps)]
)


def as_curve(points: Points) -> tuple[np.ndarray, np.ndarray]:
    x, y = zip(*points, strict=True)
    return np.array(x), np.array(y)


def time_to(points: Points, wanted: float) -> float | None:
    """Time at which straight lines between points first reach a return."""
    before = None
    for x, y in points:
        if y >= wanted:
            return x if before is None else before[0] + (wanted - before[1]) / (y - before[1]) * (x - before[0])
        before = (x, y)
    return None


@given(st.lists(curves, min_size=1, max_size=4), st.integers(-20, 20), st.floats(1, 100))
def test_time_to_target_with_its_penalty(seeds: list[Points], target: int, longest: float) -> None:
    times = [time_to(points, target) for points in seeds]
    expected = [2 * longest if time is None else time for time in times]
    assert to_target([as_curve(points) for points in seeds], target, longest) == pytest.approx(expected)


@given(st.lists(curves, min_size=1, max_size=12), st.none() | st.integers(-20, 20))
def test_a_rung_ranks_by_time_to_a_return_that_two_thirds_reach(every: list[Points], target: int | None) -> None:
    reaching = cut(len(every), 1, 3).reaching
    highest = [max(y for _, y in points) for points in every]
    wanted = max(value for value in highest if sum(other >= value for other in highest) >= min(reaching, len(every)))
    wanted = wanted if target is None else min(wanted, target)
    times = [time_to(points, wanted) for points in every]
    expected = sorted(
        range(len(every)),
        key=lambda n: (times[n] is None, round(times[n] or 0.0, 9), -highest[n], n),
    )
    found = ranked({n: as_curve(points) for n, points in enumerate(every)}, reaching, Goal("seconds", target))
    assert [round(times[n] or math.inf, 6) for n in found] == [round(times[n] or math.inf, 6) for n in expected]
    assert {n for n in found[:reaching] if times[n] is None} == set(), "as many have reached the level"


def results_of(values: list[list[float]]) -> list[Judged]:
    return [Judged(n, f"arm {n}", 1e-3, own, len(own), own, TIMING) for n, own in enumerate(values)]


times_of_arms = st.integers(3, 8).flatmap(
    lambda seeds: st.lists(st.lists(st.floats(0.5, 50), min_size=seeds, max_size=seeds), min_size=2, max_size=5)
)


@given(times_of_arms)
def test_tests_are_paired_on_logarithms_with_holm(values: list[list[float]]) -> None:
    results = ordered(results_of(values), GOAL)
    means = [stats.gmean(own.values) for own in results]
    assert means == pytest.approx(sorted(means))
    assert [own.interval.middle for own in results] == pytest.approx(means)
    first, others = np.log(results[0].values), [np.log(own.values) for own in results[1:]]
    if any(np.ptp(other - first) < 1e-6 for other in others):
        return  # no spread: not a t-test
    raw = [float(stats.ttest_rel(other, first).pvalue) for other in others]
    order = sorted(range(len(raw)), key=raw.__getitem__)
    expected = [max(min(1.0, (len(raw) - k) * raw[order[k]]) for k in range(order.index(n) + 1)) for n in order]
    found = differences(results, GOAL)
    assert [found[n].p for n in order] == pytest.approx(expected, rel=1e-6, abs=1e-12)
    for own, other in zip(found, others, strict=True):
        low, high = stats.ttest_rel(other, first).confidence_interval(0.95)
        assert (own.ratio, own.low, own.high) == pytest.approx(
            tuple(np.exp([np.mean(other - first), low, high])), rel=1e-6
        )
        assert own.separated == (own.p < 0.05)


@given(times_of_arms)
def test_fewest_learners_that_are_not_worse_than_the_best(values: list[list[float]]) -> None:
    numbers = [2**n for n in range(len(values))]
    logarithms = np.log(values)
    means = logarithms.mean(axis=1)
    if np.ptp(np.sort(means)[:2]) < 1e-9:
        return  # the best of equal ones depends on rounding
    best = int(means.argmin())
    rest = [n for n in range(len(values)) if n != best]
    if any(np.ptp(logarithms[n] - logarithms[best]) < 1e-6 for n in rest):
        return
    worse = {n for n in rest if stats.ttest_rel(logarithms[n], logarithms[best]).pvalue < 0.05}
    expected = next(n for n in range(len(values)) if n not in worse)
    scalings = [Scaling(number, own, 0.0) for number, own in zip(numbers, values, strict=True)]
    assert enough(scalings, GOAL) == (numbers[expected], numbers[best])


def test_forecasts_keep_penalties() -> None:
    """Slower jobs stretch what was measured, so a candidate whose seeds failed does not lead by those that did not."""
    (own,) = results_of([[10.0, 10.0, 80.0, 80.0]])
    assert foretold(own, TIMING, GOAL) == own.interval.middle
    assert foretold(own, TIMING._replace(seconds=4.0), GOAL) == 2 * own.interval.middle
    assert foretold(own, TIMING._replace(dollars=1.5), Goal("dollars", 1.0)) == own.interval.middle / 2


# Fairness -------------------------------------------------------------------------------------------------------------

SMALL = [
    "env=gymnax/cartpole",
    "env.num_envs=4",
    "algorithm.rollout_length=16",
    "network.hidden=[8]",
    "total_steps=256",
]


def test_all_candidates_are_billed_and_seeded_alike() -> None:
    space = Space({"async": ("system=async",), "stellaris": ("system=stellaris",)}, {}, {}, (), {}, (1.0,))
    tried, _ = candidates([*SMALL, "system.learners=2", "algorithm.minibatches=2"], space, Options(seeds=3))
    for key in ("seed", "num_seeds", "total_steps", "platform", "prices", "env"):
        assert len({repr(getattr(own.config, key)) for own in tried}) == 1, key
    assert {(own.config.system.learner_billing, own.config.system.actor_billing) for own in tried} == {
        ("serverless", "serverful")
    }
    assert {own.config.system.learners for own in tried} == {2}


@pytest.mark.slow
def test_one_learner_on_n_slots_learns_what_one_learner_alone_does(tmp_path: Path) -> None:
    """Its updates are equal but for rounding, with gradients clipped after they are averaged."""
    common = [*SMALL, "algorithm.minibatches=2", "algorithm.max_grad_norm=0.5", "evaluation.points=1",
              "evaluation.episodes=2", "run.progress=false", "run.loggers=[]", "delays=pareto"]  # fmt: skip
    learned = []
    for name, learners in (("split", 4), ("alone", 1)):
        config = load_config([*common, "system=allreduce", f"system.learners={learners}", f"run.dir={tmp_path / name}"])
        train(config.replace(one_learner(config)) if learners > 1 else config)
        params = jax.tree.leaves(load_policy(tmp_path / name).params)
        learned.append(np.concatenate([np.ravel(own) for own in params]))
    split, alone = learned
    assert np.abs(split - alone).max() <= 1e-6 * np.abs(alone).max()
    assert np.abs(alone).max() > 0.1


# Intervals ------------------------------------------------------------------------------------------------------------


def covered(ratios: Sequence[float], spread: float, choices: int = 500, seeds: int = 8) -> tuple[float, float]:
    """Share of simulated choices in which an interval of the best one covers its true mean; finalists are log-normal.

    The first share is of the interval on the seeds that chose it, the second one of that on as many others.
    """
    draw, counts = np.random.default_rng(0), [0, 0]
    for _ in range(choices):
        times = [10 * ratio * np.exp(spread * draw.normal(size=seeds)) for ratio in ratios]
        best = ordered(results_of([[float(value) for value in own] for own in times]), GOAL)[0]
        true = 10 * ratios[best.number]
        others = interval_of((true * np.exp(spread * draw.normal(size=seeds))).tolist(), geometric=True)
        for place, interval in enumerate((best.interval, others)):
            counts[place] += interval.low <= true <= interval.high
    return counts[0] / choices, counts[1] / choices


def test_the_stated_interval_covers_as_often_as_it_says() -> None:
    """The lowest mean of equal finalists is too low (winner's curse), so other seeds state the interval."""
    clear, equal, many = covered([1.0, 1.5, 2.5], 0.1), covered([1.0] * 3, 0.6), covered([1.0] * 5, 0.6)
    assert all(0.925 < stated < 0.975 for _, stated in (clear, equal, many))
    assert many[0] < equal[0] < 0.925
