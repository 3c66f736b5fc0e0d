"""Rounding, missing values and finished seeds change neither claims nor recorded values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from drawn import legend, saved_figures
from host_env import Clockwork
from study_helpers import made_up

from stellaris_jax import Trainer, load_config
from stellaris_jax.base.errors import RunError
from stellaris_jax.base.statistics import paired, welch
from stellaris_jax.envs.registry import register
from studies.claims import (
    COMPATIBLE,
    EXCLUDED,
    HOLDS,
    OPEN,
    REVERSED,
    corrected,
    equal,
    fact,
    less,
    more,
    no_less,
    read_claims,
    sooner,
    undecided,
    write_claims,
)
from studies.history import History, alike
from studies.pictures import WIDEST, claims_overview
from studies.stellaris.study import RATES, tuned
from studies.store import Learned
from studies.study import Study
from studies.training import Variant

register("test/clockwork", Clockwork)


def test_a_claim_that_is_alone_survives_if_it_holds() -> None:
    """Also where its p-value is 0.05 once it is rounded to three figures."""
    b = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    low, high = 0.0, 10.0
    for _ in range(60):  # the shift of which Welch's p-value is 0.0499
        shift = (low + high) / 2
        p = scipy.stats.ttest_ind(b + shift, b, equal_var=False).pvalue
        low, high = (shift, high) if p > 0.04997 else (low, shift)
    claim = more("", "", b + high, b)
    (alone,) = corrected([claim])
    assert (claim.verdict, alone.verdict, alone.survives) == (HOLDS, HOLDS, True)
    assert alone.p == alone.p_holm == 0.05
    (*_, among) = corrected([more("", "", b, b), claim])
    assert among.survives is False


def test_claims_of_earlier_versions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "claims_1.csv"
    write_claims([more("", "", [2.0, 3.0, 4.0], [1.0, 1.5, 2.0])], path)
    (claim,) = read_claims(path)
    path.write_text(path.read_text().replace("survives,effect", "survives,toward"))
    assert read_claims(path) == [claim] and claim.effect is not None


def test_the_size_of_the_papers_difference() -> None:
    """Excluded where the paper's ratio lies outside the interval, whatever the verdict; nothing without two figures."""
    b = np.array([10.0, 11.0, 9.0, 10.5, 9.5])
    a = np.array([11.0, 9.5, 10.5, 9.0, 10.0])
    assert [more("", paper, a, b).size for paper in ("10 against 9.9", "297 against 230", "1.3 times", "–", "")] == [
        COMPATIBLE,
        EXCLUDED,
        EXCLUDED,
        "",
        "",
    ]
    assert more("", "297 against 230", a, b).verdict == OPEN
    assert less("", "$1.00 against $2.00", a / 2, b, "$").size == COMPATIBLE
    assert less("", "1 s against 4 s", a / 2, b, " s").size == EXCLUDED
    assert more("", "2 against 1", [1.0], [1.0]).size == "" and more("", "2 against 0", a, b).size == ""


@pytest.mark.parametrize("ratio", [1.1, 1.3])
def test_a_papers_size_is_excluded_by_chance_in_a_twentieth(ratio: float) -> None:
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(ratio, 0.2, 5), rng.normal(1.0, 0.1, 5)) for _ in range(2000)]
    share = np.mean([more("", f"{ratio} times", a, b).size == EXCLUDED for a, b in pairs])
    assert 0.035 < share < 0.065


def test_only_tested_verdicts_are_bold() -> None:
    claims = [more("", "", np.arange(5.0) + 9.0, np.arange(5.0)), fact("", "", "", True), fact("", "", "", False)]
    shown = [claim.shown_verdict for claim in corrected(claims)]
    assert shown == ["**holds**", "holds, no test", "reversed, no test"]
    assert claims[0].shown_verdict == "holds" and undecided("", "", "").shown_verdict == OPEN


def test_few_seeds_are_said() -> None:
    few, enough = (more("", "", np.arange(n) + 90.0, np.arange(float(n))) for n in (4, 5))
    assert [claim.shown_verdict for claim in corrected([few, enough])] == ["holds, few seeds", "**holds**"]
    sized = [replace(claim, size=EXCLUDED) for claim in (few, enough)]
    assert [claim.shown_size for claim in sized] == ["excluded, few seeds", "excluded"]
    assert replace(few, verdict=OPEN, size=EXCLUDED).shown_size == "excluded, few seeds", "whatever the verdict"
    assert more("", "", np.arange(4.0), np.arange(4.0)).shown_verdict == OPEN
    assert more("", "", np.ones(1), np.zeros(1)).shown_verdict == "no test, one seed"


