"""Settings of the map's methods as typed: a table for pages, and commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from stellaris_jax.base import inputs
from stellaris_jax.base.outputs import write_atomically
from studies.files import replace_block
from studies.map.cells import COMBINED, FRACTIONAL, LEARNER_COUNTS, METHODS, Cell

BEGIN, END = "<!-- settings of methods: begin -->", "<!-- settings of methods: end -->"
"""Lines of a page that enclose the table."""
TASK, LEARNERS, RATE = "cartpole", LEARNER_COUNTS[0], "1e-3"
"""Cell whose command is shown."""


def all_methods() -> dict[str, tuple[str, ...]]:
    """Overrides of every method of the map, by its name."""
    return {**METHODS, **COMBINED, **FRACTIONAL}


def cell(method: str) -> Cell:
    """Cell of a method whose command is shown."""
    return Cell(TASK, method, LEARNERS, RATE)


def command(method: str) -> str:
    """Command that trains a method's cell: its base system, and all constant settings of the map."""
    words = [shlex.quote(word) if "," in word or " " in word else word for word in cell(method).variant.overrides]
    lines = ["stellaris-jax train"]
    for word in words:
        if len(lines[-1]) + len(word) > 110:
            lines.append(" ")
        lines[-1] += f" {word}"
    return " \\\n".join(lines)


def table(methods: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Lines of a table of methods and their settings, except the number of learners."""
    rows = [f"| {name} | `{' '.join(overrides)}` |" for name, overrides in methods.items()]
    return ["| method | settings |", "|---|---|", *rows]


def block() -> str:
    """Text of a page between `BEGIN` and `END`."""
    text = (
        "Each method's settings, its base system among them. With 8 or 32 learners, softsync, FedBuff and AReaL's\n"
        "capacity also have `system.rule_options.c`, half the number of learners. AReaL's c is 8 at most, as its\n"
        "`system.admission_options.batch`. A whole\n"
        f"command, with all that the map keeps constant ({TASK}, {LEARNERS} learners, learning rate {RATE}):"
    )
    return "\n".join([text, "", "```sh", command("KL gate"), "```", "", *table(all_methods())])


def write(path: Path) -> None:
    """Update the table of a page, if the page has a place for one."""
    text = inputs.read_text(path) if path.is_file() else ""
    if (changed := replace_block(text, BEGIN, END, block())) != text:
        write_atomically(path, changed)
