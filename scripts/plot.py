"""Draws the curves of one run, or compares several: `python scripts/plot.py RUN_DIR [RUN_DIR ...] [--out FILE]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stellaris_jax.config import ConfigError
from stellaris_jax.report.curves import plot_run, plot_runs
from stellaris_jax.report.runs import group_replicates, read_run


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the curves of one run, or compare several.")
    parser.add_argument("run_dirs", nargs="+", type=Path, metavar="RUN_DIR", help="run directories; seeds are averaged")
    parser.add_argument("--out", type=Path, help="file; default RUN_DIR/curve.png for one run, else comparison.png")
    arguments = parser.parse_args()
    try:
        if len(arguments.run_dirs) == 1:
            path = plot_run(arguments.run_dirs[0], arguments.out)
        else:
            groups = group_replicates([read_run(run_dir) for run_dir in arguments.run_dirs])
            runs = {group.label: [run.path for run in group.runs] for group in groups}
            path = plot_runs(runs, arguments.out or Path("comparison.png"), title="Comparison of runs")
    except ConfigError as error:
        sys.exit(str(error))
    print(path)


if __name__ == "__main__":
    main()
