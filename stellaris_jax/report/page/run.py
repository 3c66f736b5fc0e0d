"""Page of one run: results, staleness, cost, curves, configuration, and commands to repeat it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stellaris_jax.base.commands import command, evaluate_command, path_argument, resume_command
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.compose import compose_config
from stellaris_jax.config.options import complete
from stellaris_jax.report.curves import MOST_POINTS, column
from stellaris_jax.report.page import charts, data
from stellaris_jax.report.page.markup import (
    Cell,
    bullets,
    details,
    figure,
    interval_bar,
    link,
    panels,
    paragraph,
    section,
    table,
    text,
    words,
)  # fmt: skip
from stellaris_jax.report.page.panels import axes_of, swatch
from stellaris_jax.report.page.sources import OF_THE_PLACE, Sources, flat, origins, run_command
from stellaris_jax.report.page.tables import relative
from stellaris_jax.report.page.timeline import timelines_of
from stellaris_jax.report.runs import Run
from stellaris_jax.telemetry.format import MISSING, clock, count, dollars, duration, percent
from stellaris_jax.telemetry.names import METRICS
from stellaris_jax.telemetry.summary import summary_rows

DIAGNOSTICS = ("losses/", "drift/", "charts/", "simulated/")
"""Groups of metrics that have a picture each, in this order."""
DRAWN_ELSEWHERE = ("train_return", "wall_seconds", "simulated_seconds", "cost_usd", "cost_common_usd", "group_size")


def content(run: Run, sources: Sources, out: Path, chosen: Sequence[range] = ()) -> tuple[str, list[str]]:
    """Body of the page, and sentences for the terminal: on unreadable files, and on timelines that are not drawn.

    Args:
      run: the run.
      sources: origin of the run, with notes on unreadable files.
      out: file of the page, which links are relative to.
      chosen: rounds whose timelines are drawn; by default some of the beginning, the middle and the end.
    """
    lean = replace(run, evaluations=_spaced(run.evaluations))
    timelines, note = timelines_of(run, chosen)
    notes = [f"{note}." for note in sources.notes] + _missing(run)
    told = [*sources.notes, note] if chosen and note and not timelines else sources.notes
    body = "".join(
        [
            f"<h1>{text(_title(run))}</h1>",
            paragraph(_outcome(run)),
            f'<div class="notes">{bullets(notes)}</div>' if notes else "",
            section("Figures", _figures(run, out)),
            section("Return", _return(lean)),
            section("Staleness", _staleness(lean)),
            section("Data", data.content(lean)),
            section("Timeline", timelines, paragraph(note)),
            section("The bill", _bill(run)),
            section("Losses and diagnostics", _diagnostics(run)),
            section("Configuration", _configuration(run)),
            section("To repeat it", _repeat(run)),
        ]
    )
    return body, told


def _title(run: Run) -> str:
    named = [run.config.get(key) for key in ("system.name", "algorithm.name", "env.name")]
    return " · ".join(str(name) for name in named if name) or run.path.resolve().name


def _rows(run: Run) -> dict[str, str]:
    """Figures of the final table; empty for a run without a result, or with a damaged one."""
    try:
        return dict(summary_rows(run.summary)) if run.summary else {}
    except (TypeError, ValueError, AttributeError):
        return {}


def _outcome(run: Run) -> str:
    """Result of the run in one sentence."""
    last = run.summary or max([*run.rounds[-1:], *run.evaluations[-1:]], key=lambda row: row["round"], default=None)
    if last is None:
        return "The run has no metrics yet."
    known = {key: value for key, value in last.items() if isinstance(value, int | float)}
    evaluated = _rows(run).get("eval return", MISSING)
    parts = [
        f"{count(known.get('env_steps'))} env steps",
        f"{duration(known.get('simulated_seconds'))} of {clock(run.config.get('executor'))} time",
        dollars(known.get("cost_usd")),
        f"{duration(known.get('wall_seconds'))} of real time",
    ]
    opening = "After " if evaluated == MISSING else f"Return {evaluated}; after "
    return f"{opening}{', '.join(parts)}."


def _missing(run: Run) -> list[str]:
    """Sentences about missing parts of the run."""
    notes = []
    if not run.config:
        notes.append("Its configuration cannot be read, so this page shows no settings.")
    if run.summary is None:
        notes.append(f"It has no result: {run.failure or 'it failed, or it is not finished.'}")
    if not run.curve:
        notes.append("Its metrics are incomplete; curves show the remaining ones.")
    if not run.rounds and not run.evaluations:
        notes.append("It has no metrics, so there are no curves.")
    elif not run.evaluations:
        notes.append("It has no evaluations; its curves show training episodes.")
    return notes


def _spaced(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Evenly spaced rows, as many as a curve needs; the last one is kept."""
    if len(rows) <= MOST_POINTS:
        return rows
    return [rows[i] for i in np.linspace(0, len(rows) - 1, MOST_POINTS).round().astype(int)]


