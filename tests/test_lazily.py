"""Modules that are imported when something of them is first used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stellaris_jax.envs.lazy_imports import lazily


def test_a_module_is_loaded_when_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "picture_of_a_pipe.py").write_text("import builtins\nbuiltins.pipes = 1\nCOLOUR = 'brown'\n")
    (tmp_path / "painter.py").write_text("import picture_of_a_pipe as pipe\nfrom json import dumps\n")
    monkeypatch.syspath_prepend(tmp_path)
    import builtins

    with lazily("picture_of_a_pipe", "no_such_module_anywhere", "json"):
        import painter  # type: ignore[import-not-found]
    assert not hasattr(builtins, "pipes") and "picture_of_a_pipe" not in sys.modules
    assert painter.dumps([1]) == "[1]"  # what was loaded already is left alone
    assert painter.pipe.COLOUR == "brown" and builtins.pipes == 1
    import picture_of_a_pipe  # type: ignore[import-not-found]

    assert picture_of_a_pipe.COLOUR == "brown"
    monkeypatch.delattr(builtins, "pipes")


def test_a_package_is_loaded_with_its_first_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package_of_pipes"
    package.mkdir()
    (package / "__init__.py").write_text("LENGTH = 3\n")
    (package / "lead.py").write_text("COLOUR = 'grey'\n")
    (tmp_path / "plumber.py").write_text(
        "import package_of_pipes.lead as lead\nfrom package_of_pipes import lead as same\n"
    )
    (tmp_path / "thief.py").write_text("from package_of_pipes import gold\n")
    monkeypatch.syspath_prepend(tmp_path)
    with lazily("package_of_pipes.lead"):
        import plumber  # type: ignore[import-not-found]

        with pytest.raises(ImportError, match="gold"):
            import thief  # type: ignore[import-not-found]  # noqa: F401
    assert not {"package_of_pipes", "package_of_pipes.lead"} & {*sys.modules}
    assert plumber.lead is plumber.same and plumber.lead.COLOUR == "grey"
    import package_of_pipes  # type: ignore[import-not-found]

    assert package_of_pipes.LENGTH == 3 and package_of_pipes.lead.COLOUR == "grey"
