"""Damaged configurations, schedulers and metrics: each is refused, or left out with a warning, in one sentence."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from damages import CONTENTS, a_directory, cut, flipped
from scenarios import scheduler
from settings import complaint
from telemetry import evaluation_record, open_telemetry, round_record, rounds_in

from stellaris_jax import ConfigError, load_config, load_policy
from stellaris_jax.config.stored import from_yaml, to_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.report.runs import read_run
from stellaris_jax.telemetry.jsonl import read_rows

# Configurations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", CONTENTS)
def test_configuration_of_a_run(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(CONTENTS[damage])
    for use in (from_yaml, lambda _: load_config([f"resume={tmp_path}"]), lambda _: load_policy(tmp_path)):
        with pytest.raises(ConfigError) as caught:
            use(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", CONTENTS)
def test_own_config_file(damage: str, tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    for name in ("mine", "other"):  # only the one that is chosen matters
        (tmp_path / "system" / f"{name}.yaml").write_bytes(CONTENTS[damage])
    load_config(["system=async"], tmp_path)
    with pytest.raises(ConfigError, match=r"mine\.yaml|system\."):
        load_config(["system=mine"], tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: {name: '${oc.env:SECRET}'}", r"config\.yaml: run\.name must be a value"),
        ("seed: ${oc.env:SECRET}", r"config\.yaml: seed must be a value"),
        ("env: {kwargs: {a: [x, {b: '${oc.env:SECRET}'}]}}", r"config\.yaml: env\.kwargs\.a\.b must be a value"),
        ("seed: ???", r"config\.yaml: seed must be a value"),
        ("env: 3", "env is a group of keys"),
        ("env: [1]", "env is a group of keys"),
        ("env: null", "env is a group of keys"),
        ("delays: {learner: constant}", r"delays\.learner is a group of keys"),
    ],
)
def test_values_of_a_configuration_are_plain(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run directory may be a stranger's: it does not get to read this process's environment."""
    monkeypatch.setenv("SECRET", "7")
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        from_yaml(path)
    assert load_config(["seed=${oc.env:SECRET}"]).seed == 7  # a user's own command line may


def test_every_prefix_of_a_configuration_is_refused(tmp_path: Path) -> None:
    """A prefix that ends between two lines is refused, too: defaults do not fill it up."""
    path, text = tmp_path / "config.yaml", to_yaml(Config())
    lines = [i + 1 for i, character in enumerate(text[:-1]) if character == "\n"]
    for end in (*range(0, len(text) - 10, 97), *lines[:: len(lines) // 40], lines[-1]):
        path.write_text(text[:end])
        with pytest.raises(ConfigError) as caught:
            from_yaml(path)
        assert str(path) in str(caught.value)
    path.write_text(text)
    assert from_yaml(path) == Config()


# Schedulers -----------------------------------------------------------------------------------------------------------


def with_arrays(path: Path, **changes: object) -> None:
    """Write a scheduler with other arrays; `None` leaves one out."""
    layers = scheduler()
    arrays: dict = {f"k{i}": kernel for i, kernel in enumerate(layers.kernels)}
    arrays |= {f"b{i}": bias for i, bias in enumerate(layers.biases)} | changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})


def one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros((8, 4)))


ARRAYS: dict[str, dict[str, object]] = {
    "few inputs": {"k0": np.zeros((3, 16), np.float32)},
    "other inputs": {"k1": np.zeros((15, 16), np.float32)},
    "a bias of two axes": {"b1": np.zeros((16, 1), np.float32)},
    "a long bias": {"b2": np.zeros(5, np.float32)},
    "a bias without axes": {"b2": np.zeros((), np.float32)},
    "nan": {"k2": np.full((16, 4), np.nan, np.float32)},
    "complex": {"k2": np.zeros((16, 4), complex)},
    "texts": {"k2": np.array([["a"] * 4] * 16)},
    "objects": {"k2": np.array([[None] * 4] * 16)},
    "no outputs": {"k2": np.zeros((16, 0), np.float32), "b2": np.zeros(0, np.float32)},
    "a missing layer": {"k1": None, "b1": None},
    "no arrays": dict.fromkeys(("k0", "k1", "k2", "b0", "b1", "b2")),
}
SCHEDULERS: dict[str, Callable[[Path], object]] = {
    **{name: partial(with_arrays, **changes) for name, changes in ARRAYS.items()},
    "binary": lambda path: path.write_bytes(CONTENTS["binary"]),
    "zeros": lambda path: path.write_bytes(CONTENTS["zeros"]),
    "text": lambda path: path.write_bytes(b"a scheduler"),
    "nothing": lambda path: path.write_bytes(b""),
    "array": one_array,
    "truncated": lambda path: cut(path, np.random.default_rng(0)),
    "flipped": lambda path: flipped(path, np.random.default_rng(0), 16),
    "directory": lambda path: a_directory(path, np.random.default_rng(0)),
    "unreadable": lambda path: path.chmod(0),
}


