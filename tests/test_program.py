"""Scripts as programs among others: their numbers, pipes, full disks, narrow terminals and platforms."""

from __future__ import annotations

import io
import json
import os
import runpy
import signal
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import jax
import pytest
from commands import call, said
from rich.console import Console

from benchmarks.process import figures
from stellaris_jax import ConfigError, load_config
from stellaris_jax.base.commands import command
from stellaris_jax.cli import program
from stellaris_jax.cli import train as cli
from stellaris_jax.config.options import PLACES, option_keys
from stellaris_jax.config.stored import to_yaml
from stellaris_jax.config.tree import knobs
from stellaris_jax.telemetry.progress import LiveDisplay

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
TINY = ["env.num_envs=8", "network.hidden=[4]", "algorithm.rollout_length=8", "algorithm.epochs=2"]
SMALL = [*TINY, "run.progress=false"]
OWN_RULE = """
import stellaris_jax as sj


@sj.register.rule("pairs")
class Pairs(sj.Rule):
    def ready(self, staleness, view):
        return len(staleness) >= 2
"""


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("x=1 --trials 3 y=2", ["x=1", "y=2"]),
        ("--trials 3 x=1 --fast y=2", ["x=1", "y=2"]),
        ("x=1 y=2 --fast --trials 3", ["x=1", "y=2"]),
        ("--trials 3", []),
        ("--trials 3 -- -x y", ["-x", "y"]),
    ],
)
def test_settings_stand_anywhere_among_options(line: str, settings: list[str]) -> None:
    parser = program.Parser("tune")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--fast", action="store_true")
    given = parser.parse_mixed(line.split())
    assert (given.settings, given.trials, given.fast) == (settings, 3, "--fast" in line)


def script(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> object:
    """A script in this process; its exit code, or what it exits with."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPTS / name), *arguments])
    try:
        runpy.run_path(str(SCRIPTS / name), run_name="__main__")
    except SystemExit as end:
        return end.code
    return 0


def process(command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A shell command in a process of its own, with $python and $scripts."""
    variables = {"python": sys.executable, "scripts": str(SCRIPTS), "PYTHONPATH": str(SCRIPTS.parent), **environment}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


# Arguments -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("evaluate.py RUN --episodes 0", "--episodes: must be an integer of at least 1, not '0'"),
        ("evaluate.py RUN --episodes 1e3", "--episodes: must be an integer"),
        ("evaluate.py RUN --video-episodes 0 --video x.gif", "--video-episodes: must be an integer of at least 1"),
        ("evaluate.py RUN --seed -1", "--seed: must be an integer of at least 0, not '-1'"),
        ("evaluate.py RUN --seed 4294967296", "--seed: must be at most 4294967295"),
        ("evaluate.py nowhere", "nowhere holds no run"),
        ("benchmark.py peers --peers /nope", "--peers=/nope has no environment of a peer"),
        ("benchmark.py peers --parts throughput --jobs cartpole", "--jobs=cartpole is one of the part return"),
        ("benchmark.py engine --repeats 0", "--repeats: must be an integer of at least 1"),
        ("benchmark.py engine --json /dev/null/figures.json", "--json=/dev/null/figures.json cannot be written"),
        ("benchmark.py calibrate --out /dev/null/mine.yaml", "--out=/dev/null/mine.yaml cannot be written"),
        ("train_scheduler.py --out /dev/null/x.npz", "--out=/dev/null/x.npz cannot be written"),
        ("plot.py", "name a run directory"),
        ("plot.py nowhere", "nowhere holds no metrics"),
        ("plot.py nowhere elsewhere", "nowhere holds no run"),
        ("plot.py --sweep nowhere", "--sweep=nowhere is not a directory"),
        ("plot.py --sweep .", "holds no sweep points"),
        ("plot.py --timeline 0", "--timeline: must be an integer of at least 1, not '0'"),
        ("plot.py --timeline 246", "--timeline=246 must be at most 245"),
        ("reproduce.py stellaris --seeds 0", "--seeds: must be an integer of at least 1"),
        ("reproduce.py stellaris --envs pong", "--envs pong is not one of"),
        ("train_scheduler.py --out x.npz --seed 4294967296", "--seed: must be at most 4294967295"),
        ("train_scheduler.py --out x.npz --episodes 0", "--episodes: must be an integer of at least 1"),
        ("train_scheduler.py --out x.npz --start x.npz", "x.npz does not exist"),
        ("train.py seed=-1", "seed must be at least 0"),
    ],
)
def test_mistakes_end_in_one_line(
    command: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert script(*command.split(), monkeypatch=monkeypatch) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ") and shown.err.count("\n") == 1, shown.err
    assert part in shown.err and shown.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "x", "1.0", "--1", "²", "9" * 19, "9" * 5000])
