"""The rules that scale actors: what they choose after rounds, against windows worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import WIDE, seen
from settings import scaling_of

from stellaris_jax.base.registry import register
from stellaris_jax.timeline.scaling import Limits, RoundSummary
from stellaris_jax.timeline.scaling.rules import boost


def choices(rule: str, observations: list[RoundSummary], width: Limits = WIDE, **options: Any) -> list[int]:
    """A rule's choices for the first round and after each observation."""
    scaling = register.scaling[rule](scaling_of(rule, **options), width)
    chosen = [scaling.actors]
    for observation in observations:
        scaling.observe(observation)
        chosen.append(scaling.actors)
    return chosen


def test_rules_of_a_schedule() -> None:
    rounds = [seen(k) for k in range(1, 7)]
    assert choices("fixed", rounds, actors=16) == [16] * 7
    assert choices("max", rounds) == [64] * 7
    assert choices("hydrozoa", rounds, interval=2) == [8, 8, 16, 16, 32, 32, 64]


def test_adapt_follows_the_mean_of_recent_returns() -> None:
    rewards = [10.0, 30.0, math.nan, 50.0, 200.0]
    # Means of the last two: 10, 20, 20 still, 40, 125 of a target of 100.
    assert choices("adapt", [seen(k, reward=r) for k, r in enumerate(rewards, 1)], target=1000.0, window=2) == [
        8, 8, 8, 8, 8, 8,
    ]  # fmt: skip
    assert choices("adapt", [seen(k, reward=r) for k, r in enumerate(rewards[:4], 1)], target=100.0, window=2) == [
        8, 8, 13, 13, 26,
    ]  # fmt: skip


def test_kungfu_grows_with_the_noise_and_never_shrinks() -> None:
    def noisy(round_: int, scale: float) -> RoundSummary:
        """|G|^2 = 1 and S = scale, seen in batches of 10 and 100."""
        return seen(round_, probe=(1.0 + scale / 10.0, 1.0 + scale / 100.0, 10.0, 100.0))

    scales = [50.0, 100.0, 60.0, 130.0, 1e9, 2e9]
    chosen = choices("kungfu", [noisy(k, s) for k, s in enumerate(scales, 1)])
    # 50 is the first scale; 100 doubles; 60 is less; 130 of 100 is 1.3 times; then the most there are.
    assert chosen == [8, 8, 16, 16, 21, 64, 64]
    # In Nitro's code noise counts from the first round on, again and again.
    again = choices("kungfu", [noisy(k, s) for k, s in enumerate([2.0, 3.0, 1.0, 3.0, 3.0], 1)], mode="artifact")
    assert again == [8, 8, 12, 12, 18, 27]
    nothing = seen(1, probe=(1.0, 1.0, 100.0, 100.0))
    assert choices("kungfu", [nothing, noisy(2, 50.0), noisy(3, 100.0)]) == [8, 8, 8, 16]


def test_nitro_scores_the_window_as_the_paper_does() -> None:
    # Eigenvalues -1 and R: the ratio is R.
    ratios = [4.0, 2.0, 3.0, 1.0, 4.0]
    chosen = choices("nitro", [seen(k, probe=(-1.0, r)) for k, r in enumerate(ratios, 1)], window=3, decay=0.5)
    by_hand = [
        64 * 1.0 * 0.5,  # a window of one is flat
        64 * (4 - 2) / (4 - 2) * 0.25,
        64 * (4 - 3) / (4 - 2) * 0.125,
        64 * (3 - 1) / (3 - 1) * 0.0625,  # 2, 3, 1
        64 * (4 - 4) / (4 - 1) * 0.03125,  # 3, 1, 4
    ]
    assert chosen == [8, *(round(max(value, 8)) for value in by_hand)]
    assert chosen[1:3] == [32, 16]


def test_nitro_scores_as_its_released_code_does() -> None:
    ratios = [4.0, 2.0, 3.0]
    probes = [(-1.0 + 0.01, r - 0.01) for r in ratios]
    chosen = choices("nitro", [seen(k, probe=p) for k, p in enumerate(probes, 1)], window=6, decay=0.9, mode="artifact")
    # Windows: 3.6 4 | 3.6 4 1.62 2 | 3.6 4 1.62 2 2.187 3; a high ratio boosts, above a floor of 64 x 0.9^(k k).
    scores = [1.0, 0.0, (2.187 - 1.62) / (4 - 1.62)]
    floors = [64 * 0.9, 64 * 0.9**4, 64 * 0.9**9]
    assert chosen == [8, *(round(max(64 * s, f)) for s, f in zip(scores, floors, strict=True))]
    assert chosen[1:] == [64, 42, 25]


def test_nitro_guards() -> None:
    assert boost(2.0, [2.0, 2.0]) == 1.0
    assert boost(math.inf, [1.0, math.inf]) == 0.0
    assert boost(1.0, [1.0, 3.0, math.inf]) == 1.0
    assert boost(math.inf, [math.inf]) == 0.0
    convex, spoilt = seen(2, probe=(0.1, 1.0)), seen(3, probe=(math.nan, math.nan))
    assert choices("nitro", [seen(1, probe=(-1.0, 1.0)), convex, spoilt], decay=1.0) == [8, 64, 8, 8]


@pytest.mark.parametrize("rule", ["fixed", "kungfu"])
def test_target_and_budget_end_training(rule: str) -> None:
    probe = (2.0, 1.5, 10.0, 100.0)
    rounds = [seen(1, reward=5.0, cost_usd=0.1, probe=probe), seen(2, reward=9.0, cost_usd=0.2, probe=probe)]
    assert choices(rule, rounds, target=9.0) == [8, 8, 0]
    assert choices(rule, rounds, budget=0.2) == [8, 8, 0]
    assert choices(rule, rounds, target=9.5, budget=0.3) == [8, 8, 8]
    assert choices(rule, [*rounds, seen(3, probe=probe)], target=9.0)[-1] == 0
    assert choices(rule, rounds, target=9.0, budget=0.2, ends=False) == [8, 8, 8]


@given(
    rule=st.sampled_from(["adapt", "hydrozoa", "kungfu", "nitro"]),
    numbers=st.lists(st.tuples(*[st.floats(allow_nan=True, allow_infinity=True)] * 3), max_size=12),
    maximum=st.integers(1, 64),
    mode=st.sampled_from(["paper", "artifact"]),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_rules_keep_within_the_width_and_remember(
    rule: str, numbers: list[tuple[float, ...]], maximum: int, mode: str, data: st.DataObject
) -> None:
    width = Limits(maximum, data.draw(st.integers(1, maximum)), 1, (maximum,))
    options = scaling_of(rule, target=10.0, window=3, mode=mode)
    scaling, resumed = register.scaling[rule](options, width), register.scaling[rule](options, width)
    ended = False
    for k, (reward, low, high) in enumerate(numbers, 1):
        probe = (low, high, 10.0, 100.0)[: 2 if rule == "nitro" else 4]
        scaling.observe(seen(k, reward=reward, probe=probe))
        ended = ended or reward >= 10.0
        assert scaling.finished == ended
        assert scaling.actors == 0 if scaling.finished else width.minimum <= scaling.actors <= maximum
        # What is saved is all there is.
        again = register.scaling[rule](options, width)
        again.restore(resumed.state())
        again.observe(seen(k, reward=reward, probe=probe))
        resumed = again
        assert resumed.actors == scaling.actors
