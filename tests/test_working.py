"""Signs of life: commands say on stderr what they do before they do it, and leave stdout to results."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import call

from stellaris_jax import load_config
from stellaris_jax.cli import working as status
from stellaris_jax.cli.working import working
from stellaris_jax.engine.program import Engine
from stellaris_jax.execute import run as runs
from stellaris_jax.many.forecast import combinations, forecasts
from stellaris_jax.timeline.forecast import Window

SMALL = ["env=gymnax/cartpole", "env.num_envs=4", "algorithm.rollout_length=16", "network.hidden=[8]", "total_steps=64",
         "evaluation.episodes=2", "evaluation.points=1", "run.progress=false"]  # fmt: skip


class Reached(Exception):
    """The slow part of a command has begun."""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "small"
    runs.train(load_config([*SMALL, f"run.dir={path}"]))
    return path


SLOW = {
    "evaluate.py RUN --episodes 2": ("stellaris_jax.execute.run.open_run", "restoring the policy of RUN"),
    "export.py RUN --to onnx": (
        "stellaris_jax.policies.export.writing.export_policy",
        "exporting the policy of RUN to",
    ),
    "report.py RUN": ("stellaris_jax.report.page.page.write_page", "writing the page of RUN"),
    "plot.py RUN": ("stellaris_jax.report.curves.plot_run", "drawing RUN"),
    "plot.py --sweep OVER": ("stellaris_jax.report.sweep.report", "reading the points of OVER"),
    "plot.py --timeline 1": ("stellaris_jax.report.gantt.plot_timeline", "simulating and drawing 1 round of stellaris"),
    "plan.py system=async": (
        "stellaris_jax.many.forecast.forecasts",
        "simulating 1 combination, up to 200 rounds a seed",
    ),
    "plot.py --trace x.json RUN": ("stellaris_jax.report.perfetto.export", "writing the timeline of RUN"),
    "check_env.py gymnax/cartpole": ("stellaris_jax.envs.check.check_env", "playing gymnax/CartPole-v1 with random"),
    "train_scheduler.py --out x.npz": (
        "stellaris_jax.many.scheduler_training.train_scheduler",
        "compiling, then training a scheduler on 100 jobs",
    ),
    "reproduce.py index": ("studies.index.write_index", "writing results/README.md"),
}
"""Commands, the slow parts of them, and what stderr says before these begin."""


@pytest.mark.parametrize("command", SLOW)
def test_the_line_comes_before_the_work(
    command: str, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep" / "0").mkdir(parents=True)
    function, line = SLOW[command]
    said: list[str] = []

    def begin(*arguments: Any, **options: Any) -> None:
        said.append(sys.stderr.getvalue())  # type: ignore[attr-defined]
        raise Reached

    monkeypatch.setattr(function, begin)
    places = {"RUN": str(run_dir), "OVER": str(tmp_path / "sweep")}
    done = call(*(places.get(word, word) for word in command.split()))
    for name, place in places.items():
        line = line.replace(name, place)
    assert said and line in said[0], done.stderr
    assert done.stdout == ""


def test_results_alone_are_on_stdout(run_dir: Path) -> None:
    done = call("evaluate.py", run_dir, "--episodes", 2)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 2 and done.stdout.startswith("gymnax/CartPole-v1")
    assert done.stderr.splitlines() == [
        f"restoring the policy of {run_dir}",
        "playing 2 episodes of gymnax/CartPole-v1",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_spinner_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is erased before the first result."""
    shown, results = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(sys, "stdout", results)
    monkeypatch.setenv("TERM", "xterm")
    with working("drawing"):
        assert "drawing  0 s" in shown.getvalue() and "\x1b[2K" not in shown.getvalue()
        print("figure.png")
        assert shown.getvalue().endswith("\x1b[2K"), "erased"
        print("figure.pdf")
    assert results.getvalue() == "figure.png\nfigure.pdf\n" and sys.stdout is results


def test_how_far_the_work_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the spinner at once; elsewhere in a line now and then."""
    clock = iter([0.0, 1.0, 21.0, 21.0, 22.0])
    monkeypatch.setattr(status, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with working("simulating") as tell:
        for rounds in range(3):
            tell(f"{rounds} of 3 rounds")
    assert capsys.readouterr() == ("", "simulating\nsimulating: 1 of 3 rounds\n")


def test_how_far_the_work_is_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(status, "REFRESH_PER_SECOND", 100)
    with working("simulating") as tell:
        tell("2 of 3 rounds")
        for _ in range(1000):
            if "simulating: 2 of 3 rounds  0 s" in shown.getvalue():
                break
            time.sleep(0.01)
        else:
            pytest.fail(shown.getvalue())


def test_plan_says_how_far_it_is() -> None:
    told: list[str] = []
    chosen = combinations(["system=async,central", "num_seeds=2", "total_steps=8192"])
    rows = forecasts(chosen, Window(2, 0), told.append)
    assert len(rows) == 2 and told == [f"{number} of 8 rounds" for number in range(1, 9)]


def test_what_is_refused_at_once_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with working("drawing", when=False):
        pass
    assert capsys.readouterr() == ("", "")


# Time of evaluations -----------------------------------------------------------------------------------------------


def test_a_restored_run_makes_no_first_state(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To compile the program of a first state takes longer than to restore one."""
    whole = runs.open_run(run_dir)
    monkeypatch.setattr(Engine, "init", lambda *arguments: pytest.fail("a first state was made"))
    trainer = runs.open_run(run_dir)
    assert trainer.evaluate(2, stream=0).per_seed == whole.evaluate(2, stream=0).per_seed


@pytest.mark.parametrize("kept", [True, False])
def test_programs_of_evaluations_are_kept_on_disk(kept: bool, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(runs, "enable_compile_cache", lambda: calls.append(True))
    runs.open_run(run_dir, {"engine.compile_cache": kept})
    assert calls == [True] * kept
