"""Runs of earlier versions: opened, evaluated, drawn, exported and resumed by this one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import call, said

from stellaris_jax import load_config, load_policy
from stellaris_jax.execute.run import train
from stellaris_jax.report.points import load_points
from stellaris_jax.report.runs import group_replicates, read_run

pytestmark = pytest.mark.usefixtures("shared_programs")

DATA = Path(__file__).parent / "data"
TIMELINE = ("updates", "staleness_counts", "actor_staleness", "group_size", "failed", "env_steps")
"""Keys of a round whose values are the same on every machine and in every version."""


@pytest.fixture(params=["0.1", "0.2"])
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Directory with copies of a version's runs, `stopped` and `finished`."""
    return Path(shutil.copytree(DATA / f"run_{request.param}", tmp_path / "runs"))


def rounds_of(run_dir: Path) -> list[dict[str, Any]]:
    return read_run(run_dir, pytest.fail).rounds


def test_they_are_listed(runs: Path) -> None:
    listed = call("runs.py", runs)
    assert listed.returncode == 0 and said(listed.stderr) == []
    assert "18.0" in listed.stdout and "stopped" in listed.stdout and "damage" not in listed.stdout


def test_keys_that_a_version_lacked_are_no_difference() -> None:
    """Runs of two versions with the same settings are replicates of each other."""
    finished = [DATA / f"run_{version}" / "finished" for version in ("0.1", "0.2")]
    assert "network.memory" not in read_run(finished[0]).config
    assert len(group_replicates([read_run(run_dir) for run_dir in finished])) == 1
    assert "their settings are the same" in call("runs.py", *finished).stdout


@pytest.mark.parametrize(("script", "name"), [("plot.py", "stopped"), ("report.py", "finished")])
def test_they_are_drawn(runs: Path, script: str, name: str) -> None:
    drawn = call(script, runs / name)
    assert drawn.returncode == 0 and said(drawn.stderr) == []
    assert Path(drawn.stdout.strip()).stat().st_size > 0


def test_a_sweep_knows_its_points(tmp_path: Path) -> None:
    """`sweep.yaml` of 0.2.0 names each point by a digest of its settings."""
    shutil.copytree(DATA / "run_0.2" / "finished", tmp_path / "0")
    (tmp_path / "sweep.yaml").write_text("settings: ['0 52281829']\n")
    (point,) = load_points(tmp_path, pytest.fail)
    assert point.summary is not None


def test_they_are_evaluated_and_exported(runs: Path) -> None:
    played = call("evaluate.py", runs / "stopped", "--episodes", 2)
    assert played.returncode == 0 and said(played.stderr) == []
    assert "round 4" in played.stdout
    exported = call("export.py", runs / "stopped", "--to", "flax")
    assert exported.returncode == 0 and said(exported.stderr) == []
    policy = load_policy(next((runs / "stopped").glob("policy.*[!d]")))
    assert policy([0.0, 0.0, 0.0, 0.0]) in (0, 1)


def test_they_resume_to_the_end(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their rounds continue, and the end is the one that their own version came to."""
    run_dir = runs / "stopped"
    before = rounds_of(run_dir)
    summary = train(load_config([f"resume={run_dir}"]))
    assert "another run" not in capsys.readouterr().out
    assert summary["rounds"] == 8 and summary["updates"] == 28
    rounds, whole = rounds_of(run_dir), rounds_of(runs / "finished")
    assert rounds[:4] == before and not list(run_dir.glob("damaged-*"))
    for one, other in zip(rounds, whole, strict=True):
        assert {key: one[key] for key in TIMELINE} == {key: other[key] for key in TIMELINE}
        assert one["simulated_seconds"] == pytest.approx(other["simulated_seconds"], rel=1e-9)
        assert one["value_loss"] == pytest.approx(other["value_loss"], rel=0.01)
    assert json.loads((run_dir / "summary.json").read_text())["versions"]["stellaris_jax"] != "0.2.0"
