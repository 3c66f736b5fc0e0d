"""Scripts of the repository: called in this process, where what is imported and compiled already costs nothing again,
or started in one of their own."""

from __future__ import annotations

import io
import os
import runpy
import subprocess
import sys
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SCRIPTS = REPOSITORY / "scripts"


def call(name: str, *arguments: object) -> CompletedProcess[str]:
    """As `python scripts/NAME ARGUMENTS`; an exception that is not caught ends it with 1 and its traceback."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        try:
            runpy.run_path(str(SCRIPTS / name), run_name="__main__")
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            if isinstance(stop.code, str):
                print(stop.code, file=err)
        except Exception:
            traceback.print_exc(file=err)
            code = 1
    return CompletedProcess([name], code, out.getvalue(), err.getvalue())


def refusal(name: str, *arguments: object) -> str:
    """The one line that a script refuses its arguments with."""
    done = call(name, *arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def _environment(**variables: str) -> dict[str, str]:
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    return {**os.environ, "PYTHONPATH": path, **variables}


def python(*arguments: object, cwd: Path | None = None, **options: Any) -> CompletedProcess[str]:
    """Run a Python process that finds the package and the modules of the tests.

    Args:
      arguments: arguments of the interpreter.
      cwd: its directory.
      options: `check` and `start_new_session` of `subprocess.run`; variables of its environment, in capitals.
    """
    variables = {name: options.pop(name) for name in list(options) if name.isupper()}
    command = [sys.executable, *map(str, arguments)]
    environment = _environment(**variables)
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, **options)


SIGNS = ("restoring ", "exporting ", "writing ", "drawing ", "reading ", "playing ", "filming ", "simulating ")
"""Beginnings of the lines by which commands say what they do."""


def said(stderr: str) -> list[str]:
    """Lines of stderr without those signs of life: errors and warnings."""
    return [line for line in stderr.splitlines() if not line.startswith(SIGNS)]


def begin(cwd: Path, *command: object, **options: Any) -> subprocess.Popen[str]:
    """Start a process in a directory, with its output in a pipe; see `python`."""
    return subprocess.Popen(
        list(map(str, command)), cwd=cwd, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, **options,
    )  # fmt: skip


def start(run_dir: Path, *overrides: str, script: str = "train.py", **options: Any) -> subprocess.Popen[str]:
    """`python scripts/train.py OVERRIDES` beside a run directory, with its output in a pipe."""
    return begin(run_dir.parent, sys.executable, SCRIPTS / script, *overrides, **options)


def ended_by(signum: int, process: subprocess.Popen[str]) -> str:
    """The output of a process that a signal ends, without a traceback."""
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + signum and "Traceback" not in output, output
    return output


def wait_for_checkpoints(process: subprocess.Popen[str], run_dir: Path, count: int) -> None:
    """Until that many checkpoints are complete, while the process still trains."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if len([p for p in (run_dir / "checkpoints").glob("*") if p.name.isdigit()]) >= count:
            return
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        time.sleep(0.005)
    raise AssertionError("no checkpoint appeared")
