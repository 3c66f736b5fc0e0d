"""Draws the curves of one run, compares several, or draws a timeline.

stellaris-jax plot RUN_DIR [RUN_DIR ...] [--out FILE]
stellaris-jax plot --sweep DIR                                  table and curves of all runs DIR/0, DIR/1, ...
stellaris-jax plot --timeline 2 system=stellaris [--out FILE]   the first two rounds of a configuration
stellaris-jax plot --trace out.json RUN_DIR [--timeline 100]    a timeline, or its first rounds, for ui.perfetto.dev
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stellaris_jax.cli import program
from stellaris_jax.config.schema import ConfigError, RunError
from stellaris_jax.config.stored import from_yaml
from stellaris_jax.config.trust import Trust, admit
from stellaris_jax.engine.static import Static
from stellaris_jax.report.curves import FORMATS, checked, plot_run, plot_runs
from stellaris_jax.report.gantt import plot_timeline
from stellaris_jax.report.perfetto import export
from stellaris_jax.report.runs import group_replicates, read_run
from stellaris_jax.report.sweep import report
from stellaris_jax.training.loading import load_config

OUT = f"{', '.join(FORMATS)}; by default RUN_DIR/curve.png of one run, comparison.png of several, or timeline.png"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command on these arguments; those of the process by default."""
    program.run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> None:
    parser = program.Parser("plot", __doc__)
    parser.add_argument("subjects", nargs="*", metavar="RUN_DIR", help="run directories; with --timeline, overrides")
    rounds = program.at_least(1)
    parser.add_argument("--timeline", type=rounds, metavar="ROUNDS", help="draw who computes what in the first rounds")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a run's timeline for https://ui.perfetto.dev")
    parser.add_argument("--sweep", type=Path, metavar="DIR", help="report on the runs of a sweep again")
    parser.add_argument("--threshold", type=program.finite, metavar="X", help="with --sweep: what reaching it takes")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"picture to write: {OUT}")
    program.add_trust(parser)
    arguments = parser.parse_mixed(argv)
    if arguments.trace is not None:
        if arguments.out is not None or arguments.sweep is not None or len(arguments.subjects) != 1:
            parser.error("--trace takes one run directory, and nothing else but --timeline")
        trust = program.trust_of(arguments)
        print(traced(Path(arguments.subjects[0]), arguments.trace, arguments.timeline, trust))
        return
    if arguments.sweep is not None:
        if arguments.out is not None or arguments.timeline is not None or arguments.subjects:
            parser.error("--sweep stands alone: the table and the curves go into its directory")
        if not arguments.sweep.is_dir():
            raise ConfigError(f"--sweep={arguments.sweep} is not a directory.")
        try:
            damaged = report(arguments.sweep, arguments.threshold)
        except OSError as error:
            raise RunError(f"{error.filename or arguments.sweep}: {error.strerror}.") from error
        if damaged:
            raise RunError(f"{len(damaged)} points are damaged: {', '.join(damaged)}; resuming the sweep mends them.")
        return
    if arguments.threshold is not None:
        parser.error("--threshold is of the table that --sweep writes")
    if arguments.out is not None:
        checked(arguments.out)
    if not arguments.subjects and arguments.timeline is None:
        parser.error("name a run directory")
    try:
        path = draw(arguments.subjects, arguments.timeline, arguments.out)
    except OSError as error:
        raise RunError(f"{error.filename or arguments.out}: {error.strerror}.") from error
    print(path)


def draw(subjects: list[str], rounds: int | None, out: Path | None) -> Path:
    """Draw a timeline, one run, or several beside each other."""
    if rounds is not None:
        return timeline(subjects, rounds, out or Path("timeline.png"))
    run_dirs = [Path(subject) for subject in subjects]
    if len(run_dirs) == 1:
        return plot_run(run_dirs[0], out)
    groups = group_replicates([read_run(run_dir) for run_dir in run_dirs])
    runs = {group.label: [run.path for run in group.runs] for group in groups}
    return plot_runs(runs, out or Path("comparison.png"), title="Comparison of runs")


def traced(run_dir: Path, out: Path, rounds: int | None, trust: Trust = False) -> Path:
    """Write a run's timeline as trace events, which takes the run's own rules: its plug-ins need consent."""
    path = run_dir / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{run_dir} holds no run: there is no {path}.")
    try:
        return export(run_dir, Static.of(admit(from_yaml(path), path, trust)).cut, out, rounds)
    except OSError as error:
        raise RunError(f"{error.filename or out}: {error.strerror}.") from error


def timeline(overrides: list[str], rounds: int, out: Path) -> Path:
    """Draw the first rounds of a configuration."""
    config = load_config(overrides)
    if rounds > config.rounds:
        raise ConfigError(f"--timeline={rounds} must be at most {config.rounds}, all rounds of this configuration.")
    return plot_timeline(config, rounds, out)
