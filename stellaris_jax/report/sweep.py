"""The report of a sweep: one table and one figure over its points."""

from __future__ import annotations

import csv
import math
from collections import Counter
from pathlib import Path
from typing import Any

from rich.text import Text

from stellaris_jax.config.outputs import rewriting_text, write_atomically
from stellaris_jax.config.schema import ConfigError
from stellaris_jax.report.curves import comparison_figure, save
from stellaris_jax.report.results import BEST, MEASURES, NOISE, UNKNOWN, Row, judged, load_run
from stellaris_jax.report.robust import iqm_interval
from stellaris_jax.report.runs import Group, Run, group_replicates, short
from stellaris_jax.report.statistics import FEWEST, mean_ci95
from stellaris_jax.report.table import print_table, wide_console
from stellaris_jax.report.telemetry.format import compact, count, dollars, number, over_seeds, significant

PRICES = ("env_steps", "simulated_seconds", "cost_usd")
"""What the table tells of the way to a threshold."""
SIGNS = {BEST: "★", NOISE: "≈", UNKNOWN: "?"}
"""How a table shows the marks of its rows."""
LEGEND = (
    "Return is the last evaluation, its mean over so many seeds, ± half of the 95 % interval over them (Student's t); "
    f"of fewer than {FEWEST} seeds the smallest and the largest in place of an interval. IQM is their interquartile "
    "mean; area the mean return from the first evaluation to the last one, over env steps.",
    "★ has the highest mean return (of its environment); the difference to it of rows marked ≈ is within noise, by the "
    f"seeds they share, and of rows marked ? fewer than {FEWEST} seeds leave it open.",
)


def report(sweep_dir: Path, threshold: float | None = None) -> None:
    """Writes `table.md`, `table.csv` and `curves.png` into a sweep directory and prints the table.

    The sweep's points are the subdirectories named by a number. Points whose configurations differ only in the seed
    are one row. A point without a summary has failed, or is not over; it is listed and left out of means and curves.
    A point that repeats another, as one does that is swept over an option its rule does not have, is left out: it is no
    other seed.

    Args:
      sweep_dir: the directory.
      threshold: a return; the table then tells what it takes to reach it.

    Raises:
      ConfigError: there are no points.
    """
    sweep_dir = Path(sweep_dir)
    places = points(sweep_dir)
    if not places:
        raise ConfigError(f"{sweep_dir} holds no sweep points; give a directory with subdirectories 0, 1, ...")
    runs = different([load_run(place) for place in places])
    groups = group_replicates(runs)
    failed = [run.path.name for run in runs if run.summary is None]
    judgement = judged(groups)
    rows = [sweep_row(row, threshold) for row in judgement]
    cells = [_cells(values, row, threshold) for values, row in zip(rows, judgement, strict=True)]
    written = [sweep_dir / "table.md", sweep_dir / "table.csv"]
    curves = {row.label: row.finished for row in judgement if row.finished}
    if curves:
        written.append(save(comparison_figure(curves, title=sweep_dir.name), sweep_dir / "curves.png"))
    write_atomically(written[0], _markdown(sweep_dir.name, cells, failed, bool(curves)))
    with rewriting_text(written[1]) as file:
        if rows:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    console = wide_console()
    print_table(console, sweep_dir.name, cells, names=[name for group in groups for name in headings(group)])
    if any(row.mark for row in judgement):
        console.print(Text(LEGEND[1]))
    if failed:
        console.print(Text(f"Points without a result: {', '.join(failed)}", style="red"))
    for path in written:
        console.print(Text(str(path)), soft_wrap=True)


def points(directory: Path) -> list[Path]:
    """The points of a sweep: the subdirectories that are named by a number, in its order."""
    return sorted((path for path in directory.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))


def different(runs: list[Run]) -> list[Run]:
    """The runs without those whose configuration another one before them has."""
    return [run for i, run in enumerate(runs) if not run.config or run.config not in [r.config for r in runs[:i]]]


def sweep_row(row: Row, threshold: float | None = None) -> dict[str, Any]:
    """One setting of a sweep as numbers: its keys, return over seeds, measures; None where there is no value.

    With a `threshold`, also how many seeds have reached it, and the medians over seeds of what that took.
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
        values["threshold_seeds"] = row.reached(threshold)
        values |= {f"threshold_{clock}": row.until(clock, threshold) for clock in PRICES}
    values |= {"mark": row.mark, "seeds": len(returns), "failed": len(row.group.runs) - len(done)}
    for key in MEASURES:
        measured = [run.summary[key] for run in done if run.summary and run.summary.get(key) is not None]
        combined = max if key == "staleness_max" else lambda items: mean_ci95(items)[0]
        values[key] = combined(measured) if measured else None
    return values


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _cells(values: dict[str, Any], row: Row, threshold: float | None) -> dict[str, str]:
    """A row as a reader sees it."""
    failed = values["failed"] == len(row.group.runs)
    result = over_seeds(values["return_mean"], values["return_ci95"], row.finals)
    until = {}
    if threshold is not None:
        until = {
            f"{significant(threshold)} after": compact(values["threshold_env_steps"]),
            "s until": number(values["threshold_simulated_seconds"]),
            "$ until": dollars(values["threshold_cost_usd"]),
        }
    return {
        **headings(row.group),
        "return": "no result" if failed else f"{result} {SIGNS.get(row.mark, '')}".strip(),
        "seeds": str(values["seeds"]),
        "IQM": significant(values["return_iqm"]),
        "area": significant(values["area"]),
        **until,
        "staleness": f"{number(values['staleness_mean'], 2)} (max {count(values['staleness_max'])})",
        "steps/s": compact(values["steps_per_second"]),
        "simulated s": number(values["simulated_seconds"]),
        "cost": dollars(values["cost_usd"]),
        "updates": count(values["updates"]),
    }


def headings(group: Group) -> dict[str, str]:
    """What sets a row apart, by headings as short as they can be."""
    names = Counter(map(short, group.values))
    keys = {short(key) if names[short(key)] == 1 else key: str(value) for key, value in group.values.items()}
    return keys or {"point": group.label}


def _markdown(name: str, cells: list[dict[str, str]], failed: list[str], curves: bool) -> str:
    lines = [f"# {name}", ""]
    if cells:
        header = list(cells[0])
        table = [header, ["---"] * len(header), *(list(row.values()) for row in cells)]
        lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in table]
        lines += ["", "\n\n".join(LEGEND)]
    if failed:
        lines += ["", f"Points without a result: {', '.join(failed)}."]
    if curves:
        lines += ["", "![Return against env steps, simulated seconds and dollars](curves.png)"]
    return "\n".join(lines) + "\n"
