"""Sweeps: points are what they would be alone; a sweep that was stopped goes on; what fails is told."""

from __future__ import annotations

import io
import json
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from commands import call, start
from rich.console import Console
from sweeps import SMALL, SWEPT, assert_same_run, records, table

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register
from stellaris_jax.cli import train as cli
from stellaris_jax.cli.sweep import _warn_of_few
from stellaris_jax.config.compose import SWEEP_SEEDS, compose_configs, load_sweep
from stellaris_jax.config.stored import to_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.execute import footprint
from stellaris_jax.execute.footprint import max_concurrent_runs
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.run import train
from stellaris_jax.many.sweep import is_done, laid_out
from stellaris_jax.runs.checkpoint import Checkpoints
from stellaris_jax.telemetry.shared_display import PointDisplay, SharedDisplay


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_points_are_what_they_would_be_alone(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["-m", *SWEPT, "hydra.sweep.dir=together"])
    out = capsys.readouterr().out
    assert "compiled" not in out and "evaluate" not in out, "one line for all, instead of a table for each"
    assert out.count("★") == 1 and out.count("few seeds") == 4  # of three rows, and what that means
    for number, point in enumerate(load_sweep(SWEPT).points):
        train(load_config([*point, f"run.dir=alone/{number}"]))
        assert_same_run(Path(f"together/{number}"), Path(f"alone/{number}"))
    cli.main(["-m", *SWEPT, "hydra.sweep.dir=apart", "sweep.together=false"])
    assert "point 3 of 3: apart/2" in capsys.readouterr().out
    for number in range(3):
        assert_same_run(Path(f"apart/{number}"), Path(f"alone/{number}"))
    assert table("together") == table("apart")


REACHED: list[object] = []
"""Trainers that got to their second round."""


@register.callback("stop-sweep")
def stop(number: int, record: dict[str, object], trainer: object) -> None:
    """A signal, in the second run that gets to its second round."""
    if number == 2:
        REACHED.append(trainer)
        if len(REACHED) == 2:
            signal.raise_signal(signal.SIGINT)


def test_a_stopped_sweep_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(footprint, "cores", lambda: 1)  # one after the other
    with pytest.raises(SystemExit) as end:
        cli.main(["-m", *SWEPT, "run.callbacks=[stop-sweep]", "hydra.sweep.dir=half"])
    out = capsys.readouterr().out
    assert end.value.code == 128 + signal.SIGINT
    assert "SIGINT: waiting for " in out
    assert "stopped; 1 of 3 points are done; continue with: python " in out and "train.py -m resume=half\n" in out
    done = [is_done(config) for config in compose_configs([[f"resume=half/{i}"] for i in range(3)])]
    assert sum(done) == 1
    finished = Path("half") / str(done.index(True)) / "summary.json"
    before = finished.stat().st_mtime_ns
    cli.main(["-m", "resume=half", "evaluation.episodes=4"])
    assert finished.stat().st_mtime_ns == before, "a finished point is left alone"
    cli.main(["-m", *SWEPT, "run.callbacks=[stop-sweep]", "hydra.sweep.dir=whole"])
    for number in range(3):
        assert_same_run(Path(f"half/{number}"), Path(f"whole/{number}"))
    # A sweep that is over can be gone on with, for more steps.
    cli.main(["-m", "resume=half", "total_steps=512"])
    assert [json.loads(Path(f"half/{n}/summary.json").read_text())["rounds"] for n in range(3)] == [8] * 3


@pytest.mark.slow
def test_a_killed_sweep_goes_on(tmp_path: Path) -> None:
    """kill -9 while points are under way; nothing is lost, and nothing done twice."""
    process = start(tmp_path / "half", "-m", *SWEPT, "total_steps=2048", "hydra.sweep.dir=half")
    while not any((tmp_path / f"half/{number}/summary.json").is_file() for number in range(3)):
        assert process.poll() is None, process.communicate()[0]
    process.kill()
    process.communicate()
    assert not all((tmp_path / f"half/{number}/summary.json").is_file() for number in range(3))
    done = call("train.py", "-m", "resume=half")
    assert done.returncode == 0, done.stderr
    cli.main(["-m", *SWEPT, "total_steps=2048", "hydra.sweep.dir=whole"])
    for number in range(3):
        assert records(Path(f"half/{number}")) == records(Path(f"whole/{number}"))


