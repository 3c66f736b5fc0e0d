"""The page: what settings came to, whether they differ by more than noise, and how they got there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stellaris_jax.config.schema import ConfigError
from stellaris_jax.report.page.markup import bullets, details, document, figure, paragraph, section, table, text, words
from stellaris_jax.report.page.panels import (
    AXES,
    MOST,
    curve_panel,
    curves_of,
    numeric_keys,
    profile_panel,
    sensitivity_panel,
    styles,
    swatch,
)  # fmt: skip
from stellaris_jax.report.page.sources import Sources, gather, machines, run_command, sweep_command, versions
from stellaris_jax.report.page.tables import across, bars, differences, results
from stellaris_jax.report.results import BEST, Row, judged
from stellaris_jax.report.runs import NOT_COMPARED, group_replicates
from stellaris_jax.report.statistics import FEWEST

MOST_VALUES = 12
"""Values of a setting that are listed."""
MOST_PANELS = 3
"""Environments of which all clocks are drawn; of more, env steps only."""


def write_page(places: Sequence[Path], out: Path, threshold: float | None = None) -> list[str]:
    """Write the report on runs as one HTML file that needs nothing but itself.

    Args:
      places: directories of runs, of sweeps, or of any number of runs.
      out: the file.
      threshold: a return; the table then tells what it takes to reach it.

    Returns:
      What could not be read, in sentences that the page holds, too.

    Raises:
      ConfigError: a place holds no runs, or none of which a configuration can be read.
    """
    sources = gather(places)
    groups = group_replicates(sources.runs)
    if not groups:
        told = f" ({sources.notes[0]})" if sources.notes else ""
        raise ConfigError(f"no run of {', '.join(map(str, places))} has a configuration that can be read{told}.")
    rows = judged(groups)
    title = places[0].resolve().name if len(places) == 1 else "Comparison of runs"
    out.write_text(document(title, content(title, rows, sources, out, threshold)), encoding="utf-8")
    return sources.notes


def content(title: str, rows: Sequence[Row], sources: Sources, out: Path, threshold: float | None) -> str:
    """The page between its title and its end."""
    numbers = {row.label: index for index, row in enumerate(rows, start=1)}
    envs = list(dict.fromkeys(row.env for row in rows))
    by_env = {env: [row for row in rows if row.env == env] for env in envs}
    looks = {env: styles(of_env) for env, of_env in by_env.items()}
    clocks = list(AXES) if len(envs) <= MOST_PANELS else ["env_steps"]
    return "".join(
        [
            f"<h1>{text(title)}</h1>",
            paragraph(_summary(rows, envs)),
            _notes(rows, sources),
            section("Results", results(rows, numbers, out, threshold)),
            section("Is it the setting or the noise?", differences(rows, numbers)),
            section("Curves", *(_curves(by_env[env], looks[env], numbers, clocks, len(envs) > 1) for env in envs)),
            section(
                "Interquartile means and performance profiles",
                *(_robust(by_env[env], looks[env], numbers, len(envs) > 1) for env in envs),
                across(by_env) if len(envs) > 1 else "",
            ),
            section("Sensitivity", *(_sensitivity(by_env[env], len(envs) > 1) for env in envs)),
            section("What differs", _differs(rows)),
            section("To repeat it", _repeat(rows, sources)),
        ]
    )


def _summary(rows: Sequence[Row], envs: Sequence[str]) -> str:
    runs = [run for row in rows for run in row.group.runs]
    seeds = sorted({len(row.seeds) for row in rows})
    spread = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    best = [f"the highest mean return has {row.label}" for row in rows if row.mark == BEST and len(envs) == 1]
    parts = [
        f"{_many(len(rows), 'setting')} on {', '.join(filter(None, envs)) or 'an environment without a name'}",
        f"{_many(len(runs), 'run')} with {spread} evaluated seed{'s' * (seeds != [1])} each",
        *best,
    ]
    return "; ".join(parts) + "."


def _notes(rows: Sequence[Row], sources: Sources) -> str:
    """What is missing, in sentences."""
    runs = [run for row in rows for run in row.group.runs]
    failed = [run.path.name for run in sources.runs if run.summary is None]
    silent = [run.path.name for run in runs if run.summary is not None and not run.evaluations]
    notes = [f"{note}." for note in sources.notes]
    if failed:
        notes.append(f"No result, as of runs that failed or are not over: {', '.join(failed)}.")
    if silent:
        drawn = "; their curves are of training episodes, and nothing else tells of them"
        notes.append(f"No evaluations: {', '.join(silent)}{drawn}.")
    if len(rows) == 1:
        notes.append("This is one setting: there is nothing to compare it with.")
    few = [row for row in rows if 0 < len(row.seeds) < FEWEST]
    if few:
        notes.append(
            f"{'Each setting' if len(few) == len(rows) else _many(len(few), 'setting')} with fewer than {FEWEST} seeds "
            "is shown with the range of its seeds in place of an interval: of so few, an interval says little."
        )
    return f'<div class="notes">{bullets(notes)}</div>' if notes else ""


def _curves(
    rows: Sequence[Row], looks: dict[str, Any], numbers: dict[str, int], clocks: Sequence[str], several: bool
) -> str:
    drawn = [row for row in rows if any(curves_of(row, clock) for clock in clocks)]
    if not drawn:
        nothing = paragraph("There are no curves: nothing was evaluated, or no run has a result.")
        return _about_env(rows, several) + nothing
    panels = []
    for clock in clocks:
        if any(curves_of(row, clock) for row in drawn):
            panels.append(f"<figure>{curve_panel(drawn, looks, clock)}</figure>")
    counts = sorted({len(row.seeds) for row in drawn})
    bands = "Bands are 95 % intervals over seeds, within their range. " if counts[-1] >= FEWEST else ""
    lines = f"Thin lines are the seeds of means over fewer than {FEWEST}. " if 1 < counts[0] < FEWEST else ""
    rest = len(drawn) - len([row for row in drawn if row.label in looks])
    grey = f"The {MOST} settings with the highest returns have colours, {rest} more are grey." if rest else ""
    return (
        _about_env(rows, several)
        + _legend(drawn, looks, numbers)
        + f'<div class="panels">{"".join(panels)}</div>'
        + paragraph(bands + lines + grey)
    )


def _about_env(rows: Sequence[Row], several: bool) -> str:
    return f"<h3>{text(rows[0].env)}</h3>" if several else ""


def _legend(rows: Sequence[Row], looks: dict[str, Any], numbers: dict[str, int]) -> str:
    items = [
        f"<li>{swatch(looks[row.label])}{numbers[row.label]} · {text(row.label)}</li>"
        for row in rows
        if row.label in looks
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _robust(rows: Sequence[Row], looks: dict[str, Any], numbers: dict[str, int], several: bool) -> str:
    scored = {row.label: [row.finals] for row in rows if row.finals}
    if not scored:
        return ""
    above = bars(scored, {label: str(numbers[label]) for label in scored})
    panel = profile_panel(scored, looks, f"final return on {rows[0].env}" if rows[0].env else "final return")
    return (
        _about_env(rows, several)
        + above
        + f'<div class="panels"><figure>{panel}<figcaption>Share of runs whose final return is above each value: the '
        f"curve to the upper right is the better one; bands are pointwise 95 % intervals.</figcaption></figure></div>"
        + (_legend([row for row in rows if row.finals], looks, numbers))
    )


def _sensitivity(rows: Sequence[Row], several: bool) -> str:
    scored = [row for row in rows if row.finals]
    panels = [f"<figure>{sensitivity_panel(scored, key)}</figure>" for key in numeric_keys(scored)]
    if not panels:
        return ""
    told = paragraph(
        "Final return against each setting that varies and is a number. Points are seeds, lines join the means over "
        "all settings that share the value."
    )
    return _about_env(rows, several) + f'<div class="panels">{"".join(panels)}</div>' + told


def _differs(rows: Sequence[Row]) -> str:
    """The settings that vary, and those that do not."""
    keys = list(rows[0].group.values)
    lines = []
    for key in keys:
        values = list(dict.fromkeys(str(row.group.values.get(key)) for row in rows))
        more = f", and {len(values) - MOST_VALUES} more" if len(values) > MOST_VALUES else ""
        lines.append([words(key), figure(str(len(values)), len(values)), words(", ".join(values[:MOST_VALUES]) + more)])
    varied = table(["setting", "values", ""], lines, "settings that vary", sortable=False) if keys else ""
    configs = [run.config for row in rows for run in row.group.runs]
    common = {
        key: value
        for key, value in configs[0].items()
        if key not in NOT_COMPARED and all(config.get(key) == value for config in configs[1:])
    }
    shared = [[words(key), words(json.dumps(value, ensure_ascii=False))] for key, value in common.items()]
    same = table(["setting", "value"], shared, "settings that are the same in all runs", sortable=False)
    nothing = "" if keys else paragraph("Nothing but the seed: all runs are of one setting.")
    return varied + nothing + details(f"{len(common)} settings are the same in all runs", same)


def _repeat(rows: Sequence[Row], sources: Sources) -> str:
    """Hardware, versions, and commands."""
    runs = [run for row in rows for run in row.group.runs]
    parts = ["<h3>Commands</h3>"]
    for sweep in sources.sweeps:
        if (again := sweep_command(sweep)) is not None:
            name = f" {sweep.name}" if len(sources.sweeps) > 1 else ""
            parts.append(paragraph(f"The whole sweep{name}:") + f"<pre>{text(again)}</pre>")
    for row in rows:
        alone = len(rows) == 1
        if (row.mark == BEST or alone) and (again := run_command(row.group.runs[0])) is not None:
            told = "The run" if alone else f"The best setting{f' on {row.env}' if row.env else ''}"
            parts.append(paragraph(f"{told}, seeds apart:") + f"<pre>{text(again)}</pre>")
    parts.append(paragraph("Every run's directory, linked above, holds its whole configuration (config.yaml)."))
    if devices := machines(runs):
        parts.append("<h3>Hardware</h3>" + bullets(devices))
    if known := versions(runs):
        parts.append("<h3>Versions</h3>" + bullets(known))
    return "".join(parts)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
