"""Checkpoints: damaged and stray ones set aside, saves confirmed, the best one kept, rounds saved first."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from commands import call, python, start, wait_for_checkpoints
from telemetry import read_events
from training import TINY, assert_identical, steps, tiny

from stellaris_jax import ConfigError, Trainer, load_config, load_policy
from stellaris_jax.engine.evaluate import Evaluation
from stellaris_jax.execute.run import BEST, open_run, train
from stellaris_jax.execute.session import Interrupted
from stellaris_jax.policies.policy import policy_of
from stellaris_jax.runs.checkpoint import CheckpointError, Checkpoints
from stellaris_jax.telemetry.jsonl import read_rows

pytestmark = pytest.mark.usefixtures("shared_programs")
STATE = {"x": jnp.arange(3.0)}
ABSTRACT = {"x": jax.ShapeDtypeStruct((3,), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))}


def silent(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def reference(shared_programs: None) -> Trainer:
    """A trainer after eight uninterrupted rounds."""
    trainer = Trainer(tiny(steps(8)))
    trainer.run()
    return trainer


def evaluations(run_dir: Path) -> list[int]:
    return [record["round"] for record in read_rows(run_dir / "metrics.jsonl") if record["kind"] == "evaluation"]


# Damage --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["flipped", "empty", "stray", "file"])
def test_a_damaged_newest_checkpoint_does_not_stop_later_ones(damage: str, reference: Trainer, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(tiny(steps(6), f"run.dir={run_dir}", "checkpoint.interval=2"))
    saved = run_dir / "checkpoints"
    if damage == "stray":
        (saved / "99999").mkdir()
    elif damage == "file":
        (saved / "99999").write_text("not a checkpoint")
    else:
        for data in (saved / "6" / "state").glob("**/d/*"):
            raw = bytearray(data.read_bytes())
            raw[len(raw) // 2] ^= 1
            data.write_bytes(raw if damage == "flipped" else b"")
    train(load_config([f"resume={run_dir}", steps(8)]))
    names = {path.name for path in saved.iterdir()}
    assert "8" in names
    assert {"flipped": "damaged-6", "empty": "damaged-6", "stray": "damaged-99999", "file": "99999"}[damage] in names
    assert_identical(open_run(run_dir), reference)


def test_what_is_set_aside_is_never_overwritten(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=5)
    for round_ in (1, 2):
        checkpoints.save(round_, STATE, {})
    checkpoints.close()
    for expected in ({"damaged-2"}, {"damaged-2", "damaged-2-2"}):
        for path in (tmp_path / "checkpoints" / "2").rglob("*"):
            if path.is_file():
                path.write_bytes(b"")
        checkpoints = Checkpoints(tmp_path / "checkpoints", keep=5)
        (tmp_path / "checkpoints" / "7").write_text("not a checkpoint")
        assert checkpoints.restore(ABSTRACT, silent)[0] == checkpoints.newest() == 1
        checkpoints.save(2, STATE, {"again": True})
        checkpoints.wait()
        assert checkpoints.newest() == 2
        assert {path.name for path in (tmp_path / "checkpoints").glob("damaged*")} == expected
        assert checkpoints.restore(ABSTRACT, silent)[2] == {"again": True}
        checkpoints.close()


@pytest.mark.parametrize("failing", ["silent", "raising"])
def test_a_save_that_was_not_confirmed_is_an_error(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(*_: Any, **__: Any) -> bool:
        if failing == "raising":
            raise ValueError("somewhere [os_error_code='28']\nand much more")
        return False

    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    monkeypatch.setattr(ocp.CheckpointManager, "save", save)
    reason = "No space left on device" if failing == "raising" else "there is no "
    with pytest.raises(CheckpointError, match=rf"round 1 could not be saved in .*/checkpoints \({reason}.*\)\.$"):
        checkpoints.save(1, STATE, {})
        checkpoints.save(2, STATE, {})
    checkpoints.close()


def test_a_round_that_could_not_be_saved_is_not_called_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wait = Checkpoints.wait

    def full(self: Checkpoints) -> None:
        saving = self._saving
        wait(self)
        if saving is not None and saving > 1:
            shutil.rmtree(self.directory / str(saving))
            raise CheckpointError(f"round {saving} could not be saved.")

    monkeypatch.setattr(Checkpoints, "wait", full)
    with pytest.raises(CheckpointError):
        train(tiny(steps(4), "checkpoint.interval=1", "engine.chunk_rounds=1", f"run.dir={tmp_path / 'run'}"))
    saved = re.search(r"stopped; round (\d+) is saved", capsys.readouterr().out)
    assert saved and saved[1] == "1"


# The best one --------------------------------------------------------------------------------------------------------


def test_paths_may_lead_up_and_down(tmp_path: Path) -> None:
    """Also while a run trains and when it is resumed: Orbax takes no path with ".."."""
    (tmp_path / "elsewhere").mkdir()
    directory = tmp_path / "elsewhere" / ".." / "run"
    train(tiny(steps(2), f"run.dir={directory}"))
    for path in (directory, tmp_path / "run"):
        assert load_policy(path)(jnp.zeros(4)) is not None
    summary = train(load_config([f"resume={directory}", steps(4)]))
    assert summary["env_steps"] == 4 * 8 * 16


def test_the_best_checkpoint_is_kept(tmp_path: Path) -> None:
    """Later scores, numbers or not, and a restart do not replace it."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    for round_, score in enumerate([1.0, 5.0, math.nan, -math.inf, None, math.inf, 4.0], start=1):
        checkpoints.save(round_, STATE, {})
        checkpoints.score(round_, score)
    assert checkpoints.rounds() == [2, 7]
    checkpoints.close()
    again = Checkpoints(tmp_path / "checkpoints", keep=1)
    again.score(2, 5.0)
    again.score(7, 4.0)
    for round_ in (8, 9):
        again.save(round_, STATE, {})
    assert again.rounds() == [2, 9]
    again.close()


