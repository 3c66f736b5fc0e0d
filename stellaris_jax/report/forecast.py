"""Tables of forecasts: on the terminal, and all columns as CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.report.table import print_sentence, print_table
from stellaris_jax.telemetry.format import MISSING, count, dollars, duration, plural, significant
from stellaris_jax.timeline.forecast import Window

LEGEND = (
    "± is half of a 95 % interval over seeds (Student's t); a largest value is that of all seeds. A round is the time "
    "from one batch of data to the next. Run time and run cost are for total_steps, as if all rounds were like these. "
    "Run cost is by each system's own billing: system.learner_billing=serverless for all compares systems alone.",
    "Busy is the share of the time that a learner or an actor works. Staleness and data lag count policy versions: "
    "from a gradient's policy to its aggregation, and from the policy that acted to the gradient's policy. Bounds on "
    "age (bound, lag, eta) count batches.",
    "Waste is the share of busy seconds spent on what was dropped.",
)


COLUMNS = ("seeds", *Window._fields)
"""Columns that no setting may have for its name."""


class Row(NamedTuple):
    """Forecast of one combination of settings.

    Attributes:
      settings: values of the keys in which it differs from other rows.
      seeds: number of seeds.
      window: the rounds that were simulated.
      figures: figures by name, each with half the width of its 95 % interval (`timeline.forecast.over_seeds`).
    """

    settings: dict[str, str]
    seeds: int
    window: Window
    figures: dict[str, tuple[float, float]]


def columns(row: Row) -> dict[str, Any]:
    """All columns of a row, for JSON and CSV; `None` for a figure or an interval that is not defined."""
    found: dict[str, Any] = {**row.settings, "seeds": row.seeds, **row.window._asdict()}
    for name, (value, half_width) in row.figures.items():
        found[name] = value if math.isfinite(value) else None
        if not name.endswith("_max"):
            found[f"{name}_ci95"] = half_width if math.isfinite(half_width) else None
    return found


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Write a list with an object for each row. Raises OSError."""
    write_atomically(path, json.dumps([columns(row) for row in rows], indent=1) + "\n")


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write a line for each row, below a line of names; what is not defined is empty. Raises OSError."""
    text, lines = io.StringIO(), [columns(row) for row in rows]
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_atomically(path, text.getvalue())


def print_forecasts(console: Console, rows: Sequence[Row], asked: str = "", notes: Iterable[str] = ()) -> None:
    """Print two tables with a line for each row, one about time and money, one about staleness and waste.

    Args:
      console: the console.
      rows: the rows.
      asked: what is the same for all rows, above the tables.
      notes: sentences below the legend.
    """
    names, whole = list(rows[0].settings), _simulated(rows)
    varies = not whole
    wastes_data = any(row.figures["actor_waste"][0] > 0 for row in rows)
    time, staleness = [], []
    for row in rows:
        figures = row.figures
        label = {**row.settings, **({"rounds": _rounds(row.window), "seeds": str(row.seeds)} if varies else {})}
        time.append(
            {
                **label,
                "seconds a round": _number(figures["round_seconds"]),
                "learners busy": _share(figures["learner_utilisation"]),
                "actors busy": _share(figures["actor_utilisation"]),
                "run time": duration(figures["run_seconds"][0]),
                "run cost": dollars(figures["run_usd"][0]),
                "$ per M steps": _number(figures["usd_per_million_steps"]),
            }
        )
        staleness.append(
            {
                **row.settings,
                "stale mean": _number(figures["staleness_mean"]),
                "stale max": _versions(figures["staleness_max"]),
                "data lag": _number(figures["data_lag_mean"]),
                "lag max": _versions(figures["data_lag_max"]),
                "learner waste": _share(figures["learner_waste"]),
                **({"actor waste": _share(figures["actor_waste"])} if wastes_data else {}),
                "rolled per learned": _number(figures["steps_rolled_per_learned"]),
            }
        )
    if asked:
        print_sentence(console, asked)
    print_table(console, f"Time and money{whole}", time, names=names)
    console.print()
    print_table(console, "Staleness and waste", staleness, names=names)
    console.print()
    for sentence in LEGEND:
        print_sentence(console, sentence, style="dim")
    for sentence in notes:
        print_sentence(console, sentence)


def _simulated(rows: Sequence[Row]) -> str:
    """Rounds and seeds, if they are the same for all rows, as an addition to a title; else empty."""
    same = {(row.window, row.seeds) for row in rows}
    if len(same) > 1:
        return ""
    ((window, seeds),) = same
    return f": rounds {_rounds(window)}, {plural(seeds, 'seed')}"


def _rounds(window: Window) -> str:
    return f"{window.warmup + 1} to {window.rounds}"


def _number(figure: tuple[float, float]) -> str:
    """`5.63±0.21`, without spaces, so that no table breaks it; the mean alone if the seeds do not vary."""
    value, half_width = figure
    text = significant(value)
    if not math.isfinite(half_width) or half_width <= 0:
        return text
    alike = f"{half_width:.{len(text.partition('.')[2])}f}"
    return f"{text}±{alike if float(alike) else significant(half_width, 1)}"


def _versions(figure: tuple[float, float]) -> str:
    return count(figure[0]) if math.isfinite(figure[0]) else MISSING


def _share(figure: tuple[float, float]) -> str:
    """`47±1.2%`, as `_number`."""
    value, half_width = figure
    if not math.isfinite(value):
        return MISSING
    interval = f"±{100 * half_width:.1f}" if math.isfinite(half_width) and half_width > 0 else ""
    return f"{100 * value:.0f}{interval}%"
