"""Report of a sweep: one table and one figure over its points."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.text import Text

from stellaris_jax.base import inputs
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.base.statistics import FEWEST, mean_ci95
from stellaris_jax.report.curves import column, comparison_figure, save
from stellaris_jax.report.points import load_points
from stellaris_jax.report.results import (
    BEST,
    FEW,
    MEASURES,
    OPEN,
    TIED,
    Row,
    at_the_edge,
    compare_settings,
)
from stellaris_jax.report.robust import iqm_interval
from stellaris_jax.report.runs import Group, Run, counts_learned, group_replicates, short_names
from stellaris_jax.report.table import print_sentence, print_table, wide_console
from stellaris_jax.telemetry.format import MISSING, compact, dollars, number, over_seeds, significant, value_text
from stellaris_jax.telemetry.format import count as counted

PRICES = ("env_steps", "simulated_seconds", "cost_usd")
"""Axes that the table times a threshold on."""
SPENT = ("simulated_seconds", "cost_usd")
"""Clocks of whole runs that the table shows with an interval over seeds."""
COLUMNS = frozenset({"return", "seeds", "IQM", "area", "staleness", "cost", "updates", "runs", "shared"})
"""Headings of tables' own columns that might be the last part of a setting's key."""
SIGNS = {BEST: "★", TIED: "tied", OPEN: "open", FEW: "few seeds"}
"""Texts for the marks of rows."""
LEGEND = (
    "Return is the last evaluation, its mean over so many seeds, ± half of the 95 % interval over them (Student's t); "
    f"of fewer than {FEWEST} seeds the smallest and the largest in place of an interval; seconds and costs then have "
    "none. IQM is their interquartile mean; area the mean return from the first evaluation to the last one, over env "
    "steps.",
    "★: significantly better than every other row of its environment. tied: not significantly different from the row "
    "of the highest mean return. open: zero is outside of the interval of the difference, but p, corrected for the "
    f"number of comparisons (Holm), is not below 5 %. few seeds: fewer than {FEWEST}, which decide nothing. No mark: "
    "significantly below the highest mean, whose own mark is that of its nearest rival.",
)


def report(sweep_dir: Path, threshold: float | None = None, axes: Sequence[str] = ()) -> list[str]:
    """Write `table.md`, `table.csv` and `curves.png` into a sweep directory and print the table.

    The sweep's points are the subdirectories named by a number. Points whose configurations differ only in the seed are
    one row. A point without a summary has failed, or is not over; it is listed and left out of means and curves. A
    point whose result is lost by damage is incomplete: its row has no means, and is not ranked. A point with the
    configuration of another one, as in a sweep over an option that the rule does not have, is left out.

    If the existing table has more than the new one, it is kept as `table-before.csv`.

    Args:
      sweep_dir: the directory.
      threshold: a return; the table then says what reaching it takes.
      axes: axes of the curves; see `stellaris_jax.report.axes.axes_of`.

    Returns:
      Names of the points whose files are damaged or missing.

    Raises:
      ConfigError: there are no points.
    """
    sweep_dir = Path(sweep_dir)
    loaded = load_points(sweep_dir)
    if not loaded:
        raise ConfigError(f"{sweep_dir} holds no sweep points; give a directory with subdirectories 0, 1, ...")
    runs = different(loaded)
    groups = group_replicates(runs)
    judgement = compare_settings(groups)
    rows = sweep_rows(judgement, threshold)
    cells = [_cells(values, row, threshold) for values, row in zip(rows, judgement, strict=True)]
    curves = {row.label: row.drawn for row in judgement if row.drawn}
    sentences = missing_results(runs)
    former = keep_former(sweep_dir, rows)
    written = [sweep_dir / "table.md", sweep_dir / "table.csv"]
    if curves:
        written.append(save(comparison_figure(curves, sweep_dir.name, axes), sweep_dir / "curves.png"))
    write_atomically(written[0], _markdown(sweep_dir.name, cells, sentences, bool(curves)))
    write_atomically(written[1], _csv(rows))
    console = wide_console()
    print_table(console, sweep_dir.name, cells, names=[name for group in groups for name in headings(group)])
    if any(row.mark for row in judgement):
        print_sentence(console, LEGEND[1])
    for sentence in at_the_edge(judgement):
        print_sentence(console, sentence)
    for sentence in sentences:
        print_sentence(console, sentence, style="red")
    if former:
        console.print(Text(f"The table that was there says more; it is kept: {former}"), soft_wrap=True)
    for path in written:
        console.print(Text(str(path)), soft_wrap=True)
    return [run.path.name for run in loaded if run.damage]


def missing_results(runs: Sequence[Run]) -> list[str]:
    """Sentences, without their period, about runs whose result or metrics are missing."""
    results = [run for run in runs if run.summary is not None]
    known = [
        ("Points without a result: ", [run for run in runs if run.summary is None and not run.incomplete], ""),
        (
            "Incomplete points, whose files are damaged or missing: ",
            [run for run in runs if run.incomplete],
            "; their settings are not ranked until the points are resumed",
        ),
        ("Points with incomplete metrics: ", [run for run in results if not run.curve], "; they have no curve"),
    ]
    return [what + ", ".join(run.path.name for run in some) + consequence for what, some, consequence in known if some]


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def keep_former(sweep_dir: Path, rows: Sequence[dict[str, Any]]) -> Path | None:
    """Rename the files of an existing report that has more than `rows`; returns the new path of its table, if so.

    A report has more if it has more rows, a column with values that `rows` lack, or more values in the common columns.
    """
    path = sweep_dir / "table.csv"
    try:
        former = list(csv.DictReader(io.StringIO(inputs.read_text(path), newline="")))
    except (OSError, ValueError, csv.Error):
        return None
    lost = [key for key in (former or [{}])[0] if rows and key not in rows[0] and any(row.get(key) for row in former)]
    common = [key for key in former[0] if key in rows[0]] if former and rows else []
    known = (sum(bool(row.get(key)) for row in former for key in common), _seeds(former))
    current = (sum(row[key] not in (None, "") for row in rows for key in common), _seeds(rows))
    if not former or (
        not lost and len(former) <= len(rows) and all(a <= b for a, b in zip(known, current, strict=True))
    ):
        return None
    suffixes = (f"-before-{n}" if n > 1 else "-before" for n in count(1))
    suffix = next(suffix for suffix in suffixes if not (sweep_dir / f"table{suffix}.csv").exists())
    for name in ("table.csv", "table.md", "curves.png"):
        with suppress(FileNotFoundError):
            (sweep_dir / name).rename(sweep_dir / f"{Path(name).stem}{suffix}{Path(name).suffix}")
    return sweep_dir / f"table{suffix}.csv"


def _seeds(rows: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(row["seeds"]) for row in rows if str(row.get("seeds") or "").isdigit())


def different(runs: list[Run]) -> list[Run]:
    """Runs without those whose configuration an earlier one has."""
    return [run for i, run in enumerate(runs) if not run.config or run.config not in [r.config for r in runs[:i]]]


def sweep_rows(rows: Sequence[Row], threshold: float | None = None) -> list[dict[str, Any]]:
    """Rows of a table as `sweep_row` returns them; with data lag if a run has independent actors."""
    lag = counts_learned([run for row in rows for run in row.group.runs])
    return [sweep_row(row, threshold) | (_data_lag(row) if lag else {}) for row in rows]


def _data_lag(row: Row) -> dict[str, float | None]:
    """Data lag of a setting in versions: mean over rounds and runs, and the largest."""
    runs = [] if row.incomplete else [run for run in row.finished if run.curve]
    means, largest = ([column(run.rounds, key) for run in runs] for key in ("data_lag", "data_lag_max"))
    known = [float(values[np.isfinite(values)].mean()) for values in means if np.isfinite(values).any()]
    most = [float(values[np.isfinite(values)].max()) for values in largest if np.isfinite(values).any()]
    return {"data_lag_mean": _defined(mean_ci95(known)[0]), "data_lag_max": max(most, default=None)}


def sweep_row(row: Row, threshold: float | None = None) -> dict[str, Any]:
    """One setting of a sweep as numbers: its keys, return over seeds, measures; None for missing values.

    With a `threshold`, also the number of seeds that reached it, and medians over seeds of the clocks at that time.
    """
    returns, done = row.finals, row.finished
    mean, half_width = mean_ci95(returns)
    middle, low, high = iqm_interval([returns])
    values: dict[str, Any] = {
        **row.group.values,
        "return_mean": _defined(mean),
        "return_ci95": _defined(half_width),
        "return_min": min(returns, default=None),
        "return_max": max(returns, default=None),
        "return_iqm": _defined(middle),
        "return_iqm_low": _defined(low),
        "return_iqm_high": _defined(high),
        "area": _defined(mean_ci95([seed.area for seed in row.seeds.values()])[0]),
    }
    if threshold is not None:
        values |= way(row, threshold)
    lost = len(row.group.runs) - len(done)
    values |= {"mark": row.mark, "seeds": len(returns), "failed": lost, "incomplete": len(row.incomplete)}
    if row.incomplete:
        done = []
    for key in MEASURES:
        measured = [run.summary[key] for run in done if run.summary and run.summary.get(key) is not None]
        combined = max if key == "staleness_max" else lambda items: mean_ci95(items)[0]
        values[key] = combined(measured) if measured else None
    for clock in SPENT:
        spent = [] if row.incomplete else row.spent(clock)
        if spent:
            values[clock] = mean_ci95(spent)[0]
        values[f"{clock}_ci95"] = _defined(mean_ci95(spent)[1]) if len(spent) >= FEWEST else None
    return values


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


class TableCell(NamedTuple):
    """Cell of a table of settings.

    Attributes:
      heading: heading of its column.
      text: text; a dash for a missing value.
      value: value to sort by.
    """

    heading: str
    text: str
    value: float | None


def row_cells(values: dict[str, Any], row: Row, threshold: float | None) -> list[TableCell]:
    """Cells of a row, in the order of the columns.

    Args:
      values: the row as `sweep_row` returns it.
      row: the row.
      threshold: a return; some cells then show what reaching it takes.
    """
    result = lost_result(row) or over_seeds(values["return_mean"], values["return_ci95"], row.finals)
    staleness = f"{number(values['staleness_mean'], 2)} (max {counted(values['staleness_max'])})"
    lag = []
    if "data_lag_mean" in values:
        mean, most = values["data_lag_mean"], values["data_lag_max"]
        shown = number(mean, 2) + (f" (max {counted(most)})" if most is not None else "")
        lag = [TableCell("data lag", shown, mean)]
    return [
        TableCell("return", result, values["return_mean"]),
        TableCell("seeds", str(values["seeds"]), values["seeds"]),
        TableCell("IQM", significant(values["return_iqm"]), values["return_iqm"]),
        TableCell("area", significant(values["area"]), values["area"]),
        *([] if threshold is None else way_cells(values, threshold)),
        TableCell("staleness", staleness, values["staleness_mean"]),
        *lag,
        TableCell("steps/s", compact(values["steps_per_second"]), values["steps_per_second"]),
        *(
            TableCell(heading, _spent(values, clock), values[clock])
            for heading, clock in zip(("simulated s", "cost"), SPENT, strict=True)
        ),
        TableCell("updates", counted(values["updates"]), values["updates"]),
    ]


def way(row: Row, threshold: float) -> dict[str, Any]:
    """Seeds that reached a return, and medians over seeds of the clocks at that time."""
    return {"threshold_seeds": row.reached(threshold)} | {
        f"threshold_{clock}": row.until(clock, threshold) for clock in PRICES
    }


def way_cells(values: dict[str, Any], threshold: float) -> list[TableCell]:
    """Cells on the way to a return, of what `way` returns and the number of `seeds`."""
    seeds, steps, seconds, money = (values[f"threshold_{name}"] for name in ("seeds", *PRICES))
    reached = MISSING if seeds is None else f"{seeds} of {values['seeds']}"
    return [
        TableCell(f"{significant(threshold)} reached", reached, seeds),
        TableCell("after steps", compact(steps), steps),
        TableCell("after s", number(seconds), seconds),
        TableCell("after $", dollars(money), money),
    ]


def _spent(values: dict[str, Any], clock: str) -> str:
    """Seconds or dollars of a whole run, with half of their interval."""
    text = dollars(values[clock]) if clock == "cost_usd" else number(values[clock])
    half = values[f"{clock}_ci95"]
    return text if half is None else f"{text} ± {significant(half, 2)}"


def _cells(values: dict[str, Any], row: Row, threshold: float | None) -> dict[str, str]:
    """Cells of a row, by heading; the return has the mark of the row."""
    cells = {cell.heading: cell.text for cell in row_cells(values, row, threshold)}
    mark = SIGNS.get(row.mark, "")
    return {**headings(row.group), **cells, "return": f"{cells['return']} {mark}".strip()}


def lost_result(row: Row) -> str:
    """Replacement for the return of a row without one; "" if the row has a return."""
    if not row.finished:
        return "no result"
    return "incomplete" if row.incomplete else ""


def headings(group: Group) -> dict[str, str]:
    """Distinguishing values of a row, by headings that are as short as possible, and no other column's."""
    names = {key: key if name in COLUMNS else name for key, name in short_names(group.values).items()}
    return {names[key]: value_text(value) for key, value in group.values.items()} or {"point": group.label}


def _markdown(name: str, cells: list[dict[str, str]], sentences: list[str], curves: bool) -> str:
    lines = [f"# {name}", ""]
    if cells:
        header = list(cells[0])
        table = [header, ["---"] * len(header), *(list(row.values()) for row in cells)]
        lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in table]
        lines += ["", "\n\n".join(LEGEND)]
    for sentence in sentences:
        lines += ["", f"{sentence}."]
    if curves:
        lines += ["", "![Return against env steps, simulated seconds and dollars](curves.png)"]
    return "\n".join(lines) + "\n"