def test_numbers_of_the_command_line(text: str) -> None:
    assert program.at_least(-3)("-2") == -2
    assert program.seed("4294967295") == 2**32 - 1
    for read in (program.at_least(0), program.seed):
        with pytest.raises(ArgumentTypeError):
            read(text)


# How programs end ----------------------------------------------------------------------------------------------------

PIPE = 128 + signal.SIGPIPE


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("command", ["train.py --help", "evaluate.py --help"])
def test_output_that_cannot_be_written(command: str, buffered: str, tmp_path: Path) -> None:
    environment = {"PYTHONUNBUFFERED": buffered}
    closed = process(f"$python $scripts/{command} | true", tmp_path, **environment)
    assert (closed.returncode, closed.stderr) == (PIPE, "")
    full = process(f"$python $scripts/{command} > /dev/full", tmp_path, **environment)
    assert full.returncode == 1
    assert full.stderr == "error: the output cannot be written (No space left on device).\n"


@pytest.mark.parametrize(
    ("streams", "code", "end"),
    [
        (">out 2>&-", 0, ""),
        (">out 2>/dev/full", 0, ""),
        ("<&- >out 2>&-", 0, ""),
        ("2>err >&-", 1, "error: the output cannot be written (Bad file descriptor).\n"),
        ("2>err >/dev/full", 1, "error: the output cannot be written (No space left on device).\n"),
    ],
)
def test_standard_streams_that_are_closed_or_full(streams: str, code: int, end: str, tmp_path: Path) -> None:
    """Results and errors are never mixed, and files never get the number of a stream."""
    for name in ("err", "out"):
        (tmp_path / name).write_text("")
    begin = "import os, sys; from stellaris_jax.cli import program; from stellaris_jax.cli.working import working"
    main = (
        "def main():\n    with working('working'):\n        assert os.open('file', os.O_CREAT) > 2\n        "
        "print('a warning', file=sys.stderr)\n        print('a result')"
    )
    (tmp_path / "command.py").write_text(f"{begin}\n{main}\nprogram.run(lambda: program.run(main))\n")
    done = process(f"$python command.py {streams}", tmp_path)
    assert done.returncode == code
    assert (tmp_path / "out").read_text() == ("" if code else "a result\n")
    assert (tmp_path / "err").read_text() == ("" if not end else f"working\na warning\n{end}")


def test_a_mistake_has_its_exit_code_without_a_standard_error(tmp_path: Path) -> None:
    (tmp_path / "command.py").write_text(
        "from stellaris_jax import ConfigError\nfrom stellaris_jax.cli import program\n"
        "def main():\n    raise ConfigError('wrong')\nprogram.run(main)\n"
    )
    for stream in ("2>&-", "2>/dev/full"):
        done = process(f"$python command.py {stream}", tmp_path)
        assert (done.returncode, done.stdout) == (2, "")


def test_training_whose_reader_goes_away(tmp_path: Path) -> None:
    settings = " ".join([*SMALL, "total_steps=20000", "evaluation.points=200", "evaluation.episodes=1"])
    done = process(f"$python $scripts/train.py '{settings}' run.dir=run | head -1".replace("'", ""), tmp_path)
    assert (done.returncode, done.stderr) == (PIPE, "") and done.stdout.count("\n") == 1
    full = process(f"$python $scripts/train.py {settings} run.dir=full > /dev/full", tmp_path)
    assert full.returncode == 1 and full.stderr.count("\n") == 1, full.stderr


