"""Index of all claims with their configurations, commands and verdicts: `results/README.md`."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from stellaris_jax.base.outputs import write_atomically
from studies.actors import answers
from studies.claims import HOLDS, OPEN, REVERSED, Claim, has_papers, read_claims
from studies.map import settings


class Paper(NamedTuple):
    """Paper under study.

    Attributes:
      module: module of its figures, below `studies`.
      title: title for readers.
      settings: path of its configurations.
    """

    module: str
    title: str
    settings: str


PAPERS = {
    "stellaris": Paper("stellaris.figures", "Stellaris (SC'24)", "configs/experiment/stellaris"),
    "nitro": Paper("nitro.study", "Nitro (VLDB'25)", "configs/experiment/nitro"),
    "minionsrl": Paper("minionsrl.study", "MinionsRL (AAAI'24)", "configs/experiment/minionsrl"),
    "actors": Paper("actors.figures", "Asynchronous actors: staleness of data", "studies/actors/cells.py"),
    "choose": Paper("choose.figures", "Choices beside the best of thirty candidates", "studies/choose/pairs.py"),
    "tokens": Paper("tokens.figures", "Token tasks: how stale is too stale", "studies/tokens/cells.py"),
    "off_policy": Paper("off_policy.figures", "Stale gradients under DQN and SAC", "studies/off_policy/cells.py"),
    "regimes": Paper("regimes.figures", "When asynchrony wins: timelines alone", "studies/regimes/cells.py"),
    "map": Paper("map.figures", "The map of staleness, and newer papers", "studies/map/cells.py"),
}
FINDINGS = Path(__file__).with_name("findings.md")
"""Findings of the studies, each with how sure that is, written by hand."""
ABOUT = (
    "Every claim that was tested here, with its configuration, its command and its result. A verdict follows from the "
    "95 % interval of a difference of means over seeds. The claim *holds* if the interval lies on its side of zero, is "
    "*reversed* if it lies on the other side, and is *not shown* if the interval contains zero. Verdicts in **bold** "
    "survive Holm's correction for the number of claims of their figure. Claims marked *no test* have no spread over "
    "seeds. The page of each study has its data and pictures. `python scripts/reproduce.py index` writes this page."
)


def module_of(paper: str) -> Any:
    """Module with a paper's `FIGURES` and `ENVS`."""
    return import_module(f"studies.{PAPERS[paper].module}")


def write_index(results: Path) -> None:
    """Write `README.md` in the directory of all results, the settings of methods on the map's page, and answers."""
    write_atomically(results / "README.md", index(results))
    settings.write(results / "map" / "README.md")
    answers.write(results / "actors")


def index(results: Path) -> str:
    """Text of the index."""
    claims_by_paper = {paper: _claims(results / paper, list(module_of(paper).FIGURES)) for paper in PAPERS}
    lines = ["# Ten things we know", "", FINDINGS.read_text().strip(), "", "## Claims", "", fill(ABOUT, 120), ""]
    newer = [
        (figure, claim) for figure, claims in claims_by_paper["map"].items() for claim in claims if ": " in claim.paper
    ]
    if newer:
        lines += ["## Newer papers on staleness", "", *_newer(newer)]
    for paper, figures in claims_by_paper.items():
        if (results / paper).is_dir():
            lines += _section(paper, figures)
    return "\n".join(lines)


def _claims(results: Path, figures: Sequence[str]) -> dict[str, list[Claim]]:
    paths = {figure: results / f"claims_{figure}.csv" for figure in figures}
    return {figure: read_claims(path) for figure, path in paths.items() if path.is_file()}


def _newer(claims: Sequence[tuple[str, Claim]]) -> list[str]:
    text = (
        "The papers train language models on single tasks. These tests use small control tasks, one learner, and "
        "updates of 64 samples that are each used once. The learning rate of every method and staleness is tuned on "
        "other seeds."
    )
    rows = [
        f"| {one.paper} | {one.claim} | {one.ours} | {one.shown_verdict} | `reproduce.py map --figure {figure}` |"
        for figure, one in claims
    ]
    return [fill(text, 120), "", "| their claim | tested as | here | | command |", "|---|---|---|---|---|", *rows, ""]


def _section(paper: str, figures: dict[str, list[Claim]]) -> list[str]:
    title, settings = PAPERS[paper].title, PAPERS[paper].settings
    lines = [
        f"## {title}",
        "",
        f"Configurations: [{settings}](../{settings}). Data and pictures: [{paper}]({paper}/README.md).",
        "",
    ]
    if not figures:
        return [*lines, "No figure has been made yet.", ""]
    lines += ["| figure | content | command | claims | hold | not shown | reversed |", "|---|---|---|---|---|---|---|"]
    for figure, claims in figures.items():
        counts = " | ".join(_counted(claims, verdict) for verdict in (HOLDS, OPEN, REVERSED))
        command = f"`python scripts/reproduce.py {paper} --figure {figure}`"
        lines.append(f"| {figure} | {_about(paper, figure)} | {command} | {len(claims)} | {counts} |")
    papers = has_papers(claim for claims in figures.values() for claim in claims)
    heads = "| figure | claim | paper | here | |" if papers else "| figure | claim | here | |"
    lines += ["", "<details><summary>Claim by claim</summary>", "", heads, "|---" * (heads.count("|") - 1) + "|"]
    lines += [
        f"| {figure} | {claim.claim} |{f' {claim.paper} |' if papers else ''} {claim.ours} | {claim.shown_verdict} |"
        for figure, claims in figures.items()
        for claim in claims
    ]
    return [*lines, "", "</details>", ""]


def _about(paper: str, figure: str) -> str:
    """First paragraph of the docstring of a figure's function."""
    function = module_of(paper).FIGURES[figure]
    text = inspect.getdoc(getattr(function, "func", function)) or ""  # a partial function has no docstring of its own
    return " ".join(text.partition("\n\n")[0].split())


def _counted(claims: Sequence[Claim], verdict: str) -> str:
    """Number of claims with a verdict and, if any was tested, the number of those that survive."""
    survivals = Counter(claim.survives for claim in claims if claim.verdict == verdict)
    total = sum(survivals.values())
    if not total or verdict == OPEN:
        return str(total)
    return f"{total} (no test)" if survivals[None] == total else f"{total} (**{survivals[True]}**)"
