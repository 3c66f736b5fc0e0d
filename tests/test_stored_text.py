"""Texts kept in the user's cache: the same as composed ones, and never those of something else."""

from __future__ import annotations

from pathlib import Path

import pytest

import stellaris_jax as sj
from stellaris_jax.base.registry import register
from stellaris_jax.cli import stored_text
from stellaris_jax.cli.stored_text import stored
from stellaris_jax.cli.train import main
from stellaris_jax.cli.train_help import help_text
from stellaris_jax.config.compose import compose_config


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the user's cache, with sources of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sources = tmp_path / "package"
    sources.mkdir()
    (sources / "rules.py").write_text("ROOT = 3\n")
    monkeypatch.setattr(stored_text, "PACKAGE", sources)
    monkeypatch.setattr(register, "is_extended", lambda: False)
    return tmp_path / "stellaris_jax"


class Maker:
    """Makes texts, and counts them."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> str:
        self.made += 1
        return f"text {self.made}\nwith a second line\n"


def test_a_text_is_made_anew_when_what_it_is_made_from_changes(cache: Path) -> None:
    make = Maker()
    first = stored("page", "80 columns", make)
    assert stored("page", "80 columns", make) == first and make.made == 1
    assert stored("page", "60 columns", make) != first and make.made == 2
    (cache.parent / "package" / "rules.py").write_text("ROOT = 4.\n")
    stored("page", "60 columns", make)
    assert make.made == 3
    (cache.parent / "package" / "new.yaml").write_text("")
    stored("page", "60 columns", make)
    assert make.made == 4


@pytest.mark.parametrize("damage", [b"", b"x" * 200, None])
def test_a_damaged_file_is_replaced(cache: Path, damage: bytes | None) -> None:
    make = Maker()
    stored("page", "", make)
    path = cache / "page"
    path.write_bytes(path.read_bytes()[:-1] if damage is None else damage)
    assert stored("page", "", make).startswith("text 2") and stored("page", "", make).startswith("text 2")


@pytest.mark.parametrize("obstacle", ["file for a folder", "folder for a file", "no home"])
def test_a_text_that_cannot_be_kept_is_printed(cache: Path, obstacle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if obstacle == "file for a folder":
        cache.write_text("mine")
    elif obstacle == "folder for a file":
        (cache / "page").mkdir(parents=True)
    else:
        monkeypatch.setattr(stored_text, "cache_folder", lambda: None)
    make = Maker()
    assert [stored("page", "", make)[:6] for _ in range(2)] == ["text 1", "text 2"]
    assert not cache.is_file() or cache.read_text() == "mine"


def test_what_is_registered_from_outside_is_in_the_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")

    def told() -> str:
        main(["--help"])
        return capsys.readouterr().out

    before = told()
    monkeypatch.setattr(register.rule, "_entries", dict(register.rule._entries))
    monkeypatch.setattr(register.rule, "_places", dict(register.rule._places))

    @sj.register.rule("outsider")
    class Outsider(sj.Rule):
        """Rule from outside."""

        share: float = sj.knob(0.5, "share of the strangers", within="(0, 1]")

    assert register.is_extended()
    assert "share of the strangers" not in before and "share of the strangers" in told()
    assert told().rstrip("\n") == help_text(compose_config())
