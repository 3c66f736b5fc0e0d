"""Commands that go on from a run, which can be pasted whatever its directory is called."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

PLAIN = re.compile(r"(?!(?:true|false|null|nan|inf)$)(?:\.{0,2}/|[a-z_])[\w./-]*(?: [\w./-]+)*", re.ASCII | re.I)
"""What Hydra takes for text, and for all of it."""


def override(key: str, value: str | Path) -> str:
    """`key=value` for a command line: quoted for Hydra where it would read more than text in it, then for the shell."""
    text = str(value)
    if not PLAIN.fullmatch(text):
        # In Hydra's quotes a backslash stands for itself, unless a quotation mark comes after it.
        escaped = re.sub(r'(\\*)("|$)', lambda found: 2 * found[1] + (found[2] and r"\""), text)
        return shlex.quote(f'{key}="{escaped}"')
    return f"{key}={shlex.quote(text)}"


def resume_command(run_dir: Path, *further: str) -> str:
    """What goes on with a run."""
    return " ".join(["python scripts/train.py", override("resume", run_dir), *further])


def evaluate_command(run_dir: Path) -> str:
    """What evaluates a run."""
    text = str(run_dir)
    return f"python scripts/evaluate.py {shlex.quote(f'./{text}' if text.startswith('-') else text)}"
