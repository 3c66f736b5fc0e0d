"""Commands as they work where the user is, and such as can be pasted whatever a directory is called."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
SCRIPTS = {"schedule": "train_scheduler"}
"""Scripts that are called otherwise than the command."""


@cache
def is_checkout() -> bool:
    """Whether the package is used where it is developed, beside its scripts."""
    return (PACKAGE.parent / "scripts" / "train.py").is_file() and not (PACKAGE / "configs").is_dir()


def command(name: str) -> str:
    """How a command is called: as a script in a checkout, else as the one that is installed."""
    return f"python scripts/{SCRIPTS.get(name, name)}.py" if is_checkout() else f"stellaris-jax {name}"


def localised(text: str) -> str:
    """A text that speaks of `stellaris-jax train` and other commands, as they are called here."""
    return re.sub(
        r"\bstellaris-jax (train|evaluate|plot|reproduce|benchmark|schedule)\b", lambda m: command(m[1]), text
    )


def argument(override: str) -> str:
    """An override `key=value` as a shell takes it."""
    key, _, text = override.partition("=")
    return f"{key}={shlex.quote(text)}"


def path_argument(path: Path) -> str:
    """A path as a shell, and the command it is given to, take it."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)
