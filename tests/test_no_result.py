"""Runs that end without a result: an error in one sentence, and a summary that is JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import SCRIPTS, python
from training import TINY, steps, tiny

from stellaris_jax import Config, Trainer
from stellaris_jax.base.errors import RunError
from stellaris_jax.cli import train as cli
from stellaris_jax.engine.evaluate import Evaluation
from stellaris_jax.execute.run import train
from stellaris_jax.report.runs import read_run
from stellaris_jax.timeline.billing import Bill
from studies.training import Job, Variant, runs

pytestmark = pytest.mark.usefixtures("shared_programs")


def failed(run_dir: Path, *overrides: str) -> dict[str, Any]:
    """The summary of a run that ends without a result, whose sentence is the error's."""
    with pytest.raises(RunError) as error:
        train(tiny(f"run.dir={run_dir}", *overrides))
    text = (run_dir / "summary.json").read_text()
    summary: dict[str, Any] = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert str(error.value) == f"{run_dir}: {summary['failure']}"
    return summary


def test_a_run_that_learned_from_nothing_has_failed(tmp_path: Path) -> None:
    nonfinite = ["env=diagnostic/nonfinite", "env.kwargs={}", "env.normalize_reward=false", "evaluation.episodes=0"]
    broken = [*nonfinite, "algorithm.rollout_length=256", "algorithm.minibatches=2", "total_steps=4096", "num_seeds=2"]
    summary = failed(tmp_path / "run", *broken)
    assert summary["nonfinite_gradients"] == 2 * summary["gradients"] > 0
    assert "no gradient of seeds 0, 1 was finite" in summary["failure"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_return_that_is_not_finite_has_failed(value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    returns = np.array([[1.0, 2.0], [value, 1.0]])
    monkeypatch.setattr(Trainer, "evaluate", lambda *_: Evaluation(returns, np.ones((2, 2))))
    summary = failed(tmp_path / "run", steps(2), "num_seeds=2")
    assert f"evaluated return is {value}" in summary["failure"]
    assert summary["eval_return_per_seed"] == [1.5, None]


def test_dollars_without_end_have_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stellaris_jax.execute.records.bill", lambda *_: Bill(math.inf))
    summary = failed(tmp_path / "run", steps(2))
    assert "cost in dollars is inf" in summary["failure"] and summary["cost_usd"] is None


def test_a_failed_run_exits_with_one_and_a_sentence(tmp_path: Path) -> None:
    """A loss beyond float32 has no finite gradient."""
    overrides = [*TINY, steps(2), f"run.dir={tmp_path / 'run'}", "algorithm.value_coefficient=3e38"]
    done = python(SCRIPTS / "train.py", *overrides)
    assert done.returncode == 1
    reason = "no gradient of seed 0 was finite, so all were rejected and nothing was learned."
    assert done.stderr == f"error: {tmp_path / 'run'}: {reason}\n"


def test_a_sweep_goes_on_after_a_run_without_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stellaris_jax.report.sweep.report", lambda folder: None)
    seen = []

    def task(config: Config) -> None:
        seen.append(config.seed)
        if config.seed == 1:
            raise RunError("its return is nan.")

    with pytest.raises(SystemExit) as stopped:
        cli.main(["-m", "seed=0,1,2"], task)
    assert stopped.value.code == 1 and seen == [0, 1, 2]
    assert capsys.readouterr().err == "error: its return is nan.\nerror: 1 of 3 points have no result: 1.\n"


def test_a_run_without_result_is_reported_as_failed(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"eval_return_mean": null, "failure": "its return is nan."}')
    assert read_run(tmp_path).summary is None
    (tmp_path / "summary.json").write_text('{"eval_return_mean": 1.0, "failure": null}')
    assert read_run(tmp_path).summary == {"eval_return_mean": 1.0, "failure": None}


def test_a_study_stops_at_a_run_without_result(tmp_path: Path) -> None:
    job = Job(Variant("toy", tuple(TINY)), first=0, count=1)
    job.path(tmp_path).mkdir(parents=True)
    (job.path(tmp_path) / "summary.json").write_text('{"failure": "its return is nan."}')
    with pytest.raises(RunError, match=f"{job.path(tmp_path)}: its return is nan"):
        runs([job], tmp_path)
