"""Repeats a paper's evaluation: trains missing runs, then writes CSV files, pictures and a table of claims.

stellaris-jax reproduce stellaris --results mine/stellaris                    everything, six environments, days
stellaris-jax reproduce stellaris --figure 11                                 one figure (or 11a, 11b)
stellaris-jax reproduce stellaris --figure 6 --envs hopper --seeds 3 --results mine/stellaris    less of it
stellaris-jax reproduce nitro --figure 15                                     rules that scale actors
stellaris-jax reproduce minionsrl --figure schedulers --results mine/minionsrl    trained and fine-tuned here
stellaris-jax reproduce map --figure methods --envs cartpole --results mine/map   every method against staleness
stellaris-jax reproduce actors --results mine/actors                          asynchronous actors, hours
stellaris-jax reproduce choose --results mine/choose                          choices beside all candidates, hours
stellaris-jax reproduce tokens --results mine/tokens                          methods on stale completions, hours
stellaris-jax reproduce off_policy --results mine/off_policy    stale gradients under DQN, SAC and PPO, hours
stellaris-jax reproduce regimes --results mine/regimes                        when asynchrony wins: timelines alone
stellaris-jax reproduce index                                                 all claims: results/README.md

Trained runs are stored below --runs, so an interrupted call can be repeated. Their returns are stored in learned.csv of
the results, so no run is trained twice. Each figure ends with both numbers: "0 trained, 120 read" (runs of one seed).
Several calls at once share the work.

A published figure is never replaced with fewer seeds, environments or series, nor extended with runs of other versions
or another machine. --results DIR writes elsewhere; --overwrite replaces the figure. Remove lines of learned.csv to
train them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import check_directory
from stellaris_jax.cli import program
from stellaris_jax.cli.working import working

PAPERS = ("stellaris", "nitro", "minionsrl", "actors", "choose", "tokens", "off_policy", "regimes", "map")
INDEX = "index"
RESULTS = Path("results")
_NO_TUNING = {"untuned": "its figures are at the paper's learning rates only"}
UNUSED: dict[str, dict[str, str]] = {
    "nitro": _NO_TUNING,
    "minionsrl": _NO_TUNING,
    "actors": {
        "seeds": "seeds 0 to 7 choose and seeds 8 to 15 judge, always",
        "untuned": "every setting is judged at the best of its learning rates",
    },
    "choose": {
        "seeds": "choices search and judge on seeds of their own, and seeds 2000 to 2007 compare all candidates",
        "untuned": "the learning rate is part of the choice",
    },
    "tokens": {
        "seeds": "seeds 0 and 1 choose and seeds 8 to 15 judge, always",
        "untuned": "every method is judged at the best of its learning rates",
    },
    "off_policy": {
        "seeds": "seeds 0 to 2 choose and seeds 8 to 15 judge, always",
        "untuned": "every setting is judged at the best of its learning rates",
    },
    "regimes": {
        "seeds": "all cells have seeds 0 to 4",
        "untuned": "nothing is trained",
        "envs": "nothing is trained",
    },
    "map": {
        "seeds": "seeds 0 to 7 choose and seeds 8 to 15 judge, always",
        "untuned": "--figure untuned compares methods without tuned learning rates",
    },
}
"""Options without effect on a paper's figures, with the reason."""


@program.entry
def main(argv: Sequence[str]) -> None:
    """Run the command with these arguments, by default those of the process."""
    parser = program.Parser("reproduce", __doc__)
    parser.add_argument("paper", choices=[*PAPERS, INDEX])
    parser.add_argument("--figure", action="append", help="figure to make; may be given several times; default all")
    count = program.at_least(1)
    parser.add_argument("--seeds", type=count, metavar="N", help="seeds per curve; default 5, and 10 for Figure 11")
    parser.add_argument("--envs", nargs="+", metavar="ENV", help="environments, such as hopper; default the paper's")
    parser.add_argument("--untuned", action="store_true", help="at the paper's learning rates only")
    parser.add_argument("--runs", type=Path, help="directory of the trained runs; default runs/<paper>")
    parser.add_argument("--results", type=Path, help="directory of the results; default results/<paper>")
    parser.add_argument("--overwrite", action="store_true", help="replace published figures, even with less")
    arguments = parser.parse_args(argv)
    for option in UNUSED.get(arguments.paper, ()):
        if getattr(arguments, option):
            raise ConfigError(f"--{option} does not go with {arguments.paper}: {UNUSED[arguments.paper][option]}.")
    # Imported late, so that --help is answered at once.
    from stellaris_jax.execute.session import Interrupted
    from studies.index import module_of
    from studies.study import Study, reproduce

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
        overwrite=arguments.overwrite,
    )
    with program.signalled():
        finish, notes = getattr(paper, "finish", None), getattr(paper, "NOTES", {})
        try:
            reproduce(study, paper.FIGURES, arguments.figure or list(paper.FIGURES), finish, notes)
        except Interrupted:
            print("the study goes on when its own command is repeated", flush=True)
            raise
    if not arguments.results:
        _index(RESULTS)


def _index(results: Path) -> None:
    from studies.index import write_index

    check_directory("--results", results)
    with working(f"writing {results / 'README.md'}"):
        write_index(results)
