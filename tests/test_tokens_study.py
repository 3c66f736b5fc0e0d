"""Study of token tasks: its cells can run, and its claims are those of planted outcomes."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from study_helpers import empty_study

from stellaris_jax.execute.loading import load_config
from studies import outcomes
from studies.claims import Claim
from studies.outcomes import DATA, DROPPED, POINTS, Key, Outcome
from studies.study import Study
from studies.tokens import figures
from studies.tokens.cells import (
    CLIP,
    DECOUPLED,
    GSPO,
    LADDER,
    METHOD,
    METHODS,
    NONE,
    QUESTIONS,
    SIGNALS,
    Cell,
    places,
)
from studies.tokens.collapse import separation
from studies.tokens.measures import seconds_to, updates_to
from studies.tokens.published import PUBLISHED
from studies.tokens.scale import held_out


def planted(cell: Cell, seed: int) -> Outcome:
    """GSPO, large decoupled PPO and small PPO's clip are as good on old data as on fresh ones; others lose with lag.

    Runs at a rate of 1e-3 collapse after half of them, and have had a high `kl` from the beginning. Dropped completions
    took longer, and were right as often.
    """
    best = 3e-4 if cell.level == 0 else 3e-5
    away = math.log10(float(cell.rate) / best) ** 2 / 4.0
    lost = (
        {NONE: 0.6, GSPO: 0.0, f"{DECOUPLED}, 5M": 0.0, f"{CLIP}, 50k": 0.0}.get(cell.method, 0.3)
        * math.log2(1 + cell.level)
        / 8.0
    )
    share = max(0.0, 0.9 - away - lost + 0.01 * math.sin(7.0 * seed + len(cell.method)))
    curve = np.minimum(np.arange(POINTS + 1) / 4.0, 1.0) * share
    ends = cell.rate == "1e-3" or (cell.method == NONE and cell.level == 256)
    if ends:
        curve[-6:] = 0.0
    told = {"fragments_dropped_slowness": 1.2 + 0.01 * (seed % 3), "fragments_dropped_return": 0.01 * (seed % 3 - 1)}
    data = tuple(told.get(name, 1.0) for name in (*DATA, *DROPPED))
    kl = 2.0 if ends else 1.0
    signals = tuple((kl if name == "kl" else 0.5,) * POINTS for name in SIGNALS)
    rounds = tuple(outcomes.parts_of(QUESTIONS[cell.question].batches))
    return Outcome(cell, seed, rounds, tuple(curve), tuple(range(POINTS + 1)), 1.0, 0.0, data, "x", signals)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setattr(outcomes, "digest", lambda cell: "x")

    def trained(keys: list[Key]) -> list[Outcome]:
        return [planted(cell, seed) for cell, seed in keys]  # type: ignore[arg-type]

    monkeypatch.setattr(outcomes, "trained", trained)
    return empty_study(tmp_path)


def verdicts(claims: list[Claim] | None) -> dict[str, str]:
    assert claims is not None
    return {claim.claim.removesuffix(" (paired)"): claim.verdict for claim in claims}


@pytest.mark.parametrize("question", QUESTIONS)
def test_cells_can_run(question: str) -> None:
    every = [place._replace(rate="1e-4") for place in places(question)]
    configs = [load_config([*cell.variant.overrides]) for cell in every]
    assert {config.rounds for config in configs} == {QUESTIONS[question].batches}
    assert len({cell.variant.digest for cell in every}) == len(every), "places have settings of their own"
    for cell, config in zip(every, configs, strict=True):
        assert cell.level in config.system.data_admission_options.values()
        assert config.algorithm.advantage == "group" or config.algorithm.name in ("grpo", "gspo")


def test_outcomes_are_read_as_written(tmp_path: Path) -> None:
    cell = Cell(METHOD, "addition", CLIP, 8, "1e-4")
    batches = QUESTIONS[METHOD].batches
    ends = [round(point * batches / POINTS) for point in range(POINTS + 1)]
    rows = range(1, batches + 1)
    records = [
        {
            "fragments_dropped": 0,
            "simulated_seconds": 2.0 * row,
            "env_steps": 8.0 * row,
            "entropy": float(row),
            "kl": None,
        }
        for row in rows
    ]
    known = outcomes.outcome(cell, 3, records, np.linspace(0.25, 0.75, POINTS + 1).tolist(), ends)
    assert known.signal("entropy")[[0, 1]].tolist() == [10.5, 30.5] and np.isnan(known.signal("kl")).all()
    path = tmp_path / "addition.csv.gz"
    outcomes.enter([known], path)
    read = outcomes.read(path, Cell)[cell, 3]
    np.testing.assert_allclose(read.signals, known.signals, rtol=1e-3)
    assert read.config == known.config and read.seconds == pytest.approx(known.seconds)
    assert read.rounds == known.rounds == tuple(ends)


def test_claims_of_methods(study: Study) -> None:
    claims = figures.methods(study)
    found = {text.partition(": ")[2]: verdict for text, verdict in verdicts(claims).items()}
    fresh = "learns more from fresh completions than from those 64 updates old"
    assert found[f"{CLIP} {fresh}"] == "holds" and found[f"{GSPO} {fresh}"] == "not shown"
    assert claims is not None
    of_old = [claim for claim in claims if f"64 updates old: {GSPO} learns more than" in claim.claim]
    assert len(of_old) == 2 and {claim.verdict for claim in of_old} == {"holds"}
    with (study.results / "figure_methods.csv").open() as file:
        rows = {(row["method"], row["lag"]): row for row in csv.DictReader(file)}
    assert len(rows) == len(places(METHOD)) and study.picture("methods").is_file()
    fresh, old = rows[CLIP, "0"], rows[CLIP, "256"]
    assert fresh["rate"] == "3e-4" and rows[CLIP, "64"]["rate"] == "3e-5", "the best learning rates are found"
    assert rows[NONE, "256"]["collapsed"] == "8" and old["collapsed"] == "0"
    # Fresh completions have 0.75 right at the fourth of twenty evaluations; 0.9 is never reached with old ones.
    assert (fresh["updates_to_75"], fresh["seconds_to_75"], fresh["seeds_to_75"]) == ("80", "4", "8")
    assert (old["updates_to_90"], old["seconds_to_90"], old["seeds_to_90"]) == ("", "", "0")
    assert "3e-4" in LADDER and len(METHODS) == 12


def test_a_way_counts_if_more_than_half_of_the_seeds_arrive() -> None:
    cell = Cell(METHOD, "addition", CLIP, 8, "1e-4")
    runs = [planted(cell, 0)._replace(returns=(0.0,) * (POINTS - late) + (0.8,) * (1 + late)) for late in (0, 1, 2)]
    ways = [updates_to(run, 0.75) for run in runs]
    assert ways == [400, 380, 360] and [updates_to(run, 0.9) for run in runs] == [math.inf] * 3
    assert seconds_to(runs[2], 0.75) == POINTS - 2


def test_claims_of_asynchrony(study: Study) -> None:
    found = verdicts(figures.admission(study))
    slow = "tail, bound of 1 batches: dropped completions take longer than used ones, as a share of all"
    right = "tail, bound of 1 batches: dropped completions are right more often than used ones"
    assert found[slow] == "holds" and found[right] == "not shown"
    assert "holds" in {verdict for text, verdict in found.items() if "as much as dropping" in text}
    assert [*verdicts(figures.flight(study)).values()] == ["not shown"] * 4
    assert len(verdicts(figures.mismatch(study))) == 2 * (4 * 2 + 2 * 3)
    assert {text.partition(":")[0].partition(",")[0] for text in verdicts(figures.tasks(study))} == {
        "sort",
        "countdown",
    }
    assert len(verdicts(figures.young(study))) == 2 * (4 + 3 + 2), "each against fresh ones, no correction, the clip"
    assert len(verdicts(figures.between(study))) == 2 * (2 + 1), "no correction was not trained at these ages"
    assert len(verdicts(figures.renewal(study))) == 3 * 2 + 2, "each beside the clip and TIS, and 16 beside 1 and 4"
    assert (study.results / "figure_renewal.csv").is_file()
    for figure in ("admission", "flight", "mismatch", "tasks", "young", "between"):
        assert study.picture(figure).is_file() and (study.results / f"figure_{figure}.csv").is_file()


def test_what_announces_a_collapse(study: Study) -> None:
    found = verdicts(figures.announced(study))
    assert found["after a quarter of a run, a high kl announces a later collapse (area under the ROC curve)"] == "holds"
    assert found["after half of a run, a low ess announces a later collapse (area under the ROC curve)"] == "not shown"


def test_separation_has_an_interval_over_places() -> None:
    random = np.random.default_rng(0)
    places = np.repeat(np.arange(40), 4)
    events = random.random(160) < 0.3
    told = separation(events + 0.1 * random.random(160), events, list(places))
    assert told.area == told.low == told.high == 1.0
    noise = separation(random.random(160), events, list(places))
    assert noise.low < 0.5 < noise.high and noise.low < noise.area < noise.high


def test_published_claims(study: Study) -> None:
    found = verdicts(figures.claimed(study))
    assert len(found) == len(PUBLISHED) + 5
    assert found["64 updates old, A-3PO learns as much as decoupled PPO"] == "holds"
    assert found["VCPO learns as much from completions 64 updates old as from fresh ones"] == "reversed"
    assert found["8 updates old, GSPO learns more than GRPO"] == "holds"
    rate = "the best learning rate is lower on completions 64 updates old than on fresh ones"
    assert found[f"{rate}, in powers of ten, over methods"] in ("holds", "not shown")


def test_claims_of_scale(study: Study) -> None:
    found = verdicts(figures.FIGURES["scale"](study))
    assert len(found) == 3 * (2 + 3) + 2, "of each size, and each method's loss at the largest beside the smallest"
    old = "64 updates old: decoupled learns more than PPO clip"
    assert found[f"5M parameters, {old}"] == "holds" and found[f"50k parameters, {old}"] == "reversed"
    fresh = "PPO clip learns more from fresh completions than from those 64 updates old"
    assert found[f"500k parameters: {fresh}"] == "holds"


def test_a_seed_has_the_rate_that_is_best_on_others() -> None:
    def run(share: float) -> Outcome:
        return planted(Cell(METHOD, "addition", CLIP, 0, "1e-4"), 0)._replace(returns=(share,) * (POINTS + 1))

    runs = {"1e-4": [run(0.5), run(0.5), run(0.9)], "3e-4": [run(0.6), run(0.6), run(0.1)]}
    np.testing.assert_allclose(held_out(runs), [0.5, 0.5, 0.1])