def test_how_far_toward_the_paper(tmp_path: Path) -> None:
    """In halves of the interval: one where it just holds, the other way round for less, and the same from the file."""
    low, high = np.arange(5.0), np.arange(5.0) + 4.0
    claims = [more("", "", high, low), less("", "", high, low), more("", "", low, low), fact("", "", "", True)]
    difference, half, _ = welch(high, low)
    assert [claim.effect for claim in claims] == pytest.approx([difference / half, -difference / half, 0.0, None])
    assert (claims[0].verdict == HOLDS) == (difference / half > 1.0)
    assert more("", "", [1.0] * 5, [0.0] * 5).effect is None, "nothing has a spread"
    write_claims(corrected(claims), tmp_path / "claims_1.csv")
    assert [claim.effect for claim in read_claims(tmp_path / "claims_1.csv")] == pytest.approx(
        [float(f"{difference / half:.3g}"), -float(f"{difference / half:.3g}"), 0.0, None]
    )


def test_all_claims_at_one_glance(tmp_path: Path) -> None:
    """A row per figure that has any, a mark per claim: filled if its verdict survives."""
    low, high = np.arange(5.0), np.arange(5.0) + 4.0
    claims = {
        "1": corrected([more("", "", high, low), less("", "", high, low), more("", "", low, low)]),
        "2": corrected([more("", "", high + 1e3, low)]),
        "3": [fact("", "", "", True)],
    }
    claims["1"][0] = replace(claims["1"][0], survives=False)
    with saved_figures() as figures:
        assert claims_overview(claims, tmp_path / "claims.png", "All") == tmp_path / "claims.png"
    (axes,) = figures["claims.png"].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1 (3)", "2 (1)"]
    marks = [line for line in axes.lines if line.get_marker() not in ("None", None)]
    assert [line.get_markerfacecolor() == "none" for line in marks] == [True, False, False, False]
    assert marks[3].get_xdata()[0] == WIDEST
    assert legend(figures["claims.png"]) == ["holds", "not shown", "reversed", "does not survive, or not corrected"]
    assert claims_overview({"3": claims["3"]}, tmp_path / "none.png", "None") is None


@pytest.mark.parametrize(("a", "b"), [([0.1 + 0.2] * 5, [0.3] * 5), ([0.3] * 5, [0.1 + 0.2] * 2 + [0.3] * 3)])
def test_rounding_is_no_difference(a: list[float], b: list[float]) -> None:
    """Dollars of two systems without spread, added up in another order."""
    claim = more("", "", a, b)
    assert (claim.verdict, claim.p, claim.ours) == (OPEN, 1.0, "0.300 ± 0 against 0.300 ± 0: +0 ± 0")


def test_what_has_no_spread_still_differs() -> None:
    assert welch([500.0] * 5, [499.0] * 5) == (1.0, 0.0, 0.0)
    narrow = np.array([1.0, 1.0 + 1e-6, 1.0 - 1e-6])
    expected = scipy.stats.ttest_ind(narrow, narrow + 1e-6, equal_var=False)
    assert welch(narrow, narrow + 1e-6)[2] == pytest.approx(expected.pvalue, rel=1e-6)


@pytest.mark.filterwarnings("error")
def test_a_claim_about_nothing_is_not_shown() -> None:
    claim = more("", "", [], [1.0, 2.0])
    assert (claim.verdict, claim.p, claim.survives) == (OPEN, None, None)


def test_runs_that_take_the_same_time_are_compared_at_their_end() -> None:
    """The mean of five equal figures may be smaller than each of them."""
    second = next(x for x in np.linspace(1, 2, 1000) if np.mean([x] * 5) < x)

    def curve(level: float) -> list[History]:
        seconds = np.linspace(0.1, 1.0, 10) * second
        return [replace(made_up("toy", "a", seed, level), seconds=seconds) for seed in range(5)]

    a, b = curve(100.0), curve(50.0)
    ends = [[history.final_return for history in one] for one in (a, b)]
    assert [*alike(a, b, "seconds")] == ends


