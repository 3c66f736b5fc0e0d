"""The index of all claims: it is what the results say, and every figure of it can be made."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import call

from studies.claims import corrected, less, more, write_claims
from studies.index import PAPERS, index, module_of
from studies.main import PAPERS as CHOICES

RESULTS = Path(__file__).parents[1] / "results"


def test_the_index_is_up_to_date() -> None:
    assert (RESULTS / "README.md").read_text() == index(RESULTS), "python scripts/reproduce.py index"


def test_every_study_is_in_it() -> None:
    assert tuple(PAPERS) == CHOICES
    for paper, about in PAPERS.items():
        assert (RESULTS.parent / about.settings).exists()
        for name, figure in module_of(paper).FIGURES.items():
            assert (getattr(figure, "func", figure).__doc__ or "").strip(), f"{paper} {name} says what it is"


def test_claims_stand_with_command_and_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far, near = [10.0, 11.0, 12.0, 11.0, 12.0], [1.0, 2.0, 3.0, 2.0, 1.0]
    for study in ("map", "stellaris"):
        (tmp_path / study).mkdir()
    claims = [more("wide", "AReaL: it is so", far, near), less("narrow", "–", near, near)]
    claims.append(less("wrong", "–", far, near))
    write_claims(corrected(claims), tmp_path / "map" / "claims_lag.csv")
    done = call("reproduce.py", "index", "--results", tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "README.md").read_text()
    head, _, rest = text.partition("## Stellaris")
    assert "| AReaL: it is so | wide |" in head and "narrow" not in head
    assert "No figure has been made yet." in rest
    assert "`python scripts/reproduce.py map --figure lag` | 3 | 1 (**1**) | 1 | 1 (**1**) |" in rest
    assert rest.count("| lag | ") == 4
