"""Answers on the study's page, written from the claims and tables of its figures, never by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

from stellaris_jax.base import inputs
from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.telemetry.format import significant
from studies.claims import HOLDS, REVERSED, Claim, read_claims
from studies.files import read_table, replace_block

PAGE = "README.md"
OPEN_ANSWER = "**Not answered yet:** the runs are not trained."
"""Answer of a figure without claims; a page that has it although there are claims is out of date."""
SURE = (
    "**How sure:** ± is half of a 95 % interval over seeds. Learning rates are chosen on seeds 0 to 7, and judged on "
    "seeds 8 to 15. Comparisons are of equal seeds (paired t-test). *Shown* means significant after Holm's correction "
    "for the {count} claims of this figure. Not shown is not equal."
)
SURE_OF_RATES = (
    "**How sure:** learning-curve areas of 16 seeds, each learning rate twice the one before. Intervals are of 95 %, "
    "by {resamples} bootstrap samples of the seeds. *Shown* means significant after Holm's correction for the {count} "
    "claims of this figure. Not shown is not equal."
)
PICTURES = {
    "bounds": "Learning-curve area by admission",
    "sync": "Learning-curve area by env steps between fetches",
    "corrections": "Learning-curve area by data lag",
    "rates": "Best learning rate by data lag",
}
"""Content of each figure's picture."""
Row = Mapping[str, str]


def markers(figure: str) -> tuple[str, str]:
    """Lines of the page that enclose the answer of a figure."""
    return f"<!-- answer {figure}: begin -->", f"<!-- answer {figure}: end -->"


def write(results: Path) -> None:
    """Update the answers of the page, as far as it has a place for each."""
    path = results / PAGE
    before = text = inputs.read_text(path) if path.is_file() else ""
    for figure in ANSWERS:
        text = replace_block(text, *markers(figure), block(figure, results))
    if text != before:
        write_atomically(path, text)


def block(figure: str, results: Path) -> str:
    """Answer of a figure: its sentences, its table, and how sure they are; `OPEN_ANSWER` without claims."""
    if not (results / f"claims_{figure}.csv").is_file():
        return f"{OPEN_ANSWER} Command: `python scripts/reproduce.py actors --figure {figure}`."
    claims = read_claims(results / f"claims_{figure}.csv")
    sentences, table = ANSWERS[figure](claims, read_table(results / f"figure_{figure}.csv"))
    sure = SURE_OF_RATES if figure == "rates" else SURE
    parts = [sentences[0], *([" ".join(sentences[1:])] if sentences[1:] else [])]
    about = sure.format(count=len([claim for claim in claims if claim.p is not None]), resamples="2,000")
    picture = f"![{PICTURES[figure]}](figure_{figure}.png)"
    return "\n\n".join([*(fill(part, 118) for part in parts), picture, "\n".join(table), fill(about, 118)])


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

    def choose(self, holds: str, against: str, both: str, neither: str) -> str:
        """Text for the verdicts: one side, the other, both, or neither is shown."""
        if self.holds:
            return both if self.reversed else holds
        return against if self.reversed else neither


def tally(claims: Sequence[Claim], *words: str) -> Tally:
    """Verdicts that survive the correction, of the claims with all these words."""
    chosen = [claim for claim in claims if all(word in claim.claim for word in words)]
    shown = [claim.verdict for claim in chosen if claim.survives]
    return Tally(shown.count(HOLDS), shown.count(REVERSED), len(chosen))


