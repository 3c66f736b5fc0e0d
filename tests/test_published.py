"""Numbers of the pages of results beside those that follow from the rows of the studies.

How each is computed stands in `published/`, whose code shares nothing with that of the studies.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from published import (
    actors,
    choices,
    map_equivalence,
    map_methods,
    map_settings,
    off_policy,
    others,
    papers,
    regimes,
    siblings,
    stellaris_time,
    token_actors,
    token_between,
    token_intervals,
    token_sizes,
    tokens,
)
from published import map as map_itself
from published.case import Case, passages_with, states

STUDIES = (
    map_itself,
    map_methods,
    map_settings,
    map_equivalence,
    actors,
    tokens,
    token_between,
    token_sizes,
    token_actors,
    token_intervals,
    off_policy,
    regimes,
    choices,
    papers,
    siblings,
    stellaris_time,
    others,
)
NUMBERS = [
    pytest.param(case, id=f"{study.__name__.removeprefix('published.')}-{number}")
    for study in STUDIES
    for number, case in enumerate(study.CASES)
]


@pytest.mark.parametrize("case", NUMBERS)
def test_a_printed_number_follows_from_the_data(case: Case) -> None:
    passages = passages_with(case.page, case.near)
    assert len(passages) == 1, f"{len(passages)} passages of {case.page} have {case.near!r}"
    assert states(passages[0], case.printed), f"{case.page} has another number than {case.printed!r}: {passages[0]}"
    assert case.computed() == case.printed, f"the data of {case.page} say otherwise: {passages[0]}"


def test_no_case_stands_twice() -> None:
    places = [(study.__name__, case[:3]) for study in STUDIES for case in study.CASES]
    assert [place for place in places if places.count(place) > 1] == []


def test_a_longer_number_is_another_one() -> None:
    assert states("a loss of 0.06 ± 0.02, and 1.0", "0.06 ± 0.02")
    assert not states("10.06 ± 0.02", "0.06 ± 0.02")
    assert not states("−0.06 ± 0.02", "0.06 ± 0.02")
    assert not states("0.06 ± 0.025", "0.06 ± 0.02")


def test_nothing_is_taken_from_the_studies() -> None:
    for path in (Path(__file__).parent / "published").glob("*.py"):
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        assert not {name.partition(".")[0] for name in names} & {"stellaris_jax", "studies"}, path.name