def _figures(run: Run, out: Path) -> str:
    where = paragraph("Its directory:").replace(
        "</p>", f" {link(relative(run.path, out), run.path.resolve().name)}</p>"
    )
    lines = [[words(name), words(value)] for name, value in _rows(run).items()]
    if not lines:
        return where
    return table(["", ""], lines, "figures of the run", sortable=False) + where


def _return(run: Run) -> str:
    drawn = [charts.return_panel(run, clock) for clock in axes_of([run])]
    if not any(drawn):
        return ""
    key = charts.return_legend(run)
    items = "".join(f"<li>{swatch(look)}{text(name)}</li>" for name, look in key.items())
    return f'<ul class="legend">{items}</ul>{panels(drawn)}'


def _staleness(run: Run) -> str:
    if not np.isfinite(column(run.rounds, "staleness_mean")).any():
        return ""
    heat = charts.staleness_over_rounds(run)
    drawn = [heat, charts.gate_panel(run), charts.distribution_panel(run), charts.groups_panel(run)]
    explanation = (
        "Staleness of a gradient is the number of versions published between the fetch of the policy that it was "
        "computed on and its aggregation. The stronger the colour of a field, the more gradients of these rounds have "
        "that staleness. The gate admits groups whose mean staleness is at most β. A group escapes the gate if every "
        "learner's gradient is waiting; it is then aggregated anyway."
    )
    return panels(drawn) + paragraph(explanation)


ITEMS = {
    "learner_busy": "learners, computing",
    "learner_startup": "learners, starting up",
    "learner_failed": "learners, invocations that died",
    "learner_idle": "learners, idle",
    "actor_busy": "actors, collecting",
    "actor_startup": "actors, starting up",
    "actor_idle": "actors, idle",
    "actor_reserved": "actors, reserved concurrency",
    "parameter_busy": "parameter function",
    "scaling_busy": "choosing the number of actors",
}
"""Items of the bill, in words; see `stellaris_jax.timeline.billing`."""


def _bill(run: Run) -> str:
    items = run.summary.get("cost_items_usd") if run.summary else None
    if not isinstance(items, dict) or not all(isinstance(value, int | float) for value in items.values()):
        return ""
    total = sum(items.values())
    paid = {name: value for name, value in items.items() if value}
    if not paid:
        return paragraph("The run has cost nothing.")
    lines = [
        [
            words(ITEMS.get(name, name)),
            figure(dollars(value), value),
            figure(percent(value / total), value),
            Cell(interval_bar(value, 0.0, value, (0.0, max(paid.values()))), value),
        ]
        for name, value in sorted(paid.items(), key=lambda item: -item[1])
    ]
    lines.append([words("total"), figure(dollars(total), total), figure(percent(1.0), total), Cell("")])
    common = run.summary.get("cost_common_usd") if run.summary else None
    sentence = f"At the price that all systems have in common, whole clusters by wall-clock, it is {dollars(common)}."
    return table(["item", "dollars", "share", ""], lines, "the bill", sortable=False) + paragraph(
        "Means over seeds, by the system's own rule.", sentence if isinstance(common, int | float) else ""
    )


def _diagnostics(run: Run) -> str:
    drawn = []
    for group in DIAGNOSTICS:
        keys = [key for key, metric in METRICS.items() if metric.name.startswith(group) and key not in DRAWN_ELSEWHERE]
        drawn += charts.captioned_panels(run, keys)
    constant = paragraph("Means over seeds, by round; constant metrics are left out.")
    return panels(drawn, small=True) + constant if drawn else ""


def _configuration(run: Run) -> str:
    """Settings that differ from the defaults, and all settings."""
    if not run.config:
        return ""
    stored = {key: value for key, value in run.config.items() if key not in OF_THE_PLACE}
    defaults = flat(complete(compose_config()))
    changed = {key: value for key, value in stored.items() if key not in defaults or defaults[key] != value}
    lines = [
        [words(key), words(_value(value)), words(_value(defaults[key]) if key in defaults else "–")]
        for key, value in changed.items()
    ]
    differs = table(["setting", "value", "by default"], lines, "settings that differ from the defaults")
    nothing = paragraph("All settings are as by default.")
    every = [[words(key), words(_value(value))] for key, value in stored.items()]
    total = table(["setting", "value"], every, "all settings", sortable=False)
    return (differs if changed else nothing) + details(f"All {len(stored)} settings", total)


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _repeat(run: Run) -> str:
    """Commands, hardware and versions."""
    commands = {}
    with suppress(ConfigError, TypeError, ValueError):
        commands["The same run again:"] = run_command(run)
    commands["Its policy, evaluated:"] = evaluate_command(run.path)
    if run.summary is None:
        commands["To go on with it:"] = resume_command(run.path)
    commands["Its whole timeline, for ui.perfetto.dev:"] = (
        f"{command('plot')} --trace trace.json {path_argument(run.path)}"
    )
    commands["This page again, with the timeline of other rounds:"] = shlex.join(
        [*shlex.split(command("report")), "--rounds", "1-2", str(run.path)]
    )
    parts = [paragraph(about) + f"<pre>{text(line)}</pre>" for about, line in commands.items() if line]
    return "".join([*parts, origins([run]).replace(": 1 run</li>", "</li>")])
