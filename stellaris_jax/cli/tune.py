"""Searches for better settings of a configuration: proposes, trains, and stops unpromising trials early.

stellaris-jax tune env=gymnax/cartpole --space ppo --trials 32     a search; overrides as for train
stellaris-jax tune --resume DIR [--trials 64]                      go on with one, or further

SPACE is a file of configs/tune, or one of your own: `key: {low: 1e-4, high: 1e-1, log: true}` or `key: [a, b]`, a line
for each. All trials have the same seeds, three unless num_seeds= says otherwise. The first trial has the untuned
settings. Every trial is a run with a directory of its own, which all other commands accept.
"""

from __future__ import annotations

import json
import re
import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stellaris_jax.base.commands import as_override, command, named_modules, path_argument
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.registry import search_folder
from stellaris_jax.cli import program
from stellaris_jax.cli.working import working
from stellaris_jax.config.schema import LAST_SEED
from stellaris_jax.config.shipped import shipped_configs

MEASURES = ("return", "seconds", "dollars")
SEEDS = 3
FRESH_SEEDS = 5
NEW_SEARCH_ONLY = ("space", "reduction", "seed", "for", "target", "fresh-seeds", "dir", "config-dir")
"""Options of a new search; a resumed search keeps its own."""


@program.entry
def main(argv: Sequence[str]) -> None:
    """Run the command with these arguments, by default those of the process."""
    parser = program.Parser("tune", __doc__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="configuration to tune")
    parser.add_argument("--space", metavar="SPACE", help="search space: a name, or a .yaml file")
    parser.add_argument("--trials", type=program.at_least(1), metavar="N", help="number of trials (32)")
    parser.add_argument(
        "--reduction", type=program.at_least(0), metavar="R",
        help="one of R trials continues after 1/R² and 1/R of the evaluations; 0: all continue (3)",
    )  # fmt: skip
    parser.add_argument(
        "--parallel", type=program.at_least(1), metavar="N",
        help="most concurrent trials; by default one per core. With 1, a search repeats exactly",
    )  # fmt: skip
    parser.add_argument("--seed", type=program.seed, metavar="N", help="seed of the search (0)")
    parser.add_argument("--for", choices=MEASURES, metavar="WHAT", help="return (default), seconds, or dollars")
    parser.add_argument("--target", type=program.finite, metavar="R", help="return to reach in seconds or dollars")
    parser.add_argument(
        "--fresh-seeds", type=program.at_least(0), metavar="N",
        help="other seeds, on which the best trial is compared with the untuned settings (5); 0: none",
    )  # fmt: skip
    parser.add_argument("--dir", type=Path, metavar="DIR", help="directory of a new search")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="directory of a search to resume")
    parser.add_argument("--config-dir", metavar="DIR", help="as for train; its folder tune has precedence")
    program.add_trust(parser)
    given = parser.parse_mixed(argv)
    if given.reduction == 1:
        raise ConfigError("--reduction=1 stops no trial; accepted: 0, which stops none either, or at least 2.")
    if given.resume is not None and (refused := _new_search_only(given)):
        accepted = "--trials, --parallel, --plugin and --trust"
        raise ConfigError(f"{refused} cannot change when a search is resumed; --resume accepts {accepted}.")
    if given.resume is None and not given.space:
        from stellaris_jax.many.space import space_files

        names = ", ".join(space_files(_folders(None)))
        raise ConfigError(f"--space is missing; it names a .yaml file, or one of {names}.")
    program.require("optuna", of="tune", extra="tune")
    # Imported late, so that --help and mistakes are answered at once.
    from stellaris_jax.many import search_store, tune
    from stellaris_jax.many.judge import judge
    from stellaris_jax.many.score import shown

    search_folder(named_modules(given.overrides))
    trust = program.trust_of(given)
    directory = _new_search(given) if given.resume is None else given.resume
    with program.signalled():
        study = tune.tune(directory, given.trials, trust, given.parallel)
        config, _, search, _ = search_store.open_search(directory, given.trials, trust)
        compared = judge(directory, study, config, search, given.parallel) if search.fresh_seeds else ""
    with working(f"writing the page and the tables of {directory}"):
        written = tune.report(directory, study, search.goal)
    for path in written:
        print(path)
    best, place = study.best_trial, directory / str(study.best_trial.number)
    seeds = "1 seed" if config.num_seeds == 1 else f"{config.num_seeds} seeds"
    budget = f"{config.env.name}, {config.total_steps} env steps, {seeds}"
    print(f"trial {best.number}: {shown(study.best_value, search.goal)} ({budget}); its run is {place}")
    if compared:
        print(compared)
    _, overrides = search_store.stored_options(directory)
    if overrides is None:
        print(f"its settings: {place / 'config.yaml'}")
    else:
        settings = [_override(key, value) for key, value in best.params.items()]
        print(f"the same again: {command('train')} {shlex.join([*overrides, *settings])}")
    print(f"pages and tables: {command('report')} {path_argument(directory)}")
    if lost := tune.unfinished(study):
        raise RunError(
            f"{len(lost)} of {len(study.trials)} trials have damaged runs, and are not ranked: "
            f"{', '.join(map(str, lost))}. Put their files back, or remove their directories to train them again, then "
            f"continue with: {search_store.resume_command(directory)}"
        )


