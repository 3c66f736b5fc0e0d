"""Writes one page on runs that belong together: table, curves, intervals, and whether it is the setting or the noise.

stellaris-jax report SWEEP_DIR [--threshold 400]          the page of a sweep, in its directory
stellaris-jax report RUN_DIR RUN_DIR ... [--out FILE]     the page that compares runs
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stellaris_jax.cli import program
from stellaris_jax.config.outputs import check_output
from stellaris_jax.config.schema import ConfigError

NAME = "report.html"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command on these arguments; those of the process by default."""
    program.run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> None:
    parser = program.Parser("report", __doc__)
    parser.add_argument("places", nargs="+", type=Path, metavar="DIR", help="directories of runs, or of sweeps")
    of_one, of_many = f"DIR/{NAME} of one directory", f"{NAME} of several"
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"page to write; by default {of_one}, {of_many}")
    told = "a return; the table then tells what it takes to reach it"
    parser.add_argument("--threshold", type=program.finite, metavar="X", help=told)
    arguments = parser.parse_args(argv)
    for place in arguments.places:
        if not place.is_dir():
            raise ConfigError(f"{place} is not a directory; name directories of runs, or of a sweep.")
    only = arguments.places[0] if len(arguments.places) == 1 else Path()
    out = arguments.out or only / NAME
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out={out} is no page; accepted endings: .html, .htm.")
    check_output("--out", out)
    # Imported late, so that --help answers at once.
    from stellaris_jax.report.page.page import write_page

    write_page(arguments.places, out, arguments.threshold)
    print(out)
