"""Training command, `stellaris-jax train`: `--help`, one run, or with `-m` a sweep of runs."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from stellaris_jax.base.commands import localised, named_modules
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import search_folder
from stellaris_jax.cli import program
from stellaris_jax.cli.sweep import sweep
from stellaris_jax.config.compose import SWEEP_SEEDS, choices, compose_config, load_sweep
from stellaris_jax.config.continuation import GROUPS
from stellaris_jax.config.optioned import options_of
from stellaris_jax.config.options import PLACES, Place
from stellaris_jax.config.tree import Config, knobs, sections
from stellaris_jax.config.trust import Trust
from stellaris_jax.execute.loading import load_config
from stellaris_jax.telemetry.format import value_text

WIDTH = 120
"""Most columns of the help, and its width if the output is no terminal."""
NARROW = 80
"""Terminal width below which descriptions stand under their keys."""
COMMANDS = {
    "stellaris-jax train [group=choice] [key=value] ...": "one run",
    "stellaris-jax train -m [sweep=choice] [key=a,b,c] ...": "a sweep: one run per combination",
    "stellaris-jax train -m resume=DIR": "resume a stopped sweep",
}
OPTIONS = {
    "-h, --help": "this text; with overrides, the resulting values",
    "-m, --multirun": "sweep over every key with several values",
    "--config-dir DIR": "a directory laid out like configs/, with further choices",
    "--plugin NAME": "with resume or trace: allow that run to import this plug-in, module or service it names",
    "--trust": "with resume or trace: allow that run to import all that it names",
}
SWEEPS = {
    "sweep.together=true": "sweeps: train points concurrently with shared programs; true or false",
    "sweep.ray=local": "sweeps: train points on a Ray cluster, on this machine (local) or at an address",
    "hydra.sweep.dir=DIR": "sweeps: directory, by default one below runs/sweeps",
    f"num_seeds={SWEEP_SEEDS}": "sweeps without seeds of their own: runs of every point, with seeds from 0 on",
}
EXAMPLES = """\
stellaris-jax train env=gymnax/acrobot num_seeds=8
stellaris-jax train env=brax/hopper system=allreduce algorithm.learning_rate=3e-4
stellaris-jax train -m sweep=staleness
stellaris-jax train -m system=stellaris system.rule_options.decay=0.9,0.96,1 seed=0,1,2
stellaris-jax train resume=runs/NAME total_steps=1e6"""


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
        print(help_text(compose_config(overrides, args.config_dir, trust), args.config_dir))
    elif args.multirun:
        sweep(None if task is train else task, overrides, args.config_dir, trust)
    else:
        _single(task, overrides, args.config_dir, trust)


def help_text(config: Config, config_dir: str | Path | None = None) -> str:
    """Every group with its choices, and every key with its value in `config`, its meaning and its accepted values."""
    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 0)).columns)
    lines = [line for head, about in COMMANDS.items() for line in _row(localised(head), about, 62, width)]
    lines += [line for head, about in OPTIONS.items() for line in _row(head, about, 23, width)]
    lines += [line for head, about in SWEEPS.items() for line in _row(head, about, 23, width)]
    lines += ["", "GROUPS (files below configs/)"]
    for group in GROUPS:
        others = "; or any other environment of a suite, as in env=brax/ant" if group == "env" else ""
        lines += _row(group, ", ".join(choices(group, config_dir)) + others, 13, width)
    headings = {"": "the run as a whole", **sections()}
    entries = sorted(knobs().values(), key=lambda entry: list(headings).index(entry.key.rpartition(".")[0]))
    heading, places = None, {place.options: place for place in PLACES}
    for entry in entries:
        section = entry.key.rpartition(".")[0]
        if section != heading:
            heading = section
            lines += ["", *_wrapped(f"{section.upper() or 'TOP LEVEL'}: {headings[section]}", width)]
        if entry.key in places:
            lines += _options(places[entry.key], config, width)
            continue
        about = f"{entry.help}; {entry.accepted}" if entry.accepted else entry.help
        value = value_text(attrgetter(entry.key)(config)) or "''"
        lines += _row(f"{entry.key:<30} {value}", about, 46, width)
    return "\n".join([*lines, "", "EXAMPLES", localised(EXAMPLES)])


def _options(place: Place, config: Config, width: int) -> list[str]:
    """Help lines of every option at a place, below its owner; with its value, or its default unless it applies."""
    lines = []
    for name, component in place.kind.items():
        applies = place.listed or name in place.names(config)
        given = place.given(config, name) if applies else {}
        if options := options_of(component):
            lines.append(f"  {place.key}={f'[{name}]' if place.listed else name}:")
        for key, option in options.items():
            about = f"{option.knob.help}; {option.knob.accepted}" if option.knob.accepted else option.knob.help
            value = value_text(given.get(key, option.default)) or "''"
            lines += _row(f"{f'{place.options_key(name)}.{key}':<30} {value}", about, 46, width)
    return lines


def _row(head: str, about: str, indent: int, width: int) -> list[str]:
    """Help line: key and wrapped text in two columns, or below each other on a narrow terminal."""
    below = width < NARROW
    indent = 6 if below else indent
    wrapped = [" " * indent + line for line in _wrapped(about, width - indent)]
    if below:
        head = re.sub(" +", " ", head)
    if below or len(head) + 3 > indent:
        return [f"  {head}", *wrapped]
    return [f"  {head} ".ljust(indent) + wrapped[0].lstrip(), *wrapped[1:]]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 24), break_on_hyphens=False)


def _single(task: Callable[[Config], Any], overrides: list[str], config_dir: str | None, trust: Trust) -> None:
    if any(line.lstrip("+").startswith("sweep=") for line in overrides):
        sweep = load_sweep(overrides, config_dir)
        if len(sweep.points) > 1:
            raise ConfigError(f"This is a sweep over {len(sweep.points)} points; add -m to run them all.")
    task(load_config(overrides, config_dir, alone=True, trust=trust))