def test_a_sweep_whose_reader_goes_away_trains_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stellaris_jax.report.sweep.report", lambda folder: None)
    seen: list[int] = []

    class Closed:
        """A pipe that nobody reads."""

        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

        def flush(self) -> None: ...

        def fileno(self) -> int:
            return os.open(os.devnull, os.O_WRONLY)

    with monkeypatch.context() as patched, pytest.raises(SystemExit) as end:
        patched.setattr(sys, "stdout", Closed())
        cli.main(["-m", "seed=0,1,2"], lambda config: seen.append(config.seed))
    assert end.value.code == PIPE and seen == []


def test_other_errors_are_not_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        Path("/nowhere/at/all").read_text()

    with pytest.raises(FileNotFoundError):
        program.run(fails)
    with pytest.raises(ZeroDivisionError):
        program.run(lambda: print(1 // 0))


def test_ctrl_c_ends_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        program.run(interrupted)
    assert end.value.code == 128 + signal.SIGINT and capsys.readouterr().err == ""


# Platforms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "told"),
    [
        ("cuda", "CUDA did not start (JAX sees no NVIDIA GPU); check the driver with nvidia-smi, "),
        ("abacus", "JAX_PLATFORMS=abacus asks for a platform that JAX cannot start here"),
    ],
)
def test_platforms_that_are_not_there(platform: str, told: str, tmp_path: Path) -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("there is a GPU")
    done = process("$python $scripts/train.py total_steps=1", tmp_path, JAX_PLATFORMS=platform)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {told}")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(to_yaml(load_config()))
    done = process("$python $scripts/evaluate.py run", tmp_path, JAX_PLATFORMS=platform)
    (sentence,) = said(done.stderr)
    assert done.returncode == 2 and sentence.startswith(f"error: {told}")


def test_what_a_measurement_in_another_process_refuses() -> None:
    """Its sentence is ours, instead of a traceback around it."""
    command = [sys.executable, str(SCRIPTS / "benchmark.py"), "plan", "--repeats", "0"]
    with pytest.raises(ConfigError, match=r"^argument --repeats: must be an integer of at least 1, not '0'$"):
        figures(command)


@pytest.mark.parametrize("command", ["train.py engine.devices=4", "train.py -m engine.devices=1,4"])
def test_devices_of_a_cpu(command: str, tmp_path: Path) -> None:
    """In a process of its own, where importing gymnax starts JAX."""
    settings = " ".join([*SMALL, "total_steps=64", "evaluation.episodes=0", "env=gymnax/cartpole"])
    sweep = "num_seeds=1 hydra.sweep.dir=sweep" if "-m" in command else "run.dir=sweep/1"
    done = process(f"$python $scripts/{command} {settings} {sweep}", tmp_path, JAX_PLATFORMS="cpu")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "sweep/1/summary.json").read_text())["device"].startswith("4 x cpu")


def test_more_devices_than_there_are() -> None:
    jax.devices()  # which starts JAX
    with pytest.raises(ConfigError, match=r"engine\.devices=16 is too many"):
        load_config(["engine.devices=16"])


def test_brax_on_several_devices_of_a_cpu_is_refused() -> None:
    """XLA's compiler would end the process."""
    with pytest.raises(ConfigError, match=r"engine\.devices=2 is not possible with env\.name=brax/hopper on a CPU"):
        load_config(["env=brax/hopper", "engine.devices=2"])


# Narrow terminals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [40, 79, 100, 300])
def test_help_fits_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    cli.main(["--help"], lambda config: None)
    lines = capsys.readouterr().out.splitlines()
    told = [line for line in lines if "scripts/" not in line]
    names = [f"  {key} " for key in (*knobs(), *option_keys())] + [f"  {place.key}=" for place in PLACES]
    running = [line for line in told if not line.startswith(tuple(names))]
    assert max(map(len, running)) <= columns and max(map(len, told)) <= max(columns, 80)
    flowing = " ".join(" ".join(lines).split())
    shown = [entry for key, entry in knobs().items() if not key.endswith("options")]
    assert all(" ".join(entry.help.split()) in flowing for entry in shown)


