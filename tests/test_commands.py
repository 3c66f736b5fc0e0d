"""Commands that are printed work where the user is."""

from __future__ import annotations

import os
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from commands import REPOSITORY

from stellaris_jax.base import commands
from stellaris_jax.base.commands import command, localised
from stellaris_jax.cli.main import main


def script(text: str) -> Path:
    """The script that a printed command calls."""
    python, path, *_ = shlex.split(text)
    assert python == "python"
    return Path(path)


def test_scripts_are_named_from_where_the_user_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert command("train") == "python scripts/train.py"
    for place in (tmp_path, REPOSITORY / "stellaris_jax", REPOSITORY.parent):
        monkeypatch.chdir(place)
        for name in commands.COMMANDS:
            assert os.path.samefile(script(command(name)), REPOSITORY / "scripts" / script(command(name)).name)
    monkeypatch.chdir("/")
    monkeypatch.setattr(commands, "PACKAGE", tmp_path / "a checkout" / "stellaris_jax")
    assert "/" / script(command("train")) == tmp_path / "a checkout" / "scripts" / "train.py"


def test_every_command_is_localised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in commands.COMMANDS:
        assert localised(f"see `stellaris-jax {name} --help`") == f"see `{command(name)} --help`"


@pytest.mark.parametrize("module", [False, True])
def test_every_command_is_listed(
    module: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["stellaris-jax", "--help"])
    if module:
        runpy.run_module("stellaris_jax", run_name="__main__")
    else:
        main()
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert listed == list(commands.COMMANDS)
