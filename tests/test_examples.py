"""The scripts in examples/: each is short, runs, and says what it promises; here with small settings."""

from __future__ import annotations

import re
import runpy
import sys
import time
from pathlib import Path

import pytest
from commands import REPOSITORY
from training import TINY, steps

from stellaris_jax import load_config
from stellaris_jax.base.registry import register
from stellaris_jax.cli import examples as command
from stellaris_jax.timeline import Timeline
from stellaris_jax.timeline.joblog import durations

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))
TINY_OF_ANY = [setting for setting in TINY if not setting.startswith(("env=", "run."))]
TRAINING = [*TINY_OF_ANY, steps(3)]


def run(name: str, *arguments: object) -> None:
    """As `python examples/NAME ARGUMENTS`; what it registers is forgotten again."""
    with pytest.MonkeyPatch.context() as patch:
        for attribute in ("_entries", "_places"):
            patch.setattr(register.rule, attribute, dict(getattr(register.rule, attribute)))
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(REPOSITORY / "examples" / name), run_name="__main__")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    run("train.py", *TRAINING, "run.progress=false", f"run.dir={path}")
    return path


def test_there_are_seven_below_sixty_lines() -> None:
    assert len(EXAMPLES) == 7
    assert all(len(path.read_text().splitlines()) < 60 for path in EXAMPLES)


def test_train(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (run_dir / "summary.json").is_file()


def test_population(capsys: pytest.CaptureFixture[str]) -> None:
    run("population.py", *TRAINING, "num_seeds=1")
    out = capsys.readouterr().out
    assert "6 runs in" in out and len(re.findall(r"^(?:allreduce|async) +rate", out, re.M)) == 6


def test_own_rule(capsys: pytest.CaptureFixture[str]) -> None:
    run("own_rule.py", *TRAINING)
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert set(rows) == {"rule", "async", "allreduce", "patient"} and len(rows["patient"]) == 3
    assert "patient" not in register.rule, "tests after this one would meet it"


def test_own_environment(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gymnasium")
    run("own_environment.py", "total_steps=2048")
    assert re.search(r"return -?\d\.\d\d ± ", capsys.readouterr().out)


def test_job_log(tmp_path: Path) -> None:
    """Timings per step, as verl reports them, and timed blocks of code are logs that `delays=trace` reads."""
    made = runpy.run_path(str(REPOSITORY / "examples" / "job_log.py"))
    timings = [
        {"timing_s/gen": 31.0, "timing_s/update_actor": 12.0},
        {"timing_s/gen": 29.0, "timing_s/update_actor": 8.0},
    ]
    keys = {"timing_s/gen": "actor", "timing_s/update_actor": "learner"}
    made["from_timings"](tmp_path / "verl.jsonl", timings, keys, gradients=4)
    assert durations(tmp_path / "verl.jsonl", "actor") == [31.0, 29.0]
    assert durations(tmp_path / "verl.jsonl", "learner") == pytest.approx([3.0] * 4 + [2.0] * 4)
    log = made["JobLog"](tmp_path / "own.jsonl")
    for rank in range(2):
        with log.job("actor", id=rank, version_start=0), log.job("learner", id=rank, version_start=0):
            time.sleep(0.002)
    with pytest.raises(ValueError, match="kind must be one of actor, learner, aggregate, loader, not actr"):
        log.add("actr", 0.0, 1.0)
    for name, workers in (("verl", 1), ("own", 2)):
        config = load_config(["delays=trace", f"delays.log={tmp_path / name}.jsonl"])
        assert (config.system.learners, config.platform.actors) == (workers, workers)
        assert Timeline.of(config, 0).next_round().groups


def test_exported_policy(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("gymnasium", "onnx", "onnxruntime"):
        pytest.importorskip(package)
    run("exported_policy.py", run_dir, "CartPole-v1", 2)
    out = capsys.readouterr().out
    assert "# A policy for gymnax/CartPole-v1" in out and "in 2 episodes of CartPole-v1" in out


def test_read_metrics(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("read_metrics.py", tmp_path / "figure.png", run_dir)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.startswith("run: return ")


def copied(capsys: pytest.CaptureFixture[str], where: Path) -> list[str]:
    command.main([str(where)])
    return capsys.readouterr().out.splitlines()


def test_examples_are_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With folders; what is there already stays, links too."""
    where, edited, link = tmp_path / "my own", tmp_path / "my own" / "train.py", tmp_path / "my own" / "own_rule.py"
    where.mkdir()
    edited.write_text("mine")
    link.symlink_to(tmp_path / "nowhere")
    lines = copied(capsys, where)
    files = command.example_files(REPOSITORY / "examples")
    assert {line.split(maxsplit=1)[1] for line in lines[:-2]} == {
        str(where / path.relative_to(REPOSITORY / "examples")) for path in files
    }
    assert [line for line in lines if line.startswith("kept")] == [f"kept  {link}", f"kept  {edited}"]
    assert lines[-1] == f"Next: python '{edited}'"
    assert edited.read_text() == "mine" and not (tmp_path / "nowhere").exists()
    rule = "plugins/rule.py"
    assert (where / rule).read_bytes() == (REPOSITORY / "examples" / rule).read_bytes()
    assert all(line.startswith("kept") for line in copied(capsys, where)[:-2])


def test_a_directory_of_examples_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        command.main([str(tmp_path / "file")])
    assert capsys.readouterr().err == f"error: DIR={tmp_path / 'file'} cannot be written.\n"
    (tmp_path / "plugins").touch()
    with pytest.raises(SystemExit):
        command.main([str(tmp_path)])
    assert f"error: DIR={tmp_path / 'plugins'} cannot be written (" in capsys.readouterr().err


def test_an_empty_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        command.main([""])
    assert stop.value.code == 2 and not list(tmp_path.iterdir())
    error = "error: argument DIR: must be a path, such as . for the current folder, not ''\n"
    assert capsys.readouterr().err == error
