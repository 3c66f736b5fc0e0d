"""Entry point of all commands: `stellaris-jax <command> ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, metadata

from stellaris_jax import __version__
from stellaris_jax.base.commands import COMMANDS, PACKAGE, is_checkout
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.near_miss import did_you_mean
from stellaris_jax.cli import program

BESIDE = {"benchmark": "benchmarks.main", "reproduce": "studies.main"}
"""Modules of commands beside the package, in a checkout of the repository."""


@program.entry
def main(argv: Sequence[str]) -> None:
    """Run the command with these arguments, by default those of the process."""
    name, arguments = (argv[0], argv[1:]) if argv else ("--help", [])
    if name in ("-h", "--help"):
        print("stellaris-jax COMMAND [--help | arguments], or stellaris-jax --version\n")
        for command, about in COMMANDS.items():
            print(f"  {command:10} {about}")
        return
    if name in ("-V", "--version"):
        print(f"stellaris-jax {__version__}")
        return
    if name not in COMMANDS:
        raise ConfigError(f"{name} is not a command: {', '.join(COMMANDS)}{did_you_mean(name, COMMANDS)}")
    module = BESIDE.get(name, f"stellaris_jax.cli.{name.replace('-', '_')}")
    if name in BESIDE:
        if not is_checkout():
            raise ConfigError(f"{name} works in a checkout of the repository only{_address()}.")
        sys.path.insert(0, str(PACKAGE.parent))
    import_module(module).main(arguments)


def _address() -> str:
    """Command that clones the repository named by the installed package, as the end of a sentence; "" without one."""
    with suppress(PackageNotFoundError):
        for url in metadata("stellaris-jax").get_all("Project-URL") or ():
            label, _, address = url.partition(", ")
            if label == "Repository":
                return f": git clone {address}"
    return ""
