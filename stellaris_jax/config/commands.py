"""Commands as they work where the user is, and such as can be pasted whatever a directory is called."""

from __future__ import annotations

import builtins
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
COMMANDS = {
    "train": "train an agent, or sweep over settings",
    "tune": "search for better settings",
    "evaluate": "evaluate the policy of a run, or film it",
    "export": "write the policy of a run to a file, to be carried away",
    "plot": "draw the curves of runs, or a timeline",
    "report": "write one page on a run, a sweep, or runs that belong together",
    "runs": "list and compare runs, and clear up",
    "reproduce": "redo a paper's evaluation",
    "examples": "copy the examples into a directory",
    "check-env": "see whether an environment keeps what it promises",
    "schedule": "train a scheduler of actors",
    "benchmark": "measure this machine (in a checkout of the repository)",
}
"""Every command of the package, and what it is for."""
SCRIPTS = {"schedule": "train_scheduler", "check-env": "check_env"}
"""Scripts that are called otherwise than the command."""


@cache
def is_checkout() -> bool:
    """Whether the package is used where it is developed, beside its scripts."""
    return (PACKAGE.parent / "scripts" / "train.py").is_file() and not (PACKAGE / "configs").is_dir()


def command(name: str) -> str:
    """How a command is called from the working directory: as a script in a checkout, else as the one installed."""
    if not is_checkout():
        return f"stellaris-jax {name}"
    script = PACKAGE.parent / "scripts" / f"{SCRIPTS.get(name, name)}.py"
    with suppress(ValueError, OSError):  # the user is elsewhere, or the directory has been removed
        script = script.relative_to(Path.cwd())
    return f"python {shlex.quote(str(script))}"


def localised(text: str) -> str:
    """A text that speaks of `stellaris-jax train` and other commands, as they are called here."""
    return re.sub(rf"\bstellaris-jax ({'|'.join(COMMANDS)})\b", lambda m: command(m[1]), text)


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


def named_modules(overrides: Sequence[str]) -> list[str]:
    """Modules that overrides name: plug-ins that are no files, the module of `env=gymnasium/module:id`, and those of
    gymnasium wrappers.

    >>> named_modules(["plugins=[my_lab.rules,a/b.py]", "env=gymnasium/mine:A-v0,gymnasium/yours:B-v0", "seed=1"])
    ['my_lab.rules', 'mine', 'yours']
    """
    found = []
    for line in overrides:
        key, _, value = line.lstrip("+").partition("=")
        if key in ("env", "env.name"):
            found += re.findall(r"/([\w.]+):", value)
        elif key == "env.kwargs.wrappers":
            found += re.findall(r"([A-Za-z_][\w.]*)\.\w+", value)
        elif key == "plugins":
            words = re.split(r"[\s,\[\]'\"]+", value)
            found += [word for word in words if re.fullmatch(r"[\w.]+", word) and not word.endswith(".py")]
    return found


def argument(key: str, value: str | Path) -> str:
    """`key=value` as a shell takes it for a command."""
    key, _, text = as_override(key, value).partition("=")
    return f"{key}={shlex.quote(text)}"


def is_interactive() -> bool:
    """Whether a cell of a notebook, or a line of IPython, has called this: advice is then given in Python's words."""
    return hasattr(builtins, "get_ipython")


def path_argument(path: Path) -> str:
    """A path as a shell, and the command it is given to, take it."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)
