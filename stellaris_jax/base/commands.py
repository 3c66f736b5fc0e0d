"""Commands as the user can paste them: a script in a checkout, else the installed program; quoted for the shell."""

from __future__ import annotations

import builtins
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
PROGRAM = "stellaris-jax"
"""Name of the installed program."""
COMMANDS = {
    "train": "train an agent, or sweep over settings",
    "plan": "foretell duration, staleness and cost without training",
    "choose": "choose system, correction and learning rate for a task and its delays",
    "tune": "search for better settings",
    "evaluate": "evaluate the policy of a run, or film it",
    "export": "write the policy of a run to a file",
    "plot": "draw the curves of runs, or a timeline",
    "report": "write one page about a run, a sweep, or several runs",
    "runs": "list, compare and delete runs",
    "reproduce": "repeat a paper's evaluation (in a checkout of the repository)",
    "examples": "copy the examples into a directory",
    "check-env": "check an environment's spaces and behaviour",
    "schedule": "train a scheduler of actors",
    "benchmark": "measure this machine (in a checkout of the repository)",
}
"""Every command of the package with its purpose."""
SCRIPTS = {"schedule": "train_scheduler", "check-env": "check_env"}
"""Scripts whose names differ from their commands'."""


@cache
def is_checkout() -> bool:
    """Whether the package runs from a checkout of its repository, which has its scripts."""
    return (PACKAGE.parent / "scripts" / "train.py").is_file() and not (PACKAGE / "configs").is_dir()


def command(name: str) -> str:
    """Command line of a command, from the working directory: the script in a checkout, else the installed program.

    A process that was started as the installed program names that, in a checkout too.
    """
    if not is_checkout() or Path(sys.argv[0]).stem == PROGRAM:
        return f"{PROGRAM} {name}"
    script = PACKAGE.parent / "scripts" / f"{SCRIPTS.get(name, name)}.py"
    with suppress(ValueError, OSError):  # another working directory, or one that was removed
        script = script.relative_to(Path.cwd())
    return f"python {shlex.quote(str(script))}"


def localised(text: str) -> str:
    """Text in which `stellaris-jax train` and other commands read as they are called here."""
    return re.sub(rf"\bstellaris-jax ({'|'.join(COMMANDS)})\b", lambda m: command(m[1]), text)


PLAIN = re.compile(r"(?!(?:true|false|null|nan|inf)$)(?:\.{0,2}/|[a-z_])[\w./-]*(?: [\w./-]+)*", re.ASCII | re.I)
"""Values of overrides that Hydra reads as text, in full."""


def as_override(key: str, value: str | Path) -> str:
    """`key=value` for `load_config`; the value is quoted where Hydra would read more than text in it."""
    text = str(value)
    if PLAIN.fullmatch(text):
        return f"{key}={text}"
    # In Hydra's quotes a backslash is literal, unless a quotation mark follows.
    escaped = re.sub(r'(\\*)("|$)', lambda match: 2 * match[1] + (match[2] and r"\""), text)
    return f'{key}="{escaped}"'


def named_modules(overrides: Sequence[str]) -> list[str]:
    """Modules that overrides name.

    These are plug-ins that are no files, the module of `env=gymnasium/module:id`, and modules of gymnasium wrappers.

    >>> named_modules(["plugins=[my_lab.rules,a/b.py]", "env=gymnasium/mine:A-v0,gymnasium/yours:B-v0", "seed=1"])
    ['my_lab.rules', 'mine', 'yours']
    """
    modules = []
    for line in overrides:
        key, _, value = line.lstrip("+").partition("=")
        if key in ("env", "env.name"):
            modules += re.findall(r"/([\w.]+):", value)
        elif key == "env.kwargs.wrappers":
            modules += re.findall(r"([A-Za-z_][\w.]*)\.\w+", value)
        elif key == "plugins":
            words = re.split(r"[\s,\[\]'\"]+", value)
            modules += [word for word in words if re.fullmatch(r"[\w.]+", word) and not word.endswith(".py")]
    return modules


def argument(key: str, value: str | Path) -> str:
    """`key=value`, quoted for a shell."""
    key, _, text = as_override(key, value).partition("=")
    return f"{key}={shlex.quote(text)}"


def is_interactive() -> bool:
    """Whether the caller runs in a notebook or in IPython, so that advice is given as Python calls."""
    return hasattr(builtins, "get_ipython")


def path_argument(path: Path) -> str:
    """Path, quoted for a shell, that no command reads as an option."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def resume_command(run_dir: Path, *further: str) -> str:
    """Command that resumes a run, or a call in a notebook."""
    if is_interactive():
        return f"train(load_config({[as_override('resume', run_dir), *further]}))"
    return " ".join([command("train"), argument("resume", run_dir), *further])


def evaluate_command(run_dir: Path) -> str:
    """Command that evaluates a run."""
    return f"{command('evaluate')} {path_argument(run_dir)}"