def bounds(claims: Sequence[Claim], rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Sentences and table of blocking against discarding."""
    seconds, batches = (
        tally(claims, "waiting learns more than dropping", per) for per in (", per second", ", per batch")
    )
    first = seconds.choose(
        "Block: in equal time, waiting for stale data is shown to learn more than dropping them.",
        "Discard: in equal time, dropping stale data is shown to learn more than waiting for them.",
        "It depends: in equal time, waiting is shown to learn more in some settings, and dropping in others.",
        "Neither is shown to be better: in equal time, no difference between waiting and dropping is shown.",
    )
    sentences = [first, *_counts("waiting", "dropping", {"equal simulated seconds": seconds, "equal batches": batches})]
    slower = tally(claims, "dropped fragments take longer")
    sentences.append(
        f"Dropped fragments are shown to take longer than all fragments in {slower.holds} of {slower.total} settings."
    )
    for task in dict.fromkeys(row["env"] for row in rows):
        dropping = [row for row in rows if row["env"] == task and row["fragments_dropped_return"]]
        gaps = "; ".join(f"bound {row['bound']}: {_pm(row, 'fragments_dropped_return')}" for row in dropping)
        if gaps:
            sentences.append(f"On {task} the return of dropped episodes less that of used ones is {gaps}.")
    names = {(row["method"], row["bound"]): _admission(row) for row in rows}
    columns = {"area, equal seconds": "area_seconds", "area, equal batches": "area_batches", "final": "final"}
    return sentences, _table("admission", names, rows, columns, ("method", "bound"))


def sync(claims: Sequence[Claim], rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Sentences and table of fetches within a fragment."""
    paid, free = (tally(claims, f"fetch {cost}:", "per second") for cost in ("0.13 s", "free"))
    first = paid.choose(
        "Fetch within the fragment: in equal time this is shown to learn more than one fetch, at 0.13 s each.",
        "Fetch once per fragment: in equal time more fetches, of 0.13 s each, are shown to learn less.",
        "It depends: at 0.13 s a fetch, some intervals are shown to learn more in equal time, and others less.",
        "It is not shown to matter: in equal time, at 0.13 s a fetch, no interval is shown to differ from one fetch.",
    )
    batches = tally(claims, "fetch free:", "per batch")
    scales = {
        "equal time, at 0.13 s a fetch": paid,
        "equal time, at no cost": free,
        "equal batches, at no cost": batches,
    }
    names = {("0.13 s", row["sync_steps"]): _steps(row) for row in rows}
    columns = {"area, equal seconds": "area_seconds", "data lag, versions": "data_lag"}
    table = _table("fetches, 0.13 s each", names, rows, columns, ("method", "sync_steps"))
    return [first, *_counts("more fetches", "one fetch", scales)], table


def corrections(claims: Sequence[Claim], rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Sentences and table of off-policy corrections by data lag."""
    helps = [claim.claim for claim in claims if "learns more than PPO" in claim.claim and _shown(claim, HOLDS)]
    hurts = tally(claims, "learns more than PPO").reversed
    if helps:
        named = "; ".join(text.removesuffix(" (paired)").replace(" learns more than PPO", "") for text in helps)
        first = f"A correction is shown to learn more than PPO in {len(helps)} settings: {named}."
    else:
        first = (
            "None is shown to be needed: at no data lag up to 8 batches is a correction shown to learn more than PPO."
        )
    sentences = [first, f"A correction is shown to learn less than PPO in {hurts} settings."]
    for task in dict.fromkeys(row["env"] for row in rows):
        lags = [lag for lag in ("1", "2", "4", "8") if _loses(claims, task, lag)]
        at = f"at lags of {', '.join(lags)} batches" if lags else "at no lag up to 8 batches"
        sentences.append(f"On {task} PPO is shown to learn less than from fresh data {at}.")
    levels = list(dict.fromkeys(row["lag"] for row in rows))
    tables: list[str] = []
    for task in dict.fromkeys(row["env"] for row in rows):
        tables += [f"| {task}, area at lag | {' | '.join(levels)} |", "|---|" + "---|" * len(levels)]
        for method in dict.fromkeys(row["method"] for row in rows):
            cells = {
                row["lag"]: _pm(row, "area_batches") for row in rows if (row["env"], row["method"]) == (task, method)
            }
            tables.append(f"| {method} | {' | '.join(cells.get(level, '') for level in levels)} |")
        tables.append("")
    return sentences, tables[:-1]


def _loses(claims: Sequence[Claim], task: str, lag: str) -> bool:
    text = f"{task}: PPO learns more from data of lag 0 than of lag {lag} "
    return any(claim.claim.startswith(text) and _shown(claim, HOLDS) for claim in claims)


def rates(claims: Sequence[Claim], rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Sentences and table of the best learning rate by data lag."""
    falls, slower = tally(claims, "falls with data lag"), tally(claims, "falls more slowly")
    first = (
        f"The best learning rate is shown to fall with data lag on {falls.holds} of {falls.total} tasks, and shown to "
        f"fall more slowly than 1 / (1 + lag) on {slower.holds}."
    )
    sentences = [first]
    tasks = list(dict.fromkeys(row["env"] for row in rows))
    for task in tasks:
        fits = {row["method"]: row for row in rows if row["env"] == task}
        slope, crossover = (_between(fits[name]) for name in ("slope", "crossover"))
        sentences.append(f"On {task} the exponent is {slope} and the crossover is at a lag of {crossover} batches.")
    sentences.append("An exponent of −1 is the law. A crossover at 16, the largest lag, means that none was reached.")
    at = {(row["env"], row["lag"]): _between(row) for row in rows if row["lag"]}
    table = [f"| data lag, batches | {' | '.join(f'{task}: best learning rate' for task in tasks)} |"]
    table.append("|---|" + "---|" * len(tasks))
    for lag in dict.fromkeys(row["lag"] for row in rows if row["lag"]):
        table.append(f"| {lag} | {' | '.join(at.get((task, lag), '') for task in tasks)} |")
    return sentences, table


def _counts(ours: str, theirs: str, scales: Mapping[str, Tally]) -> list[str]:
    """A sentence for each scale, with the number of comparisons that either side wins."""
    return [
        f"In {name}, {ours} {'are' if ours.endswith('es') else 'is'} shown to learn more in {one.holds} of {one.total} "
        f"comparisons, and {theirs} in {one.reversed}."
        for name, one in scales.items()
    ]


def _table(
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
        lines.append(f"| {name} | {' | '.join(_pm(row, column) if row else '' for row, column in found)} |")
    return lines


def _admission(row: Row) -> str:
    return "barrier" if row["method"] == "barrier" else f"{row['method']}, bound {row['bound']}"


def _steps(row: Row) -> str:
    return f"every {row['sync_steps']} steps" if row["sync_steps"] != "0" else "once per fragment, of 128 steps"


def _pm(row: Row, column: str) -> str:
    """Mean and half of its interval."""
    if not row[column]:
        return "–"
    half = row.get(f"{column}_ci95") or ""
    return significant(float(row[column]), 2) + (f" ± {significant(float(half), 2)}" if half else "")


def _between(row: Row) -> str:
    """Value and its interval."""
    low, high = (significant(float(row[end]), 2) for end in ("low", "high"))
    return f"{significant(float(row['best_rate']), 2)} ({low} to {high})"


def _shown(claim: Claim, verdict: str) -> bool:
    return bool(claim.survives) and claim.verdict == verdict


ANSWERS: dict[str, Callable[[Sequence[Claim], Sequence[Row]], tuple[list[str], list[str]]]] = {
    "bounds": bounds,
    "sync": sync,
    "corrections": corrections,
    "rates": rates,
}
