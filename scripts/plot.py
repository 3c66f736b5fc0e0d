"""Draws the curves of one run, compares several, or draws a timeline.

python scripts/plot.py RUN_DIR [RUN_DIR ...] [--out FILE]
python scripts/plot.py --sweep DIR                                  table and curves of all runs DIR/0, DIR/1, ...
python scripts/plot.py --timeline 2 system=stellaris [--out FILE]   the first two rounds of a configuration
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stellaris_jax.compose import load_config
from stellaris_jax.report.curves import FORMATS, checked, plot_run, plot_runs
from stellaris_jax.report.gantt import plot_timeline
from stellaris_jax.report.runs import group_replicates, read_run
from stellaris_jax.report.sweep import report
from stellaris_jax.schema import ConfigError

OUT = f"{', '.join(FORMATS)}; by default RUN_DIR/curve.png of one run, comparison.png of several, or timeline.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", metavar="RUN_DIR", help="run directories; with --timeline, overrides")
    parser.add_argument("--timeline", type=int, metavar="ROUNDS", help="draw who computes what in the first rounds")
    parser.add_argument("--sweep", type=Path, metavar="DIR", help="report on the runs of a sweep again")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"picture to write: {OUT}")
    arguments = parser.parse_args()
    if arguments.sweep is not None:
        report(arguments.sweep)
        return
    run_dirs = [Path(subject) for subject in arguments.subjects]
    if not run_dirs and arguments.timeline is None:
        parser.error("name a run directory")
    try:
        if arguments.out is not None:
            checked(arguments.out)
        if arguments.timeline is not None:
            out = arguments.out or Path("timeline.png")
            path = plot_timeline(load_config(arguments.subjects), arguments.timeline, out)
        elif len(run_dirs) == 1:
            path = plot_run(run_dirs[0], arguments.out)
        else:
            groups = group_replicates([read_run(run_dir) for run_dir in run_dirs])
            runs = {group.label: [run.path for run in group.runs] for group in groups}
            path = plot_runs(runs, arguments.out or Path("comparison.png"), title="Comparison of runs")
    except ConfigError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"{error.filename or arguments.out}: {error.strerror}")
    print(path)


if __name__ == "__main__":
    main()
