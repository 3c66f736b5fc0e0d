"""Words of the study's answers: counts of verdicts, headlines, and cells of tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stellaris_jax.telemetry.format import significant
from studies.actors.cells import PPO
from studies.actors.laws import at_end
from studies.claims import HOLDS, REVERSED, Claim

Row = Mapping[str, str]
"""Row of a figure's table."""


class Tally(NamedTuple):
    """Verdicts that are shown, of some claims.

    Attributes:
      holds: number of claims that hold.
      reversed: number of claims that are reversed.
      total: number of claims.
    """

    holds: int
    reversed: int
    total: int


def tally(claims: Sequence[Claim], *words: str) -> Tally:
    """Verdicts that survive the correction, of the claims with all these words."""
    chosen = having(claims, *words)
    verdicts = [claim.verdict for claim in chosen if claim.survives]
    return Tally(verdicts.count(HOLDS), verdicts.count(REVERSED), len(chosen))


def having(claims: Sequence[Claim], *words: str) -> list[Claim]:
    return [claim for claim in claims if all(word in claim.claim for word in words)]


def shown(claim: Claim, verdict: str) -> bool:
    return bool(claim.survives) and claim.verdict == verdict


def listed(words: Sequence[str]) -> str:
    """Words with commas, and `and` before the last.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def of(count: int, total: int) -> str:
    return f"{count} of {total} {'comparison' if total == 1 else 'comparisons'}"


def on_tasks(some: Sequence[str], tasks: Sequence[str]) -> str:
    return f"{len(some)} of {len(tasks)} {'task' if len(tasks) == 1 else 'tasks'}"


def counts(ours: str, theirs: str, scales: Mapping[str, Tally]) -> list[str]:
    """A sentence for each scale, with the number of comparisons that either side wins."""
    return [
        f"In {name}, {ours} {'are' if ours.endswith('es') else 'is'} shown to learn more in {one.holds} of {one.total} "
        f"comparisons, and {theirs} in {one.reversed}."
        for name, one in scales.items()
    ]


def headline(claims: Sequence[Claim], holds: str, against: str, neither: str, some: str) -> str:
    """First sentence: unconditional only if every comparison shows the same side.

    Args:
      claims: the comparisons.
      holds: text if all of them hold.
      against: text if all of them are reversed.
      neither: text if none shows anything.
      some: text that one side is shown to learn more, without its end, to which the tasks' counts are added.
    """
    found = tally(claims)
    if not found.holds and not found.reversed:
        return neither
    if found.total in (found.holds, found.reversed):
        return holds if found.holds else against
    tasks = list(dict.fromkeys(re.split("[,:]", claim.claim)[0] for claim in claims))
    by_task = [tally([claim for claim in claims if claim.claim.startswith((f"{task},", f"{task}:"))]) for task in tasks]
    more = [f"{one.holds} of {one.total} on {task}" for task, one in zip(tasks, by_task, strict=True)]
    more[0] = more[0].replace(" on ", " comparisons on ")
    where = f"{', in '.join(more[:-1])}{' and in ' if more[1:] else ''}{more[-1]}"
    less = [f"{one.reversed} of {one.total}" for one in by_task]
    reverse = f", and the reverse in {listed(less)}" if found.reversed else ""
    return f"In some settings: {some}. This is shown in {where}{reverse}."


def edges(rows: Sequence[Row], level: str) -> list[str]:
    """Sentences about best learning rates at an end of the ladder, beyond which none was tried."""
    places: dict[str, list[str]] = {}
    for row in rows:
        if at_end(row["rate"]):
            method = "" if level == "lag" and row["method"] == PPO else f" ({row['method']})"
            places.setdefault(row["rate"], []).append(f"{row['env']}{method} at {level.replace('_', ' ')} {row[level]}")
    return [
        f"The best learning rate is the {at_end(rate)} of all, {rate}, for {listed(found)}."
        for rate, found in places.items()
    ]


def table(
    head: str,
    names: Mapping[tuple[str, str], str],
    rows: Sequence[Row],
    columns: Mapping[str, str],
    key: tuple[str, str],
) -> list[str]:
    """Lines of a table with a row for each setting, and the columns of every task."""
    tasks = list(dict.fromkeys(row["env"] for row in rows))
    at = {(row["env"], row[key[0]], row[key[1]]): row for row in rows}
    heads = [f"{task}: {title}" for task in tasks for title in columns]
    lines = [f"| {head} | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for setting, name in names.items():
        found = [(at.get((task, *setting)), column) for task in tasks for column in columns.values()]
        lines.append(f"| {name} | {' | '.join(mean_and_half(row, column) if row else '' for row, column in found)} |")
    return lines


def mean_and_half(row: Row, column: str, digits: int = 3, scale: float = 1.0, less: float = 0.0) -> str:
    """Mean, with so many digits, and half of its interval, times a scale; a number is taken off the mean before."""
    if not row[column]:
        return "–"
    half = row.get(f"{column}_ci95") or ""
    mean = significant((float(row[column]) - less) * scale, digits).replace("-", "−")
    return mean + (f" ± {significant(float(half) * scale, 2)}" if half else "")


def between(row: Row) -> str:
    """Value and its interval."""
    if not all(row[name] for name in ("best_rate", "low", "high")):
        return "not known"
    value, low, high = (significant(float(row[name]), 2).replace("-", "−") for name in ("best_rate", "low", "high"))
    return f"{value} ({low} to {high})"


def limited(row: Row) -> str:
    """Best learning rate and its interval, or its limit at an end of the ladder."""
    if end := at_end(row["rate"]):
        return f"{'≤' if end == 'smallest' else '≥'} {row['rate']}"
    return between(row)
