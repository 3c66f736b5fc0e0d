"""Files that hold something else than they should: configurations of runs, own config files, schedulers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from scenarios import scheduler
from settings import complaint

from stellaris_jax import ConfigError, load_config, load_policy
from stellaris_jax.config.stored import from_yaml, to_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.scaling import Scheduler

DAMAGED = {
    "binary": bytes(range(128, 256)),
    "zeros": bytes(100),
    "another encoding": "name: Gänge".encode("latin-1"),
    "holds itself": b"name: &a [*a]",
    "holds itself, deeper": b"env: {kwargs: &k {x: *k}}",
    "nested deeply": b"[" * 10_000,
    "a list": b"- 1",
    "a number": b"3",
    "no key": b"null: 3",
    "half a reference": b"name: '${'",
    "an endless integer": b"softsync_c: " + b"9" * 5000,
    "two documents": b"name: a\n---\nname: b",
    "code": b"name: !!python/object/apply:os.getcwd []",
}


@pytest.mark.parametrize("damage", list(DAMAGED))
def test_configuration_of_a_run(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(DAMAGED[damage])
    for use in (from_yaml, lambda _: load_config([f"resume={tmp_path}"]), lambda _: load_policy(tmp_path)):
        with pytest.raises(ConfigError) as caught:
            use(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", list(DAMAGED))
def test_own_config_file(damage: str, tmp_path: Path) -> None:
    for name in ("mine", "other"):  # only the one that is chosen matters
        path = tmp_path / "system" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(DAMAGED[damage])
    load_config(["system=async"], tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_config(["system=mine"], tmp_path)
    message = str(caught.value)
    assert "mine.yaml" in message or "system." in message


def test_nothing_is_looked_up_for_the_configuration_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run directory may be somebody else's: it does not get to read this process's environment."""
    monkeypatch.setenv("SECRET", "7")
    for text, key in [
        ("run: {name: '${oc.env:SECRET}'}", "run.name"),
        ("seed: ${oc.env:SECRET}", "seed"),
        ("env: {kwargs: {a: [x, {b: '${oc.env:SECRET}'}]}}", "env.kwargs.a.b"),
        ("seed: ???", "seed"),
    ]:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        with pytest.raises(ConfigError, match=rf"config\.yaml: {key} must be a value"):
            from_yaml(path)
    assert load_config(["seed=${oc.env:SECRET}"]).seed == 7  # one's own command line may


@pytest.mark.parametrize("text", ["env: 3", "env: [1]", "env: null", "delays: {learner: constant}"])
def test_groups_that_are_values(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"(env|delays\.learner) is a group of keys"):
        from_yaml(path)


def test_every_prefix_of_a_configuration_is_refused(tmp_path: Path) -> None:
    """Also where it ends between two lines: what is missing is not what the defaults are."""
    path, text = tmp_path / "config.yaml", to_yaml(Config())
    lines = [i + 1 for i, character in enumerate(text[:-1]) if character == "\n"]
    for end in (*range(0, len(text) - 10, 97), *lines[:: len(lines) // 40], lines[-1]):
        path.write_text(text[:end])
        with pytest.raises(ConfigError) as told:
            from_yaml(path)
        assert str(path) in str(told.value)
    path.write_text(text)
    assert from_yaml(path) == Config()


def arrays(**changes: object) -> dict:
    layers = scheduler()
    found: dict = {f"k{i}": kernel for i, kernel in enumerate(layers.kernels)}
    found |= {f"b{i}": bias for i, bias in enumerate(layers.biases)} | changes
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize(
    "changes",
    [
        {"k0": np.zeros((3, 16), np.float32)},
        {"k1": np.zeros((15, 16), np.float32)},
        {"b1": np.zeros((16, 1), np.float32)},
        {"b2": np.zeros(5, np.float32)},
        {"b2": np.zeros((), np.float32)},
        {"k2": np.full((16, 4), np.nan, np.float32)},
        {"k2": np.zeros((16, 4), complex)},
        {"k2": np.array([["a"] * 4] * 16)},
        {"k2": np.array([[None] * 4] * 16)},
        {"k2": np.zeros((16, 0), np.float32), "b2": np.zeros(0, np.float32)},
        {"k1": None, "b1": None},
        dict.fromkeys(("k0", "k1", "k2", "b0", "b1", "b2")),
    ],
)
def test_arrays_that_are_no_scheduler(changes: dict, tmp_path: Path) -> None:
    path = tmp_path / "scheduler.npz"
    np.savez(path, **arrays(**changes))
    job = ["scaling=minionsrl", "scaling.target=1", "scaling.budget=1"]
    message = complaint(*job, f"scaling.options.scheduler={path}")
    assert f"scaling.options.scheduler={path} is not a scheduler" in message


@pytest.mark.parametrize("damage", ["binary", "zeros", "text", "nothing", "array", "truncated", "flipped", "directory"])
def test_files_that_are_no_scheduler(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "scheduler.npz"
    scheduler().save(path)
    whole = path.read_bytes()
    if damage == "directory":
        path.unlink()
        path.mkdir()
    elif damage == "array":
        with path.open("wb") as file:
            np.save(file, np.zeros((8, 4)))
    else:
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 0xFF
        content = {"text": b"a scheduler", "nothing": b"", "truncated": whole[: len(whole) // 2], "flipped": flipped}
        path.write_bytes(content.get(damage) or DAMAGED.get(damage, b""))
    with pytest.raises(ConfigError, match="is not a scheduler") as caught:
        Scheduler.load(path)
    assert str(path) in str(caught.value)


def test_scheduler_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.npz"
    scheduler().save(path)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(ConfigError, match="is not a scheduler"):
        Scheduler.load(path)
