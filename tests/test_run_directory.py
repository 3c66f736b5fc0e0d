"""Run directories: reserved, locked, named, resumed; what is refused leaves them as they were."""

from __future__ import annotations

import json
import os
import shlex
import string
import subprocess
import sys
from pathlib import Path

import pytest
from commands import REPOSITORY, SCRIPTS, said
from hypothesis import given
from hypothesis import strategies as st
from scenarios import examples
from training import TINY, assert_identical, steps, tiny

from stellaris_jax import ConfigError, Trainer, load_config
from stellaris_jax.base.commands import argument, command, evaluate_command, resume_command
from stellaris_jax.cli import sweep
from stellaris_jax.cli import train as cli
from stellaris_jax.config.compose import _composer
from stellaris_jax.execute.run import open_run, train
from stellaris_jax.runs.checkpoint import CheckpointError
from stellaris_jax.runs.provenance import processor
from stellaris_jax.runs.run_dir import LOCK, run_directory

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def finished(shared_programs: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rounds, to be copied."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    train(tiny(steps(4), f"run.dir={run_dir}", "evaluation.points=2"))
    return run_dir


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-r", str(finished), str(tmp_path / "run")], check=True)
    return tmp_path / "run"


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, but for the lock."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != LOCK)
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


# Reserving and locking -----------------------------------------------------------------------------------------------


def four_processes(code: str, *arguments: str) -> list[str]:
    """Run `code` in four at once, with a seed of its own each and a clock that stands still; the directories made."""
    code = f"import sys, time; time.strftime = lambda *_: '20260101-000000'\n{code}"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, *arguments, f"seed={seed}"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(4)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    label = "20260101-000000-stellaris-gymnax-cartpole-v1"
    names = sorted(path.name for path in Path("runs").iterdir())
    assert names == [label, *(f"{label}-{number}" for number in (2, 3, 4))]
    return names


def test_directories_of_one_second_are_reserved(tmp_path: Path) -> None:
    names = four_processes(
        "from stellaris_jax.config.tree import Config; from stellaris_jax.runs.run_dir import run_directory\n"
        "config = Config(); print('ready', flush=True); input()\n"
        "with run_directory(config) as path: (path / 'mine').write_text(sys.argv[1])"
    )
    marks = {(tmp_path / "runs" / name / "mine").read_text() for name in names}
    assert marks == {f"seed={seed}" for seed in range(4)}


@pytest.mark.slow
def test_runs_of_one_second_have_directories_of_their_own(tmp_path: Path) -> None:
    names = four_processes(
        "from stellaris_jax.execute.run import train; from stellaris_jax import load_config\n"
        "config = load_config(sys.argv[1:]); print('ready', flush=True); input(); train(config)",
        *TINY,
        steps(2),
    )
    summaries = [json.loads((tmp_path / "runs" / name / "summary.json").read_text()) for name in names]
    assert sorted(summary["seed"] for summary in summaries) == [0, 1, 2, 3]


def test_a_run_is_written_by_one_process_at_a_time(run_dir: Path) -> None:
    before = contents(run_dir)
    with run_directory(load_config([f"resume={run_dir}"])):
        with pytest.raises(ConfigError, match=f"{run_dir} is being written by process {os.getpid()} on "):
            train(load_config([f"resume={run_dir}", steps(8)]))
        assert contents(run_dir) == before
        trainer = open_run(run_dir)  # reading is free
        assert trainer.round == 4
    assert train(load_config([f"resume={run_dir}", steps(5)]))["rounds"] == 5


def test_sweeps_of_one_second_have_directories_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = sweep.load_sweep
    at_once = tmp_path / "it's now"
    monkeypatch.setattr(sweep, "load_sweep", lambda *given: loaded(*given)._replace(directory=at_once))
    monkeypatch.setattr("stellaris_jax.report.sweep.report", lambda folder: None)
    seen: list[str] = []
    for _ in range(2):
        cli.main(["-m", "seed=0,1"], lambda config: seen.append(config.run.dir))
    assert seen == [f"{at_once}{number}/{point}" for number in ("", "-2") for point in (0, 1)]
    with pytest.raises(SystemExit):  # a directory that was named is taken as it is
        cli.main(["-m", "seed=0,1", "hydra.sweep.dir=named"], lambda config: seen.append(config.run.dir))
    assert len(seen) == 4


def test_two_runs_given_one_directory(tmp_path: Path) -> None:
    config = tiny(steps(2), f"run.dir={tmp_path / 'run'}")
    with run_directory(config), pytest.raises(ConfigError, match="is being written by process"):
        train(config)


def test_what_is_refused_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError("a package is missing.")

    monkeypatch.setattr("stellaris_jax.execute.run.Trainer", refuse)
    (tmp_path / "empty").mkdir()
    for overrides in ([], [f"run.dir={tmp_path / 'new'}"], [f"run.dir={tmp_path / 'empty'}"]):
        with pytest.raises(ConfigError, match="a package is missing"):
            train(tiny(steps(2), *overrides))
    assert list((tmp_path / "runs").iterdir()) == list((tmp_path / "empty").iterdir()) == []
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("run.dir=" + "a" * 256, "File name too long"),
        ("run.dir=" + "a/" * 3000, "File name too long"),
        ("run.name=" + "a" * 256, "run.name has 256 letters"),
        ("run.dir=file/run", "cannot be made"),
        ("run.dir=file", "cannot be made"),
        ("run.dir=/proc/run", "cannot be made"),
        (r"run.dir='a\b'", "backslash"),
        ("resume=" + "a" * 256, "holds no run"),
        ("resume=", "resume= is empty"),
    ],
)
def test_impossible_directories_are_one_sentence(name: str, part: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=part) as refused:
        train(load_config([*([] if name.startswith("resume") else TINY), name]))
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 1000
    assert [path.name for path in tmp_path.iterdir() if path.name != "runs"] == ["file"]


