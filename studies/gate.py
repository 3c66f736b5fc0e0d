"""Escapes of the staleness gate in the runs of a study, computed from their timelines without training.

A queue that the gate refuses is aggregated all the same once as many gradients wait as there are learners, or no other
event can happen before the round is over. As the threshold decays, that becomes the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from textwrap import fill

from stellaris_jax.base.registry import register
from stellaris_jax.execute.loading import load_config
from stellaris_jax.telemetry.format import count, percent
from stellaris_jax.timeline import Group
from studies.files import read_rows, write_table
from studies.history import Series, rounds_of
from studies.store import Learned

FILE = "gate.csv"
SHARES = {"share": "of all groups", "late_share": "of late groups", "late_gradient_share": "of late gradients"}
"""Names of the shares of escapes, in the file and in the table."""
ABOUT = (
    "How often the gate was escaped. An escape is a group that was aggregated although its mean staleness was above "
    "the gate's threshold, because as many gradients waited as there are learners, or the round had nothing else to "
    "wait for. As the threshold decays the rule becomes *n gradients, or the end of the round*; *late* is the later "
    "half of the rounds."
)


@dataclass(frozen=True)
class Escapes:
    """Escapes of a series over all seeds; `late` is the later half of the rounds.

    Attributes:
      figure: name of the figure.
      env: environment.
      series: name of the series.
      seeds: number of seeds.
      groups: aggregated groups.
      escapes: groups that escaped the gate.
      late_groups: late groups.
      late_escapes: late groups that escaped.
      late_gradients: gradients of late groups.
      late_escaped_gradients: gradients of late groups that escaped.
    """

    figure: str
    env: str
    series: str
    seeds: int
    groups: int
    escapes: int
    late_groups: int
    late_escapes: int
    late_gradients: int
    late_escaped_gradients: int

    @property
    def shares(self) -> dict[str, float]:
        """Shares of escapes among all groups, late groups, and gradients of late groups."""
        pairs = (
            (self.escapes, self.groups),
            (self.late_escapes, self.late_groups),
            (self.late_escaped_gradients, self.late_gradients),
        )
        return {name: part / total if total else 0.0 for name, (part, total) in zip(SHARES, pairs, strict=True)}


NAMES = tuple(field.name for field in fields(Escapes))


def escapes(figure: str, series: Series, curves: Sequence[Learned]) -> Escapes | None:
    """Escapes in the timelines of these seeds; None if the rule of the series has no gate."""
    config = load_config([*series.variant.overrides, *series.billing])
    if not register.rule[config.system.rule].gated:
        return None
    groups: list[Group] = []
    late: list[Group] = []
    for run in curves:
        rounds = rounds_of(config, run)
        groups += [group for round_ in rounds for group in round_.groups]
        late += [group for round_ in rounds[len(rounds) // 2 :] for group in round_.groups]
    gradients = [sum(len(group.gradients) for group in part) for part in (late, _escaped(late))]
    counts = (len(groups), len(_escaped(groups)), len(late), len(_escaped(late)), *gradients)
    return Escapes(figure, series.env, series.name, len(curves), *counts)


def _escaped(groups: Sequence[Group]) -> list[Group]:
    return [group for group in groups if group.escaped]


def write(rows: Iterable[Escapes], path: Path) -> None:
    """Write rows into a file, replacing rows of the same figures and environments."""
    rows = list(rows)
    if not rows:
        return
    replaced = {(row.figure, row.env) for row in rows}
    others = [row for row in read(path) if (row.figure, row.env) not in replaced]
    lines = [(*asdict(row).values(), *(f"{share:.3g}" for share in row.shares.values())) for row in [*others, *rows]]
    write_table(path, [*NAMES, *SHARES], lines)


def read(path: Path) -> list[Escapes]:
    """Rows that `write` wrote; empty if there is no file."""
    if not path.is_file():
        return []
    return read_rows(
        path, lambda row: Escapes(row["figure"], row["env"], row["series"], *(int(row[name]) for name in NAMES[3:]))
    )


def table(path: Path, figures: Sequence[str]) -> list[str]:
    """Lines of a README: one for all series of an environment with equal timelines."""
    rows = [row for figure in figures for row in read(path) if row.figure == figure]
    if not rows:
        return []
    alike: dict[tuple[str, tuple[int, ...]], list[Escapes]] = {}
    for row in rows:
        alike.setdefault((row.env, tuple(getattr(row, name) for name in NAMES[3:])), []).append(row)
    header = ("environment", "figure: series", "seeds", "groups", "escaped", *SHARES.values())
    lines = [fill(ABOUT, 118), "", f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for (env, _), members in alike.items():
        first, parts = members[0], groupby(members, key=attrgetter("figure"))
        names = "; ".join(f"{figure}: {', '.join(row.series for row in part)}" for figure, part in parts)
        counts = (count(first.seeds), count(first.groups), count(first.escapes))
        lines.append(f"| {' | '.join([env, names, *counts, *map(percent, first.shares.values())])} |")
    return [*lines, "", f"[{path.name}]({path.name})"]
