"""Runs with values that training does not write: every command ends with a result or a sentence, never a traceback."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import call
from sweeps import SMALL

from stellaris_jax import load_config
from stellaris_jax.config.stored import to_yaml
from stellaris_jax.execute.live import LiveTrainer
from stellaris_jax.execute.run import train
from stellaris_jax.live.functions import Functions
from stellaris_jax.live.pool import Threads
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
COMMANDS = ("runs", "report", "plot", "trace", "evaluate", "export")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("sound") / "run"
    train(load_config([*SMALL, f"run.dir={run_dir}"]))
    return run_dir


def unsealed(run_dir: Path) -> None:
    """Files as an earlier version wrote them: nothing tells that they were changed."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["check"]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = json.loads((run_dir / "summary.json").read_text())
    del summary["integrity"]
    (run_dir / "summary.json").write_text(json.dumps(summary))


def changed(document: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for name in path:
        document = document[name]
    if last in document:
        document[last] = value


def run(command: str, run_dir: Path) -> str:
    """Output of a command: no traceback, and a result or one error."""
    calls: dict[str, tuple[object, ...]] = {
        "runs": ("runs.py", run_dir.parent),
        "report": ("report.py", run_dir),
        "plot": ("plot.py", run_dir, "--out", run_dir.parent / "plot.png"),
        "trace": ("plot.py", "--trace", run_dir.parent / "trace.json", run_dir),
        "evaluate": ("evaluate.py", run_dir, "--episodes", 2),
        "export": ("export.py", run_dir, "--to", "stablehlo", "--out", run_dir.parent / "policy.stablehlo"),
    }
    name, *arguments = calls[command]
    done = call(str(name), *arguments)
    assert "Traceback" not in done.stderr, f"{command}: {done.stderr}"
    assert done.returncode in (0, 1, 2)
    assert done.stderr.count("error: ") == (done.returncode != 0), done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sealed", [True, False])
def test_values_of_other_kinds(case: str, sealed: bool, sound: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "run"
    shutil.copytree(sound, run_dir)
    if not sealed:
        unsealed(run_dir)
    file, key, value = CASES[case]
    path = run_dir / file
    if file == "summary.json":
        summary = json.loads(path.read_text())
        changed(summary, key, value)
        path.write_text(json.dumps(summary))
    else:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            changed(line, key, value)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = {command: run(command, run_dir) for command in ("runs", "report", "plot", "trace")}
    if sealed:
        assert "damage: " in told["runs"]
        assert any(word in told["report"] + told["plot"] for word in ("damaged", "not as the run left it"))


@pytest.mark.parametrize("kind", ["binary", "null", "directory", "list"])
def test_every_command_tells_of_a_broken_configuration(kind: str, sound: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "run"
    shutil.copytree(sound, run_dir)
    path = run_dir / "config.yaml"
    text = path.read_text()
    path.unlink()
    if kind == "directory":
        path.mkdir()
    else:
        path.write_text({"binary": text.replace("seed: 0", "seed: !!binary AAAA"), "null": "", "list": "- 1"}[kind])
    for command in COMMANDS:
        assert str(path) in run(command, run_dir) or command in ("report", "plot")


# A live run ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of a live run that its timeline reads."""
    run_dir = tmp_path_factory.mktemp("live")
    config = load_config([*SMALL, "system.learners=2", "executor=live", "live.actors=2"])
    trainer = LiveTrainer(config, make_pool=lambda config, actors: Threads(Functions(config), actors + 2))
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
    run_dir = tmp_path / "runs" / "run"
    shutil.copytree(lived, run_dir)
    with gzip.open(run_dir / trace.NAME, "rt") as file:
        header, *rounds = [json.loads(line) for line in file]
    node: Any = rounds[0]
    *path, last = key.split(".")
    for name in path:
        node = node[int(name) if name.isdigit() else name]
    node[last] = value
    with gzip.open(run_dir / trace.NAME, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in [header, *rounds])
    for command in ("runs", "report", "plot", "trace"):
        run(command, run_dir)
