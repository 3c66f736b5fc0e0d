"""Damage to every file of a run directory: every reader has the right result, or refuses in one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
from commands import call
from damages import Damage, cut, deleted, emptied, riddled
from drawn import assert_picture, saved_figures
from training import assert_identical, steps, tiny

from stellaris_jax import Trainer, train
from stellaris_jax.runs.run_dir import LOCK

pytestmark = pytest.mark.usefixtures("shared_programs")
SAVED, NEWEST, LONGER = 2, 4, 6
EPISODES = 4


DAMAGES = [riddled, cut, emptied, deleted]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rounds with checkpoints of two and of four; tests copy it."""
    run_dir = tmp_path_factory.mktemp("sound") / "run"
    train(tiny(steps(NEWEST), f"run.dir={run_dir}", f"checkpoint.interval={SAVED}", "evaluation.points=2"))
    return run_dir


@pytest.fixture(scope="module")
def uninterrupted() -> tuple[Trainer, dict[int, float]]:
    """The undamaged run at its end, and the returns of its policies at the rounds that are saved."""
    trainer, returns = Trainer(tiny(steps(LONGER), f"checkpoint.interval={SAVED}", "evaluation.points=0")), {}
    while not trainer.finished:
        trainer.run(SAVED)
        returns[trainer.round] = trainer.evaluate(EPISODES, stream=0).mean_ci95()[0]
    return trainer, returns


def files(run_dir: Path) -> list[Path]:
    """Files to be damaged: all but the lock, which is empty, and older checkpoints, which are made alike."""
    every = sorted(path.relative_to(run_dir) for path in run_dir.rglob("*") if path.is_file() and path.name != LOCK)
    return [path for path in every if path.parts[:2] != ("checkpoints", str(SAVED))]


def refused(done: CompletedProcess[str]) -> bool:
    """Whether a command has failed; its last line must be the one error."""
    if done.returncode == 0:
        return False
    *_, last = done.stderr.splitlines() or [""]
    assert done.stderr.count("error: ") == 1 and last.startswith("error: "), done.stderr or done.stdout
    return True


def check_evaluation(run_dir: Path, returns: dict[int, float], **_: Any) -> None:
    done = call("evaluate.py", run_dir, "--episodes", EPISODES, "--json")
    if not refused(done):
        result = json.loads(done.stdout.splitlines()[-1])
        assert result["return_mean"] == pytest.approx(returns[result["round"]]), result


def check_plot(run_dir: Path, **_: Any) -> None:
    picture = run_dir.parent / "picture.png"
    with saved_figures() as figures:
        done = call("plot.py", run_dir, "--out", picture)
    if not refused(done):
        panels = figures[picture.name].axes
        assert panels[0].get_ylabel() == "return"
        assert any(axes.lines or axes.patches for axes in panels), "something is left to be seen"
        assert_picture(picture, width=1200)


def check_resumption(run_dir: Path, whole: Trainer, metrics_damaged: bool, **_: Any) -> None:
    trainers: list[Trainer] = []

    def make(*arguments: Any, **options: Any) -> Trainer:
        trainers.append(Trainer(*arguments, **options))
        return trainers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stellaris_jax.execute.run.Trainer", make)
        patch.setattr("stellaris_jax.report.curves.plot_run", lambda run_dir: None)
        done = call("train.py", f"resume={run_dir}", steps(LONGER))
    if not refused(done):
        assert_identical(trainers[-1], whole)
        lines = (run_dir / "metrics.jsonl").read_text().splitlines()
        rounds = [record["round"] for record in map(json.loads, lines) if record["kind"] == "round"]
        whole_ = list(range(1, LONGER + 1))
        assert rounds == ([n for n in whole_ if n in rounds] if metrics_damaged else whole_)


def complaints(
    sound: Path,
    uninterrupted: tuple[Trainer, dict[int, float]],
    tmp_path: Path,
    cases: list[tuple[Path, Damage, int]],
    checks: list[Callable[..., None]],
) -> list[str]:
    """Failures after each damage, one line each."""
    whole, returns = uninterrupted
    faults = []
    for file, damage, seed in cases:
        for check in checks:
            run_dir = tmp_path / "run"
            shutil.copytree(sound, run_dir)
            damage(run_dir / file, np.random.default_rng(seed))
            # Another valid value of a key, or of a metric, cannot be told from the one that was.
            silent = damage is riddled and file.name == "config.yaml"
            try:
                check(run_dir, returns=returns, whole=whole, metrics_damaged=file.name == "metrics.jsonl")
            except Exception as error:
                if not (silent and isinstance(error, AssertionError) and "Traceback" not in str(error)):
                    faults.append(f"{damage.__name__} {file}, {check.__name__}: {type(error).__name__}: {error}"[:400])
            shutil.rmtree(run_dir)
    return faults


def test_a_sound_run_is_read(sound: Path, uninterrupted: Any, tmp_path: Path) -> None:
    """Without damage, every check finds its result."""
    shutil.copytree(sound, tmp_path / "run")
    whole, returns = uninterrupted
    assert sorted(returns) == [SAVED, NEWEST, LONGER] and len(set(returns.values())) > 1
    done = call("evaluate.py", tmp_path / "run", "--episodes", EPISODES, "--json")
    assert json.loads(done.stdout)["round"] == NEWEST
    for check in (check_evaluation, check_plot, check_resumption):
        check(tmp_path / "run", returns=returns, whole=whole, metrics_damaged=False)
    assert call("train.py", f"resume={tmp_path / 'run'}", "total_steps=1").returncode != 0


def test_every_file_is_damaged_in_one_way(sound: Path, uninterrupted: Any, tmp_path: Path) -> None:
    every = enumerate(files(sound))
    cases = [(file, DAMAGES[index % len(DAMAGES)], index) for index, file in every]
    assert len(cases) > 12
    assert complaints(sound, uninterrupted, tmp_path, cases, [check_evaluation, check_resumption]) == []


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "summary.json"])
def test_pictures_of_damaged_runs(name: str, sound: Path, uninterrupted: Any, tmp_path: Path) -> None:
    cases = [(Path(name), damage, seed) for seed, damage in enumerate(DAMAGES)]
    assert complaints(sound, uninterrupted, tmp_path, cases, [check_plot]) == []


def test_a_picture_without_a_round(sound: Path, tmp_path: Path) -> None:
    """Every line of a round may be the one that is damaged, and none of an evaluation."""
    run_dir = tmp_path / "run"
    shutil.copytree(sound, run_dir)
    lines = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run_dir / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["kind"] == "evaluation"))
    done = call("plot.py", run_dir)
    assert done.returncode == 0, done.stderr
    assert_picture(run_dir / "curve.png", width=1200)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_every_file_is_damaged_in_every_way(damage: Any, sound: Path, uninterrupted: Any, tmp_path: Path) -> None:
    seeds = range(5) if damage in (riddled, cut) else range(1)
    cases = [(file, damage, 100 + seed) for seed in seeds for file in files(sound)]
    checks = [check_evaluation, check_resumption]
    assert complaints(sound, uninterrupted, tmp_path, cases, checks) == []
    at_the_top = [case for case in cases if len(case[0].parts) == 1]
    assert complaints(sound, uninterrupted, tmp_path, at_the_top, [check_plot]) == []
