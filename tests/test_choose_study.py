"""Study of choose: regrets and coverage of planted results, and pairs that can run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stellaris_jax.many.choose.arms import Space
from stellaris_jax.many.choose.building import candidates
from studies.choose.figures import outcome, random_search
from studies.choose.pairs import FRESH, JUDGING, PAIRS, SPACE
from studies.choose.runs import OPTIONS, Full


def planted() -> Full:
    """Two rates of async, the default system, the best, which takes 10 s on every seed, and one learner's two rates."""
    values = [[seconds] * 8 for seconds in (20.0, 15.0, 30.0, 10.0, 50.0, 40.0)]
    names = ["async", "async", "Stellaris", "KL gate", "one learner", "one learner"]
    return Full(names, [1e-3, 3e-3, 1e-3, 1e-3, 1e-3, 3e-3], values, [8] * 6, 100.0)


def answer(name: str, rate: float, low: float, high: float) -> dict[str, Any]:
    judged = {"name": name, "learning_rate": rate, "low": low, "high": high}
    other = {"name": "Stellaris", "learning_rate": 1e-3, "low": 31.0, "high": 35.0}
    baselines = [{"name": "one learner", "learning_rate": 1e-3, "low": None, "high": None}]
    return {"results": [judged, other, *baselines], "confirmed": {"low": 14.0, "high": 16.0}, "processor_seconds": 8.0}


def test_regrets_of_planted_results() -> None:
    own = outcome(PAIRS[0], planted(), answer("async", 3e-3, 13.5, 15.5))
    assert (own.regret, own.tuned_async, own.default, own.cost) == pytest.approx((0.5, 0.5, 2.0, 0.08))
    assert own.baselines == pytest.approx(0.25), "50 s at the judged rate of one learner, 40 at the other"
    assert own.best == ("KL gate", 1e-3) and own.best_seconds == pytest.approx(10.0)
    assert (own.covered, own.judged) == (2, 3), "15 lies in both intervals of the choice, 30 not in that of Stellaris"


def test_random_search_gets_better_with_its_budget() -> None:
    draw = np.random.default_rng(0)
    values = np.exp(draw.normal(size=(30, 1)) + 0.1 * draw.normal(size=(30, 8)))
    regrets = [random_search(values, cost, 300) for cost in (0.01, 0.05, 0.25)]
    assert regrets == sorted(regrets, reverse=True) and regrets[-1] < 0.1 < regrets[0]


@pytest.mark.parametrize("pair", [JUDGING[0], PAIRS[-1]], ids="-".join)
def test_thirty_candidates_can_run(pair: Any) -> None:
    tried, refused = candidates(pair.overrides, Space.read(SPACE), OPTIONS)
    assert len(tried) == 30 and not refused
    searched = {own.config.seed + seed for own in tried for seed in range(own.config.num_seeds)}
    assert not searched & set(FRESH)
    assert len({own.config.total_steps for own in tried}) == 1
