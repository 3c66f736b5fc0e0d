"""Commands that go on from a run, which can be pasted whatever its directory is called."""

from __future__ import annotations

import shlex
from pathlib import Path

from stellaris_jax.compose import as_override


def argument(key: str, value: str | Path) -> str:
    """`key=value` as a shell takes it for a script."""
    key, _, text = as_override(key, value).partition("=")
    return f"{key}={shlex.quote(text)}"


def resume_command(run_dir: Path, *further: str) -> str:
    """What goes on with a run."""
    return " ".join(["python scripts/train.py", argument("resume", run_dir), *further])


def evaluate_command(run_dir: Path) -> str:
    """What evaluates a run."""
    text = str(run_dir)
    return f"python scripts/evaluate.py {shlex.quote(f'./{text}' if text.startswith('-') else text)}"