def test_points_that_fail(capsys: pytest.CaptureFixture[str]) -> None:
    """The others go on; errors that nobody foresaw end it with their traceback."""

    @register.callback("fail-sweep")
    def fail(number: int, record: dict[str, object], trainer: object) -> None:
        if trainer.config.seed == 1:  # type: ignore[attr-defined]
            raise FloatingPointError("diverged")

    with pytest.raises(FloatingPointError):
        cli.main(["-m", *SMALL, "seed=0,1,2", "run.callbacks=[fail-sweep]", "hydra.sweep.dir=s"])
    told = capsys.readouterr()
    assert "error: point 1 failed: FloatingPointError: diverged\n" in told.err
    assert "Points without a result: 1" in told.out
    assert [Path(f"s/{number}/summary.json").is_file() for number in range(3)] == [True, False, True]
    Path("s/1/checkpoints").rename("s/elsewhere")
    with pytest.raises(SystemExit) as end:
        cli.main(["-m", "resume=s"])
    told = capsys.readouterr()
    assert end.value.code == 1, "its metrics would be lost"
    assert told.err.startswith("error: resume=s/1 has no checkpoint in s/1/checkpoints, while s/1/metrics.jsonl tells")
    assert told.err.endswith("error: 1 of 3 points have no result: 1.\n")


# Requests of a sweep --------------------------------------------------------------------------------------------


def test_seeds_of_a_sweep() -> None:
    def seeds(*overrides: str) -> set[int]:
        return {config.num_seeds for config in compose_configs(load_sweep(overrides).points)}

    assert seeds("system=stellaris,async") == seeds("sweep=staleness") == {SWEEP_SEEDS}
    assert seeds("num_seeds=2", "sweep=staleness") == {2}
    assert seeds("seed=0,1") == {1}
    assert seeds("num_seeds=1,3") == {1, 3}


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["sweep.together=no"], "sweep.together must be true or false, not 'no'."),
        (["sweep.togehter=true"], "sweep.togehter is not a config key"),
        (["run.dir=here"], "run.dir is not possible with -m"),
        (["resume=nowhere"], "resume=nowhere holds no sweep: there is no nowhere/sweep.yaml."),
        (["resume=nowhere", "seed=1,2"], "nothing can be swept over"),
        (["resume=s", "seed=1"], "seed cannot change when a run is resumed"),
        (["seed=1,2", "hydra.sweep.dir=s"], "hydra.sweep.dir=s is not empty; name another directory, or continue"),
        (["seed=1,2", "hydra.sweep.dir=other"], "hydra.sweep.dir=other is not empty; name another directory."),
        (["resume=less"], "resume=less should hold 3 points, says less/sweep.yaml, and holds 2."),
    ],
)
def test_what_cannot_be_swept(overrides: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, count in (("s", 2), ("less", 3)):
        for number in range(2):
            Path(name, str(number)).mkdir(parents=True)
            Path(name, str(number), "config.yaml").write_text(to_yaml(Config()))
        Path(name, "sweep.yaml").write_text(f"overrides: []\npoints: {count}\n")
    Path("other").mkdir()
    Path("other", "notes.txt").write_text("mine")
    with pytest.raises(SystemExit) as end:
        cli.main(["-m", *overrides])
    error = capsys.readouterr().err
    assert end.value.code == 2 and told in error and error.count("\n") == 1, error


def test_a_single_run_is_told_of_sweeps(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"^sweep\.together is for sweeps; add -m\.$"):
        load_config(["sweep.together=true"])
    Path("s/0").mkdir(parents=True)
    Path("s/sweep.yaml").write_text("overrides: []\npoints: 1\n")
    with pytest.raises(ConfigError, match=r"^resume=s holds a sweep; add -m to go on with it\.$"):
        load_config(["resume=s"])


def test_points_are_laid_out_before_any_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stellaris_jax.many.sweep.train_points", ends)
    with pytest.raises(SystemExit):
        cli.main(["-m", *SMALL, "seed=0,1,2", "hydra.sweep.dir=s"])
    assert [place.name for place in laid_out(Path("s"))] == ["0", "1", "2"]
    assert [config.seed for config in compose_configs([[f"resume=s/{i}"] for i in range(3)])] == [0, 1, 2]


# Limits ----------------------------------------------------------------------------------------------


def test_runs_beside_each_other_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(SMALL)
    monkeypatch.setattr(footprint, "cores", lambda: 8)
    assert max_concurrent_runs([config] * 3) == 8
    each = sum(part.device + part.host for part in footprint.parts(config, footprint._least(config)))
    monkeypatch.setattr(footprint, "of_host", lambda: 5 * each / footprint.SPARE)
    assert max_concurrent_runs([config] * 3) == 5
    monkeypatch.setattr(footprint, "of_host", lambda: 0)
    assert max_concurrent_runs([config] * 3) == 1, "one is always tried"
    monkeypatch.undo()
    assert max_concurrent_runs([config, config.replace({"engine.devices": 2})]) == 1


def test_checkpoints_of_several_runs_at_once(tmp_path: Path) -> None:
    """Orbax lets two threads that save wait for each other for ever."""
    errors: list[Exception] = []

    def save(name: str) -> None:
        try:
            checkpoints = Checkpoints(tmp_path / name / "checkpoints", 1)
            for number in range(1, 13):
                checkpoints.save(number, [np.full(8, number)], {"name": name})
            checkpoints.close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(name,), daemon=True) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and not any(thread.is_alive() for thread in threads)
    assert all((tmp_path / name / "checkpoints" / "12").is_dir() for name in "abc")