def test_the_live_panel_fits_the_terminal() -> None:
    console = Console(width=40, record=True, file=io.StringIO())
    display = LiveDisplay(console, "stellaris · ppo · gymnax/CartPole-v1", 245)
    display.close()
    record = {"round": 5, "env_steps": 10_240, "updates": 115, "train_return": 97.4, "steps_per_second": 94_800.0}
    gate = {"gate_escapes": 3, "gate_groups": 20, "occupancy": 1.0}
    display.rounds([{**record, **gate, "staleness_mean": 5.5, "staleness_max": 13, "cost_usd": 0.058}])
    console.export_text()
    console.print(display.panel())
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 40
    for part in ("return", "97.4", "staleness", "5.50", "115", "updates", "escaped", "$0.058", "occupancy"):
        assert part in text
    assert "…" not in text


def test_the_timeline_of_a_run(tmp_path: Path) -> None:
    """It is that of its settings, a rule of its own included; of a live run nothing was foretold."""
    (tmp_path / "rules.py").write_text(OWN_RULE)
    own = [f"plugins=[{tmp_path / 'rules.py'}]", "system=async", "system.rule=pairs"]
    for name, settings in {"run": own, "live": ["executor=live"]}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(to_yaml(load_config([*TINY, *settings])))
    pictures = [tmp_path / "of_settings.png", tmp_path / "of_run.png"]
    for subjects, picture in zip(([*TINY, *own], [str(tmp_path / "run"), "--trust"]), pictures, strict=True):
        done = call("plot.py", "--timeline", 2, *subjects, "--out", picture)
        assert (done.returncode, done.stdout.strip()) == (0, str(picture)), done.stderr
    first, second = (picture.read_bytes() for picture in pictures)
    assert first == second
    done = call("plot.py", "--timeline", 2, tmp_path / "run", tmp_path / "live")
    assert done.returncode == 2 and "--timeline draws one run, alone" in done.stderr
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange.py").write_text("raise RuntimeError")
    stored = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "strange" / "config.yaml").write_text(stored.replace("rules.py", "strange.py"))
    done = call("plot.py", "--timeline", 2, tmp_path / "strange")
    assert done.returncode == 2 and "--trust" in done.stderr
    done = call("plot.py", "--timeline", 2, tmp_path / "live")
    assert done.returncode == 2 and "executor=live, which nothing foretold: --trace writes" in done.stderr


def test_a_timeline_of_choices_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "mine.yaml").write_text("name: mine\nrule: softsync\nlearners: 4\n")
    out = tmp_path / "mine.png"
    done = call("plot.py", "--timeline", 1, "system=mine", *TINY, "--config-dir", tmp_path, "--out", out)
    assert done.returncode == 0 and out.is_file(), done.stderr
    done = call("plot.py", tmp_path, "--config-dir", tmp_path)
    assert done.returncode == 2 and "--config-dir needs --timeline" in done.stderr


def test_commands_are_called_as_they_were_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/stellaris-jax", "train"])
    assert command("evaluate") == "stellaris-jax evaluate"
    monkeypatch.setattr(sys, "argv", ["scripts/train.py"])
    assert command("evaluate").endswith("scripts/evaluate.py")


@pytest.mark.parametrize("words", ["evaluate.py PLACE", "export.py PLACE --to onnx", "train.py init_from=PLACE"])
def test_a_sweep_in_place_of_a_run(words: str, tmp_path: Path) -> None:
    point = tmp_path / "sweep" / "0"
    point.mkdir(parents=True)
    (point / "config.yaml").write_text(to_yaml(load_config([])))
    done = call(*words.replace("PLACE", str(tmp_path / "sweep")).split())
    assert done.returncode == 2
    assert f"{tmp_path / 'sweep'} is a sweep; name one of its runs, such as {point}." in done.stderr
