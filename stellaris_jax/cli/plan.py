"""Foretells how long and how dear a system would be, and how stale its gradients, without training.

stellaris-jax plan system=stellaris,async,allreduce delays=pareto,exponential
stellaris-jax plan system=async system.learners=2,4,8 num_seeds=5 --csv plan.csv
stellaris-jax plan env=gymnax/acrobot total_steps=1e6 --rounds 400 --json plan.json

Every key with several values is varied, as in a sweep: each combination of values is a row. Only its timeline is
simulated, for the first rounds of each seed; nothing is learned and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from stellaris_jax.base.commands import named_modules
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.inputs import reason
from stellaris_jax.base.outputs import check_output
from stellaris_jax.base.registry import search_folder
from stellaris_jax.cli import program
from stellaris_jax.cli.working import working


@program.entry
def main(argv: Sequence[str]) -> None:
    """Run the command with these arguments, by default those of the process."""
    parser = program.Parser("plan", __doc__)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings as for train; KEY=A,B,C varies one")
    # Defaults of the next two stand in `Window`, which is imported late.
    parser.add_argument(
        "--rounds", type=program.at_least(1), metavar="N",
        help="rounds simulated of each seed, at most those of the run (default 200)",
    )  # fmt: skip
    parser.add_argument(
        "--warmup", type=program.at_least(0), metavar="N",
        help="first rounds that the figures leave out (default 20, at most a tenth of the rounds)",
    )  # fmt: skip
    parser.add_argument("--csv", type=program.path, metavar="FILE", help="write all columns as CSV")
    parser.add_argument("--json", type=program.path, metavar="FILE", help="write all columns as JSON")
    parser.add_argument("--config-dir", metavar="DIR", help="a directory laid out like configs/, with further choices")
    parser.add_argument("-m", "--multirun", action="store_true", help="accepted, as for train; it changes nothing")
    arguments = parser.parse_mixed(argv)
    # Imported late, so that --help is answered at once.
    from stellaris_jax.many.forecast import asked, combinations, forecasts, left_out
    from stellaris_jax.report.forecast import print_forecasts, write_csv, write_json
    from stellaris_jax.report.table import wide_console
    from stellaris_jax.telemetry.format import plural
    from stellaris_jax.telemetry.jsonl import warn_on_stderr
    from stellaris_jax.timeline.forecast import Window
    from stellaris_jax.timeline.prediction import comparison

    window = Window.of(arguments.rounds, arguments.warmup)
    files = {"--csv": (arguments.csv, write_csv), "--json": (arguments.json, write_json)}
    for option, (path, _) in files.items():
        if path is not None:
            check_output(option, path)
    if arguments.csv is not None and arguments.csv == arguments.json:
        raise ConfigError(f"--csv and --json are both {arguments.csv}; name two files.")
    search_folder(named_modules(arguments.settings))
    chosen = combinations(arguments.settings, arguments.config_dir)
    with working(
        f"simulating {plural(len(chosen), 'combination')}, up to {plural(window.rounds, 'round')} a seed"
    ) as tell:
        rows = forecasts(chosen, window, tell)
        print_forecasts(wide_console(), rows, asked(chosen), left_out(chosen, rows))
    for sentence in comparison(chosen[0].config) if len(chosen) == 1 else ():
        warn_on_stderr(sentence)
    for path, write in files.values():
        try:
            if path is not None:
                write(path, rows)
                print(path)
        except OSError as error:
            raise RunError(f"{error.filename or path}: {reason(error)}.") from error
