"""Writes one page on a run, or on several runs: whether they differ by the setting or by noise.

stellaris-jax report RUN_DIR [--rounds 1-3,50]            the page of a run, in its directory
stellaris-jax report SWEEP_DIR [--threshold 400]          the page of a sweep, in its directory, and its verdicts
stellaris-jax report SWEEP_DIR --margin 5                 which settings are at most 5 below the best?
stellaris-jax report SWEEP_DIR --against SWEEP_DIR/0      how do settings differ from that of point 0?
stellaris-jax report RUN_DIR SWEEP_DIR ... [--out FILE]   the page that compares runs, and points of sweeps
stellaris-jax report results/stellaris                    the page of a study: its README.md, with the pictures
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from stellaris_jax.base.errors import ConfigError, RunError, printable
from stellaris_jax.base.inputs import reason
from stellaris_jax.base.outputs import check_output
from stellaris_jax.cli import program
from stellaris_jax.cli.working import working

NAME = "report.html"


@program.entry
def main(argv: Sequence[str]) -> None:
    """Run the command with these arguments, by default those of the process."""
    parser = program.Parser("report", __doc__)
    parser.add_argument("places", nargs="+", type=Path, metavar="DIR", help="directories of runs, or of sweeps")
    of_one, of_many = f"DIR/{NAME} of one directory", f"{NAME} of several"
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"page to write; by default {of_one}, {of_many}")
    threshold_help = "return; the table then shows what reaching it takes"
    parser.add_argument("--threshold", type=program.finite, metavar="X", help=threshold_help)
    margin_help = "loss of return that counts as none; the tables then say which settings are shown to be within it"
    parser.add_argument("--margin", type=program.finite, metavar="X", help=margin_help)
    measure_help = "what differences are of: the last return (by default), or the mean return over the run"
    parser.add_argument("--measure", choices=("last", "mean"), default="last", help=measure_help)
    against_help = "a run, of those that are compared: the others' settings are compared with its setting"
    parser.add_argument("--against", type=Path, metavar="DIR", help=against_help + ", not with the best one")
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
    check_output("--out", out)
    try:
        with working(f"writing the page of {program.listed(arguments.places)}"):
            # Imported late, so that --help is answered at once.
            from stellaris_jax.report.page.page import write_page
            from stellaris_jax.report.verdicts import Question

            question = Question(arguments.measure, arguments.against, arguments.margin)
            written = write_page(arguments.places, out, arguments.threshold, arguments.rounds, question)
    except OSError as error:
        raise RunError(f"{error.filename or out}: {reason(error)}.") from error
    for note in written.notes:
        print(printable(note), file=sys.stderr)
    if written.rows:
        from stellaris_jax.report.table import wide_console
        from stellaris_jax.report.verdicts import print_verdicts

        print_verdicts(wide_console(), written.rows, question)
    print(out)


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
