"""Answers on the study's page, written from the claims and tables of its figures, never by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill

from stellaris_jax.base import inputs
from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.telemetry.format import significant
from studies.actors.cells import BARRIER, DROP
from studies.actors.laws import RESAMPLES, at_end
from studies.actors.texts import (
    Row,
    between,
    counts,
    edges,
    having,
    headline,
    limited,
    listed,
    mean_and_half,
    of,
    on_tasks,
    shown,
    table,
    tally,
)
from studies.claims import HOLDS, OPEN, REVERSED, Claim, read_claims
from studies.files import read_table, replace_block

PAGE = "README.md"
OPEN_ANSWER = "**Not answered yet:** the runs are not trained."
"""Answer of a figure without claims; a page that has it although there are claims is out of date."""
SURE = (
    "**How sure:** ± is half of a 95 % interval over seeds. Learning rates are chosen on seeds 0 to 7, by "
    "learning-curve area over batches, also where areas over seconds are compared. They are judged on seeds 8 to 15. "
    "{tests} *Shown* means significant after Holm's correction for the {count} claims of this figure. Not shown is not "
    "equal."
)
PAIRED = "Comparisons are of equal seeds (paired t-test)."
TESTS = {
    "bounds": f"{PAIRED} Durations of dropped fragments, relative to all, are tested against 1, and their returns, "
    "less those of used ones, against 0 (one-sample t-tests)."
}
"""Tests of the figures with others than the paired one."""
SURE_OF_RATES = (
    "**How sure:** learning-curve areas of 16 seeds, each learning rate twice the one before. Intervals are of 95 %, "
    "by {resamples} bootstrap samples of the seeds. *Shown* means significant after Holm's correction for the {count} "
    "claims of this figure. Not shown is not equal, and not ruled out is not shown."
)
PICTURES = {
    "bounds": "Learning-curve area by admission",
    "sync": "Learning-curve area by env steps between fetches",
    "corrections": "Learning-curve area by data lag",
    "rates": "Best learning rate by data lag",
}
"""Content of each figure's picture."""
LEVELS = {"bounds": "bound", "sync": "sync_steps", "corrections": "lag", "rates": "lag"}
"""Column of each figure's level."""
CROSSOVER = "crossover in batches, with 1 / (1 + lag) beyond; the largest lag: none was reached"
"""Row of the crossover; left out where the law is ruled out."""
UNCLIPPED = ("TIS", "V-trace", "CISPO")
"""Objectives without PPO's clip; the others keep it."""


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
    """Answer of a figure: a sentence, its picture, its table, how sure they are, and further sentences folded away.

    It is `OPEN_ANSWER` without claims.
    """
    if not (results / f"claims_{figure}.csv").is_file():
        return f"{OPEN_ANSWER} Command: `python scripts/reproduce.py actors --figure {figure}`."
    claims = read_claims(results / f"claims_{figure}.csv")
    rows = read_table(results / f"figure_{figure}.csv")
    sentences, lines = ANSWERS[figure](claims, rows)
    sentences += edges(rows, LEVELS[figure])
    sure = SURE_OF_RATES if figure == "rates" else SURE
    count = len([claim for claim in claims if claim.p is not None])
    about = sure.format(count=count, resamples=f"{RESAMPLES:,}", tests=TESTS.get(figure, PAIRED))
    picture = f"![{PICTURES[figure]}](figure_{figure}.png)"
    parts = [fill(sentences[0], 118), picture, "\n".join(lines), fill(about, 118)]
    if sentences[1:]:
        folded = fill(" ".join(sentences[1:]), 118)
        parts.append(f"<details><summary>All comparisons</summary>\n\n{folded}\n\n</details>")
    return "\n\n".join(parts)


