"""Consent to the code of a run: how it is recorded, and when it is asked for again; see `config.trust`."""

# ruff: noqa: F811  (fixtures are arguments)

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from commands import call
from strangers import (  # noqa: F401
    CODE,
    MARK,
    NAMING,
    SMALL,
    Stranger,
    finished,
    forget,
    names_module,
    names_plugin,
    nobody,
    stranger,
)

from stellaris_jax import ConfigError, load_config, load_policy, train
from stellaris_jax.config import trust
from stellaris_jax.config.stored import from_yaml, to_yaml
from stellaris_jax.config.tree import Config


def test_own_runs_never_ask(tmp_path: Path) -> None:
    """Also after a kill, elsewhere, and with other values of what may change; code that lies beside counts."""
    package = tmp_path / "my_lab_of_trust"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("x = 1\n")
    (package / "rules.py").write_text("from my_lab_of_trust import helper\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        config = load_config([*SMALL, "plugins=[my_lab_of_trust.rules]", "run.dir=own"])
        train(config)

        def opened() -> None:
            for name in [name for name in sys.modules if name.startswith("my_lab_of_trust")]:
                del sys.modules[name]
            load_policy(tmp_path / "moved")

        shutil.move(tmp_path / "own", tmp_path / "moved")
        opened()
        (package / "helper.py").write_text("x = 2\n")
        with pytest.raises(ConfigError, match="or which changed since"):
            opened()


def test_a_run_without_code_needs_no_home(finished: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    (tmp_path / "plugin.py").write_text("")
    train(load_config([*SMALL, "plugins=[plugin.py]", "run.dir=own"]))
    load_policy(finished)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    load_policy(finished)
    assert trust.remember("text", Config(plugins=("other.py",))) == "no home"


def test_the_record_follows_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "state" / "stellaris_jax").mkdir(parents=True)
    (tmp_path / "state" / "stellaris_jax" / "trusted").symlink_to(victim)
    assert trust.remember("text", Config(plugins=("other.py",)))
    assert victim.read_text() == "mine"


def test_a_planted_cache_of_a_plugin_is_not_executed(tmp_path: Path) -> None:
    """Python would take `__pycache__` for the source, if size and time of the source fit."""
    import py_compile

    source = tmp_path / "planted.py"
    source.write_text("raise SystemExit('evil')\n")
    py_compile.compile(str(source))
    stamp = source.stat()
    source.write_text("#".ljust(stamp.st_size - 1) + "\n")
    os.utime(source, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    load_config([f"plugins=[{source}]"])


def test_to_yaml_and_back_keeps_plugins() -> None:
    config = Config(plugins=("/nowhere/at_all.py",))
    path = Path("config.yaml")
    path.write_text(to_yaml(config))
    assert from_yaml(path).plugins == config.plugins  # as data; nothing is looked for


def test_unknown_failures_are_no_consent(stranger: Stranger) -> None:
    """A configuration that is no mapping of ours, or cut off, is refused before anything is asked."""
    names_plugin(stranger)
    text = (stranger.run / "config.yaml").read_text()
    (stranger.run / "config.yaml").write_text(text.replace("resume:", "resum:"))
    with pytest.raises(ConfigError):
        load_policy(stranger.run, trust=True)
    assert not stranger.executed


def test_consent_to_code_is_none_to_services(stranger: Stranger) -> None:
    """Consent to a plug-in is no consent to the tracker beside it."""
    names_plugin(stranger)
    stranger.edit("  loggers: []", "  loggers: [wandb]")
    path = stranger.run / "config.yaml"
    load_policy(stranger.run, trust=[str(stranger.plugin)])
    forget(stranger)
    load_policy(stranger.run)
    with pytest.raises(ConfigError, match=r"connects to run\.loggers=wandb"):
        trust.admit(from_yaml(path), path, training=True)
    # What the command line replaced was not allowed either.
    trust.admit(from_yaml(path).replace({"run.loggers": ()}), path, training=True, typed={"run.loggers"})
    with pytest.raises(ConfigError, match=r"connects to run\.loggers=wandb"):
        trust.admit(from_yaml(path), path, training=True)


def package(folder: Path) -> Path:
    """A package with a module in it, and one behind a link."""
    place = folder / "lab_of_links"
    place.mkdir()
    (place / "__init__.py").write_text("")
    (place / "rules.py").write_text("x = 1\n")
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "deep.py").write_text("x = 1\n")
    (place / "linked").symlink_to(folder / "elsewhere")
    return place


@pytest.mark.parametrize("kind", ["behind a link", "without source", "large", "in a cache"])
def test_every_changed_source_asks_again(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    large = place / "large.py"
    with large.open("w") as file:
        file.truncate(20 * 2**20)
    one = trust.Named("plugins", "lab_of_links.rules")
    before = trust._line(b"text", one)
    stamp = large.stat()
    if kind == "behind a link":
        (tmp_path / "elsewhere" / "deep.py").write_text("x = 2\n")
    elif kind == "without source":
        (place / "bare.pyc").write_bytes(b"code")
    elif kind == "large":
        with large.open("r+b") as file:
            file.write(b"x = 2")
        os.utime(large, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    else:
        (place / "__pycache__").mkdir()
        (place / "__pycache__" / "rules.cpython-312.pyc").write_bytes(b"code")
    assert (trust._line(b"text", one) == before) == (kind == "in a cache")


def test_caches_beside_modules_are_not_used(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    """`__pycache__` may hold other code than its source, so that modules of stored runs are compiled anew."""
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    names_module(stranger)
    load_policy(stranger.run, trust=True)
    assert sys.pycache_prefix == str(trust.state_folder() / "pycache") == os.environ["PYTHONPYCACHEPREFIX"]
    monkeypatch.delenv("PYTHONPYCACHEPREFIX")


def test_a_refusal_can_be_pasted(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(Config(plugins=("a b; touch PWNED #", "--trust"))))
    with pytest.raises(ConfigError, match="--plugin='a b; touch PWNED #' --plugin=--trust or --trust"):
        trust.admit(from_yaml(path), path)


def test_lines_of_the_record_are_unambiguous() -> None:
    lines = {trust._line(text, trust.Named(key, name)) for text, key, name in (
        (b"a", "plugins", "b"), (b"ap", "lugins", "b"), (b"a", "pluginsb", ""), (b"a", "plugins\0b", ""),
    )}  # fmt: skip
    assert len(lines) == 4


CURRENT = """
import sys
from pathlib import Path
Path("executed").touch()
"""


def test_processes_do_not_import_from_the_current_folder(tmp_path: Path) -> None:
    """As a run that is unpacked, with a module that processes look for lying beside it."""
    pytest.importorskip("gymnasium")
    (tmp_path / "multiprocessing").mkdir()
    (tmp_path / "multiprocessing" / "__init__.py").write_text(CURRENT)
    (tmp_path / "stellaris_jax").mkdir()
    (tmp_path / "stellaris_jax" / "__init__.py").write_text(CURRENT)
    from stellaris_jax.envs.registry import make

    pool = make("gymnasium/CartPole-v1", {"vectorization_mode": "async"}).open(1, 0)
    pool.close()
    assert not (tmp_path / "executed").exists()


def test_too_many_seeds_of_a_stored_run_are_refused(stranger: Stranger) -> None:
    stranger.edit("num_seeds: 1", "num_seeds: 1000000000")
    with pytest.raises(ConfigError, match="num_seeds must"):
        load_policy(stranger.run)


def test_own_modules_in_the_current_folder_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that names one searches the folder; opening the run later finds the same module there, or asks."""
    (tmp_path / "own_rules_of_trust.py").write_text("")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    assert call("train.py", *SMALL, "plugins=[own_rules_of_trust]", "run.dir=own").returncode == 0

    def opened() -> object:
        sys.modules.pop("own_rules_of_trust", None)
        monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
        return load_policy("own")

    opened()
    (tmp_path / "own_rules_of_trust.py").write_text("changed = True\n")
    with pytest.raises(ConfigError, match="or which changed since"):
        opened()
