"""Settings that changed under a run, full disks and read-only disks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from commands import call
from run_dirs import make_run

from stellaris_jax import ConfigError, load_config, load_policy, train
from stellaris_jax.base.errors import RunError
from stellaris_jax.cli import sweep as of_sweeps
from stellaris_jax.execute import executors
from stellaris_jax.report.sweep import report
from stellaris_jax.runs import run_store
from stellaris_jax.runs.run_dir import LOCK

SMALL = ["env=gymnax/cartpole", "env.num_envs=4", "algorithm.rollout_length=8", "algorithm.epochs=1",
         "algorithm.minibatches=4", "network.hidden=[4]", "system.learners=4", "evaluation.episodes=2",
         "evaluation.points=2", "run.progress=false", "run.loggers=[]", "engine.chunk_rounds=1",
         "algorithm.anneal=false"]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trained") / "run"
    train(load_config([*SMALL, "total_steps=64", f"run.dir={place}"]))
    return place


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def edit(run: Path, before: str, after: str) -> None:
    path = run / "config.yaml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def test_settings_that_changed_under_a_run_are_refused(run: Path) -> None:
    """One flipped bit in `config.yaml` made a hybrid of two runs that counted as sound."""
    edit(run, "learning_rate: 0.001", "learning_rate: 0.009")
    message = (
        "has algorithm.learning_rate=0.009, but the checkpoint of round 2 was made with 0.001; write that value back"
    )
    with pytest.raises(ConfigError, match=message):
        load_policy(run)
    ended = call("train.py", f"resume={run}", "total_steps=128")
    assert ended.returncode == 2 and message in ended.stderr
    edit(run, "learning_rate: 0.009", "learning_rate: 0.001")
    assert call("train.py", f"resume={run}", "total_steps=128").returncode == 0


def test_settings_that_may_change_do_not_count(run: Path) -> None:
    """Nor do keys that only one of the two knows, as after an upgrade."""
    edit(run, "  episodes: 2", "  episodes: 3")
    edit(run, "  memory_size: 64\n", "")
    load_policy(run)


def test_a_policy_of_an_earlier_round_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "checkpoints" / "2")
    load_policy(run)
    assert "newest intact checkpoint is of round 1, while the run ended at round 2" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk a sweep ended in a traceback, and what became of its points was lost."""

    def full(directory: Path) -> list[str]:
        raise OSError(28, "No space left on device")

    (tmp_path / "sweep.yaml").write_text("points: 0\n")
    monkeypatch.setattr("stellaris_jax.report.sweep.report", full)
    damaged, trouble = of_sweeps._reported(tmp_path)
    assert damaged == [] and isinstance(trouble, RunError) and "No space left on device" in str(trouble)


def test_a_table_with_a_threshold_is_kept(tmp_path: Path) -> None:
    make_run(tmp_path / "0")
    report(tmp_path, threshold=300.0)
    former = (tmp_path / "table.csv").read_text()
    report(tmp_path)
    assert (tmp_path / "table-before.csv").read_text() == former
    assert "threshold" in former and "threshold" not in (tmp_path / "table.csv").read_text()


def test_a_ray_that_cannot_be_imported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('it was built for another Python')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"cannot be imported \(ImportError: it was built for another Python\)"):
        executors.check_installed(load_config([*SMALL, "total_steps=64"]).replace({"executor": "live"}))


def test_a_film_that_cannot_be_written_is_one_sentence(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("imageio")
    (tmp_path / "film.gif").mkdir()
    ended = call("evaluate.py", run, "--video", tmp_path / "film.gif")
    assert ended.returncode in (1, 2) and "Traceback" not in ended.stderr and "film.gif" in ended.stderr


def test_a_lock_that_can_only_be_read_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk that is mounted read-only, where every finished run was listed as being trained."""
    (tmp_path / LOCK).touch()
    opened = os.open

    def read_only(path: object, flags: int, *mode: int, **more: object) -> int:
        if flags & os.O_RDWR:
            raise OSError(30, "Read-only file system")
        return opened(path, flags, *mode, **more)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(os, "open", read_only)
    assert not run_store.is_held(tmp_path)