@pytest.mark.parametrize("damage", SCHEDULERS)
def test_files_that_are_no_scheduler(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "scheduler.npz"
    scheduler().save(path)
    SCHEDULERS[damage](path)
    if damage == "unreadable" and os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    job = ["scaling=minionsrl", "scaling.target=1", "scaling.budget=1"]
    message = complaint(*job, f"scaling.options.scheduler={path}")
    assert f"scaling.options.scheduler={path} is not a scheduler" in message


# Metrics --------------------------------------------------------------------------------------------------------------

GOOD = [json.dumps(round_record(number)) for number in (1, 2, 3)]


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        '{"kind":"round","round":2,"env_',
        "[" * 100_000,
        "7",
        '{"round":2,"env_steps":4096,"per_seed":{"train_return":[1.0]}}',
        GOOD[1].replace('"kind": "round"', '"kind": "roune"'),
        GOOD[1].replace('"round": 2', '"round": "2"'),
        GOOD[1].replace('"train_return": [', '"train_retusn": ['),
        GOOD[1].replace('"env_steps"', '"env_stepr"'),
        GOOD[1].replace("{", "\x00"),
    ],
    ids=["empty", "torn", "nested", "number", "no kind", "kind", "text", "metric", "key", "zero"],
)
def test_a_damaged_line_is_left_out_with_a_warning(damaged: str, tmp_path: Path) -> None:
    path, notes = tmp_path / "metrics.jsonl", []
    path.write_text("\n".join([GOOD[0], damaged, GOOD[2]]) + "\n")
    assert [record["round"] for record in read_rows(path, notes.append)] == [1, 3]
    assert notes == [f"{path}: line 2 is damaged and left out"]


def test_many_damaged_lines_are_one_message(tmp_path: Path) -> None:
    path, notes = tmp_path / "metrics.jsonl", []
    path.write_bytes(b"\xff\n" + GOOD[0].encode() + b"\n" + b"\xfe\n\xfd\n" + b'{"torn":')
    assert [record["round"] for record in read_rows(path, notes.append)] == [1]
    assert notes == [f"{path}: 3 lines are damaged and left out, the first of them line 1"]


def test_a_resumed_run_writes_no_infinity(tmp_path: Path) -> None:
    """JSON has none, though Python reads it."""
    record = json.dumps(round_record(1, policy_loss=math.inf, grad_norm="?")).replace('"?"', "1e999")
    (tmp_path / "metrics.jsonl").write_text(f"{record}\n{json.dumps(evaluation_record(1))}\n")
    telemetry, _ = open_telemetry(tmp_path, resume_round=1)
    telemetry.close()
    assert [record["round"] for record in telemetry.evaluations] == [1] and rounds_in(tmp_path) == [1, 1]
    assert "Infinity" not in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.parametrize("file", ["config.yaml", "summary.json"])
@pytest.mark.parametrize("content", [b"\x89PNG\xff\xfe", b"{", b"- 1", b"a: &a [*a]", b"[" * 100_000, b"a: *b"])
def test_a_damaged_file_is_left_out_with_a_warning(file: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("\n".join(GOOD) + "\n")
    (tmp_path / file).write_bytes(content)
    notes: list[str] = []
    run = read_run(tmp_path, notes.append)
    assert len(run.rounds) == 3 and (run.config, run.summary) == ({}, None)
    assert notes == [f"{tmp_path / file} is damaged and left out"]
