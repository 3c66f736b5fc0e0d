"""The page of all configuration keys, made of the schema."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter

from generator.docstrings import line
from generator.methods import ours, sort_of, value_text
from stellaris_jax.config.compose import GROUPS, choices, compose_config
from stellaris_jax.config.optioned import options_of
from stellaris_jax.config.options import PLACES, Place
from stellaris_jax.config.schema import KINDS, Knob
from stellaris_jax.config.tree import Config, knobs, sections

HEAD = """\
# Every key

A run is configured by `key=value`. The default that stands here is what a run has that says nothing: the schema's, with
the files that `configs/train.yaml` chooses. `stellaris-jax train OVERRIDES --help` prints what overrides lead to. Lists
are written `key=[a,b]`, in quotes where a shell would read brackets.
"""


def pages() -> dict[str, str]:
    """One page."""
    config = compose_config([])
    parts = [HEAD, "## Groups", "Files below `configs/`, chosen by `group=name`:", _groups(), "## The run as a whole"]
    places = {place.options: place for place in PLACES}
    headings = {"": "", **sections()}
    entries = sorted(knobs().values(), key=lambda entry: list(headings).index(entry.key.rpartition(".")[0]))
    for section, members in groupby(entries, key=lambda entry: entry.key.rpartition(".")[0]):
        if section:
            parts.append(f"## `{section}`: {line(headings[section])}")
        for entry in members:
            parts.append(_entry(entry, config))
            if entry.key in places:
                parts += _options(places[entry.key])
    return {"reference/configuration.md": "\n\n".join(parts) + "\n"}


def _groups() -> str:
    rows = [f"| `{group}` | {', '.join(f'`{choice}`' for choice in choices(group, None))} |" for group in GROUPS]
    return "\n".join(["| group | files |", "|---|---|", *rows])


def _entry(entry: Knob, config: Config) -> str:
    return _confval(entry.key, entry, value_text(attrgetter(entry.key)(config)))


def _options(place: Place) -> Iterator[str]:
    """Every option at a place, after its owner."""
    for name, thing in ours(sort_of(place.kind)):
        if options := options_of(thing):
            yield f"Of `{place.key}={f'[{name}]' if place.listed else name}`:"
        for key, option in options.items():
            about = f"{_described(option.knob)} Default: `{value_text(option.default)}`."
            yield f"`{place.options_key(name)}.{key}`\n: {about}"


def _confval(key: str, knob: Knob, default: str) -> str:
    about = f"{_described(knob)} Default: `{default}`, {KINDS[knob.kind]}."
    return f"```{{confval}} {key}\n\n{about}\n```"


def _described(knob: Knob) -> str:
    accepted = f" Accepted: {line(knob.accepted)}." if knob.accepted else ""
    help_ = line(knob.help)
    return f"{help_[0].upper()}{help_[1:]}.{accepted}"
