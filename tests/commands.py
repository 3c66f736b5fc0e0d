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


def python(
    *arguments: object, cwd: Path | None = None, check: bool = False, group: bool = False, **variables: str
) -> CompletedProcess[str]:
    """Run a Python process that finds the package and the modules of the tests.

    Args:
      arguments: of the interpreter.
      cwd: its directory.
      check: whether it must succeed.
      group: whether it leads a process group of its own.
      variables: of its environment, beside those of this process.
    """
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=check, timeout=300,
        start_new_session=group,
    )  # fmt: skip


SIGNS = ("restoring ", "exporting ", "writing ", "drawing ", "reading ", "playing ", "filming ", "simulating ")
"""Beginnings of the lines by which commands say what they do."""


def said(stderr: str) -> list[str]:
    """Lines of stderr without those signs of life: errors and warnings."""
    return [line for line in stderr.splitlines() if not line.startswith(SIGNS)]


def start(run_dir: Path, *overrides: str, script: str = "train.py") -> subprocess.Popen[str]:
    """`python scripts/train.py OVERRIDES` beside a run directory, with its output in a pipe."""
    command = [sys.executable, str(SCRIPTS / script), *overrides]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(
        command, cwd=run_dir.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for_checkpoints(process: subprocess.Popen[str], run_dir: Path, count: int) -> None:
    """Until that many checkpoints are complete, while the process still trains."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if len([p for p in (run_dir / "checkpoints").glob("*") if p.name.isdigit()]) >= count:
            return
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        time.sleep(0.005)
    raise AssertionError("no checkpoint appeared")
