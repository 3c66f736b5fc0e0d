"""Identity of compiled programs: everything that they are made from is told, and nothing else."""

from __future__ import annotations

import cProfile
import os
import sys
import time
from pathlib import Path
from types import ModuleType

import jax
import pytest
from commands import REPOSITORY

from stellaris_jax import load_config
from stellaris_jax.engine import program_identity as identity
from stellaris_jax.engine.program_identity import Code, Untold, foreign_modules, text_of
from stellaris_jax.engine.spec import ProgramSpec


def test_a_changed_source_or_package_changes_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, installed = tmp_path / "package", tmp_path / "site-packages"
    (package / "engine").mkdir(parents=True)
    (installed / "optax-0.2.5.dist-info").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "engine" / "loss.py").write_text("CLIP = 0.2")
    (installed / "gymnax" / "environments").mkdir(parents=True)
    for name in ("__init__.py", "environments/cartpole.py"):
        (installed / "gymnax" / name).write_text("GRAVITY = 9.8")
    monkeypatch.syspath_prepend(installed)
    monkeypatch.delitem(sys.modules, "gymnax", raising=False)
    monkeypatch.setattr(identity, "TRACED", ("gymnax",))
    monkeypatch.setattr(identity.stellaris_jax, "__file__", str(package / "__init__.py"))
    monkeypatch.setattr(identity, "_installed", lambda: (str(installed),))
    digests = []

    def told(imported: float = 10.0) -> Code | None:
        """Code of a process that imported it so many seconds from now."""
        monkeypatch.setattr(identity.stellaris_jax, "IMPORTED", time.time() + imported)
        code: Code | None = identity.code.__wrapped__()
        digests.append(code.digest if code else None)
        return code

    before = told()
    assert before is not None and before.is_current()
    (package / "engine" / "loss.py").write_text("CLIP = 0.3")
    assert not before.is_current()
    told()
    (installed / "optax-0.2.5.dist-info").rename(installed / "optax-0.2.6.dist-info")
    told()
    (installed / "gymnax" / "environments" / "cartpole.py").write_text("GRAVITY = 3.0")
    told()
    (installed / "sitecustomize.py").write_text("")
    told()
    assert len({*digests}) == 5 and None not in digests
    for name in (package / "engine" / "loss.py", installed / "gymnax" / "__init__.py"):
        os.utime(name, (1, 1))  # as `cp -p` and `tar` leave it
        assert told(-10.0) is None, "it was written after it was imported"


def test_floats_of_options_are_inputs_and_all_else_is_told() -> None:
    def text(*overrides: str) -> str:
        return text_of(ProgramSpec.of(load_config([*overrides])))

    assert text() == text("algorithm.options.clip=0.3") == text("algorithm.learning_rate=0.1", "seed=7")
    different = ["algorithm=sapo", "algorithm.minibatches=2", "num_seeds=2 engine.members=together", "system=async"]
    texts = [text(), *(text(*overrides.split()) for overrides in different)]
    assert len({*texts}) == len(texts)


def test_modules_of_nobody_installed_are_foreign() -> None:
    assert __name__ in foreign_modules()
    assert not {"jax", "numpy", "json", "stellaris_jax", "stellaris_jax.engine.program"} & {*foreign_modules()}


def test_only_our_own_commands_may_be_the_main_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers, such as `python -m cProfile`, and workers run somebody's code under that name."""
    command = tmp_path / "venv" / "stellaris-jax"
    command.parent.mkdir()
    command.touch()
    (tmp_path / "stellaris-jax").symlink_to(command)
    monkeypatch.chdir(command.parent)
    ours = [REPOSITORY / "scripts" / "train.py", Path(identity.__file__), command, tmp_path / "stellaris-jax"]
    theirs = [Path(cProfile.__file__), Path(pytest.__file__), tmp_path / "own.py", None]
    for places, foreign in ((ours, False), (theirs, True)):
        for place in places:
            main = ModuleType("__main__")
            main.__file__ = place and str(place)
            monkeypatch.setitem(sys.modules, "__main__", main)
            assert ("__main__" in foreign_modules()) is foreign, place


def test_classes_of_the_main_module_cannot_be_told() -> None:
    with pytest.raises(Untold, match="Mine has no module"):
        text_of(type("Mine", (), {"__module__": "__main__"}))


@pytest.mark.parametrize("name, matters", [("jax_log_compiles", False), ("jax_use_hlo_logistic_lowering", True)])
def test_only_settings_that_change_programs_are_told(name: str, matters: bool, request: pytest.FixtureRequest) -> None:
    before, text = jax.config.values[name], identity.surroundings()
    request.addfinalizer(lambda: jax.config.update(name, before))
    jax.config.update(name, not before)
    assert (identity.surroundings() != text) is matters