@dataclass(frozen=True)
class Diverging(Study):
    """A grid of learning rates: those in `finite` end at their own learning rate, the others at no number."""

    finite: tuple[str, ...] = ()

    def learned(self, variants: Iterable[Variant], seeds: range) -> dict[Variant, list[Learned]]:
        def value(variant: Variant) -> float:
            rate = load_config([*variant.overrides]).algorithm.learning_rate
            return rate if any(rate == float(known) for known in self.finite) else float("nan")

        return {one: [Learned(one.name, s, (1, 2), (1.0, value(one)), (0.0, 0.0)) for s in seeds] for one in variants}


def test_a_rate_that_diverged_is_not_the_best() -> None:
    _, small, large = RATES["ppo"]  # the first one, which is tried first, is not finite
    best = tuned(Diverging(Path("runs"), Path("results"), finite=(small, large)), "hopper", "async")
    assert load_config([*best.overrides]).algorithm.learning_rate == float(large)
    with pytest.raises(RunError, match=r"none of hopper/ppo-async, .* ends with a finite return"):
        tuned(Diverging(Path("runs"), Path("results")), "hopper", "async")


def test_the_age_of_data_is_that_of_seeds_that_have_data() -> None:
    """With overlap a fragment is one round old: four versions, however many seeds have spent their budget."""
    config = load_config(
        [
            "env.name=test/clockwork",
            "env.num_envs=4",
            "env.overlap=true",
            "network.hidden=[4]",
            "algorithm.rollout_length=4",
            "algorithm.epochs=1",
            "algorithm.minibatches=4",
            "system=async",
            "system.learners=2",
            "system.truncation=none",
            "delays=lognormal",
            "delays.learner.options.sigma=2",
            "scaling.budget=1",
            "evaluation.episodes=0",
            "total_steps=1600",
            "num_seeds=2",
            "seed=1",
        ]
    )
    trainer = Trainer(config)
    records = trainer.run()
    trainer.close()
    alone = [record for record in records if min(record["per_seed"]["actors"]) == 0]
    assert len(alone) > 2
    assert [record["actor_staleness"] for record in records] == [0.0] + [4.0] * (len(records) - 1)


def test_equal_is_shown_within_a_margin_only() -> None:
    a = np.array([1.00, 1.02, 0.98, 1.01, 0.99])
    wide = np.array([0.2, 1.8, 0.6, 1.5, 0.9])
    for near in (a + 0.01, a - 0.01):
        assert equal("", "", a, near, 0.1).verdict == equal("", "", near, a, 0.1).verdict == "holds"
    for far in (a + 0.5, a - 0.5):
        assert equal("", "", a, far, 0.1).verdict == "reversed"
    assert equal("", "", a, wide, 0.1).verdict == "not shown", "nothing is shown by noise"
    # Two one-sided tests: the 95 % interval must lie within the margin on both sides.
    difference, half, _ = welch(a + 0.05, a)
    for margin, verdict in ((difference + half + 1e-6, "holds"), (difference + half - 1e-6, "not shown")):
        claim = equal("", "", a + 0.05, a, margin)
        assert claim.verdict == verdict and "margin" in claim.ours and "+0.0500" in claim.ours
    assert equal("", "", np.add(a, [0.3, 0.31, 0.29, 0.3, 0.32]), a, 0.1, test=paired).verdict == "reversed"


def test_what_never_arrives_is_last() -> None:
    """Ranks of eight runs a side: without ties their p-value is that of the exact test."""
    never, soon, late = [np.inf] * 8, list(range(1, 9)), list(range(11, 19))
    claim = sooner("in time", "–", soon, never)
    assert (claim.verdict, claim.ours) == (HOLDS, "reached by 8 of 8 against 0 of 8 seeds (ranks)")
    assert claim.p < 0.001 and sooner("", "–", never, soon).verdict == REVERSED
    assert sooner("", "–", [*soon[:4], *never[:4]], [*late[:4], *never[:4]]).verdict == OPEN
    assert sooner("", "–", never, never).verdict == OPEN
    exact = sooner("", "–", soon, late)
    assert exact.verdict == HOLDS and exact.p == pytest.approx(2 / math.comb(16, 8))


def test_no_less_up_to_a_margin() -> None:
    a, b = [0.9, 1.0, 1.1, 1.0, 1.0], [1.0, 1.1, 1.05, 0.95, 1.1]
    assert no_less("", "", a, b, 0.3).verdict == "holds"
    assert no_less("", "", a, b, 0.0).verdict == "not shown"
    below = no_less("a", "p", np.subtract(a, 1.0), b, 0.3)
    assert below.verdict == "reversed" and below.effect is not None and below.effect < -1
    assert "against" in below.ours and below.ours.endswith("(margin 0.300)")
