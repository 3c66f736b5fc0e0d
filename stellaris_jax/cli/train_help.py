"""Help of `stellaris-jax train`: every group with its choices, and every key with its meaning."""

from __future__ import annotations

import re
import textwrap
from operator import attrgetter
from pathlib import Path

from stellaris_jax.base.commands import localised
from stellaris_jax.cli.stored_text import columns
from stellaris_jax.config.compose import SWEEP_SEEDS, choices
from stellaris_jax.config.continuation import GROUPS
from stellaris_jax.config.optioned import options_of
from stellaris_jax.config.options import PLACES, Place
from stellaris_jax.config.tree import Config, knobs, sections
from stellaris_jax.telemetry.format import value_text

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


def help_text(config: Config, config_dir: str | Path | None = None) -> str:
    """Every group with its choices, and every key with its value in `config`, its meaning and its accepted values."""
    width = columns()
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
