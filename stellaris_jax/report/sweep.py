"""The report of a sweep: one table and one figure over its points."""

from __future__ import annotations

import csv
import math
from collections import Counter
from pathlib import Path
from typing import Any

from rich.text import Text

from stellaris_jax.config.schema import ConfigError
from stellaris_jax.report.curves import comparison_figure, save
from stellaris_jax.report.runs import Group, Run, group_replicates, read_run, short
from stellaris_jax.report.statistics import FEWEST, mean_ci95
from stellaris_jax.report.table import print_table, wide_console
from stellaris_jax.report.telemetry.format import compact, count, dollars, number, over_seeds

MEASURES = ("staleness_mean", "staleness_max", "steps_per_second", "simulated_seconds", "cost_usd", "updates")
"""Summary values of the table, each the mean over a point's runs (staleness_max: their maximum)."""

RETURN = (
    "Return is the last evaluation, its mean over so many seeds, ± half of the 95 % interval over them (Student's t); "
    f"of fewer than {FEWEST} seeds the smallest and the largest in place of an interval."
)


def report(sweep_dir: Path) -> None:
    """Writes `table.md`, `table.csv` and `curves.png` into a sweep directory and prints the table.

    The sweep's points are the subdirectories named by a number. Points whose configurations differ only in the seed
    are one row. A point without a summary has failed; it is listed and left out of means and curves. A point that
    repeats another, as one does that is swept over an option its rule does not have, is left out: it is no other seed.
    Raises ConfigError where there are no points.
    """
    sweep_dir = Path(sweep_dir)
    places = sorted((path for path in sweep_dir.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    if not places:
        raise ConfigError(f"{sweep_dir} holds no sweep points; give a directory with subdirectories 0, 1, ...")
    runs = _different([read_run(place) for place in places])
    groups = group_replicates(runs)
    failed = [run.path.name for run in runs if run.summary is None]
    rows = [sweep_row(group) for group in groups]
    cells = [_cells(row, group) for row, group in zip(rows, groups, strict=True)]
    written = [sweep_dir / "table.md", sweep_dir / "table.csv"]
    curves = {group.label: _finished(group) for group in groups if _finished(group)}
    if curves:
        written.append(save(comparison_figure(curves, title=sweep_dir.name), sweep_dir / "curves.png"))
    written[0].write_text(_markdown(sweep_dir.name, cells, failed, bool(curves)), encoding="utf-8")
    with open(written[1], "w", newline="", encoding="utf-8") as file:
        if rows:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    console = wide_console()
    print_table(console, sweep_dir.name, cells, names=[name for group in groups for name in _keys(group)])
    if failed:
        console.print(Text(f"Failed points: {', '.join(failed)}", style="red"))
    for path in written:
        console.print(Text(str(path)), soft_wrap=True)


def _different(runs: list[Run]) -> list[Run]:
    """The runs without those whose configuration another one before them has."""
    return [run for i, run in enumerate(runs) if not run.config or run.config not in [r.config for r in runs[:i]]]


def sweep_row(group: Group) -> dict[str, Any]:
    """One point of a sweep as numbers: its keys, return over seeds, measures; None where there is no value."""
    done = _finished(group)
    returns = _returns(group)
    mean, half_width = mean_ci95(returns)
    row: dict[str, Any] = {
        **group.values,
        "return_mean": _defined(mean),
        "return_ci95": _defined(half_width),
        "return_min": min(returns, default=None),
        "return_max": max(returns, default=None),
        "seeds": len(returns),
        "failed": len(group.runs) - len(done),
    }
    for key in MEASURES:
        values = [run.summary[key] for run in done if run.summary and run.summary.get(key) is not None]
        combined = max if key == "staleness_max" else lambda items: mean_ci95(items)[0]
        row[key] = combined(values) if values else None
    return row


def final_returns(run: Run) -> list[float]:
    """The last evaluated return of every seed, without those that have none."""
    if not run.evaluations:
        return []
    return [value for value in run.evaluations[-1]["per_seed"]["eval_return_mean"] if value is not None]


def _returns(group: Group) -> list[float]:
    return [value for run in _finished(group) for value in final_returns(run)]


def _finished(group: Group) -> list[Run]:
    return [run for run in group.runs if run.summary is not None]


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _cells(row: dict[str, Any], group: Group) -> dict[str, str]:
    """A row as a reader sees it."""
    failed = row["failed"] == len(group.runs)
    return {
        **_keys(group),
        "return": "failed" if failed else over_seeds(row["return_mean"], row["return_ci95"], _returns(group)),
        "seeds": str(row["seeds"]),
        "staleness": f"{number(row['staleness_mean'], 2)} (max {count(row['staleness_max'])})",
        "steps/s": compact(row["steps_per_second"]),
        "simulated s": number(row["simulated_seconds"]),
        "cost": dollars(row["cost_usd"]),
        "updates": count(row["updates"]),
    }


def _keys(group: Group) -> dict[str, str]:
    """What sets a point apart, by headings as short as they can be."""
    headings = Counter(map(short, group.values))
    keys = {short(key) if headings[short(key)] == 1 else key: str(value) for key, value in group.values.items()}
    return keys or {"point": group.label}


def _markdown(name: str, cells: list[dict[str, str]], failed: list[str], curves: bool) -> str:
    lines = [f"# {name}", ""]
    if cells:
        header = list(cells[0])
        table = [header, ["---"] * len(header), *(list(row.values()) for row in cells)]
        lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in table]
        lines += ["", RETURN]
    if failed:
        lines += ["", f"Failed points: {', '.join(failed)}."]
    if curves:
        lines += ["", "![Return against env steps, simulated seconds and dollars](curves.png)"]
    return "\n".join(lines) + "\n"
