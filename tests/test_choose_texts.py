"""Words of a choice and of a search whose seeds do not all reach the target: no penalty is told as a measurement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stellaris_jax.many import judge
from stellaris_jax.many.choose import texts
from stellaris_jax.many.choose.answer import Answer, Rate
from stellaris_jax.many.choose.objective import PENALISED, Goal
from stellaris_jax.many.choose.verdict import Judged, Scaling, Timing, differences

TIMING = Timing(*[1.0] * len(Timing._fields))


def judged(name: str, values: list[float], reached: int) -> Judged:
    return Judged(0, name, 0.001, values, reached, [400.0] * len(values), TIMING)


def answer(*results: Judged, measure: str = "seconds", **more: Any) -> Any:
    arms = [SimpleNamespace(arm=SimpleNamespace(name=own.name, baseline=own.name != "async")) for own in results]
    rate = Rate([0.0001, 0.001, 0.01], 1.0, "")
    choice = SimpleNamespace(candidates=arms, refused={}, options=SimpleNamespace(target=400.0))
    given = {"goal": Goal(measure, 400.0), "results": list(results), "choice": choice, "confirmed": None}
    given["rate"] = lambda own: rate
    return SimpleNamespace(**given | more)


BEST = judged("async", [20.0, 22.0, 21.0, 20.5], 4)
PENALTY = [200.0] * 3


@pytest.mark.parametrize(
    ("other", "said", "unsaid"),
    [
        (judged("all-reduce", [30.0, 33.0, 31.0, 32.0], 4), "times as fast as all-reduce (", "twice the longest"),
        (judged("all-reduce", [30.0, *PENALTY], 1), "(1 of 4 seeds reached it)", "never"),
        (judged("all-reduce", [200.0, *PENALTY], 0), "all-reduce never reached the target", "times as fast"),
    ],
)
def test_a_baseline_that_does_not_arrive(other: Judged, said: str, unsaid: str) -> None:
    asked = answer(BEST, other)
    line = texts._against(asked, differences(asked.results, asked.goal))
    assert said in line and unsaid not in line
    assert ("counts twice the longest run" in line) == (other.reached != 4)


def test_numbers_of_learners_that_do_not_arrive() -> None:
    scalings = [Scaling(2, [20.0, 22.0], 1.0, 2), Scaling(4, [18.0, 200.0], 3.0, 1)]
    line = texts._staleness(answer(BEST, scalings=scalings), BEST)
    assert "at the same learning rate" in line and "(1 of 2 seeds reached it)" in line and PENALISED in line


def test_dollars_are_not_seconds() -> None:
    line = texts._use(answer(judged("async", [1.0, 2.0, 2.0, 3.0], 3), measure="dollars"), BEST)
    assert "second" not in line and "on the seeds that chose it" in line


@pytest.mark.parametrize(
    ("there", "said", "unsaid"),
    [
        ((5, 5), "; difference ", "never"),
        ((4, 5), "(4 of 5 seeds reached it)", "never"),
        ((4, 0), "untuned never reached", "difference"),
    ],
)
def test_a_search_whose_seeds_do_not_arrive(there: tuple[int, int], said: str, unsaid: str) -> None:
    values = [[10.0, 11.0, 12.0, 10.0, 80.0], [80.0] * 5]
    sentence = judge._sentence(5, values, there, Goal("seconds", 400.0))
    assert said in sentence and unsaid not in sentence
    assert ("counts twice the longest run" in sentence) == (there != (5, 5))


@pytest.mark.parametrize(
    ("rungs", "rate", "said"),
    [
        ([[0, 1, 2, 3]], 0.001, "the learning rate of all-reduce was chosen after 11 % of the steps"),
        ([[0, 1, 2, 3], [0, 1, 2], [0, 1, 2]], 0.001, ""),
        (
            [[0, 1, 2, 3], [0, 1, 2], [0, 1]],
            0.001,
            "the learning rate of all-reduce was chosen after 33 % of the steps",
        ),
        ([[0, 1, 2, 3], [0, 1, 2], [0, 1, 2]], 0.01, "the learning rate of all-reduce is the highest of 3 tried."),
        ([[0, 1]], 0.001, "the learning rate of all-reduce is the only one tried"),
    ],
)
def test_a_ratio_says_how_the_learning_rate_of_a_baseline_was_chosen(
    rungs: list[list[int]], rate: float, said: str
) -> None:
    config = SimpleNamespace(rounds=270, evaluation=SimpleNamespace(points=27))
    rates = {"async": [0.001], "all-reduce": [0.001, 0.01, 0.0001]}
    found = [
        SimpleNamespace(arm=SimpleNamespace(name=name, baseline=name != "async"), learning_rate=one, config=config)
        for name, own in rates.items()
        for one in own
    ]
    for other in (judged("all-reduce", [30.0, 33.0, 31.0, 32.0], 4), judged("all-reduce", [200.0, *PENALTY], 0)):
        asked = answer(BEST, other._replace(learning_rate=rate), rungs=rungs)
        asked.choice.candidates, asked._candidate = found, found.__getitem__
        asked.rate = lambda own, asked=asked: Answer.rate(asked, own)
        line = texts._against(asked, differences(asked.results, asked.goal))
        assert said in line and ("Baselines may do better" in line) == bool(said)
