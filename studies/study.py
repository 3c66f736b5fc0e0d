"""Evaluation of one paper: directories of its runs and results, and the table of claims over all of its figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from textwrap import fill
from types import MappingProxyType
from typing import Any

from stellaris_jax.base import inputs
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import check_directory, write_atomically
from studies import gate
from studies.builds import current_build, figure_build
from studies.claims import COMPATIBLE, EXCLUDED, Claim, corrected, has_papers, read_claims, write_claims
from studies.files import replace_block, write_table
from studies.history import History, Series, read_csv, write_csv
from studies.pictures import claims_overview
from studies.store import Learned, learned
from studies.training import Variant

BEGIN, END = "<!-- made by scripts/reproduce.py: begin -->", "<!-- made by scripts/reproduce.py: end -->"
"""Lines of a README that enclose the generated part; the rest is kept."""
ABOUT = (
    "Intervals are of 95 %, over n seeds or measurements a side. Those of means are Student's t, and those of "
    "differences, behind the colon, are Welch's{paired}. A claim *holds* if the interval of the difference lies on its "
    "side of zero, and is *reversed* if it lies on the other side. It is *not shown* if zero is in the "
    "interval{unknown}. Claims marked *no test* have no spread over seeds. Of many claims some "
    "hold by chance. Verdicts in **bold** survive Holm's correction for the number of claims of their figure; the "
    "others do not. With it, the chance that any verdict of a figure is wrong is at most 5 %.{survival}"
)
SURVIVAL = " Of {judged} verdicts {survive} survive."
FEW = " Verdicts marked *few seeds* have an interval over fewer than five, which decides nothing."
SIZES = (
    "*The paper's size* is the ratio of its two figures: *excluded* if it lies outside our 95 % interval, *compatible* "
    "if inside."
)
PAIRED = ", or of equal seeds in pairs where the claim says *paired*"
UNKNOWN = ", or if a seed is not *known*: it was not evaluated within the time or money"


@dataclass(frozen=True)
class Study:
    """Request for a paper's figures.

    Args:
      runs: directory of the training runs.
      results: directory of CSV files, pictures and README.md; runs in its `learned.csv` are not trained again.
      envs: environments, as in `experiment=stellaris/<env>`; None for the environments of the paper's figure.
      seeds: seeds per series; None for a figure's own number.
      tuning: whether rules are also compared at their own learning rates, chosen on other seeds.
      overwrite: whether a published figure may be replaced with less; see `studies.builds`.
    """

    runs: Path
    results: Path
    envs: Sequence[str] | None = None
    seeds: int | None = None
    tuning: bool = True
    overwrite: bool = False

    def learned(self, variants: Iterable[Variant], seeds: range) -> dict[Variant, list[Learned]]:
        """Results of variants with these seeds; variants missing from the results' `learned.csv` are trained."""
        return learned(variants, seeds, self.runs, self.results / "learned.csv")

    def actors(self, variants: Mapping[str, Variant], seeds: int) -> dict[str, list[tuple[int, ...]]]:
        """Actors of every round of variants that scale them, `[seeds][rounds]` by name."""
        results = self.learned(variants.values(), range(self.seeds or seeds))
        return {name: [result.actors for result in results[variant]] for name, variant in variants.items()}

    def histories(self, figure: str, series: Iterable[Series], seeds: int) -> list[History]:
        """Train missing runs, write `figure_<figure>.csv` and `gate.csv`, and return all histories of the figure.

        Published results of other environments are kept.

        Args:
          figure: name of the figure.
          series: its curves.
          seeds: the figure's own number of seeds.

        Raises:
          ConfigError: a published curve would lose seeds or vanish.
        """
        series = list(series)
        count = self.seeds or seeds
        path = self.results / f"figure_{figure}.csv"
        published = read_csv(path)
        curves = ((history.env, history.series) for history in published)
        current_build().check_series(curves, [(curve.env, curve.name) for curve in series], count)
        results = self.learned([curve.variant for curve in series], range(count))
        fresh = [history for curve in series for history in curve.histories(results[curve.variant])]
        envs = {curve.env for curve in series}
        others = [history for history in published if history.env not in envs]
        write_csv([*others, *fresh], path)
        escaped = [gate.escapes(figure, curve, results[curve.variant]) for curve in series]
        gate.write([row for row in escaped if row is not None], self.results / gate.FILE)
        return [*others, *fresh]

    def table(self, figure: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write `figure_<figure>.csv` of a figure without curves.

        Raises ConfigError if the published table has more lines or other environments.
        """
        rows = list(rows)
        current_build().check_table(figure, header, rows)
        write_table(self.results / f"figure_{figure}.csv", header, rows)

    def picture(self, figure: str) -> Path:
        return self.results / f"figure_{figure}.png"


Figure = Callable[[Study], list[Claim] | None]
"""Maker of one figure: trains, writes its CSV and picture, and returns its claims.

It returns None, and changes nothing, if the request concerns none of its environments.
"""


def reproduce(
    study: Study,
    figures: Mapping[str, Figure],
    requested: Sequence[str],
    finish: Callable[[Path], None] | None = None,
    notes: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Make the requested figures in order, and update the claims and the README after each.

    Args:
      study: the request.
      figures: makers of all figures, by name.
      requested: names of figures, or numbers that stand for all parts: 11 for 11a and 11b.
      finish: update of further parts of the results' pages, after each figure.
      notes: sentences on a figure's claims, by its name.

    Raises:
      ConfigError: there is no such figure, or a directory cannot be written.
    """
    parts = {
        name: [figure for figure in figures if figure.rstrip("ab") == name or figure == name] for name in requested
    }
    for name in requested:
        if not parts[name]:
            raise ConfigError(f"--figure {name} is not one of {', '.join(figures)}.")
    check_directory("--runs", study.runs)
    check_directory("--results", study.results)
    for figure in chain.from_iterable(parts.values()):
        print(f"figure {figure}", flush=True)
        with figure_build(figure, study.results, study.overwrite) as current:
            claims = figures[figure](study)
        if claims is None:
            continue
        judged = corrected(claims)
        write_claims(judged, current.claims)
        current.done()
        write_readme(study.results, figures)
        if finish is not None:
            finish(study.results)
        for claim in judged:
            print(told(claim), flush=True)
        if figure in notes:
            print(f"  {notes[figure]}", flush=True)
        print(f"{current}; its claims are in {study.results / 'README.md'}", flush=True)


def told(claim: Claim) -> str:
    """A line of the terminal: the claim, the paper's figures, ours and the verdict."""
    paper = f" (paper: {claim.paper})" if re.search(r"\d", claim.paper) else ""
    return f"  {claim.claim}{paper}: {claim.ours}; {claim.shown_verdict.strip('*')}"


def write_readme(results: Path, figures: Iterable[str]) -> None:
    """Update the generated part of a study's README.md, and the picture at its head."""
    path = results / "README.md"
    text = inputs.read_text(path) if path.is_file() else f"{BEGIN}\n{END}\n"
    write_atomically(path, replace_block(text, BEGIN, END, _body(results, list(figures))))


def _body(results: Path, figures: Sequence[str]) -> str:
    """Generated part of a README: tables of claims and of escapes, and the pictures of all figures."""
    made = [figure for figure in figures if (results / f"claims_{figure}.csv").is_file()]
    claims = [(figure, claim) for figure in made for claim in read_claims(results / f"claims_{figure}.csv")]
    drawn: dict[str, list[Claim]] = {}
    for figure, claim in claims:
        drawn.setdefault(figure, []).append(claim)
    picture = claims_overview(drawn, results / "claims.png", "All claims that have an interval, by figure")
    judged = [claim.survives for _, claim in claims if claim.p is not None and claim.survives is not None]
    about = ABOUT.format(
        paired=PAIRED if any("(paired)" in claim.claim for _, claim in claims) else "",
        unknown=UNKNOWN
        if any("known of" in claim.ours or "nothing known" in claim.ours for _, claim in claims)
        else "",
        survival=(SURVIVAL.format(judged=len(judged), survive=sum(judged)) if judged else "")
        + (FEW if any(claim.has_few for _, claim in claims) else ""),
    )
    papers, sizes = has_papers(claim for _, claim in claims), any(claim.size for _, claim in claims)
    heads = f"| figure | claim |{' paper |' if papers else ''} here | n | |"
    if sizes:
        heads += " the paper's size |"
        about += f" {SIZES}"
        counts = Counter(claim.size for _, claim in claims if not claim.is_small)
        if number := counts[EXCLUDED] + counts[COMPATIBLE]:
            about += f" It is excluded in {counts[EXCLUDED]} of {number} comparisons."
    lines = [
        *(["![All claims at one glance](claims.png)", ""] if picture else []),
        fill(about, 118),
        "",
        heads,
        "|---" * (heads.count("|") - 1) + "|",
    ]
    for figure, claim in claims:
        paper = f" {claim.paper} |" if papers else ""
        size = f" {claim.shown_size} |" if sizes else ""
        lines.append(f"| {figure} | {claim.claim} |{paper} {claim.ours} | {claim.n} | {claim.shown_verdict} |{size}")
    lines += ["", *gate.table(results / gate.FILE, made)]
    for figure in made:
        for picture in [*results.glob(f"figure_{figure}.png"), *sorted(results.glob(f"figure_{figure}_*.png"))]:
            lines += ["", f"![Figure {figure}]({picture.name})"]
        for table in [*results.glob(f"figure_{figure}.csv"), *sorted(results.glob(f"figure_{figure}_*.csv"))]:
            lines += ["", f"[{table.name}]({table.name})"]
    return "\n".join(lines)
