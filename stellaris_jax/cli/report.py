"""Writes one page on a run, or on several runs: whether they differ by the setting or by noise.

stellaris-jax report RUN_DIR [--rounds 1-3,50]            the page of a run, in its directory
stellaris-jax report SWEEP_DIR [--threshold 400]          the page of a sweep, in its directory, and its verdicts
stellaris-jax report SWEEP_DIR --margin 5                 which settings are at most 5 below the best?
stellaris-jax report SWEEP_DIR --against SWEEP_DIR/0      how do settings differ from that of point 0?
stellaris-jax report SWEEP_DIR --against lag=0            how does each differ from its twin with lag=0?
stellaris-jax report SWEEP_DIR --measure seconds --threshold 400   which setting reaches 400 first?
stellaris-jax report RUN_DIR SWEEP_DIR ... [--out FILE]   the page that compares runs, and points of sweeps
stellaris-jax report results/stellaris                    the page of a study: its README.md, with the pictures
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stellaris_jax.base.errors import ConfigError, RunError, printable
from stellaris_jax.base.inputs import reason
from stellaris_jax.base.outputs import check_output
from stellaris_jax.cli import program
from stellaris_jax.cli.working import working

if TYPE_CHECKING:
    from stellaris_jax.report.verdicts import Question

NAME = "report.html"
TIMES = {"steps": "env_steps", "seconds": "simulated_seconds", "dollars": "cost_usd"}
"""Clocks that a return is timed on, by the names of measures."""


@program.entry
def main(argv: Sequence[str]) -> None:
    """Run the command with these arguments, by default those of the process."""
    parser = program.Parser("report", __doc__)
    parser.add_argument("places", nargs="+", type=program.path, metavar="DIR", help="directories of runs, or of sweeps")
    of_one, of_many = f"DIR/{NAME} of one directory", f"{NAME} of several"
    parser.add_argument(
        "--out", type=program.path, metavar="FILE", help=f"page to write; by default {of_one}, {of_many}"
    )
    threshold_help = "return; the table then shows what reaching it takes"
    parser.add_argument("--threshold", type=program.finite, metavar="X", help=threshold_help)
    margin_help = "loss of return that counts as none; the tables then say which settings are shown to be within it"
    parser.add_argument("--margin", type=program.finite, metavar="X", help=margin_help)
    measure_help = (
        "what is compared: the last return (by default), the mean return over the run, or env steps, simulated seconds "
        "or dollars until --threshold"
    )
    parser.add_argument("--measure", choices=("last", "mean", *TIMES), default="last", help=measure_help)
    against_help = (
        "what settings are compared with, in place of the best one: the setting of a run, or with KEY=VALUE, for each "
        "one that which differs from it in this key alone, such as lag=0"
    )
    parser.add_argument("--against", type=_reference, metavar="DIR|KEY=VALUE", help=against_help)
    parser.add_argument(
        "--rounds", type=_rounds, default=[], metavar="A-B,C", help="for one run: rounds whose timelines are drawn"
    )
    arguments = parser.parse_mixed(argv)
    for place in arguments.places:
        if not place.is_dir():
            raise ConfigError(f"{place} is not a directory; name directories of runs, or of a sweep.")
    only = arguments.places[0] if len(arguments.places) == 1 else Path()
    out = arguments.out or only / NAME
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out={out} is no page; accepted endings: .html, .htm.")
    if arguments.margin is not None and arguments.margin < 0:
        raise ConfigError(f"--margin={arguments.margin:g} is no loss of return; accepted: 0 or more.")
    if arguments.measure in TIMES and (arguments.threshold is None or arguments.margin is not None):
        wants = (
            "is until a return, which --threshold=X must name" if arguments.margin is None else "has no loss of return"
        )
        other = "" if arguments.margin is None else ", which --margin is about"
        raise ConfigError(f"--measure={arguments.measure} {wants}{other}; for a loss, accepted: last, mean.")
    check_output("--out", out)
    try:
        with working(f"writing the page of {program.listed(arguments.places)}"):
            # Imported late, so that --help is answered at once.
            from stellaris_jax.report.page.page import write_page

            question = _question(arguments)
            written = write_page(arguments.places, out, arguments.rounds, question)
    except OSError as error:
        raise RunError(f"{error.filename or out}: {reason(error)}.") from error
    for note in written.notes:
        print(printable(note), file=sys.stderr)
    if written.rows:
        from stellaris_jax.report.table import wide_console
        from stellaris_jax.report.verdicts import print_verdicts

        print_verdicts(wide_console(), written.rows, question)
    print(out)


def _question(arguments: argparse.Namespace) -> Question:
    from stellaris_jax.report.results import Measure
    from stellaris_jax.report.verdicts import Question, Setting

    against: Path | Setting | None = None
    if arguments.against is not None:
        key, is_setting, value = arguments.against.partition("=")
        is_run = os.path.isfile(os.path.join(arguments.against, "config.yaml"))
        against = Setting(key, value) if is_setting and not is_run else program.path(arguments.against)
    clock = TIMES.get(arguments.measure)
    measure = Measure(arguments.measure) if clock is None else Measure(clock, arguments.threshold)
    return Question(measure, against, arguments.margin, arguments.threshold)


def _reference(text: str) -> str:
    """Type for `add_argument`: a path, or KEY=VALUE."""
    return text if "=" in text else str(program.path(text))


def _rounds(text: str) -> list[range]:
    """Ranges of round numbers from a text such as `1-3,50`."""
    rounds = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers = [program.at_least(1)(end) for end in (first, last or first)]
        if numbers[0] > numbers[1]:
            raise argparse.ArgumentTypeError(f"must go from a smaller round to a larger one, not {part}")
        rounds.append(range(numbers[0], numbers[1] + 1))
    return rounds
