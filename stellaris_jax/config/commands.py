"""Commands as they work where the user is, and such as can be pasted whatever a directory is called."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
SCRIPTS = {"schedule": "train_scheduler", "check-env": "check_env"}
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
        r"\bstellaris-jax (train|evaluate|plot|reproduce|benchmark|schedule|check-env)\b", lambda m: command(m[1]), text
    )


PLAIN = re.compile(r"(?!(?:true|false|null|nan|inf)$)(?:\.{0,2}/|[a-z_])[\w./-]*(?: [\w./-]+)*", re.ASCII | re.I)
"""Values of overrides that Hydra takes for text, and for all of it."""


def as_override(key: str, value: str | Path) -> str:
    """`key=value` for `load_config`, with the value quoted where Hydra would read more than text in it."""
    text = str(value)
    if PLAIN.fullmatch(text):
        return f"{key}={text}"
    # In Hydra's quotes a backslash stands for itself, unless a quotation mark comes after it.
    escaped = re.sub(r'(\\*)("|$)', lambda found: 2 * found[1] + (found[2] and r"\""), text)
    return f'{key}="{escaped}"'


def argument(key: str, value: str | Path) -> str:
    """`key=value` as a shell takes it for a command."""
    key, _, text = as_override(key, value).partition("=")
    return f"{key}={shlex.quote(text)}"


def path_argument(path: Path) -> str:
    """A path as a shell, and the command it is given to, take it."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)