def test_one_nan_evaluation_does_not_lose_the_best_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    returns = {1: 1.0, 2: 9.0, 3: math.nan, 4: 2.0, 5: 3.0, 6: 4.0, 7: math.nan, 8: 5.0}

    def evaluate(trainer: Trainer) -> Evaluation:
        values = np.full((1, 4), returns[trainer.round])
        return Evaluation(values, np.ones((1, 4)))

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    run_dir = tmp_path / "run"
    train(tiny(steps(6), f"run.dir={run_dir}", "evaluation.points=6", "checkpoint.keep=1"))
    present = {path.name for path in (run_dir / "checkpoints").iterdir()}
    assert present == {"2", "6"}
    train(load_config([f"resume={run_dir}", steps(8), "evaluation.points=8"]))
    assert {path.name for path in (run_dir / "checkpoints").iterdir()} == {"2", "8"}
    assert [open_run(run_dir, at=at).round for at in (None, BEST, 2)] == [8, 2, 2]
    with pytest.raises(ConfigError, match=r"has no checkpoint of round 3; accepted: 2, 8\."):
        open_run(run_dir, at=3)
    shutil.rmtree(run_dir / "checkpoints" / "2")
    with pytest.raises(ConfigError, match=r"was best at round 2, whose checkpoint is not there; accepted: 8\."):
        open_run(run_dir, at=BEST)
    (run_dir / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"no evaluation that says which round was best; accepted: 8\."):
        open_run(run_dir, at=BEST)
    for path in (run_dir / "checkpoints" / "8" / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"8 is damaged .* other rounds may be intact"):
        open_run(run_dir, at=8)


