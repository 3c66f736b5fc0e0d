"""Redoes a paper's evaluation: trains what is missing, then writes CSV files, pictures and a table of claims.

stellaris-jax reproduce stellaris                                       everything, six environments, days of work
stellaris-jax reproduce stellaris --figure 11                           one figure (or 11a, 11b)
stellaris-jax reproduce stellaris --figure 6 --envs hopper --seeds 3    less of it
stellaris-jax reproduce nitro --figure 15                               rules that scale actors
stellaris-jax reproduce minionsrl --figure schedulers                   schedulers, trained and fine-tuned
stellaris-jax reproduce map --figure methods --envs cartpole            every method against staleness
stellaris-jax reproduce index                                           the page of all claims, results/README.md

What is trained is kept below --runs, so that an interrupted call can be repeated, and what it has learned is kept in
learned.csv of the results, so that nothing is trained twice; remove its lines to start over. Several calls at once
share the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stellaris_jax.cli import program
from stellaris_jax.cli.working import working
from stellaris_jax.config.schema import ConfigError

PAPERS = ("stellaris", "nitro", "minionsrl", "map")
INDEX = "index"
RESULTS = Path("results")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command on these arguments; those of the process by default."""
    program.run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> None:
    parser = program.Parser("reproduce", __doc__)
    parser.add_argument("paper", choices=[*PAPERS, INDEX])
    parser.add_argument("--figure", action="append", help="figure to make; may be given several times; default all")
    count = program.at_least(1)
    parser.add_argument("--seeds", type=count, metavar="N", help="seeds per curve; default 5, and 10 for Figure 11")
    parser.add_argument("--envs", nargs="+", metavar="ENV", help="environments, such as hopper; default the paper's")
    parser.add_argument("--untuned", action="store_true", help="at the paper's learning rates only")
    parser.add_argument("--runs", type=Path, help="directory of the trained runs; default runs/<paper>")
    parser.add_argument("--results", type=Path, help="directory of the results; default results/<paper>")
    arguments = parser.parse_args(argv)
    # Imported late, so that --help answers at once.
    from stellaris_jax.reproduce.index import module_of
    from stellaris_jax.reproduce.study import Study, reproduce

    if arguments.paper == INDEX:
        _index(arguments.results or RESULTS)
        return
    paper = module_of(arguments.paper)
    unknown = [env for env in arguments.envs or () if env not in paper.ENVS]
    if unknown:
        raise ConfigError(f"--envs {unknown[0]} is not one of {', '.join(paper.ENVS)}.")
    study = Study(
        runs=arguments.runs or Path("runs") / arguments.paper,
        results=arguments.results or RESULTS / arguments.paper,
        envs=arguments.envs,
        seeds=arguments.seeds,
        tuning=not arguments.untuned,
    )
    with program.signalled():
        reproduce(study, paper.FIGURES, arguments.figure or list(paper.FIGURES))
    if not arguments.results:
        _index(RESULTS)


def _index(results: Path) -> None:
    from stellaris_jax.reproduce.index import write_index

    with working(f"writing {results / 'README.md'}"):
        write_index(results)
