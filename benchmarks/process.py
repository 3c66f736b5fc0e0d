"""Measurements in processes of their own, so that memory, caches and what is compiled are those of one alone."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stellaris_jax.base.errors import ConfigError, RunError

ROOT = Path(__file__).resolve().parent.parent


def execute(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a command in the root of the checkout; returns its output.

    Args:
      command: a program and its arguments.
      environment: variables beside those of this process.

    Raises:
      ConfigError: if the program refuses its arguments in a sentence, as ours do.
      RunError: if it cannot be started, or fails.
    """
    try:
        done = subprocess.run(command, env={**os.environ, **(environment or {})}, cwd=ROOT, capture_output=True)
    except OSError as error:
        raise RunError(f"{command[0]} cannot be started: {error.strerror}.") from None
    told = done.stderr.decode(errors="replace").strip()
    if done.returncode == 2 and told.startswith("error: "):
        raise ConfigError(told.removeprefix("error: "))
    if done.returncode != 0:
        last = told.splitlines()[-1] if told else "it says nothing"
        raise RunError(f"{' '.join(command)} failed ({done.returncode}): {last}")
    return done.stdout.decode(errors="replace")


def figures(command: list[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a command whose last line of output is one JSON object; see `execute`.

    Raises:
      ConfigError: as `execute`.
      RunError: as `execute`, and if that line is something else.
    """
    lines = execute(command, environment).strip().splitlines()
    try:
        found = json.loads(lines[-1])
    except (IndexError, ValueError):
        found = None
    if not isinstance(found, dict):
        last = repr(lines[-1][:80]) if lines else "nothing"
        raise RunError(f"{' '.join(command)} does not end with a JSON object, but with {last}.")
    return found
