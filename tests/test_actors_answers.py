"""Answers of the study of asynchronous actors: each says what its claims carry, and no more."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from study_helpers import empty_study

from studies import panels as pictures
from studies.actors import answers, figures, texts
from studies.actors.cells import LADDER, TASKS
from studies.claims import HOLDS, OPEN, REVERSED, Claim, read_claims
from studies.study import Study, reproduce

BestRate = Callable[[float], float]


def claim(text: str, verdict: str, ours: str = "1.00 ± 0.1 against 0.900 ± 0.1: +0.100 ± 0.05") -> Claim:
    return Claim(text, "–", ours, "8", 0.001, 0.01, verdict, None if verdict == OPEN else True)


def rates(
    study: Study, monkeypatch: pytest.MonkeyPatch, best: BestRate, noise: float = 0.01
) -> tuple[str, list[Claim]]:
    """Page and claims of `rates`, where areas are parabolas in the logarithm of the learning rate around the best."""

    def areas(_: Study, task: str) -> tuple[list[str], np.ndarray]:
        draw = np.random.default_rng(len(task))
        ladder = np.log([float(rate) for rate in LADDER])
        rows = [0.9 - 0.07 * (ladder - np.log(best(float(lag)))) ** 2 for lag in TASKS[task].rate_lags]
        return list(LADDER), np.array(rows)[..., None] + draw.normal(0.0, 0.01, (len(rows), len(LADDER), 16))

    monkeypatch.setattr(figures, "_areas", areas)
    reproduce(study, figures.FIGURES, ["rates"], figures.finish)
    text = " ".join((study.results / "README.md").read_text().split())
    return text, read_claims(study.results / "claims_rates.csv")


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return empty_study(tmp_path)


@pytest.mark.parametrize("edge", [0.0, 1.0, 2.0, 4.0])
def test_a_true_law_is_not_published_as_refuted(study: Study, monkeypatch: pytest.MonkeyPatch, edge: float) -> None:
    """Constant up to a crossover and 1 / (1 + lag) beyond: its slope over all lags is not −1, and need not be."""
    text, claims = rates(study, monkeypatch, lambda lag: 1.6e-2 * min(1.0, (1.0 + edge) / (1.0 + lag)))
    assert "more slowly than 1 / (1 + lag) on" not in text and "faster than 1 / (1 + lag) on" not in text
    assert "a fall as 1 / (1 + lag) beyond a crossover is not ruled out on 3 of 3 tasks" in text
    assert "An exponent of −1 is the law" not in text and all("−1" not in claim.paper for claim in claims)
    falls, slower, steepens = (claims[start::3] for start in range(3))
    assert {claim.verdict for claim in falls} == {HOLDS} and not any(claim.survives for claim in slower)
    assert {bool(claim.survives) for claim in steepens} == {edge > 0.0}, "a constant before tells it from a power law"
    (row,) = [line for line in answers.block("rates", study.results).splitlines() if line.startswith("| crossover")]
    for cell in row.split("|")[2:5]:
        value, low, high = (float(number) for number in re.findall(r"[\d.]+", cell))
        assert low <= value <= high and value == pytest.approx(edge, abs=0.3)


def test_a_power_law_is_published_as_one(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    text, claims = rates(study, monkeypatch, lambda lag: 1.6e-2 * (1.0 + lag) ** -0.5)
    assert (
        "ruled out on 3 of 3 tasks: it falls more slowly than 1 / (1 + lag) on cartpole, acrobot and breakout" in text
    )
    assert not any(claim.survives for claim in claims[2::3]), "it does not steepen"
    assert "beyond | – | – | – |" in text.replace("; the largest lag: none was reached", "")


def test_a_steeper_fall_is_published_as_one(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    text, _ = rates(study, monkeypatch, lambda lag: 3e-2 * (1.0 + lag) ** -1.5)
    assert "it falls faster than 1 / (1 + lag) on cartpole, acrobot and breakout" in text


def test_a_rising_best_rate_is_published_as_one(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    text, _ = rates(study, monkeypatch, lambda lag: 2e-3 * (1.0 + lag) ** 0.5)
    assert "shown to rise with data lag on 3 of 3 tasks: cartpole, acrobot and breakout" in text
    assert "more slowly than 1 / (1 + lag) on" not in text and "is not ruled out on" not in text


def test_a_flat_best_rate_is_published_as_one(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    text, claims = rates(study, monkeypatch, lambda lag: 4e-3)
    assert "is not shown to fall or rise with data lag on 3 of 3 tasks" in text
    assert not any(claim.survives for claim in claims)
    assert "a crossover beyond the largest lag" in text and "| exponent beyond a crossover | – | – | – |" in text


def test_a_best_rate_at_the_end_of_the_ladder_is_told(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a limit, not an estimate, and no exponent is published of it."""
    text, claims = rates(study, monkeypatch, lambda lag: 4e-4 / (1.0 + lag))
    assert f"The best learning rate is the smallest of all, {LADDER[0]}" in text and "cartpole at lag 16" in text
    assert "| 16 | ≤ 6.25e-5 | ≤ 6.25e-5 | ≤ 6.25e-5 |" in text
    assert {claim.verdict for claim in claims[1::3]} == {OPEN} and {claim.p for claim in claims[1::3]} == {None}
    row = {"env": "cartpole", "method": "wait", "bound": "1", "rate": LADDER[-1]}
    assert texts.edges([row], "bound") == [
        "The best learning rate is the largest of all, 6.4e-2, for cartpole (wait) at bound 1."
    ]
    assert texts.edges([row | {"rate": "1e-3"}], "bound") == []