def _new_search_only(given: Namespace) -> str:
    """First argument that only a new search accepts; "" without one."""
    options = {f"--{name}": getattr(given, name.replace("-", "_")) for name in NEW_SEARCH_ONLY}
    return next((name for name, value in options.items() if value is not None), "") or " ".join(given.overrides[:1])


def _override(key: str, value: Any) -> str:
    return as_override(key, value) if isinstance(value, str) else f"{key}={json.dumps(value)}"


def _new_search(given: Namespace) -> Path:
    from stellaris_jax.execute.executors import check_installed
    from stellaris_jax.execute.loading import load_config
    from stellaris_jax.many import search_store
    from stellaris_jax.many.choose.files import FRESH
    from stellaris_jax.many.space import space_file
    from stellaris_jax.runs.run_dir import reserved, stamped

    seeds = any(re.match(r"\+*(num_seeds|seed)=", line) for line in given.overrides)
    overrides = [*given.overrides, *([] if seeds else [f"num_seeds={SEEDS}"])]
    config = load_config(overrides, given.config_dir)
    check_installed(config)
    if config.resume or config.run.dir:
        raise ConfigError("resume= and run.dir= belong to single runs; a search accepts --resume and --dir.")
    if not config.evaluation.points or not config.evaluation.episodes:
        raise ConfigError("evaluation.points and evaluation.episodes must not be 0: a search needs returns to compare.")
    space = space_file(given.space, _folders(given.config_dir))
    options = {name: getattr(given, name) for name in ("trials", "reduction", "seed", "target", "fresh_seeds")}
    options = {"fresh_seeds": FRESH_SEEDS} | {name: value for name, value in options.items() if value is not None}
    search = search_store.Search(measure=getattr(given, "for") or "return", **options)
    last = config.seed + FRESH + max(1, search.fresh_seeds) - 1
    if last > LAST_SEED:
        raise ConfigError(
            f"The last fresh seed, seed + {FRESH} + --fresh-seeds - 1 = {last}, must be at most {LAST_SEED}."
        )
    if given.dir is not None:
        directory: Path = given.dir
    else:
        path = stamped(Path("runs") / "tune", f"{space.stem}-{config.env.name}")
        directory = reserved(path, "--dir=PATH names another place")
    shown = [*overrides, *([f"--config-dir={given.config_dir}"] if given.config_dir else [])]
    search_store.begin(directory, config, space, search, shown)
    return directory


def _folders(config_dir: str | None) -> list[Path]:
    return [shipped_configs() / "tune", *([Path(config_dir) / "tune"] if config_dir else [])]
