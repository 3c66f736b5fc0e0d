"""Draws the curves of one run, compares several runs, or draws a timeline.

stellaris-jax plot RUN_DIR [RUN_DIR ...] [--out FILE]
stellaris-jax plot RUN_DIR --x env_steps,learned_steps          return over steps rolled and over those learned from
stellaris-jax plot --sweep DIR                                  table and curves of all runs DIR/0, DIR/1, ...
stellaris-jax plot --timeline 2 system=stellaris [--out FILE]   the first two rounds of a configuration
stellaris-jax plot --timeline 2 RUN_DIR                         the first two rounds of a run
stellaris-jax plot --trace out.json RUN_DIR [--timeline 100]    a timeline, or its first rounds, for ui.perfetto.dev
stellaris-jax plot --trace jobs.csv RUN_DIR                     the same as a log of jobs for delays=trace; or .jsonl
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.near_miss import did_you_mean
from stellaris_jax.cli import program
from stellaris_jax.cli.working import working
from stellaris_jax.config.trust import Trust

if TYPE_CHECKING:
    from stellaris_jax.config.tree import Config

# Modules that draw or compute are imported where they are used, so that --help is answered at once.

METRICS = "metrics.jsonl"
TRACE = "write a run's timeline for https://ui.perfetto.dev, or as a log of jobs where FILE ends in .csv or .jsonl"
AXES = ("env_steps", "learned_steps", "simulated_seconds", "wall_seconds", "cost_usd")
"""Axes that curves can be drawn over."""
OUT = "a .png, .pdf or .svg; by default RUN_DIR/curve.png of one run, comparison.png of several, or timeline.png"


@program.entry
def main(argv: Sequence[str]) -> None:
    """Run the command with these arguments, by default those of the process."""
    parser = program.Parser("plot", __doc__)
    parser.add_argument(
        "subjects", nargs="*", metavar="RUN_DIR", help="run directories; with --timeline one, or overrides"
    )
    rounds = program.at_least(1)
    parser.add_argument("--timeline", type=rounds, metavar="ROUNDS", help="draw the timeline of the first rounds")
    parser.add_argument("--trace", type=Path, metavar="FILE", help=TRACE)
    parser.add_argument("--sweep", type=Path, metavar="DIR", help="write the table and the curves of a sweep again")
    parser.add_argument(
        "--threshold", type=program.finite, metavar="X", help="with --sweep: show what reaching this return takes"
    )
    axes = f"what curves are drawn over, of {', '.join(AXES)}; steps learned from count beside those rolled"
    parser.add_argument("--x", type=_axes, default=[], metavar="AXIS,AXIS", help=axes)
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"picture to write: {OUT}")
    folder_help = "with --timeline: a directory laid out like configs/, with further choices"
    parser.add_argument("--config-dir", metavar="DIR", help=folder_help)
    program.add_trust(parser)
    arguments = parser.parse_mixed(argv)
    if arguments.trace is not None:
        if arguments.out is not None or arguments.sweep is not None or arguments.x or len(arguments.subjects) != 1:
            parser.error("--trace takes one run directory and --timeline, nothing else")
        trust = program.trust_of(arguments)
        print(traced(Path(arguments.subjects[0]), arguments.trace, arguments.timeline, trust))
        return
    if arguments.sweep is not None:
        if arguments.out is not None or arguments.timeline is not None or arguments.subjects:
            parser.error("--sweep takes no other argument than --threshold and --x; its files go into its directory")
        reported(arguments.sweep, arguments.threshold, arguments.x)
        return
    if arguments.threshold is not None:
        parser.error("--threshold needs --sweep")
    if arguments.x and arguments.timeline is not None:
        parser.error("--x is of curves, and a timeline has none")
    if not arguments.subjects and arguments.timeline is None:
        parser.error("name a run directory")
    if arguments.config_dir is not None and arguments.timeline is None:
        parser.error("--config-dir needs --timeline")
    try:
        if arguments.timeline is not None:
            out = arguments.out or Path("timeline.png")
            trust = program.trust_of(arguments)
            path = timeline(arguments.subjects, arguments.timeline, out, arguments.config_dir, trust)
        else:
            path = draw(arguments.subjects, arguments.out, arguments.x)
    except OSError as error:
        raise RunError(f"{error.filename or arguments.out}: {error.strerror}.") from error
    print(path)


def _axes(text: str) -> list[str]:
    """Axes from a text such as `learned_steps,cost_usd`."""
    axes = text.split(",")
    for axis in axes:
        if axis not in AXES:
            raise argparse.ArgumentTypeError(f"must be of {', '.join(AXES)}, not {axis!r}{did_you_mean(axis, AXES)}")
    return list(dict.fromkeys(axes))


def draw(subjects: list[str], out: Path | None, axes: Sequence[str] = ()) -> Path:
    """Draw the curves of one run, or a comparison of runs, and return the picture's path.

    Args:
      subjects: run directories.
      out: picture to write; by default `OUT` says where.
      axes: axes of the curves; see `stellaris_jax.report.axes.axes_of`.
    """
    run_dirs = [Path(subject) for subject in subjects]
    with working(f"drawing {program.listed(run_dirs)}", when=all((path / METRICS).is_file() for path in run_dirs)):
        from stellaris_jax.config.stored import run_config
        from stellaris_jax.report.curves import checked, plot_run, plot_runs
        from stellaris_jax.report.runs import group_replicates, read_run

        if out is not None:
            checked(out)
        if len(run_dirs) == 1:
            return plot_run(run_dirs[0], out, axes)
        for run_dir in run_dirs:
            run_config(run_dir)
        groups = group_replicates([read_run(run_dir) for run_dir in run_dirs])
        runs = {group.label: [run.path for run in group.runs] for group in groups}
        return plot_runs(runs, out or Path("comparison.png"), title="Comparison of runs", axes=axes)


def reported(sweep_dir: Path, threshold: float | None, axes: Sequence[str] = ()) -> None:
    """Write the table and the curves of a sweep again. Raises RunError if points are damaged."""
    if not sweep_dir.is_dir():
        raise ConfigError(f"--sweep={sweep_dir} is not a directory.")
    try:
        has_points = any(name.isdecimal() for name in os.listdir(sweep_dir))
        with working(f"reading the points of {sweep_dir}", when=has_points):
            from stellaris_jax.report.sweep import report

            damaged = report(sweep_dir, threshold, axes)
    except OSError as error:
        raise RunError(f"{error.filename or sweep_dir}: {error.strerror}.") from error
    if damaged:
        raise RunError(f"{len(damaged)} points are damaged: {', '.join(damaged)}; resuming the sweep repairs them.")


def traced(run_dir: Path, out: Path, rounds: int | None, trust: Trust = False) -> Path:
    """Write a run's timeline as trace events, or as a log of jobs, depending on the file's ending.

    The run's own rules are needed, so its plug-ins need consent.

    Args:
      run_dir: directory of the run.
      out: file to write.
      rounds: number of first rounds; None for all.
      trust: what the user allowed.

    Raises:
      ConfigError: there is no run, or it names code without consent.
      RunError: a file cannot be read or written.
    """
    try:
        with working(f"writing the timeline of {run_dir}"):
            from stellaris_jax.config.stored import from_yaml, run_config
            from stellaris_jax.config.trust import admit
            from stellaris_jax.report import perfetto
            from stellaris_jax.timeline.plan import MinibatchLayout

            path = run_config(run_dir)
            export = perfetto.export_jobs if out.suffix in perfetto.JOB_LOGS else perfetto.export
            return export(run_dir, MinibatchLayout.of(admit(from_yaml(path), path, trust)), out, rounds)
    except OSError as error:
        raise RunError(f"{error.filename or out}: {error.strerror}.") from error


def timeline(subjects: list[str], rounds: int, out: Path, config_dir: str | None = None, trust: Trust = False) -> Path:
    """Draw the first rounds of a configuration, or of a simulated run, and return the picture's path.

    Args:
      subjects: overrides of a configuration, or one run directory.
      rounds: number of first rounds.
      out: picture to write.
      config_dir: a directory laid out like `configs/`, with further choices.
      trust: what the user allowed of the run's code.

    Raises:
      ConfigError: the configuration cannot run, has fewer rounds, or names code without consent.
    """
    from stellaris_jax.report.curves import checked
    from stellaris_jax.telemetry.format import plural

    checked(out)
    of_runs = [subject for subject in subjects if Path(subject).is_dir()]
    if of_runs and len(subjects) > 1:
        raise ConfigError(f"--timeline draws one run, alone; {of_runs[0]} is a run beside {len(subjects) - 1} others.")
    config = _of_run(Path(subjects[0]), trust) if of_runs else None
    if config is None:
        from stellaris_jax.execute.loading import load_config

        config = load_config(subjects, config_dir)
    if rounds > config.rounds:
        raise ConfigError(f"--timeline={rounds} must be at most {config.rounds}, all rounds of this configuration.")
    with working(f"simulating and drawing {plural(rounds, 'round')} of {config.system.name}"):
        from stellaris_jax.report.gantt import plot_timeline
        from stellaris_jax.telemetry.jsonl import warn_on_stderr
        from stellaris_jax.timeline.prediction import comparison

        picture = plot_timeline(config, rounds, out)
        for sentence in comparison(config):
            warn_on_stderr(sentence)
        return picture


def _of_run(run_dir: Path, trust: Trust) -> Config:
    """Configuration of a simulated run. Raises ConfigError for another run, or one whose code nobody allowed."""
    from stellaris_jax.config.stored import from_yaml, run_config
    from stellaris_jax.config.trust import admit

    path = run_config(run_dir)
    config = admit(from_yaml(path), path, trust)
    if config.executor != "simulated":
        raise ConfigError(
            f"{run_dir} is a run with executor={config.executor}, which nothing foretold: --trace writes its timeline."
        )
    return config
