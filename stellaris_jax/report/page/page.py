"""Report page: results of settings, whether they differ by more than noise, and their curves; or a single run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.base.statistics import FEWEST
from stellaris_jax.report.page import run as of_run
from stellaris_jax.report.page import study
from stellaris_jax.report.page.markup import (
    asset,
    bullets,
    details,
    document,
    figure,
    paragraph,
    section,
    table,
    text,
    words,
)
from stellaris_jax.report.page.panels import (
    MOST,
    axes_of,
    curve_panel,
    curves_of,
    numeric_keys,
    profile_panel,
    sensitivity_panel,
    styles,
    swatch,
)  # fmt: skip
from stellaris_jax.report.page.sources import (
    Sources,
    gather,
    holds_runs,
    origins,
    run_command,
    sweep_command,
)
from stellaris_jax.report.page.tables import Scored, across, bars, differences, results
from stellaris_jax.report.results import BEST, FEW, OPEN, RATE, TIED, Row, compare_settings
from stellaris_jax.report.robust import iqm
from stellaris_jax.report.runs import group_replicates, is_compared
from stellaris_jax.report.sweep import missing_results
from stellaris_jax.report.verdicts import BEST_ROW, Question
from stellaris_jax.telemetry.format import plural, value_text

MOST_VALUES = 12
"""Most values of a setting that are listed."""
MOST_PANELS = 3
"""Most environments for which all clocks are drawn; with more, only steps are drawn."""
STEPS = ("env_steps", "learned_steps")


class Written(NamedTuple):
    """Result of `write_page`.

    Attributes:
      notes: sentences about unreadable files; the page contains them, too.
      rows: settings of the page, with their comparisons; empty for the page of one run or study.
    """

    notes: list[str]
    rows: Sequence[Row] = ()


def write_page(
    places: Sequence[Path],
    out: Path,
    rounds: Sequence[range] = (),
    question: Question = BEST_ROW,
) -> Written:
    """Write the report on runs as one self-contained HTML file.

    Args:
      places: directories of runs, of sweeps, or of any number of runs. A single run gets a page of its own. A directory
        without runs, such as a study's below results/, is shown by its README.md.
      out: file to write.
      rounds: rounds of a single run whose timelines are drawn, from 1 on; by default some are chosen.
      question: what the differences of several settings answer.

    Raises:
      ConfigError: a place holds no runs, or no readable configuration; the question is about none of its runs.
    """
    if len(places) == 1 and study.is_study(places[0]) and not holds_runs(places[0]):
        _check_compares(question, f"{places[0]} is a study")
        if rounds:
            raise ConfigError(f"--rounds is of the page of one run; {places[0]} is a study.")
        name = places[0].resolve().name
        page, notes = study.content(places[0], out)
        write_atomically(out, document(name, page, study.STYLE))
        return Written(notes)
    sources = gather(places)
    if len(sources.runs) == 1 and not sources.sweeps:
        (run,) = sources.runs
        _check_compares(question, f"{places[0]} is one run")
        name = run.path.resolve().name
        body, told = of_run.content(run, sources, out, rounds)
        write_atomically(out, document(name, body, asset("timeline.css"), asset("timeline.js")))
        return Written(told)
    if rounds:
        raise ConfigError(
            f"--rounds is of the page of one run; {', '.join(map(str, places))} holds {len(sources.runs)}."
        )
    groups = group_replicates(sources.runs)
    if not groups:
        reason = f" ({sources.notes[0]})" if sources.notes else ""
        raise ConfigError(f"no run of {', '.join(map(str, places))} has a configuration that can be read{reason}.")
    rows = compare_settings(groups)
    title = places[0].resolve().name if len(places) == 1 else "Comparison of runs"
    write_atomically(out, document(title, content(title, rows, sources, out, question)))
    return Written(sources.notes, question.judged(rows))


def _check_compares(question: Question, otherwise: str) -> None:
    """Raise ConfigError for a question about differences where nothing is compared."""
    if question != BEST_ROW:
        options = "--threshold, --measure, --against and --margin"
        raise ConfigError(f"{options} compare settings, but {otherwise}; name a sweep.")


def content(title: str, rows: Sequence[Row], sources: Sources, out: Path, question: Question) -> str:
    """Body of the page.

    Args:
      title: heading.
      rows: settings, as `compare_settings` returns them.
      sources: origin of the runs, with notes on unreadable files.
      out: file of the page, which links are relative to.
      question: what the differences answer.
    """
    numbers = {row.label: index for index, row in enumerate(rows, start=1)}
    envs = list(dict.fromkeys(row.env for row in rows))
    by_env = {env: [row for row in rows if row.env == env] for env in envs}
    runs = [run for row in rows for run in row.group.runs]
    clocks = [clock for clock in axes_of(runs) if len(envs) <= MOST_PANELS or clock in STEPS]

    def each(section_of: Callable[[Sequence[Row]], str]) -> list[str]:
        """Section of the page for every environment, with headings if there are several."""
        parts = {env: section_of(of_env) for env, of_env in by_env.items()}
        several = len(envs) > 1
        return [f"<h3>{text(env)}</h3>{part}" if several else part for env, part in parts.items() if part]

    middles = each(lambda of_env: _robust(_scored(of_env, numbers), f"final return on {of_env[0].env}"))
    together = across(by_env) if len(envs) > 1 else []
    if len(together) > 1:
        scaled = "Returns are scaled in each environment: 0 is the lowest final return on this page, 1 the highest."
        middles += ["<h3>All environments</h3>", paragraph(scaled), _robust(together, "scaled final return")]
    return "".join(
        [
            f"<h1>{text(title)}</h1>",
            paragraph(_summary(rows, envs)),
            _notes(rows, sources),
            section("Results", results(rows, numbers, out, question.threshold)),
            section("Is it the setting or the noise?", differences(question.judged(rows), numbers, question)),
            section("Curves", *each(lambda of_env: _curves(of_env, numbers, clocks))),
            section("Interquartile means and performance profiles", *middles, paragraph(MIDDLES if middles else "")),
            section("Sensitivity", _sensitivity(by_env)),
            section("What differs", _differs(rows)),
            section("To repeat it", _repeat(rows, sources)),
        ]
    )


def _summary(rows: Sequence[Row], envs: Sequence[str]) -> str:
    runs = [run for row in rows for run in row.group.runs]
    seeds = sorted({len(row.seeds) for row in rows})
    spread = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    best = [_best(row) for row in rows if row.is_top and len(rows) > 1 and len(envs) == 1]
    named = ", ".join(env or "an environment without a name" for env in envs)
    parts = [
        f"{plural(len(rows), 'setting')} on {named if len(envs) <= MOST_PANELS else plural(len(envs), 'environment')}",
        f"{plural(len(runs), 'run')} with {spread} evaluated seed{'s' * (seeds != [1])} each",
        *best,
    ]
    return "; ".join(parts) + "."


def _best(row: Row) -> str:
    """Standing of the row of the highest mean return, in words."""
    if row.mark == BEST:
        return f"{row.label} is significantly better than every other setting"
    doubt = {TIED: "tied with others", OPEN: "not significantly above all others", FEW: "too few seeds to tell"}
    return f"the highest mean return has {row.label} ({doubt.get(row.mark, 'alone')})"


def _notes(rows: Sequence[Row], sources: Sources) -> str:
    """Notes about missing results, in sentences."""
    runs = [run for row in rows for run in row.group.runs]
    silent = [run.path.name for run in runs if run.summary is not None and run.curve and not run.evaluations]
    notes = [f"{note}." for note in (*sources.notes, *missing_results(runs))]
    if silent:
        notes.append(f"No evaluations: {', '.join(silent)}; their curves are of training episodes.")
    if len(rows) == 1:
        notes.append("This is one setting: there is nothing to compare it with.")
    few = [row for row in rows if 0 < len(row.seeds) < FEWEST]
    if few:
        notes.append(
            f"{plural(len(few), 'setting')} with fewer than {FEWEST} seeds: the table shows the range of the seeds, "
            "because an interval over so few says little."
        )
    return f'<div class="notes">{bullets(notes)}</div>' if notes else ""


def _curves(rows: Sequence[Row], numbers: dict[str, int], clocks: Sequence[str]) -> str:
    drawn = [row for row in rows if any(curves_of(row, clock) for clock in clocks)]
    if not drawn:
        return paragraph("There are no curves: nothing was evaluated, or no run has a result.")
    looks = styles({row.label: float(np.mean(row.finals)) if row.finals else -math.inf for row in drawn})
    panels = [
        f"<figure>{curve_panel(drawn, looks, clock)}</figure>"
        for clock in clocks
        if any(curves_of(row, clock) for row in drawn)
    ]
    counts = sorted({len(curves_of(row, clocks[0])) for row in drawn})
    sentences = [
        "Bands are 95 % intervals over seeds, within their range." if counts[-1] >= FEWEST else "",
        f"Thin lines are the seeds of means over fewer than {FEWEST}." if any(1 < n < FEWEST for n in counts) else "",
        _rest(len(drawn) - len(looks)),
    ]
    names = {row.label: f"{numbers[row.label]} · {row.setting}" for row in drawn}
    return _legend(looks, names) + f'<div class="panels">{"".join(panels)}</div>' + paragraph(*sentences)


def _rest(rest: int) -> str:
    if not rest:
        return ""
    verb = "is" if rest == 1 else "are"
    return f"The {MOST} settings with the highest returns have colours, {rest} more {verb} grey."


def _legend(looks: Mapping[str, Mapping[str, Any]], names: Mapping[str, str]) -> str:
    items = "".join(f"<li>{swatch(look)}{text(names[label])}</li>" for label, look in looks.items())
    return f'<ul class="legend">{items}</ul>'


MIDDLES = (
    "The interquartile mean (IQM) is the mean of the middle half of the seeds; its interval is a bootstrap over runs, "
    "within each environment. Grey strokes are the seeds. A performance profile is the share of runs whose final "
    "return is above each value, with pointwise 95 % intervals: the curve to the upper right is the better one."
)


def _scored(rows: Sequence[Row], numbers: dict[str, int]) -> list[Scored]:
    return [Scored(numbers[row.label], row.setting, [row.finals]) for row in rows if row.finals]


def _robust(scored: Sequence[Scored], xlabel: str) -> str:
    """Interquartile means, and the performance profiles of the highest ones."""
    if not scored:
        return ""
    looks = styles({row.name: float(iqm(np.concatenate([np.ravel(task) for task in row.scores]))) for row in scored})
    panel = profile_panel({row.name: row.scores for row in scored}, looks, xlabel)
    legend = _legend(looks, {row.name: f"{row.number} · {row.name}" for row in scored})
    return bars(scored) + legend + f'<div class="panels"><figure>{panel}</figure></div>'


def _sensitivity(by_env: Mapping[str, Sequence[Row]]) -> str:
    panels = []
    for env, rows in by_env.items():
        scored = [row for row in rows if row.finals]
        caption = f"<figcaption>{text(env)}</figcaption>" if len(by_env) > 1 else ""
        panels += [f"<figure>{sensitivity_panel(scored, key)}{caption}</figure>" for key in numeric_keys(scored)]
    explanation = (
        "Final return against each setting that varies and is a number. Points are seeds, lines join the means over "
        "all settings that share the value."
    )
    return f'<div class="panels">{"".join(panels)}</div>{paragraph(explanation)}' if panels else ""


def _differs(rows: Sequence[Row]) -> str:
    """Tables of the settings that vary, and of those that are the same in all runs."""
    keys = list(rows[0].group.values)
    lines = []
    for key in keys:
        values = list(dict.fromkeys(value_text(row.group.values.get(key)) for row in rows))
        more = f", and {len(values) - MOST_VALUES} more" if len(values) > MOST_VALUES else ""
        lines.append([words(key), figure(str(len(values)), len(values)), words(", ".join(values[:MOST_VALUES]) + more)])
    varied = table(["setting", "values", ""], lines, "settings that vary", sortable=False) if keys else ""
    configs = [run.config for row in rows for run in row.group.runs]
    implied = [
        [words(key), words(", ".join(dict.fromkeys(value_text(config.get(key)) for config in configs)))]
        for key in dict.fromkeys(key for config in configs for key in config)
        if is_compared(key) and key not in keys and any(config.get(key) != configs[0].get(key) for config in configs)
    ]
    along = table(["setting", "values"], implied, "settings that vary with these", sortable=False)
    rates = ", the learning rate among them" if any(row[0] == words(RATE) for row in implied) else ""
    varied += details(f"{plural(len(implied), 'setting')} varying with these{rates}", along) if implied else ""
    common = {
        key: value
        for key, value in configs[0].items()
        if is_compared(key) and all(config.get(key) == value for config in configs[1:])
    }
    shared = [[words(key), words(json.dumps(value, ensure_ascii=False))] for key, value in common.items()]
    same = table(["setting", "value"], shared, "settings that are the same in all runs", sortable=False)
    nothing = "" if keys else paragraph("Nothing but the seed: all runs are of one setting.")
    return varied + nothing + details(f"{len(common)} settings are the same in all runs", same)


def _repeat(rows: Sequence[Row], sources: Sources) -> str:
    """Commands, hardware and versions."""
    runs = [run for row in rows for run in row.group.runs]
    parts = ["<h3>Commands</h3>"]
    for sweep in sources.sweeps:
        if (again := sweep_command(sweep)) is not None:
            name = f" {sweep.name}" if len(sources.sweeps) > 1 else ""
            parts.append(paragraph(f"The whole sweep{name}:") + f"<pre>{text(again)}</pre>")
    for row in rows:
        alone = len(rows) == 1
        if (row.is_top or alone) and (again := run_command(row.group.runs[0])) is not None:
            where = f" on {row.env}" if row.env else ""
            subject = "The run" if alone else f"The setting of the highest mean return{where}"
            parts.append(paragraph(f"{subject}, seeds apart:") + f"<pre>{text(again)}</pre>")
    parts.append(paragraph("Every run's directory, linked above, holds its whole configuration (config.yaml)."))
    return "".join([*parts, origins(runs)])
