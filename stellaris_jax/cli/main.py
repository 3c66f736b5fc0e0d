"""Entry point of all commands: `stellaris-jax <command> ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from stellaris_jax import __version__
from stellaris_jax.cli import program
from stellaris_jax.config.commands import COMMANDS
from stellaris_jax.config.near_miss import did_you_mean
from stellaris_jax.config.schema import ConfigError

MODULES = {"benchmark": "benchmarks.main"}
"""Modules of commands that are outside this folder."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command with its arguments, by default those of the process."""
    program.run(lambda: _main(sys.argv[1:] if argv is None else argv))


def _main(argv: Sequence[str]) -> None:
    name, rest = (argv[0], argv[1:]) if argv else ("--help", [])
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
    module = MODULES.get(name, f"stellaris_jax.cli.{name.replace('-', '_')}")
    if find_spec(module.partition(".")[0]) is None:
        raise ConfigError(f"{name} works in a checkout of the repository only, whose benchmarks are not installed.")
    import_module(module).main(rest)
