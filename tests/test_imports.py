"""What commands import: nothing heavy for a help text, and no pictures for a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stellaris_jax.base.commands import COMMANDS

REPORT = """\
import contextlib, io, sys
from stellaris_jax.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    try:
        main(sys.argv[1:])
    except SystemExit as end:
        if end.code:
            raise
print(*sys.modules)
"""
HEAVY = {
    "jax",
    "flax",
    "optax",
    "orbax",
    "scipy",
    "matplotlib",
    "gymnasium",
    "brax",
    "mujoco",
    "envpool",
    "ray",
    "optuna",
}
PICTURES = {"matplotlib", "PIL", "seaborn", "imageio"}
OTHERS = {"brax", "mujoco", "envpool", "ray", "optuna", "pandas", "IPython", "torch", "sphinx"}
TRAINED = (
    "env=gymnax/cartpole", "env.num_envs=2", "algorithm.rollout_length=8", "algorithm.epochs=1",
    "algorithm.minibatches=2", "network.hidden=[4]", "system.learners=2", "total_steps=16", "evaluation.points=0",
    "run.progress=false", "run.loggers=[]",
)  # fmt: skip


def imported(*arguments: str) -> set[str]:
    """Modules and packages that a command has imported by its end."""
    done = subprocess.run([sys.executable, "-c", REPORT, *arguments], capture_output=True, text=True, check=True)
    names = done.stdout.splitlines()[-1].split()
    return {*names} | {name.partition(".")[0] for name in names}


@pytest.mark.parametrize(
    "command", ["", *(name for name in COMMANDS if name not in ("train", "benchmark", "reproduce"))]
)
def test_a_help_text_needs_nothing_heavy(command: str) -> None:
    assert not imported(*filter(None, [command]), "--help") & HEAVY


def test_the_help_of_train_is_composed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "hydra" in imported("train", "--help")
    assert not imported("train", "--help") & {*HEAVY, "hydra", "omegaconf"}


def test_a_run_and_its_evaluation_load_no_pictures_and_no_other_suites(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained = imported("train", *TRAINED, f"run.dir={run}", "evaluation.points=1", "num_seeds=2")
    assert "jax" in trained and not trained & OTHERS, trained & OTHERS
    evaluated = imported("evaluate", str(run), "--episodes", "64")
    assert "jax" in evaluated and not evaluated & (PICTURES | OTHERS), evaluated & (PICTURES | OTHERS)
    assert "scipy.special" not in trained | evaluated and "hydra" not in evaluated
