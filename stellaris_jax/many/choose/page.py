"""Files of an answer: `choice.json`, and `choice.html`, a self-contained page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.ticker import FuncFormatter, NullFormatter

from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.many.choose.answer import Answer
from stellaris_jax.many.choose.decisions import Decisions
from stellaris_jax.many.choose.files import CANDIDATES, JUDGED, resume_command
from stellaris_jax.many.choose.objective import PENALISED, mean_curve, seed_curves
from stellaris_jax.many.choose.screening import logged
from stellaris_jax.many.choose.stage import rung_of
from stellaris_jax.many.choose.texts import document as as_data
from stellaris_jax.many.choose.texts import lines, name, ratio, train_command, value
from stellaris_jax.many.choose.verdict import differences, interval_of
from stellaris_jax.report.curves import TEXT, draw_band, tidy
from stellaris_jax.report.page import charts
from stellaris_jax.report.page.markup import (
    Cell,
    bullets,
    details,
    document,
    figure,
    interval_bar,
    panels,
    paragraph,
    section,
    table,
    text,
    words,
)
from stellaris_jax.report.page.panels import panel, return_axes, styles, svg, swatch
from stellaris_jax.report.runs import Run, read_run
from stellaris_jax.report.style import drawing
from stellaris_jax.runs.run_dir import writing
from stellaris_jax.telemetry.format import dollars, number, percent, significant
from stellaris_jax.telemetry.jsonl import plain

FILES = ("choice.json", "choice.html")
MOST_RATES = 8
"""Most arms in the picture of learning rates."""


def write(answer: Answer) -> list[Path]:
    """Write the answer as JSON and as a page into the directory of the choice; returns the paths."""
    directory = answer.choice.directory
    paths = [directory / file for file in FILES]
    with writing(directory):
        write_atomically(paths[0], json.dumps(plain(as_data(answer)), indent=1, allow_nan=False) + "\n")
        write_atomically(paths[1], document(f"Choice for {_env(answer)}", _content(answer)))
    return paths


def _env(answer: Answer) -> str:
    return answer.choice.candidates[0].config.env.name


def _content(answer: Answer) -> str:
    runs = _runs(answer)
    best = answer.results[0]
    return "".join(
        [
            f"<h1>{text(f'Choice for {_env(answer)}')}</h1>",
            bullets(lines(answer)),
            f"<pre>{text(train_command(answer, best))}</pre>",
            section("Ranking on fresh seeds", _ranking(answer)),
            section("Curves on fresh seeds", _curves(answer, runs)),
            section("How stale is the best one", *_staleness(answer, runs[best.number])),
            section("How many learners", _learners(answer)),
            section("Sensitivity to the learning rate", _rates(answer)),
            section("Timelines of all systems", _timelines(answer)),
            section("What was tried and dropped", _tried(answer)),
            section("To continue or repeat it", _repeat(answer)),
        ]
    )


def _runs(answer: Answer) -> dict[int, Run]:
    """Run on fresh seeds of each result, by the number of its candidate."""
    numbers = Decisions(answer.choice.directory, answer.choice.candidates)["judgement"]["numbers"]
    places = {number: answer.choice.directory / JUDGED / str(index) for index, number in enumerate(numbers)}
    return {own.number: read_run(places[own.number], lambda message: None) for own in answer.results}


def _ranking(answer: Answer) -> str:
    compared = [None, *differences(answer.results, answer.goal)]
    everything = [seed for own in answer.results for seed in own.values]
    span = (min(0.0, *everything), max(everything))
    rows = []
    for own, difference in zip(answer.results, compared, strict=True):
        mean, low, high = own.interval
        rows.append(
            [
                words(name(own)),
                figure(value(answer, own), mean),
                Cell(interval_bar(mean, low, high, span, own.values)),
                words("" if difference is None else ratio(answer, difference)),
                words("best" if difference is None else "separated" if difference.separated else "not separated"),
            ]
        )
    heads = ["candidate", _measure(answer), "", "the best is", "paired t-test, Holm"]
    note = (
        "Parentheses and thick strokes are 95 % intervals over seeds (Student's t); thin strokes are seeds. Means "
        "of seconds and dollars are geometric, as ratios and tests are, which pair the seeds."
    )
    penalty = "" if answer.goal.target is None else f" {PENALISED}"
    return table(heads, rows, "ranking") + paragraph(note + penalty)


def _measure(answer: Answer) -> str:
    if answer.goal.target is None:
        return "final return"
    return f"{answer.goal.measure} to a return of {answer.goal.target:g}"


@drawing()
def _curves(answer: Answer, runs: Mapping[int, Run]) -> str:
    looks = styles({name(own): -rank for rank, own in enumerate(answer.results)})
    drawn, axes = panel(7.2, 3.6)
    for own in answer.results:
        curves = [curve for curve in seed_curves(runs[own.number].evaluations, answer.goal.axis) if len(curve[0])]
        if curves and name(own) in looks:
            draw_band(axes, curves, dict(looks[name(own)]))
    if answer.goal.target is not None:
        axes.axhline(answer.goal.target, color="0.5", linewidth=0.8, linestyle=":")
    clock = answer.goal.axis
    return_axes(axes, clock, "dollars" if clock == "cost_usd" else "simulated seconds")
    legend = "".join(f"<li>{swatch(look)}{text(label)}</li>" for label, look in looks.items())
    return (
        f'<ul class="legend">{legend}</ul>'
        + panels([svg(drawn, "return over time on fresh seeds")])
        + paragraph("Runs end once every seed has reached the target. Bands are 95 % intervals over seeds.")
    )


def _staleness(answer: Answer, run: Run) -> list[str]:
    return (
        [
            panels([charts.distribution_panel(run), charts.staleness_over_rounds(run)]),
            paragraph(
                "Staleness counts versions published between the fetch of a policy and the aggregation of its gradient."
            ),
        ]
        if run.rounds
        else []
    )


def _learners(answer: Answer) -> str:
    if not answer.scalings:
        return paragraph("Other numbers of learners were not tried.")
    rows = []
    for own in answer.scalings:
        values = np.array(own.values)
        middle = interval_of(own.values, answer.goal.target is not None).middle
        rows.append([
            figure(str(own.learners), own.learners), figure(significant(middle), middle),
            figure(f"{significant(float(values.min()))} to {significant(float(values.max()))}"),
            figure("" if own.reached is None else f"{own.reached} of {len(own.values)}"),
            figure(significant(own.staleness, 2), own.staleness),
        ])  # fmt: skip
    note = f"The best candidate at the same learning rate on {len(answer.scalings[0].values)} further seeds."
    penalty = "" if answer.goal.target is None else f" {PENALISED}"
    heads = ["learners", _measure(answer), "range of seeds", "reached the target", "mean staleness"]
    return table(heads, rows, "learners") + paragraph(note + penalty)


@drawing()
def _rates(answer: Answer) -> str:
    """Highest mean return at the first rung against the learning rate, for the systems with the best candidates."""
    candidates = answer.choice.candidates
    series: dict[str, dict[float, float]] = {}
    for candidate in answer.rungs[0]:
        own = candidates[candidate]
        run = read_run(Path(own.config.run.dir), lambda message: None)
        last = rung_of(own.config, 0)
        _, returns = mean_curve([row for row in run.evaluations if row["round"] <= last], answer.goal.axis)
        if len(returns):
            series.setdefault(own.arm.name, {})[own.learning_rate] = float(returns.max())
    names = [arm for arm, values in series.items() if len(values) > 1][:MOST_RATES]
    if not names:
        return paragraph("Only one learning rate was tried.")
    looks = styles({arm: -rank for rank, arm in enumerate(names)})
    drawn, axes = panel(7.2, 3.2)
    for arm in looks:
        points = sorted(series[arm].items())
        axes.plot([rate for rate, _ in points], [value for _, value in points], marker="o", markersize=4, **looks[arm])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("learning rate", fontsize=TEXT)
    axes.set_ylabel("highest mean return", fontsize=TEXT)
    tidy(axes)
    legend = "".join(f"<li>{swatch(look)}{text(label)}</li>" for label, look in looks.items())
    note = (
        "Highest mean return over the seeds of the search within the first rung, a ninth of a run; of the systems with "
        "the best candidates of that rung."
    )
    return f'<ul class="legend">{legend}</ul>' + panels([svg(drawn, "return against learning rate")]) + paragraph(note)


def _timelines(answer: Answer) -> str:
    rows = []
    for system, own in answer.timings.items():
        fate = f"dropped: dominated by {answer.beaten[system]}" if system in answer.beaten else ""
        rows.append([
            words(system), figure(significant(own.seconds), own.seconds),
            figure(percent(own.learners_busy), own.learners_busy),
            figure(number(own.staleness, 2), own.staleness), figure(number(own.data_lag, 2), own.data_lag),
            figure(dollars(own.dollars), own.dollars), figure(number(own.rolled, 2), own.rolled), words(fate),
        ])  # fmt: skip
    heads = [
        "system",
        "seconds a round",
        "learners busy",
        "staleness",
        "data lag",
        "dollars of a run",
        "rolled per learned",
        "",
    ]
    note = (
        "Simulated without training. A system is dropped if another one is faster, cheaper and less stale by 2 % each, "
        "and makes as many updates of a batch."
    )
    log = answer.choice.log
    return table(heads, rows, "timelines") + paragraph(note, logged(Path(log), answer.timings) if log else "")


def _tried(answer: Answer) -> str:
    candidates, parts = answer.choice.candidates, []
    for index, ranking in enumerate(answer.rungs):
        on = set(answer.rungs[index + 1]) if index + 1 < len(answer.rungs) else {own.number for own in answer.results}
        rows = [
            [figure(str(place), place), words(candidates[n].label), words("goes on" if n in on else "dropped")]
            for place, n in enumerate(ranking, start=1)
        ]
        parts.append(
            details(f"Rung {index + 1}: {len(ranking)} candidates", table(["", "candidate", ""], rows, "rung"))
        )
    untried = len(candidates) - len(answer.rungs[0])
    refused = [f"{system}: {reason}" for system, reason in answer.choice.refused.items()]
    left = [f"{untried} of {len(candidates)} candidates were not tried: their system is dominated, there is nothing to "
            "correct, or the budget was spent."] if untried else []  # fmt: skip
    return "".join(parts) + (bullets([*left, *refused]) if left or refused else "")


def _repeat(answer: Answer) -> str:
    return (
        paragraph("Every run's directory holds its configuration and records. The search is a sweep:")
        + f"<pre>stellaris-jax report {text(answer.choice.directory / CANDIDATES)}</pre>"
        + paragraph("The same answer again, without training, or a stopped choice:")
        + f"<pre>{text(resume_command(answer.choice.directory))}</pre>"
    )
