"""Scripts of the repository, called in this process: what is imported and compiled already costs nothing again."""

from __future__ import annotations

import io
import runpy
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


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