# Names and commands --------------------------------------------------------------------------------------------------

LETTERS = string.ascii_letters + string.digits + string.punctuation + " éß日"


@examples
# A reference that is cut off is no override, and a whole one is refused as a value: see test_refused_values.py.
@given(st.text(st.sampled_from(LETTERS), min_size=1).filter(lambda value: "${" not in value))
def test_any_value_survives_the_shell_and_the_grammar_of_overrides(value: str) -> None:
    (line,) = shlex.split(argument("resume", value))
    with _composer(None) as hydra:
        (parsed,) = hydra.parse([line])
    assert parsed.key_or_group == "resume" and str(parsed.value()) == value


@pytest.mark.parametrize("value", ["007", "1e3", "true", "null", "nan", "a,b", "[x]", "${y}", "x=y", "'", '"', "a\\"])
def test_values_that_look_like_something_else(value: str) -> None:
    test_any_value_survives_the_shell_and_the_grammar_of_overrides.hypothesis.inner_test(value)  # type: ignore[attr-defined]


def test_commands_are_plain_where_names_are() -> None:
    train, evaluate = command("train"), command("evaluate")
    assert resume_command(Path("runs/2026-a_b"), "x=1") == f"{train} resume=runs/2026-a_b x=1"
    assert evaluate_command(Path("runs/x")) == f"{evaluate} runs/x"
    assert evaluate_command(Path("-x")) == f"{evaluate} ./-x"


def test_a_run_goes_on_by_the_command_it_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a directory with everything in its name that shells, Hydra or Orbax read more into."""
    name = 'it\'s "a" [1]*? $x `y` #;&|<>(),={}~!%@^é'
    train(tiny(steps(2)).replace({"run.dir": name}))
    _, printed = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("go on")).split("  ", 1)
    words = shlex.split(printed)
    assert words[:2] == shlex.split(command("train"))
    assert train(load_config(words[2:]))["rounds"] == 4
    assert open_run(name).round == 4


# Resuming ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["directory", "contents", "summary", "evaluations", "damaged"])
def test_a_run_whose_checkpoints_are_gone_is_not_started_over(lost: str, run_dir: Path) -> None:
    checkpoints, metrics = run_dir / "checkpoints", run_dir / "metrics.jsonl"
    lines = [line for line in metrics.read_text().splitlines(True) if '"kind":"round"' in line]
    if lost == "damaged":
        (checkpoints / "4").rename(checkpoints / "damaged-4")
    subprocess.run(["rm", "-r", *map(str, checkpoints.glob("[0-9]*"))], check=True)
    if lost != "contents":
        (run_dir / "summary.json").unlink()
    if lost in ("directory", "damaged"):
        metrics.write_text("".join(lines))
    if lost == "directory":
        checkpoints.rmdir()
    if lost == "summary":
        metrics.unlink()
        (run_dir / "summary.json").write_text("{}")
    before = contents(run_dir)
    with pytest.raises(ConfigError, match=r"has no checkpoint in .*/checkpoints, while .* tells? of|damaged ones"):
        train(load_config([f"resume={run_dir}"]))
    assert contents(run_dir) == before


def test_a_run_killed_before_its_first_checkpoint_starts_over(run_dir: Path, finished: Path) -> None:
    subprocess.run(["rm", "-r", *map(str, (run_dir / "checkpoints").iterdir())], check=True)
    (run_dir / "summary.json").unlink()
    metrics = run_dir / "metrics.jsonl"
    lines = [line for line in metrics.read_text().splitlines(True) if '"kind":"round"' in line]
    metrics.write_text("".join(lines[:2]))
    train(load_config([f"resume={run_dir}"]))
    assert_identical(open_run(run_dir), open_run(finished))


def test_fewer_steps_than_done_are_refused(run_dir: Path) -> None:
    before = contents(run_dir)
    with pytest.raises(ConfigError, match=rf"total_steps=384 is less than the 512 that {run_dir} has done"):
        train(load_config([f"resume={run_dir}", steps(3)]))
    assert contents(run_dir) == before


def test_the_schedule_of_an_annealed_learning_rate_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Longer, it would raise again what it had lowered."""
    run_dir = tmp_path / "run"
    train(tiny(steps(4), f"run.dir={run_dir}", "algorithm.anneal=true"))
    assert "total_steps=" not in capsys.readouterr().out, "going on is no offer"
    for rounds in (2, 8):
        with pytest.raises(ConfigError, match=rf"total_steps={rounds * 128} .*algorithm\.anneal.*total_steps=512"):
            load_config([f"resume={run_dir}", steps(rounds)])
    assert load_config([f"resume={run_dir}", "total_steps=511"]).rounds == 4


