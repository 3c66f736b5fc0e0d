"""`stellaris-jax runs`: which there are, in what they differ, and that nothing is deleted that should not be."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import call
from run_dirs import make_run

from stellaris_jax.config.compose import compose_config
from stellaris_jax.config.options import complete
from stellaris_jax.config.stored import to_yaml
from stellaris_jax.runs.run_dir import LOCK
from stellaris_jax.runs.run_store import BROKEN, DONE, EMPTY, FAILED, INCOMPLETE, STOPPED, TRAINING, find


def made(path: Path, *overrides: str, mean: float | None = 400.0, failure: str | None = None, rounds: int = 8) -> Path:
    """A run as training leaves it; without a mean one that is not over."""
    make_run(path, rounds=rounds, finished=False)
    (path / "config.yaml").write_text(to_yaml(complete(compose_config(overrides))))
    (path / LOCK).write_text("process 1 on nowhere\n")
    for number in (2, 4, 8):
        (path / "checkpoints" / str(number)).mkdir(parents=True)
        (path / "checkpoints" / str(number) / "arrays").write_bytes(bytes(1000))
    if mean is not None:
        summary = {
            "eval_return_mean": mean, "eval_return_ci95": 12.0, "eval_return_per_seed": [mean] * 5, "env_steps": 16384,
            "simulated_seconds": 61.0, "cost_usd": 0.8, "failure": failure,
        }  # fmt: skip
        (path / "summary.json").write_text(json.dumps(summary))
    return path


@pytest.fixture
def run_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs of every state below runs/, and other things beside them."""
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    made(runs / "good", "system=async", "seed=3")
    made(runs / "better", "algorithm.learning_rate=0.01", mean=480.0)
    made(runs / "failed", mean=0.0, failure="no gradient of seed 0 was finite.")
    made(runs / "stopped", mean=None)
    empty = runs / "empty"
    empty.mkdir()
    (empty / "config.yaml").write_text(to_yaml(complete(compose_config([]))))
    swept = runs / "sweeps" / "one"
    made(swept / "0", mean=0.0, failure="nothing")
    (swept / "sweep.yaml").write_text("points: 1\n")
    thesis = runs / "thesis"
    thesis.mkdir()
    (thesis / "config.yaml").write_text("title: my thesis\n")
    (thesis / "chapter.tex").write_text("words")
    (runs / "notes.txt").write_text("notes")
    return runs


@pytest.fixture
def training(run_store: Path) -> Iterator[Path]:
    """An empty run whose lock is held, as by a process that has just begun."""
    path = run_store / "training"
    path.mkdir()
    (path / "config.yaml").write_text(to_yaml(complete(compose_config([]))))
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield path
    os.close(lock)


def files(place: Path) -> set[str]:
    return {path.relative_to(place).as_posix() for path in place.rglob("*")}


def lines(*arguments: object) -> list[str]:
    done = call("runs.py", *arguments)
    assert done.returncode == 0, done.stderr
    return [line.rstrip() for line in done.stdout.splitlines()]


def named(shown: list[str]) -> list[str]:
    return [line.split()[0] for line in shown if line.startswith("runs/")]


def test_states(run_store: Path, training: Path) -> None:
    assert {kept.path.name: kept.state for kept in find([run_store])} == {
        "good": DONE, "better": DONE, "failed": FAILED, "stopped": STOPPED, "empty": EMPTY, "training": TRAINING,
        "0": FAILED,
    }  # fmt: skip


def test_list(run_store: Path) -> None:
    before = files(run_store)
    shown = lines()
    assert set(named(shown)) == {
        f"runs/{name}" for name in ("good", "better", "failed", "stopped", "empty", "sweeps/one/0")
    }
    (good,) = [line for line in shown if line.startswith("runs/good")]
    assert "done" in good and "400 ± 12" in good and "0:01:01" in good and "$0.80" in good and "async" in good
    (better,) = [line for line in shown if line.startswith("runs/better")]
    assert "learning_rate=0.01" in better
    assert files(run_store) == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--where", "state=done", "--sort", "return"], ["better", "good"]),
        (["--where", "system=async"], ["good"]),
        (["--where", "name=*t*er"], ["better"]),
        (["--where", "algorithm.learning_rate=1e-2"], ["better"]),
        (["--where", "env=*CartPole*", "--where", "state=stopped"], ["stopped"]),
        (["--where", "state=done", "--sort", "algorithm.learning_rate"], ["good", "better"]),
        (["--where", "state=never"], []),
    ],
)
def test_filters_and_order(arguments: list[str], expected: list[str], run_store: Path) -> None:
    assert named(lines(*arguments)) == [f"runs/{name}" for name in expected]


def test_loggers_make_no_difference(run_store: Path) -> None:
    made(run_store / "logged", "system=async", "seed=4", "run.loggers=[csv]")
    (line,) = [line for line in lines() if line.startswith("runs/logged")]
    assert "loggers" not in line and "options" not in line
    compared = lines("runs/good", "runs/logged")
    assert any(line.startswith("run.loggers") for line in compared)