def test_evaluate_and_export_take_the_best_checkpoint(tmp_path: Path) -> None:
    """Its policy plays as the evaluation of its round did, and its parameters are those of that round."""
    run_dir = tmp_path / "run"
    train(tiny(steps(6), f"run.dir={run_dir}", "evaluation.points=6", "checkpoint.keep=6"))
    returns = [row["eval_return_mean"] for row in read_rows(run_dir / "metrics.jsonl") if row["kind"] == "evaluation"]
    best = max(range(1, 7), key=lambda number: (returns[number - 1], number))
    done = call("evaluate.py", run_dir, "--round", "best", "--episodes", 4, "--json")
    assert json.loads(done.stdout)["round"] == best, done.stderr
    done = call("export.py", run_dir, "--to", "flax", "--round", best, "--out", tmp_path / "one.msgpack")
    assert done.returncode == 0, done.stderr
    observations = np.random.default_rng(0).normal(size=(4096, 4)).astype(np.float32)
    taken = np.asarray(load_policy(tmp_path / "one.msgpack")(observations))
    for round_ in range(1, 7):
        same = np.array_equal(taken, policy_of(open_run(run_dir, at=round_))(observations))
        assert same == (round_ == best), round_


# Before what may fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [2, 4])
def test_an_evaluation_that_fails_loses_no_round(
    broken: int, reference: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its round is on disk, also where no checkpoint was due, and before the first evaluation is begun; the evaluation
    is made up for by going on."""
    evaluate = Trainer.evaluate

    def failing(trainer: Trainer) -> Evaluation:
        if trainer.round == broken:
            assert broken > 2 or (run_dir / "checkpoints" / "2").is_dir()
            raise ZeroDivisionError("the evaluation broke")
        return evaluate(trainer)

    run_dir = tmp_path / "run"
    monkeypatch.setattr(Trainer, "evaluate", failing)
    with pytest.raises(ZeroDivisionError, match="the evaluation broke"):
        train(tiny(steps(8), f"run.dir={run_dir}", "evaluation.points=4", "checkpoint.interval=7"))
    assert evaluations(run_dir) == list(range(2, broken, 2))
    assert f"stopped; round {broken} is saved" in capsys.readouterr().out
    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    train(load_config([f"resume={run_dir}"]))
    assert evaluations(run_dir) == [2, 4, 6, 8]
    assert_identical(open_run(run_dir), reference)
    wall = [record["wall_seconds"] for record in read_rows(run_dir / "metrics.jsonl")]
    assert wall == sorted(wall)


def test_an_evaluation_does_not_wait_for_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But the first one of a process, in which it is most likely to die."""
    evaluate, wait, waited, written = Trainer.evaluate, Checkpoints.wait, [], []

    def waiting(self: Checkpoints) -> None:
        if self._saving is not None:
            waited.append(self._saving)
        wait(self)

    def checked(trainer: Trainer) -> Evaluation:
        written.append(waited[-1:] == [trainer.round])
        return evaluate(trainer)

    monkeypatch.setattr(Checkpoints, "wait", waiting)
    monkeypatch.setattr(Trainer, "evaluate", checked)
    train(tiny(steps(8), f"run.dir={tmp_path / 'run'}", "evaluation.points=4"))
    assert written == [True, False, False, False] and waited == [2, 4, 6, 8]


def test_an_environment_that_fails_loses_no_round(
    reference: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer.step

    def failing(trainer: Trainer, ahead: bool) -> list[dict[str, Any]]:
        if trainer.round == 5:
            raise OSError("the environment broke")
        return step(trainer)  # of host environments nothing is begun ahead

    run_dir = tmp_path / "run"
    monkeypatch.setattr(Trainer, "step", failing)
    with pytest.raises(OSError, match="the environment broke"):
        train(tiny(steps(8), f"run.dir={run_dir}", "engine.chunk_rounds=1"))
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["5"]
    monkeypatch.setattr(Trainer, "step", step)
    train(load_config([f"resume={run_dir}"]))
    assert_identical(open_run(run_dir), reference)


@pytest.mark.parametrize("when", ["compile", "step"])
def test_a_signal_is_obeyed_after_what_is_under_way(
    when: str, reference: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither is a chunk begun after the compiler, nor an evaluation after the chunk."""
    original = getattr(Trainer, when)

    def interrupted(trainer: Trainer, **options: bool) -> Any:
        trainer.engine.compiled.clear()  # nothing is compiled yet
        os.kill(os.getpid(), signal.SIGTERM)
        assert trainer.stopping.wait(60)
        assert "SIGTERM: waiting " in capsys.readouterr().out, "the message comes at once"
        return original(trainer, **options)

    run_dir = tmp_path / "run"
    new = "network.hidden=[9]" if when == "compile" else "network.hidden=[8]"  # what no other test has compiled
    monkeypatch.setattr(Trainer, when, interrupted)
    monkeypatch.setattr("stellaris_jax.runs.signals.PATIENCE_SECONDS", 600.0)  # this process is pytest
    with pytest.raises(Interrupted) as stop:
        train(tiny(steps(8), f"run.dir={run_dir}", "evaluation.points=8", new))
    monkeypatch.setattr(Trainer, when, original)
    assert stop.value.signum == signal.SIGTERM
    rounds = [record["round"] for record in read_rows(run_dir / "metrics.jsonl")]
    assert rounds == ([] if when == "compile" else [1])
    train(load_config([f"resume={run_dir}"]))
    assert evaluations(run_dir) == list(range(1, 9))
    if when == "step":
        assert_identical(open_run(run_dir), reference)


def test_compiling_is_told_of_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    original = Trainer.compile

    def watched(trainer: Trainer) -> float:
        shown.append(capsys.readouterr().out)
        return original(trainer)

    monkeypatch.setattr(Trainer, "compile", watched)
    train(tiny(steps(2), f"run.dir={tmp_path / 'run'}", "network.hidden=[10]"))
    assert "building gymnax/CartPole-v1" in shown[0] and shown[0].endswith("compiling rounds 1 to 2\n")


# What becomes of the rest --------------------------------------------------------------------------------------------


def points(run_dir: Path) -> dict[str, list[int]]:
    """Steps in TensorBoard's files of a run directory: of a figure of rounds, and of one of evaluations."""
    shown: dict[str, list[int]] = {"losses/entropy": [], "eval/episodic_return": []}
    for file in sorted(run_dir.glob("events.*"), key=lambda path: len(path.name)):
        for event in read_events(file):
            if event.HasField("session_log"):
                shown = {tag: [step for step in steps_ if step < event.step] for tag, steps_ in shown.items()}
            for value in event.summary.value:
                # An evaluation that is made again lies on the one before.
                if value.tag in shown and event.step not in shown[value.tag][-1:]:
                    shown[value.tag].append(event.step)
    return shown


def test_a_kill_loses_no_point_of_tensorboard(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, *TINY, steps(400), f"run.dir={run_dir}", "evaluation.points=100", "checkpoint.interval=4")
    wait_for_checkpoints(process, run_dir, 3)
    process.kill()
    process.communicate(timeout=60)
    assert not (run_dir / "summary.json").exists(), "the run ended before it could be killed"
    newest = max(int(path.name) for path in (run_dir / "checkpoints").iterdir() if path.name.isdigit())
    # Pipelined actors have nothing for the learners in the first round, so it has no loss.
    assert set(points(run_dir)["losses/entropy"]) >= {128 * round_ for round_ in range(2, newest + 1)}
    train(load_config([f"resume={run_dir}"]))
    assert points(run_dir) == {
        "losses/entropy": [128 * round_ for round_ in range(2, 401)],
        "eval/episodic_return": [128 * round_ for round_ in range(4, 401, 4)],
    }


@pytest.mark.parametrize("limit", [2_000, 20_000])
def test_a_full_disk_is_one_sentence(limit: int, tmp_path: Path) -> None:
    """Files may not grow beyond so many bytes: first the configuration does not fit, then the metrics."""
    code = (
        "import sys; from stellaris_jax.cli.train import main\n"
        "import resource, stellaris_jax.execute.run, jax; jax.config.update('jax_enable_compilation_cache', False)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY)); main(sys.argv[1:])"
    )
    overrides = [*TINY, steps(60), f"run.dir={tmp_path / 'run'}", "checkpoint.interval=20"]
    done = python("-c", code, *overrides)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert "File too large" in done.stderr and str(tmp_path / "run") in done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != limit, "the limit is the other process's"
