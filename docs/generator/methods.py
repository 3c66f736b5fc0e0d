"""A page for everything that has a name in a configuration, and tables of them."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from generator.docstrings import first_paragraph, line, markdown
from stellaris_jax.agent.losses import truncation
from stellaris_jax.base.registry import Kind, register
from stellaris_jax.config.optioned import options_of
from stellaris_jax.config.options import PLACES
from stellaris_jax.config.stored import read_yaml
from stellaris_jax.config.tree import Config
from studies.map import settings

REPOSITORY = Path(__file__).parents[2]
COSTS = REPOSITORY / "results" / "benchmarks" / "methods.json"
MAP = REPOSITORY / "results" / "map"


class Sort(NamedTuple):
    """A kind of methods. what: one of them, in words. key: of the configuration, that names it. group: folder of
    `configs/` with presets of it. listed: the key has a list of names."""

    what: str
    key: str
    group: str
    listed: bool


def _sorts() -> Iterator[tuple[str, Sort]]:
    for kind, registered in register.kinds().items():
        place = next((place for place in PLACES if place.kind is registered), None)
        if place is not None:
            section, _, leaf = place.key.rpartition(".")
            group = section.partition(".")[0] if leaf in ("name", "rule", "kind", "data_admission") else ""
            yield kind, Sort(registered.name, place.key, group, place.listed)


SORTS = dict(_sorts())
"""By the kind's name in the registry: all kinds whose things may have options."""
BASE = "async"
"""The map's method that others are told by."""
NEEDED = {
    ("scaling", "adapt"): "scaling.target=475",
    ("delay", "measured"): "delays.learner.options.table=[0.1,0.2]",
    ("delay", "trace"): "delays.log=examples/cluster/jobs.jsonl",
    ("policy", "transformer"): "env=tokens/addition",
    ("policy", "q_network"): "algorithm=dqn",
    ("policy", "squashed_gaussian_twin_q"): "algorithm=sac env=gymnax/pendulum",
    ("algorithm", "sac"): "env=gymnax/pendulum",
    ("advantage", "none"): "plugins=[examples/plugins/algorithm.py] algorithm.name=rwr system.truncation=none",
}
"""Settings that a command needs, by kind and name of what it names."""
NEEDED_BY_KIND = {"data_admission": "system.actors=independent"}
"""Settings that commands of a kind need."""


def pages() -> dict[str, str]:
    """Pages `methods/<kind>-<name>.md`; for each kind a table, `methods/<kind>.table`; and the modes of Eq. 2."""
    made = {"methods/truncation.table": markdown(truncation).partition("\n\n")[2]}
    for kind in SORTS:
        made[f"methods/{kind}.table"] = table(kind)
        for name, thing in ours(kind):
            made[f"methods/{kind}-{name}.md"] = page(kind, name, thing)
    return made


def ours(kind: str) -> list[tuple[str, Any]]:
    """Objects that the package registers, without plug-ins of the machine that builds the site."""
    return [(name, thing) for name, thing in register[kind].items() if thing.__module__.startswith("stellaris_jax.")]


def table(kind: str) -> str:
    """All methods of a kind, and what each is."""
    rows = [f"| [`{name}`](/methods/{kind}-{name}.md) | {first_paragraph(thing)} | {_knobs(thing)} |"
            for name, thing in ours(kind)]  # fmt: skip
    return "\n".join(["| name | what it is | options |", "|---|---|---|", *rows]) + "\n"


def page(kind: str, name: str, thing: Any) -> str:
    """Page of a method."""
    sort = SORTS[kind]
    parts = [f"# `{name}`", f"{sort.what.capitalize()}, {{confval}}`{sort.key}`.", markdown(thing)]
    if options_of(thing):
        parts += ["## Options", *_options(kind, name, thing)]
    parts += ["## A command", f"```sh\n{command(kind, name)}\n```"]
    if tested := list(_tested(kind, name)):
        parts += ["## As it was tested", *tested]
    if found := list(_presets(sort, name)):
        parts += ["## Presets", f"Files of `configs/{sort.group}/` that name it, and what they say of themselves:"]
        parts += [f"`{sort.group}={preset}`\n: {about}" for preset, about in found]
    if cost := _cost(kind, name):
        parts += ["## What it costs", cost]
    parts += ["## What it does, to the letter", _code(thing)]
    if rows := list(_results(kind, name)):
        parts += ["## Its results here", "Over seeds that nothing was chosen on; [all claims](/results.md).", *rows]
    parts += ["Others of its kind: [methods](/methods.md). What was put to the test: [results](/results.md)."]
    return "\n\n".join(parts) + "\n"


def command(kind: str, name: str) -> str:
    """How a run is trained with it: its preset where there is one of its name, and its first option as it is."""
    sort = SORTS[kind]
    preset = bool(sort.group) and (REPOSITORY / "configs" / sort.group / f"{name}.yaml").is_file()
    words = [f"{sort.group}={name}" if preset else f"{sort.key}=[{name}]" if sort.listed else f"{sort.key}={name}"]
    if kind != "delay" or not preset:
        thing = register[kind][name]
        own = [option for option in options_of(thing) if option in vars(thing)] or list(options_of(thing))
        words += [f"{_options_key(kind, name)}.{option}={value_text(options_of(thing)[option].default)}"
                  for option in own[:1] if options_of(thing)[option].default not in ("", ())]  # fmt: skip
    words = [NEEDED_BY_KIND[kind], *words] if kind in NEEDED_BY_KIND else words
    words += NEEDED[kind, name].split() if (kind, name) in NEEDED and (name != "measured" or not preset) else []
    return " ".join(["stellaris-jax train", *map(shlex.quote, words)])


