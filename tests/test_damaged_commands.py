"""Runs with values that training does not write: every command ends with a result or a sentence, never a traceback."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import call
from sweeps import SMALL

from stellaris_jax import load_config
from stellaris_jax.config.stored import to_yaml
from stellaris_jax.execute.run import train
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.timeline import trace

CASES: dict[str, tuple[str, str, Any]] = {
    "dollars that are text": ("metrics.jsonl", "cost_usd", "much"),
    "dollars of a seed that are text": ("metrics.jsonl", "per_seed.cost_usd", ["much"]),
    "actors that are null": ("metrics.jsonl", "per_seed.actors", [None]),
    "no actors": ("metrics.jsonl", "per_seed.actors", []),
    "actors without end": ("metrics.jsonl", "per_seed.actors", [1e300]),
    "a count that is text": ("metrics.jsonl", "staleness_counts", ["a", {}]),
    "counts that are a number": ("metrics.jsonl", "staleness_counts", 3),
    "a gate that is a list": ("metrics.jsonl", "gate", [1]),
    "a round that is text": ("metrics.jsonl", "round", "one"),
    "a return that is a mapping": ("metrics.jsonl", "per_seed.train_return", {"a": 1}),
    "dollars of the summary that are text": ("summary.json", "cost_usd", "much"),
    "items that are text": ("summary.json", "cost_items_usd", {"actor_busy": "much"}),
    "a return of the summary that is a list": ("summary.json", "eval_return_mean", [1]),
    "returns of the summary that are text": ("summary.json", "eval_return_per_seed", ["much"]),
    "versions that are a list": ("summary.json", "versions", [1]),
    "a failure that is a list": ("summary.json", "failure", [1]),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("sound") / "run"
    train(load_config([*SMALL, f"run.dir={run_dir}"]))
    return run_dir


def unsealed(document: dict[str, Any]) -> None:
    """Turn a line of metrics or a summary into one of an earlier version, which has no checks."""
    document.pop("check", None)
    document.pop("integrity", None)


def change(document: Any, key: str, value: Any) -> None:
    """Set a value by its path, if the document has one."""
    *path, last = (int(part) if part.isdigit() else part for part in key.split("."))
    for name in path:
        document = document[name]
    if last in document:
        document[last] = value


def rewrite(path: Path, *edits: Callable[[dict[str, Any]], object]) -> None:
    """Apply edits to a JSON document, or to every line of metrics."""
    texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    documents = [json.loads(text) for text in texts]
    for document in documents:
        for edit in edits:
            edit(document)
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))


CALLS: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "runs": lambda run: ("runs.py", run.parent),
    "report": lambda run: ("report.py", run),
    "plot": lambda run: ("plot.py", run, "--out", run.parent / "plot.png"),
    "trace": lambda run: ("plot.py", "--trace", run.parent / "trace.json", run),
    "evaluate": lambda run: ("evaluate.py", run, "--episodes", 2),
    "export": lambda run: ("export.py", run, "--to", "stablehlo", "--out", run.parent / "policy.stablehlo"),
}
READERS = ("runs", "report", "plot", "trace")
"""Commands that need no policy."""


def output(command: str, run_dir: Path) -> str:
    """All that a command prints; it ends with a result, or with one error, never with a traceback."""
    name, *arguments = CALLS[command](run_dir)
    done = call(str(name), *arguments)
    assert "Traceback" not in done.stderr, f"{command}: {done.stderr}"
    assert done.returncode in (0, 1, 2)
    assert done.stderr.count("error: ") == (done.returncode != 0), done.stderr
    return done.stdout + done.stderr


def copied(run_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_dir, tmp_path / "runs" / "run"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sealed", [True, False])
def test_values_of_other_kinds(case: str, sealed: bool, sound: Path, tmp_path: Path) -> None:
    run_dir = copied(sound, tmp_path)
    if not sealed:
        rewrite(run_dir / "metrics.jsonl", unsealed)
        rewrite(run_dir / "summary.json", unsealed)
    file, key, value = CASES[case]
    rewrite(run_dir / file, lambda document: change(document, key, value))
    printed = {command: output(command, run_dir) for command in READERS}
    if sealed:
        assert "damage: " in printed["runs"]
        assert any(word in printed["report"] + printed["plot"] for word in ("damaged", "not as the run left it"))


@pytest.mark.parametrize("kind", ["binary", "null", "directory", "list"])
def test_every_command_names_a_broken_configuration(kind: str, sound: Path, tmp_path: Path) -> None:
    run_dir = copied(sound, tmp_path)
    path = run_dir / "config.yaml"
    text = path.read_text()
    path.unlink()
    if kind == "directory":
        path.mkdir()
    else:
        path.write_text({"binary": text.replace("seed: 0", "seed: !!binary AAAA"), "null": "", "list": "- 1"}[kind])
    for command in CALLS:
        assert str(path) in output(command, run_dir) or command in ("report", "plot")


# A live run ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a live run that its timeline is drawn from."""
    run_dir = tmp_path_factory.mktemp("live")
    config = load_config([*SMALL, "system.learners=2", "executor=live", "live.actors=2"])
    trainer = Trainer(config.replace({"live.pool": "threads"}))
    records = trainer.run()
    trainer.write(run_dir)
    trainer.close()
    (run_dir / "config.yaml").write_text(to_yaml(config))
    lines = [json.dumps({"kind": "round", **record}, default=lambda value: value.tolist()) for record in records]
    (run_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return run_dir


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rolls.0.start", None), ("rolls.0.actor", "a"), ("rolls", 3), ("groups.0.second", "late"),
        ("groups.0.gradients.0.staleness", None), ("groups.0.gradients", []), ("usage.seconds", "much"),
        ("usage.learner_busy", None), ("groups.0.weights", None), ("groups.0.published", {}), ("dropped", [1]),
    ],
)  # fmt: skip
def test_traces_with_other_values(key: str, value: Any, lived: Path, tmp_path: Path) -> None:
    run_dir = copied(lived, tmp_path)
    with gzip.open(run_dir / trace.NAME, "rt") as file:
        header, *rounds = [json.loads(line) for line in file]
    change(rounds[0], key, value)
    with gzip.open(run_dir / trace.NAME, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in [header, *rounds])
    for command in READERS:
        output(command, run_dir)
