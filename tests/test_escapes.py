"""Escapes of the gate in studies, and claims as a README shows them."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
from study_helpers import CENTRAL, TASK

from stellaris_jax.execute.loading import load_config
from stellaris_jax.timeline import Timeline
from studies import gate
from studies.claims import less, more, undecided
from studies.history import Series
from studies.store import Learned
from studies.study import Study, reproduce
from studies.training import Variant

GATED = Variant("toy/stellaris", (*TASK, "system=stellaris", "system.rule_options.decay=0.5"))
SERIES = [Series("Stellaris", "toy", GATED), Series("same", "toy", GATED), Series("central", "toy", CENTRAL)]


def learned(variant: Variant, seeds: int) -> list[Learned]:
    return [Learned(variant.name, seed, (5, 10), (1.0, 2.0), (0.0, 0.0)) for seed in range(seeds)]


def test_escapes_are_those_of_the_timelines() -> None:
    """A group has escaped if its mean staleness was above the threshold."""
    row = gate.escapes("2", SERIES[0], learned(GATED, 2))
    assert row is not None and gate.escapes("2", SERIES[2], learned(CENTRAL, 2)) is None
    counted = np.zeros(4, int)
    config = load_config([*GATED.overrides])
    for seed in range(2):
        timeline = Timeline.of(config, seed)
        for round_ in range(10):
            for group in timeline.next_round().groups:
                stale = sum(gradient.staleness for gradient in group.gradients) / len(group.gradients)
                escaped = group.threshold is not None and stale > group.threshold
                late = round_ >= 5
                counted += [1, escaped, late, late and escaped]
    assert (row.seeds, row.groups, row.escapes, row.late_groups, row.late_escapes) == (2, *counted)
    assert 0 < row.shares["share"] < row.shares["late_share"] <= row.shares["late_gradient_share"] <= 1


def test_a_file_keeps_what_is_not_made_anew(tmp_path: Path) -> None:
    path, row = tmp_path / "gate.csv", gate.Escapes("2", "old", "a", 5, 100, 50, 40, 30, 80, 70)
    gate.write([], path)
    assert not path.exists(), "a study without a gate"
    gate.write([row, gate.Escapes("2", "toy", "outdated", 5, 1, 1, 1, 1, 1, 1)], path)
    new = [gate.Escapes("2", "toy", name, 5, 200, 50, 100, 40, 200, 120) for name in ("b", "c")]
    gate.write(new, path)
    assert gate.read(path) == [row, *new]
    with open(path, newline="") as file:
        shares = [(line["share"], line["late_share"], line["late_gradient_share"]) for line in csv.DictReader(file)]
    assert shares[:2] == [("0.5", "0.75", "0.875"), ("0.25", "0.4", "0.6")]
    lines = gate.table(path, ["2"])
    assert lines[-3:] == [
        "| toy | 2: b, c | 5 | 200 | 50 | 25 % | 40 % | 60 % |",
        "",
        "[gate.csv](gate.csv)",
    ]
    assert gate.table(path, ["3"]) == []


def test_a_readme_says_which_verdicts_survive_and_how_often_the_gate_did_not(tmp_path: Path) -> None:
    class Made(Study):
        def learned(self, variants, seeds):  # type: ignore[no-untyped-def]
            return {variant: learned(variant, len(seeds)) for variant in variants}

    def figure(study: Study):  # type: ignore[no-untyped-def]
        study.histories("2", SERIES, 2)
        (study.results / "claims_1.csv").write_text("claim,paper,ours,verdict\nearlier,a,b,holds\n")
        low = np.arange(1.0, 6.0)
        no = [more(f"no {i}", "", low, low) for i in range(4)]
        return [more("far", "", low + 30, low), less("just", "", low, low + 2.5), *no,
                more("few", "", [30.0, 31.0], [1.0, 2.0]), undecided("unknown", "", "nothing")]  # fmt: skip

    reproduce(Made(tmp_path / "runs", tmp_path), {"1": figure, "2": figure}, ["2"])
    text = (tmp_path / "README.md").read_text()
    verdicts = {cells[2].strip(): cells[6].strip() for line in text.splitlines() if len(cells := line.split("|")) == 8}
    assert verdicts["far"] == "**holds**" and verdicts["just"] == "holds" and verdicts["no 3"] == "not shown"
    assert verdicts["unknown"] == "not shown" and verdicts["few"] == "holds, few seeds"
    assert "| 1 | earlier | a | b |  | holds, no test |" in text
    assert re.findall(r"Of \d+ verdicts \d+ survive", " ".join(text.split())) == ["Of 2 verdicts 1 survive"]
    assert "| toy | 2: Stellaris, same | 2 |" in text and "central" not in text
    header = (tmp_path / "claims_2.csv").read_text().splitlines()[0]
    assert header == "claim,paper,ours,n,p,p_holm,verdict,survives,effect,size"