def test_a_damaged_line_of_metrics_is_left_out_and_kept_aside(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = run_dir / "metrics.jsonl"
    lines = metrics.read_text().splitlines(True)
    damaged = "".join([lines[0], "\x00" * 40 + lines[1][40:], *lines[2:]])
    metrics.write_text(damaged)
    script = [sys.executable, str(SCRIPTS / "plot.py"), str(run_dir)]
    plotted = subprocess.run(
        script, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False
    )
    assert plotted.returncode == 0 and said(plotted.stderr) == [f"{metrics}: line 2 is damaged and left out"]

    train(load_config([f"resume={run_dir}", steps(6)]))
    assert "line 2 is damaged and left out; the file as it was is" in " ".join(capsys.readouterr().out.split())
    assert (run_dir / "damaged-metrics-4.jsonl").read_text() == damaged
    rounds = [json.loads(line)["round"] for line in metrics.read_text().splitlines() if '"kind":"round"' in line]
    assert rounds == [1, 3, 4, 5, 6]


def test_damage_that_nothing_survives_is_one_sentence(run_dir: Path) -> None:
    for path in (run_dir / "checkpoints").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    script = [sys.executable, str(SCRIPTS / "train.py"), f"resume={run_dir}"]
    done = subprocess.run(
        script, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: there is no intact checkpoint in") and done.stderr.count("\n") == 1
    with pytest.raises(CheckpointError):
        open_run(run_dir)


def test_a_read_of_a_run_touches_nothing(run_dir: Path) -> None:
    """A file that looks abandoned may be one that the training process is writing."""
    (run_dir / "checkpoints" / "6.orbax-checkpoint-tmp").mkdir()
    (run_dir / "checkpoints" / "6.orbax-checkpoint-tmp" / "half").write_text("half")
    before = contents(run_dir)
    trainer = open_run(run_dir)
    assert isinstance(trainer, Trainer) and contents(run_dir) == before


def test_a_run_ends_at_an_evaluation() -> None:
    """As `watch` asks; evaluated once then, and able to go on."""
    watched: list[int] = []

    def far_enough(record: dict[str, float]) -> bool:
        watched.append(int(record["round"]))
        return record["round"] >= 4

    summary = train(tiny(steps(8), "run.dir=ended", "evaluation.points=4"), watch=far_enough)
    assert (watched, summary["rounds"]) == ([2, 4], 4)
    assert train(load_config(["resume=ended"]))["rounds"] == 8


def test_the_processor_is_named(tmp_path: Path) -> None:
    """By more than the name that a cloud gives it; elsewhere than on Linux by what Python knows."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\nprocessor\t: 1\nmodel\t: 9\n"
    )
    assert processor(cpuinfo) == "AMD EPYC (family 25, model 17)"
    cpuinfo.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")
    assert processor(cpuinfo) == processor(tmp_path / "missing") != ""
    cpuinfo.write_bytes(b"model name\t: \xe9 ARM\n")
    assert processor(cpuinfo) == "\ufffd ARM"
    cpuinfo.write_text("model name\t:\nmodel\t: 9\n")
    assert processor(cpuinfo) == f"{processor(tmp_path / 'missing')} (model 9)"