def test_booleans_are_those_of_yaml(run_store: Path) -> None:
    made(run_store / "annealed", "system=async", "algorithm.anneal=true")
    made(run_store / "plain", "system=async", "algorithm.anneal=false")
    shown = lines()
    for name, text in (("annealed", "anneal=true"), ("plain", "anneal=false")):
        assert any(line.startswith(f"runs/{name} ") and text in line for line in shown)
    compared = next(line for line in lines("runs/annealed", "runs/plain") if line.startswith("algorithm.anneal"))
    assert compared.split()[1:] == ["true", "false"]
    assert named(lines("--where", "algorithm.anneal=true", "--where", "name=annealed")) == ["runs/annealed"]


def test_what_differs(run_store: Path) -> None:
    shown = lines("runs/good", "runs/better")
    settings = {
        line.split()[0]: line.split()[1:]
        for line in shown[shown.index(next(li for li in shown if li.startswith("setting"))) :]
    }
    assert settings["algorithm.learning_rate"] == ["0.001", "0.01"]
    assert settings["system.rule"] == ["async", "stellaris"] and settings["seed"] == ["3", "0"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nowhere"], "nowhere is not a directory"),
        (["runs/thesis"], "runs/thesis holds no runs"),
        (["--where", "x"], "KEY=VALUE"),
        (["--where", "sytem=async"], "did you mean"),
        (["--sort", "retrun"], "did you mean return"),
        (["prune"], "--yes"),
        (["prune", "runs/thesis", "--yes"], "runs/thesis holds no runs"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], word: str, run_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115 - nobody to ask
    before = files(run_store)
    done = call("runs.py", *arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and word in done.stderr, done.stderr
    assert files(run_store) == before


def test_prune(run_store: Path, training: Path) -> None:
    """Failed and empty runs go; points of sweeps, runs with other files, running ones, and other directories stay."""
    (run_store / "failed-2").mkdir()
    os.rename(made(run_store / "x", mean=0.0, failure="nothing"), run_store / "failed-2")
    (run_store / "failed-2" / "my-analysis.ipynb").write_text("work of days")
    (run_store / "elsewhere").mkdir()
    (run_store / "link").symlink_to(run_store / "failed")
    before = files(run_store)
    shown = lines("prune", "--yes")
    gone = before - files(run_store)
    assert {name.partition("/")[0] for name in gone} == {"failed", "empty"}
    assert shown[-1] == "deleted 2 of 2"
    assert any("failed-2 is left alone: my-analysis.ipynb" in line for line in shown)
    assert any("sweeps/one/0 is left alone" in line for line in shown)
    assert lines("prune")[-1] == "there is nothing to delete"


@pytest.mark.parametrize("place", ["thesis.tex", "checkpoints/thesis.tex", "actions.md", "checkpoints/8.md"])
def test_what_is_no_runs_stays_with_it(place: str, run_store: Path) -> None:
    (run_store / "failed" / place).write_text("words")
    assert any(f"failed is left alone: {place} is nothing" in line for line in lines("prune", "--yes"))
    assert (run_store / "failed" / place).read_text() == "words" and not (run_store / "empty").exists()


def test_what_comes_while_one_is_asked_stays(run_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        "builtins.input", lambda question: (run_store / "failed" / "thesis").write_text("words") and "y"
    )
    done = call("runs.py", "prune")
    assert done.returncode == 1 and "failed is left alone: thesis is nothing" in done.stderr
    assert (run_store / "failed" / "thesis").read_text() == "words" and not (run_store / "empty").exists()


def test_checkpoints_elsewhere_stay(run_store: Path) -> None:
    """A link in the place of the checkpoints, or of one of them, leads to what is somebody else's business."""
    (run_store / "good" / "checkpoints").rename(run_store / "archive")
    (run_store / "good" / "checkpoints").symlink_to(run_store / "archive")
    (run_store / "failed" / "checkpoints" / "4").rename(run_store / "four")
    (run_store / "failed" / "checkpoints" / "4").symlink_to(run_store / "four")
    lines("prune", "--checkpoints", "--yes")
    assert sorted(os.listdir(run_store / "archive")) == ["2", "4", "8"] and os.listdir(run_store / "four") == ["arrays"]
    assert sorted(os.listdir(run_store / "failed" / "checkpoints")) == ["4", "8"]


def test_a_damaged_summary_is_no_failure(run_store: Path) -> None:
    """Checkpoints keep the result, and resuming the run writes another summary."""
    (run_store / "good" / "summary.json").write_text('{"eval_return_mean": 4')
    assert {kept.path.name: kept.state for kept in find([run_store])}["good"] == INCOMPLETE
    lines("prune", "--yes")
    assert (run_store / "good" / "checkpoints" / "8").exists()


def test_prune_checkpoints(run_store: Path) -> None:
    """All but the last, of runs that are over; one that was stopped needs what it has."""
    shown = lines("prune", "--checkpoints", "--yes")
    left = {
        kept.path.name: sorted(os.listdir(kept.path / "checkpoints"))
        for kept in find([run_store])
        if kept.state != EMPTY
    }
    every = ["2", "4", "8"]
    assert left == {"good": ["8"], "better": ["8"], "failed": ["8"], "0": ["8"], "stopped": every}
    assert shown[-1] == "deleted 4 of 4" and any("2 checkpoints  2 kB" in line for line in shown)


@pytest.mark.parametrize(("answer", "deleted"), [("y", True), ("n", False), ("", False)])
def test_prune_asks(answer: str, deleted: bool, run_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or answer)
    shown = lines("prune")
    assert len(asked) == 1 and asked[0].startswith("delete 2 runs (")
    assert (run_store / "failed").exists() is not deleted
    assert shown[-1] == ("deleted 2 of 2" if deleted else "nothing was deleted")


def test_a_run_that_is_taken_up_while_one_is_asked_stays(run_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def resumed(question: str) -> str:
        (run_store / "empty" / "metrics.jsonl").write_text((run_store / "good" / "metrics.jsonl").read_text())
        return "y"

    monkeypatch.setattr("builtins.input", resumed)
    done = call("runs.py", "prune")
    assert done.returncode == 1 and "empty is left alone: it is being trained." in done.stderr
    assert (run_store / "empty").exists() and not (run_store / "failed").exists()


def broken(path: Path, kind: str) -> None:
    """Break the configuration of a run."""
    file = path / "config.yaml"
    text = file.read_text()
    contents = {
        "binary value": text.replace("seed: 0", "seed: !!binary AAAA"),
        "no mapping": "- 1\n",
        "cut": text[: len(text) // 2],
        "missing keys": "\n".join(line for line in text.splitlines() if not line.startswith(("system", "env"))),
        "too deep": "[" * 10_000,
        "wrong types": text.replace("seed: 0", "seed: [1]"),
        "groups that are values": "env: 3\nsystem: 4\nalgorithm: 5\nrun: 6\nresume: ''\n",
        "bytes": "\x00\x01",
        "empty": "",
    }
    file.unlink()
    if kind == "directory":
        file.mkdir()
    elif kind in contents:
        file.write_text(contents[kind])
    else:
        assert kind == "deleted"


@pytest.mark.parametrize(
    "kind",
    [
        "binary value", "no mapping", "cut", "missing keys", "too deep", "wrong types", "groups that are values",
        "bytes", "empty", "directory", "deleted",
    ],
)  # fmt: skip
def test_a_broken_run_hides_no_other(kind: str, run_store: Path) -> None:
    broken(run_store / "better", kind)
    states = {kept.path.name: kept.state for kept in find([run_store])}
    assert states.pop("better") == BROKEN
    assert states == {"good": DONE, "failed": FAILED, "stopped": STOPPED, "empty": EMPTY, "0": FAILED}
    shown = lines()
    (line,) = [line for line in shown if line.startswith("runs/better")]
    assert line.split()[1] == "broken" and any(line.startswith("damage: runs/better/config.yaml ") for line in shown)
    assert named(lines("--where", "state=done")) == ["runs/good"]
    assert set(named(lines("--sort", "seed"))) == set(named(lines("--sort", "return"))) == set(named(shown))
    assert any(line.startswith("runs/better is left alone") for line in lines("prune", "--yes"))
    assert (run_store / "better" / "checkpoints" / "8").exists() and not (run_store / "failed").exists()
    lines("prune", "--checkpoints", "--yes")
    assert sorted(os.listdir(run_store / "better" / "checkpoints")) == ["2", "4", "8"]


@pytest.mark.parametrize("file", ["metrics.jsonl", "summary.json", "checkpoints", LOCK])
def test_a_directory_or_a_file_in_the_place_of_another(file: str, run_store: Path) -> None:
    path = run_store / "good" / file
    if path.is_dir():
        path.rename(run_store / "aside")
        path.write_text("no directory")
    else:
        path.unlink()
        path.mkdir()
    assert {"runs/good", "runs/better"} <= set(named(lines()))
    assert lines("prune", "--checkpoints", "--yes")[-1].startswith("deleted ")


def test_a_directory_of_that_name_beside_the_runs(run_store: Path) -> None:
    (run_store / "metrics.jsonl").mkdir()
    assert "runs/good" in named(lines())


@pytest.mark.parametrize("value", ["[1]", '"much"', "{}", "null", "1e999", "NaN", "1" + "0" * 400, "true"])
def test_figures_of_other_kinds(value: str, run_store: Path) -> None:
    figures = ("eval_return_mean", "eval_return_ci95", "eval_return_per_seed", "env_steps", "simulated_seconds")
    for figure in figures:
        known = json.loads((run_store / "good" / "summary.json").read_text())
        text = json.dumps({**known, figure: "?"}).replace('"?"', value)
        made(run_store / f"of-{figure}")
        (run_store / f"of-{figure}" / "summary.json").write_text(text)
    shown = set(named(lines("--sort", "return")))
    assert {f"runs/of-{figure}" for figure in figures} <= shown
    assert lines("--where", "state=done", "--sort", "cost")
