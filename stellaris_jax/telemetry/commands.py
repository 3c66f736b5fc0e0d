"""Commands that continue from a run."""

from __future__ import annotations

from pathlib import Path

from stellaris_jax.base.commands import argument, as_override, command, is_interactive, path_argument


def resume_command(run_dir: Path, *further: str) -> str:
    """Command that resumes a run, or a call in a notebook."""
    if is_interactive():
        return f"train(load_config({[as_override('resume', run_dir), *further]}))"
    return " ".join([command("train"), argument("resume", run_dir), *further])


def evaluate_command(run_dir: Path) -> str:
    """Command that evaluates a run."""
    return f"{command('evaluate')} {path_argument(run_dir)}"