# Display --------------------------------------------------------------------------------------------------------


def test_the_line_of_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    out = io.StringIO()
    display = SharedDisplay(Console(file=out, width=100), [1000, 1000, 2000, 4000], {0}, progress=True)
    assert display.line().plain == "1/4 points  12 %  starting"
    assert out.getvalue() == "1/4 points  12 %  starting\n", "before the first program is compiled"
    points = [PointDisplay(display, number, 10, 2) for number in range(4)]
    now[0] = 105.0
    points[1].rounds([{"round": 1, "env_steps": 250}])
    points[2].evaluation({"eval_return_mean": 12.34})
    points[3].evaluation({"eval_return_mean": None})
    points[1].evaluation({"eval_return_mean": 7.0})
    assert out.getvalue().count("\n") == 1
    now[0] = 110.0
    points[2].rounds([{"round": 1, "env_steps": 250}])
    assert out.getvalue().splitlines()[1] == "1/4 points  25 %  best 12.3 (point 2)", "no pace before a second report"
    now[0] = 115.0
    points[2].rounds([{"round": 2, "env_steps": 500}])
    assert display.line().plain == "1/4 points  31 %  50 steps/s  ETA 0:01:50  best 12.3 (point 2)"
    display.finished(3)
    assert display.line().plain == "2/4 points  81 %  50 steps/s  ETA 0:00:30  best 12.3 (point 2)", (
        "it trained nothing"
    )
    for point in points:
        point.note("a scheduler was carried over")
        point.working("compiling")
        point.worked("compiled in 3 s")
        point.leave()
    assert out.getvalue().splitlines()[2:] == ["point 0: a scheduler was carried over", "point 0: compiling"]


@pytest.mark.parametrize(
    ("points", "told"), [([(1e-3, 3), (1e-4, 5)], True), ([(1e-3, 5), (1e-4, 5)], False), ([(1e-3, 1)] * 2, False)]
)
def test_settings_of_few_seeds_are_told_of_before_training(
    points: list[tuple[float, int]], told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless there is one setting, with which nothing is compared."""
    _warn_of_few([
        load_config([f"algorithm.learning_rate={rate}", f"num_seeds={seeds}", f"seed={index}", f"run.dir=r{index}"])
        for index, (rate, seeds) in enumerate(points)
    ])  # fmt: skip
    assert ("fewer than 5 seeds" in capsys.readouterr().err) == told


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ([f"system={system} num_seeds=3 seed={seed}" for system in ("async", "sync") for seed in (0, 1)], True),
        ([f"system={system} num_seeds=3 seed={seed}" for system in ("async", "sync") for seed in (0, 2)], False),
        (["run.progress=true", "run.progress=false"], False),
    ],
)
def test_seeds_count_once_and_settings_are_those_of_reports(
    keys: list[str], told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    _warn_of_few([load_config(key.split()) for key in keys])
    assert ("fewer than 5 seeds" in capsys.readouterr().err) == told


def test_seeds_of_one_setting_in_several_points_count_together(capsys: pytest.CaptureFixture[str]) -> None:
    _warn_of_few(
        [load_config([f"algorithm.learning_rate={rate}", f"seed={seed}"]) for rate in (1e-3, 1e-4) for seed in range(5)]
    )
    assert not capsys.readouterr().err
