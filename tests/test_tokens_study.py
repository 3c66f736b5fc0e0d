"""Study of token tasks: its cells can run, and its claims are those of planted outcomes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from study_helpers import empty_study

from stellaris_jax.execute.loading import load_config
from studies import outcomes
from studies.claims import Claim
from studies.outcomes import DATA, DROPPED, POINTS, Key, Outcome
from studies.tokens import figures
from studies.tokens.cells import BATCHES, CLIP, LADDER, LEVELS, METHODS, NONE, Cell, places


def planted(cell: Cell, seed: int) -> Outcome:
    """GSPO is as good on old data as on fresh ones; others lose with lag, those without a correction most."""
    best = 3e-4 if cell.level == 0 else 3e-5
    away = math.log10(float(cell.rate) / best) ** 2 / 4.0
    lost = {NONE: 0.6, "GSPO": 0.0}.get(cell.method, 0.3) * math.log2(1 + cell.level) / 8.0
    share = max(0.0, 0.9 - away - lost + 0.01 * math.sin(7.0 * seed + len(cell.method)))
    curve = np.minimum(np.arange(POINTS + 1) / 4.0, 1.0) * share
    if cell.method == NONE and cell.level == 256:
        curve[-6:] = 0.0  # collapses at the end
    data = (1.0,) * len((*DATA, *DROPPED))
    signals = ((0.5,) * POINTS,) * len(cell.signals)
    return Outcome(cell, seed, tuple(curve), tuple(range(POINTS + 1)), 1.0, 0.0, data, "x", signals)


@pytest.mark.parametrize("method", METHODS)
def test_cells_can_run(method: str) -> None:
    configs = [load_config([*Cell("methods", "addition", method, level, "1e-4").variant.overrides]) for level in LEVELS]
    assert {config.rounds for config in configs} == {BATCHES}
    assert [config.system.data_admission_options["lag"] for config in configs] == list(LEVELS)
    assert all(config.algorithm.advantage == "group" or config.algorithm.name in ("grpo", "gspo") for config in configs)


def test_places_have_settings_of_their_own() -> None:
    every = places("addition")
    assert len({place._replace(rate="1e-4").variant.digest for place in every}) == len(METHODS) * len(LEVELS)


def test_outcomes_are_read_as_written(tmp_path: Path) -> None:
    cell = Cell("methods", "addition", CLIP, 8, "1e-4")
    ends = [round(point * BATCHES / POINTS) for point in range(POINTS + 1)]
    records = [
        {
            "fragments_dropped": 0,
            "simulated_seconds": 2.0 * row,
            "env_steps": 8.0 * row,
            "entropy": float(row),
            "kl": None,
        }
        for row in range(1, BATCHES + 1)
    ]
    known = outcomes.outcome(cell, 3, records, np.linspace(0.25, 0.75, POINTS + 1).tolist(), ends)
    assert known.signal("entropy")[[0, 1]].tolist() == [10.5, 30.5] and np.isnan(known.signal("kl")).all()
    path = tmp_path / "addition.csv.gz"
    outcomes.enter([known], path)
    read = outcomes.read(path, Cell)[cell, 3]
    np.testing.assert_allclose(read.signals, known.signals, rtol=1e-3)
    assert read.config == known.config and read.seconds == pytest.approx(known.seconds)


def test_claims_of_planted_outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "digest", lambda cell: "x")

    def trained(keys: list[Key]) -> list[Outcome]:
        return [planted(cell, seed) for cell, seed in keys]  # type: ignore[arg-type]

    monkeypatch.setattr(outcomes, "trained", trained)
    study = empty_study(tmp_path)
    claims: list[Claim] | None = figures.methods(study)
    assert claims is not None
    verdicts = {claim.claim.removesuffix(" (paired)").partition(": ")[2]: claim.verdict for claim in claims}
    fresh = "learns more from fresh completions than from those 64 updates old"
    assert verdicts[f"{CLIP} {fresh}"] == "holds" and verdicts[f"GSPO {fresh}"] == "not shown"
    of_old = [claim for claim in claims if "64 updates old: GSPO learns more than" in claim.claim]
    assert len(of_old) == 2 and {claim.verdict for claim in of_old} == {"holds"}
    rows = (study.results / "figure_methods.csv").read_text().splitlines()
    assert len(rows) == 1 + len(METHODS) * len(LEVELS) and study.picture("methods").is_file()
    cells = {tuple(row.split(",")[1:4]): row.split(",") for row in rows[1:]}
    assert cells[CLIP, "0", "3e-4"] and cells[CLIP, "64", "3e-5"], "the best learning rates are found"
    assert cells[NONE, "256", "3e-5"][-1] == "8" and cells[CLIP, "256", "3e-5"][-1] == "0"
    assert "3e-4" in LADDER
