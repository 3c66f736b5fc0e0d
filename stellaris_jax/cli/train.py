"""Training command, `stellaris-jax train`: `--help`, one run, or with `-m` a sweep of runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stellaris_jax.base.commands import localised, named_modules
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import search_folder
from stellaris_jax.cli import program
from stellaris_jax.cli.stored_text import columns, stored

if TYPE_CHECKING:
    from stellaris_jax.config.tree import Config
    from stellaris_jax.config.trust import Trust


def train(config: Config) -> None:
    """Train one configuration."""
    # Imported once the configuration is valid, so that mistakes and --help are answered at once.
    from stellaris_jax.execute.run import train

    with program.signalled():
        train(config)


def main(argv: Sequence[str] | None = None, task: Callable[[Config], Any] = train) -> None:
    """Run `task` on the configuration of the command line, or on each of a sweep.

    It exits as `stellaris_jax.cli.program.run` says; a ConfigError comes before training, if it can be known by then.
    In a sweep, a RunError is reported once the other points are done. The sweep's report is written when the last point
    is done, and also when the sweep is interrupted.

    Args:
      argv: the arguments; those of the process by default.
      task: trains one configuration. A task other than `train` is called for the points of a sweep one by one.
    """
    program.run(lambda: _main(task, sys.argv[1:] if argv is None else argv))


def _main(task: Callable[[Config], Any], argv: Sequence[str]) -> None:
    parser = program.Parser("train", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--config-dir")
    program.add_trust(parser)
    args, overrides = parser.parse_known_args(argv)
    for flag in overrides:
        if flag.startswith("-"):
            raise ConfigError(f"{flag} is not an option; settings are written key=value, and --help lists them.")
    trust = program.trust_of(args)
    search_folder(named_modules(overrides))
    if args.help:
        print(_help(overrides, args.config_dir, trust))
    elif args.multirun:
        from stellaris_jax.cli.sweep import sweep

        sweep(None if task is train else task, overrides, args.config_dir, trust)
    else:
        _single(task, overrides, args.config_dir, trust)


def _help(overrides: list[str], config_dir: str | None, trust: Trust) -> str:
    """Help text; without arguments it is the same each time, and is composed once."""

    def composed() -> str:
        from stellaris_jax.cli.train_help import help_text
        from stellaris_jax.config.compose import compose_config

        return help_text(compose_config(overrides, config_dir, trust), config_dir)

    if overrides or config_dir:
        return composed()
    made_for = f"{columns()} columns, {localised('stellaris-jax train')}"
    return stored("train_help", made_for, composed)


def _single(task: Callable[[Config], Any], overrides: list[str], config_dir: str | None, trust: Trust) -> None:
    from stellaris_jax.config.compose import load_sweep
    from stellaris_jax.execute.loading import load_config

    if any(line.lstrip("+").startswith("sweep=") for line in overrides):
        sweep = load_sweep(overrides, config_dir)
        if len(sweep.points) > 1:
            raise ConfigError(f"This is a sweep over {len(sweep.points)} points; add -m to run them all.")
    task(load_config(overrides, config_dir, alone=True, trust=trust))
