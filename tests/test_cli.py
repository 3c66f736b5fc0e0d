"""The command line: sweeps from their files to their reports, single runs, mistakes and help."""

from __future__ import annotations

from pathlib import Path

import pytest

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.cli import train as cli
from stellaris_jax.cli.stored_text import WIDTH
from stellaris_jax.config.compose import GROUPS, choices, load_sweep
from stellaris_jax.config.options import option_keys
from stellaris_jax.config.tree import Config, knobs, sections
from stellaris_jax.execute.loading import load_config


def test_sweep_file_expands_to_its_grid() -> None:
    systems = ["allreduce", "async", "softsync", "ssp", "stellaris"]
    points = load_sweep(["sweep=staleness"]).points
    assert points == [[f"system={system}", "num_seeds=5", "sweep=staleness"] for system in systems]
    assert [load_config(point).system.name for point in points] == systems


def test_command_line_replaces_keys_of_the_sweep_file() -> None:
    points = load_sweep(["sweep=staleness", "system=async,central", "seed=3", "total_steps=1e5,2e5"]).points
    configs = [load_config(point) for point in points]
    assert [(c.system.name, c.seed, c.total_steps) for c in configs] == [
        ("async", 3, 100_000),
        ("async", 3, 200_000),
        ("central", 3, 100_000),
        ("central", 3, 200_000),
    ]


def test_globs_and_ranges_are_sweeps_too() -> None:
    points = load_sweep(["system=glob(s*)", "seed=range(0,3)", "env.kwargs.x=1,2"]).points
    matching = [name for name in choices("system") if name.startswith("s")]
    assert len(matching) > 2 and len(points) == len(matching) * 3 * 2
    with pytest.raises(ConfigError, match="did you mean stellaris"):
        load_sweep(["system=async,stelaris"])


def test_dummy_sweep_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reported: list[Path] = []
    monkeypatch.setattr("stellaris_jax.report.sweep.report", reported.append)
    seen: list[Config] = []

    def task(config: Config) -> None:
        assert Path.cwd() == tmp_path and Path(config.run.dir).is_dir()
        seen.append(config)

    acrobot = ["env=gymnax/Acrobot-v1", "env.kwargs.max_steps_in_episode=9"]
    cli.main(["-m", "sweep=staleness", *acrobot, "seed=0,1"], task)
    assert len({(config.system.name, config.seed) for config in seen}) == len(seen) == 10
    assert all(config.env.kwargs == {"max_steps_in_episode": 9} for config in seen)
    (folder,) = reported
    assert folder.parent == Path("runs/sweeps") and folder.name.endswith("-staleness")
    assert [Path(config.run.dir) for config in seen] == [folder / str(i) for i in range(10)]
    written = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    assert written == sorted([str(i) for i in range(10)] + [f"{i}/config.yaml" for i in range(10)] + ["sweep.yaml"])
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_sweep_survives_a_point_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    reported: list[Path] = []
    monkeypatch.setattr("stellaris_jax.report.sweep.report", reported.append)
    seen: list[int] = []

    def task(config: Config) -> None:
        seen.append(config.seed)
        if config.seed == 1:
            raise FloatingPointError("diverged")

    with pytest.raises(FloatingPointError, match="diverged"):
        cli.main(["--multirun", "seed=0,1,2", "hydra.sweep.dir=mine"], task)
    assert seen == [0, 1, 2] and reported == [Path("mine")]
    assert "error: point 1 failed: FloatingPointError: diverged" in capsys.readouterr().err


def test_single_run_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[Config] = []
    cli.main(["system=ssp", "seed=3"], seen.append)
    assert seen == [load_config(["system=ssp", "seed=3"])]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["algoritm.lr=1"], "algorithm.learning_rate"),
        (["-m", "system=async,stelaris"], "stellaris"),
        (["-m", "sweep=stalenes"], "did you mean staleness"),
        (["-m", "system=central", "system.learners=1,2"], "must be 1, not 2"),
        (["sweep=staleness"], "add -m"),
        (["seed=1,2"], "train -m"),
        (["-m", "algorithm.options.clip=interval(0,1)"], "list of values"),
        (["--seed=3"], "key=value"),
        (["--seed", "3"], "key=value"),
        (["--config-dir", "/nowhere"], "/nowhere"),
    ],
)
def test_mistakes_end_in_one_line_before_anything_runs(
    argv: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def task(config: Config) -> None:
        raise AssertionError("must not run")

    with pytest.raises(SystemExit) as stopped:
        cli.main(argv, task)
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert error.startswith("error: ") and part in error and error.count("\n") == 1, error


@pytest.mark.parametrize("argv", [["seed=3"], ["-m", "seed=3"]])
def test_config_error_of_the_task_is_one_line(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stellaris_jax.report.sweep.report", lambda folder: None)

    def task(config: Config) -> None:
        raise ConfigError("run.dir=x holds a run.")

    with pytest.raises(SystemExit) as stopped:
        cli.main(argv, task)
    error = "error: run.dir=x holds a run.\n"
    swept = "-m" in argv
    assert stopped.value.code == 2 - swept
    assert capsys.readouterr().err == error + swept * "error: 1 of 1 points have no result: 0.\n"


def test_help_explains_everything(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["--help", "env=brax/hopper", "algorithm.options.clip=0.123"], lambda config: None)
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDTH
    flowing = " ".join(text.split())
    assert all(any(line.split()[:1] == [key] for line in lines) for key in option_keys())
    for key, entry in knobs().items():
        if key.endswith("options"):
            continue
        assert any(line.split()[:1] == [key] for line in lines), key
        assert " ".join(entry.help.split()) in flowing, key
        assert all(choice in flowing for choice in entry.names)
    assert all(help in flowing for help in sections().values())
    assert all(choice in flowing for group in GROUPS for choice in choices(group))
    assert "0.123" in text and "brax/hopper" in text


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    from stellaris_jax import __version__
    from stellaris_jax.cli.main import main as any_command

    any_command(["--version"])
    assert capsys.readouterr().out == f"stellaris-jax {__version__}\n"