def _options_key(kind: str, name: str) -> str:
    return next(place.options_key(name) for place in PLACES if place.key == SORTS[kind].key)


def _options(kind: str, name: str, thing: Any) -> Iterator[str]:
    yield f"Below `{_options_key(kind, name)}`."
    rows = []
    for key, option in options_of(thing).items():
        help_, accepted = line(option.knob.help), line(option.knob.accepted)
        rows.append(f"| `{key}` | `{value_text(option.default)}` | {help_} | {accepted} |")
    yield "\n".join(["| option | default | what | accepted |", "|---|---|---|---|", *rows])


def _knobs(thing: Any) -> str:
    return ", ".join(f"`{name}`" for name in options_of(thing))


def value_text(value: Any) -> str:
    """A value as the command line has it."""
    if value is None or value == "":
        return "null" if value is None else "''"
    if isinstance(value, tuple):
        return f"[{','.join(map(value_text, value))}]"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _presets(sort: Sort, name: str) -> Iterator[tuple[str, str]]:
    """Presets of a group that name it, and the comment each begins with."""
    keys = sort.key.split(".")[1:]
    for path in sorted((REPOSITORY / "configs" / sort.group).glob("*.yaml")) if sort.group else []:
        node: Any = read_yaml(path)
        for key in keys:
            node = node.get(key, {}) if isinstance(node, dict) else {}
        comment = re.match(r"(?:#.*\n)*", path.read_text())
        if node == name and comment:
            yield path.stem, line(re.sub(r"^# ?", "", comment[0], flags=re.M))


def _cost(kind: str, name: str) -> str:
    """Measured seconds of a gradient, beside pure asynchrony under PPO."""
    ratios = json.loads(COSTS.read_text())["result"]["ratio_to_async"] if COSTS.is_file() else {}
    if kind not in ("algorithm", "mask", "correction") or name not in ratios:
        return ""
    return (
        f"{ratios[name]:.2f} times the time per gradient of pure asynchrony under PPO, on the default job "
        "([results/benchmarks/methods.json](../../results/benchmarks/methods.json))."
    )


def _results(kind: str, name: str) -> Iterator[str]:
    """Results of `reproduce map` beside pure asynchrony, as far as there are any."""
    called = on_the_map(kind, name)
    claims = []
    for path in sorted(MAP.glob("claims_*.csv")):
        with path.open(newline="") as file:
            claims += [row for row in csv.DictReader(file)
                       if any(f": {method} learns more than async" in row["claim"] for method in called)]  # fmt: skip
    if claims:
        rows = [f"| {line(row['claim'])} | {line(row['ours'])} | {row['verdict']} |" for row in claims]
        yield "\n".join(["| claim | here | verdict |", "|---|---|---|", *rows])


def on_the_map(kind: str, name: str) -> dict[str, tuple[str, ...]]:
    """Methods of the map that have it, other than pure asynchrony has, by their names there."""
    sort, every = SORTS[kind], settings.all_methods()
    base = _set(sort, every[BASE])
    return {method: overrides for method, overrides in every.items()
            if (own := _set(sort, overrides)) == name or (sort.listed and name in own)
            if own != base or (method == BASE and kind == "rule")}  # fmt: skip


def _set(sort: Sort, overrides: tuple[str, ...]) -> Any:
    """Value of a key after overrides, single ones before presets; its default if none sets it."""
    section, *keys = sort.key.split(".")
    found = attrgetter(sort.key)(Config())
    for word in overrides:
        group, _, preset = word.partition("=")
        if group == section:
            node: Any = read_yaml(REPOSITORY / "configs" / section / f"{preset}.yaml")
            for key in keys:
                node = node.get(key) if isinstance(node, dict) else None
            found = found if node is None else node
    single = [word.partition("=")[2] for word in overrides if word.startswith(f"{sort.key}=")]
    if not single:
        return tuple(found) if sort.listed else found
    return tuple(single[-1].strip("[]").split(",")) if sort.listed else single[-1]


def _tested(kind: str, name: str) -> Iterator[str]:
    """Settings under which the map has it, and a whole command."""
    if called := on_the_map(kind, name):
        first = next(iter(called))
        yield (f"[The map](/results/map.md) has it under these names. The command trains the first ({settings.TASK}, "
               f"{settings.LEARNERS} learners, learning rate {settings.RATE}).")  # fmt: skip
        yield "\n".join(settings.table(called))
        yield f"```sh\n{settings.command(first)}\n```"


def _code(thing: Any) -> str:
    module, name = thing.__module__, thing.__qualname__
    path = module.replace(".", "/")
    return f"From `{module}`:\n\n```{{literalinclude}} ../../{path}.py\n:pyobject: {name}\n:language: python\n```"


def sort_of(kind: Kind) -> str:
    """Attribute's name of a kind in the registry."""
    return next(name for name, registered in register.kinds().items() if registered is kind)