def bounds(claims: Sequence[Claim], rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Sentences and tables of blocking against discarding: what each learns, and what dropping costs."""
    seconds, batches = (
        having(claims, "waiting learns more than dropping", per) for per in (", per second", ", per batch")
    )
    ours, theirs = "waiting for stale data", "dropping them"
    first = headline(
        seconds,
        f"Block: in equal time, {ours} is shown to learn more than {theirs}.",
        "Discard: in equal time, dropping stale data is shown to learn more than waiting for them.",
        "Neither is shown to be better: in equal time, no difference between waiting and dropping is shown.",
        f"in equal time, {ours} is shown to learn more than {theirs}",
    )
    scales = {"equal simulated seconds": tally(seconds), "equal batches": tally(batches)}
    sentences = [first, *counts("waiting", "dropping", scales), *_detectable(seconds)]
    bare = tally(claims, "waiting learns more than the barrier", ", per second")
    if bare.total:
        sentences.append(
            f"Against the barrier, waiting with bound 1 or 2 is shown to learn more in "
            f"{of(bare.holds, bare.total)} of equal seconds, and less in {bare.reversed}"
            + (": that asynchrony pays is not shown." if not bare.holds else ".")
        )
    slower = tally(claims, "dropped fragments take longer")
    if slower.total:
        sentences.append(
            f"Dropped fragments are shown to take longer than all in {slower.holds} of {slower.total} settings."
        )
    for task in dict.fromkeys(row["env"] for row in rows):
        better, worse = (tally(claims, f"{task}, ", f"have {word} returns than used") for word in ("higher", "lower"))
        for word, shown_in in (("higher", better.holds + worse.reversed), ("lower", worse.holds + better.reversed)):
            if shown_in:
                total = better.total + worse.total
                sentences.append(
                    f"On {task} their returns are shown to be {word} than those of used ones in {shown_in} of {total}."
                )
    sentences += _horizons(rows)
    names = {(row["method"], row["bound"]): _admission(row) for row in rows}
    columns = {"area, equal seconds": "area_seconds", "area, equal batches": "area_batches", "final": "final"}
    return sentences, [*table("admission", names, rows, columns, ("method", "bound")), "", *_costs(rows)]


def _detectable(claims: Sequence[Claim]) -> list[str]:
    """Sentence about the smallest gaps that can be shown, by the half-widths of the differences."""
    halves = [float(claim.ours.rpartition(" ± ")[2]) for claim in claims if ": " in claim.ours and " ± " in claim.ours]
    if not halves:
        return []
    least, most = (significant(half, 2) for half in (min(halves), max(halves)))
    return [
        f"Differences in equal seconds have half-widths of {least} to {most}: a gap smaller than its comparison's "
        "half-width could not be shown."
    ]


def _horizons(rows: Sequence[Row]) -> list[str]:
    """Sentence about the end of equal seconds, and the evaluations of the barrier until then."""
    ends = {row["env"]: row["equal_seconds"] for row in rows}
    barrier = {row["env"]: row["evaluations"] for row in rows if row["method"] == BARRIER}
    if not barrier:
        return []
    named = listed([f"after {significant(float(end))} s on {task}" for task, end in ends.items()])
    counted = listed([f"{significant(float(count), 2)} on {task}" for task, count in barrier.items()])
    return [
        f"Equal seconds end with a task's shortest run, {named}. By then the barrier has had, of 21 "
        f"evaluations, {counted}."
    ]


def _costs(rows: Sequence[Row]) -> list[str]:
    """Lines of a table of what dropping costs, and how it biases the data."""
    heads = (
        "fragments dropped",
        "rollouts for one learned from",
        "longer than all fragments",
        "return less that of used",
    )
    lines = [f"| dropping | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for row in (row for row in rows if row["method"] == DROP):
        name = f"{row['env']}, bound {row['bound']}"
        share = mean_and_half(row, "dropped", 2, 100.0)
        rolled = significant(1.0 / (1.0 - float(row["dropped"])), 2)
        slower = mean_and_half(row, "fragments_dropped_slowness", 2, 100.0, less=1.0)
        gap = mean_and_half(row, "fragments_dropped_return", 2)
        lines.append(f"| {name} | {share} % | {rolled} | {slower} % | {gap} |")
    return lines


def sync(claims: Sequence[Claim], rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Sentences and table of fetches within a fragment."""
    paid, free = (having(claims, f"fetch {cost}:", "per second") for cost in ("0.13 s", "free"))
    first = headline(
        paid,
        "Fetch within the fragment: in equal time this is shown to learn more than one fetch, at 0.13 s each.",
        "Fetch once per fragment: in equal time more fetches, of 0.13 s each, are shown to learn less.",
        "It is not shown to matter: in equal time, at 0.13 s a fetch, no interval is shown to differ from one fetch.",
        "in equal time, at 0.13 s a fetch, more fetches are shown to learn more than one",
    )
    scales = {
        "equal time, at 0.13 s a fetch": tally(paid),
        "equal time, at no cost": tally(free),
        "equal batches, at no cost": tally(claims, "fetch free:", "per batch"),
    }
    names = {("0.13 s", row["sync_steps"]): _steps(row) for row in rows}
    columns = {"area, equal seconds": "area_seconds", "data lag, versions": "data_lag"}
    lines = table("fetches, 0.13 s each", names, rows, columns, ("method", "sync_steps"))
    return [first, *counts("more fetches", "one fetch", scales)], lines


def corrections(claims: Sequence[Claim], rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Sentences and table of off-policy corrections by data lag."""
    compared = having(claims, "learns more than PPO")
    helps, hurts = (_named(compared, verdict) for verdict in (HOLDS, REVERSED))
    found = tally(compared)
    first = (
        f"A correction is shown to learn more than PPO in {of(found.holds, found.total)}: {'; '.join(helps)}."
        if helps
        else f"None is shown to be needed: in {of(0, found.total)} a correction is shown to learn more than PPO."
    )
    sentences = [first, f"A correction is shown to learn less than PPO in {of(found.reversed, found.total)}."]
    sentences += [f"{name[0].upper()}{name[1:]}.".replace(" on ", " learns less on ", 1) for name in hurts]
    tasks = list(dict.fromkeys(row["env"] for row in rows))
    for task in tasks:
        fresh = having(claims, f"{task}: PPO learns more from data of lag 0 than of lag ")
        fewer, further = (_lags(fresh, verdict) for verdict in (HOLDS, REVERSED))
        sentences.append(
            f"On {task} PPO is shown to learn less from data of {fewer} than from fresh data."
            if fewer
            else f"On {task} PPO is not shown to learn less from stale data, in {of(len(fresh), len(fresh))}."
        )
        if further:
            sentences.append(f"On {task} PPO is shown to learn more from data of {further} than from fresh data.")
    levels = list(dict.fromkeys(row["lag"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    if unclipped := [method for method in methods if method in UNCLIPPED]:
        several = len(unclipped) > 1
        sentences.append(
            f"{listed(unclipped)} {'replace' if several else 'replaces'} PPO's clipped objective: "
            f"{'their' if several else 'its'} comparisons are of objectives, not of a correction alone."
        )
    tables: list[str] = []
    for task in tasks:
        tables += [f"| {task}, area at lag | {' | '.join(levels)} |", "|---|" + "---|" * len(levels)]
        for method in methods:
            cells = {
                row["lag"]: mean_and_half(row, "area_batches")
                for row in rows
                if (row["env"], row["method"]) == (task, method)
            }
            tables.append(f"| {method} | {' | '.join(cells.get(level, '') for level in levels)} |")
        tables.append("")
    return sentences, tables[:-1]


def _named(claims: Sequence[Claim], verdict: str) -> list[str]:
    """Corrections with a shown verdict, as `TIS on cartpole (lags 1, 2) and acrobot (lag 8)`."""
    lags: dict[str, dict[str, list[str]]] = {}
    for claim in claims:
        if shown(claim, verdict):
            place, _, rest = claim.claim.partition(": ")
            task, _, lag = place.partition(", lag ")
            method = rest.partition(" learns")[0]
            lags.setdefault(method, {}).setdefault(task, []).append(lag)
    return [
        f"{method} on "
        + listed([f"{task} (lag{'s' if at[1:] else ''} {', '.join(at)})" for task, at in places.items()])
        for method, places in lags.items()
    ]


def _lags(claims: Sequence[Claim], verdict: str) -> str:
    """Lags of claims with a shown verdict, as `a lag of 2 batches` or `lags of 2 and 8 batches`; empty without any."""
    lags = [claim.claim.removesuffix(" (paired)").rpartition(" ")[2] for claim in claims if shown(claim, verdict)]
    if not lags:
        return ""
    several = f"lags of {listed(lags)} batches"
    return several if len(lags) > 1 else f"a lag of {lags[0]} {'batch' if lags[0] == '1' else 'batches'}"


def rates(claims: Sequence[Claim], rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Sentences and table of the best learning rate by data lag."""
    tasks = list(dict.fromkeys(row["env"] for row in rows))
    falls, slower, steepens = (
        {task: _verdict(claims, task, text) for task in tasks} for text in ("learning rate falls", "slowly", "steepens")
    )
    falling = [task for task in tasks if falls[task] == HOLDS]
    slow, fast = ([task for task in falling if slower[task] == verdict] for verdict in (HOLDS, REVERSED))
    ends = {row["env"] for row in rows if at_end(row["rate"])}
    fair = [task for task in falling if task not in (*slow, *fast, *ends)]
    sentences = [_fall(falls)]
    if slow or fast:
        against = [
            f"it falls {how} than 1 / (1 + lag) on {listed(on)}"
            for how, on in (("more slowly", slow), ("faster", fast))
            if on
        ]
        sentences.append(
            f"Where it falls, a fall as 1 / (1 + lag) beyond a crossover is ruled out on "
            f"{on_tasks(slow + fast, tasks)}: {', and '.join(against)}."
        )
    if fair:
        sentences.append(
            f"Where it falls, a fall as 1 / (1 + lag) beyond a crossover is not ruled out on {on_tasks(fair, tasks)}: "
            f"{listed(fair)}."
        )
        bent = [task for task in fair if steepens[task] == HOLDS]
        sentences.append(
            f"That it steepens, as it does after a constant and not in a power law, is shown on {on_tasks(bent, tasks)}"
            + (f": {listed(bent)}." if bent else ".")
        )
    flat = [task for task in tasks if falls[task] == OPEN]
    if flat:
        sentences.append(
            f"On {listed(flat)} the best learning rate is not shown to fall or rise, which is what a crossover "
            "beyond the largest lag would give, too."
        )
    fits = {(row["env"], row["method"]): between(row) for row in rows if not row["lag"]}
    known = {"slope": tasks, "beyond": falling, "crossover": [*fair, *flat]}
    named = {"slope": "exponent over all lags", "beyond": "exponent beyond a crossover", "crossover": CROSSOVER}
    fitted = [[fits[task, name] if task in known[name] else "–" for task in tasks] for name in named]
    at = {(row["env"], row["lag"]): limited(row) for row in rows if row["lag"]}
    lags = dict.fromkeys(row["lag"] for row in rows if row["lag"])
    lines = [f"| | {' | '.join(tasks)} |", "|---" * (1 + len(tasks)) + "|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in zip(named.values(), fitted, strict=True)]
    lines += ["", f"| data lag, batches | {' | '.join(f'{task}: best learning rate' for task in tasks)} |"]
    lines.append("|---" * (1 + len(tasks)) + "|")
    lines += [f"| {lag} | {' | '.join(at.get((task, lag), '') for task in tasks)} |" for lag in lags]
    return sentences, lines


def _verdict(claims: Sequence[Claim], task: str, text: str) -> str:
    """Verdict about a task if it is shown, or OPEN."""
    (one,) = having(claims, f"{task}: ", text)
    return one.verdict if one.survives else OPEN


def _fall(falls: Mapping[str, str]) -> str:
    """Sentence about the tasks on which the best rate falls, rises, or neither."""
    told = {HOLDS: "shown to fall with data lag", REVERSED: "shown to rise with data lag"}
    told[OPEN] = "not shown to fall or rise with data lag"
    parts = []
    for verdict, text in told.items():
        if on := [task for task, one in falls.items() if one == verdict]:
            parts.append(f"{text} on {on_tasks(on, list(falls))}: {listed(on)}")
    return f"The best learning rate is {'; it is '.join(parts)}."


def _admission(row: Row) -> str:
    return "barrier" if row["method"] == "barrier" else f"{row['method']}, bound {row['bound']}"


def _steps(row: Row) -> str:
    return f"every {row['sync_steps']} steps" if row["sync_steps"] != "0" else "once per fragment, of 128 steps"


ANSWERS: dict[str, Callable[[Sequence[Claim], Sequence[Row]], tuple[list[str], list[str]]]] = {
    "bounds": bounds,
    "sync": sync,
    "corrections": corrections,
    "rates": rates,
}