def test_one_setting_of_six_gives_no_unconditional_headline() -> None:
    texts = [
        f"{task}, bound {bound}: waiting learns more than dropping, per second (paired)"
        for task in ("cartpole", "acrobot")
        for bound in (0, 1, 2)
    ]

    def headline(*verdicts: str) -> str:
        return answers.bounds([claim(text, verdict) for text, verdict in zip(texts, verdicts, strict=True)], [])[0][0]

    assert headline(HOLDS, *(OPEN,) * 5) == (
        "In some settings: in equal time, waiting for stale data is shown to learn more than dropping them. This is "
        "shown in 1 of 3 comparisons on cartpole and in 0 of 3 on acrobot."
    )
    assert headline(*(HOLDS,) * 6).startswith("Block: ") and headline(*(REVERSED,) * 6).startswith("Discard: ")
    assert headline(*(OPEN,) * 6).startswith("Neither is shown to be better: ")
    assert headline(HOLDS, *(OPEN,) * 4, REVERSED).endswith(
        "in 1 of 3 comparisons on cartpole and in 0 of 3 on acrobot, and the reverse in 0 of 3 and 1 of 3."
    )


def corrections(claims: Sequence[Claim]) -> str:
    lags = {"cartpole": ("0", "1", "2", "4", "8"), "breakout": ("0", "2", "8")}
    rows = [
        {"env": task, "method": method, "lag": lag, "rate": "4e-3", "area_batches": "0.9", "area_batches_ci95": "0.05"}
        for task, levels in lags.items()
        for method in ("PPO", "TIS")
        for lag in levels
    ]
    return " ".join(answers.corrections(claims, rows)[0])


def test_corrections_say_of_how_many_and_drop_nothing() -> None:
    better = "cartpole, lag {}: TIS learns more than PPO (paired)"
    fresh = "{}: PPO learns more from data of lag 0 than of lag {} (paired)"
    text = corrections(
        [
            claim(better.format(1), OPEN),
            claim(better.format(2), REVERSED),
            claim(better.format(8), HOLDS),
            claim(fresh.format("cartpole", 1), OPEN),
            claim(fresh.format("cartpole", 2), REVERSED),
            claim(fresh.format("breakout", 8), HOLDS),
        ]
    )
    assert "shown to learn more than PPO in 1 of 3 comparisons: TIS on cartpole (lag 8)." in text
    assert "shown to learn less than PPO in 1 of 3 comparisons. TIS learns less on cartpole (lag 2)." in text
    assert "On cartpole PPO is shown to learn more from data of a lag of 2 batches than from fresh data" in text
    assert "On breakout PPO is shown to learn less from data of a lag of 8 batches than from fresh data" in text
    assert "TIS replaces PPO's clipped objective" in text
    assert "1 settings" not in text and "lags of 8" not in text
    none = corrections([claim(better.format(1), OPEN), claim(fresh.format("cartpole", 1), OPEN)])
    assert none.startswith("None is shown to be needed: in 0 of 1 comparison a correction")
    assert "On cartpole PPO is not shown to learn less from stale data" in none


def test_pictures_join_no_categories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Admissions have no order, so their points are not joined; both costs of a fetch share a colour."""
    drawn: list[Figure] = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: drawn.append(figure) or path)
    curves = {"cartpole": {"per batch, fetch free": [(1.0, 0.9, 1.1)] * 2, "per batch, fetch 0.13 s": [(1, 1, 1)] * 2}}
    ticks = {"cartpole": ["a", "b"]}
    for joined in (True, False):
        pictures.panels(curves, ticks, "x", "y", tmp_path / "a.png", "title", joined=joined)
    lines = [figure.axes[0].get_lines() for figure in drawn]
    assert [[line.get_linestyle() for line in pair] for pair in lines] == [["-", "--"], ["None", "None"]]
    assert [len({line.get_color() for line in pair}) for pair in lines] == [1, 1]


def test_learning_rates_of_pictures_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of a logarithmic axis are rates of the ladder, not formulas, which are drawn as their source."""
    drawn: list[Figure] = []
    monkeypatch.setattr(pictures, "save", lambda figure, path: drawn.append(figure) or path)
    curves = {"cartpole": {"best rate": [(1.6e-2, 1.2e-2, 2e-2), (3e-3, 1.5e-3, 5e-3)]}}
    pictures.panels(curves, {"cartpole": ["0", "1"]}, "x", "y", tmp_path / "a.png", "title", rates=LADDER)
    (axes,) = drawn[0].axes
    labels = [label.get_text() for label in axes.get_yticklabels(which="both") if label.get_text()]
    assert labels == ["2e-3", "4e-3", "8e-3", "1.6e-2"]
