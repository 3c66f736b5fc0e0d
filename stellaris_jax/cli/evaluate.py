"""Evaluates the newest policy of a run, or another one that was kept, or films it.

stellaris-jax evaluate RUN_DIR [--episodes N] [--seed S] [--greedy | --sample] [--round N|best]
stellaris-jax evaluate RUN_DIR env.kwargs.NAME=VALUE ...        in another environment than the run's
stellaris-jax evaluate RUN_DIR --video FILE [--video-episodes N] [--seed S] [--greedy | --sample]

By default actions are chosen as in the evaluations of the run (evaluation.greedy).
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.inputs import reason
from stellaris_jax.cli import program
from stellaris_jax.cli.working import working

if TYPE_CHECKING:
    from stellaris_jax.execute.trainer import Trainer

KWARGS = "env.kwargs."


@program.entry
def main(argv: Sequence[str]) -> None:
    """Run the command with these arguments, by default those of the process."""
    parser = program.Parser("evaluate", __doc__)
    count = program.at_least(1)
    parser.add_argument("run_dir", help="directory of the run")
    parser.add_argument(
        "settings", nargs="*", metavar=f"{KWARGS}NAME=VALUE", help="arguments of the environment, other than the run's"
    )
    parser.add_argument("--episodes", type=count, default=128, help="episodes per trained seed (default 128)")
    parser.add_argument("--seed", type=program.seed, default=0, help="picks other episodes (default 0)")
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument("--greedy", action="store_true", help="take the most likely actions")
    actions.add_argument("--sample", action="store_true", help="sample actions from the policy")
    parser.add_argument(
        "--trained-seed",
        type=program.seed,
        metavar="N",
        help="only this one of the trained seeds (default all; films: the first)",
    )
    parser.add_argument("--video", metavar="FILE", help="film one trained seed instead, as .mp4 or (short) .gif")
    parser.add_argument("--video-episodes", type=count, default=1, metavar="N", help="episodes in the film (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    program.add_round(parser)
    program.add_trust(parser)
    arguments = parser.parse_mixed(argv)
    settings = dict(map(setting, arguments.settings))

    if arguments.video is not None:
        from stellaris_jax.policies.video import checked

        checked(arguments.video)
    values: dict[str, Any] = {"evaluation.episodes": arguments.episodes} if arguments.video is None else {}
    values |= settings
    if arguments.greedy or arguments.sample:
        values["evaluation.greedy"] = arguments.greedy
    is_run = os.path.isfile(os.path.join(arguments.run_dir, "config.yaml"))
    with working(f"restoring the policy of {arguments.run_dir}", when=is_run):
        # Imported late, so that --help is answered at once.
        from stellaris_jax.execute.run import open_run

        trainer = open_run(arguments.run_dir, values, program.trust_of(arguments), arguments.round, alone=True)
    if arguments.video is None:
        evaluate(trainer, arguments, settings)
        return
    try:
        film(trainer, arguments)
    except OSError as error:
        raise RunError(f"{error.filename or arguments.video} cannot be written: {reason(error)}.") from error


def setting(line: str) -> tuple[str, Any]:
    """Key and value of an environment's argument on the command line.

    Raises ConfigError for anything else: policies play in the environment they were trained in, else as they were.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser  # the grammar of `train`; slow to import
    from hydra.errors import HydraException

    try:
        (read,) = OverridesParser.create().parse_overrides([line])
        key, value = read.key_or_group, read.value()
    except (HydraException, RecursionError, ValueError):
        key, value = "", None
    if not key.startswith(KWARGS) or not key.removeprefix(KWARGS).isidentifier() or read.is_sweep_override():
        raise ConfigError(f"{line!r} is no argument of the environment; accepted: {KWARGS}NAME=VALUE.")
    return key, value


def evaluate(trainer: Trainer, arguments: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Evaluate the trained seeds, or one of them, and print their returns and the environment's changed settings."""
    from stellaris_jax.engine.evaluate import Evaluation
    from stellaris_jax.telemetry.format import basis, over_seeds, plural, significant
    from stellaris_jax.telemetry.jsonl import plain

    seeds = trainer.seeds if arguments.trained_seed is None else (arguments.trained_seed,)
    places = [trainer.place_of(seed) for seed in seeds]
    with working(f"playing {plural(arguments.episodes * len(trainer.seeds), 'episode')} of {trainer.env.name}"):
        result = trainer.evaluate(arguments.episodes, stream=arguments.seed)
    result = Evaluation(result.returns[places], result.lengths[places])
    mean, ci95 = result.mean_ci95()
    if not math.isfinite(mean):
        raise RunError(f"the return of round {trainer.round} of {arguments.run_dir} is {mean}, which is no result.")
    how = trainer.accounts.actions
    if arguments.json:
        figures = {"round": trainer.round, "episodes": int(result.returns.size), "actions": how, "return_mean": mean}
        figures |= settings
        print(json.dumps(plain({**figures, "return_ci95": ci95, "length_mean": result.lengths.mean()})))
        return
    of = basis(len(seeds), result.returns.size)
    print(", ".join([f"{trainer.config.env.name}, round {trainer.round}", *arguments.settings]))
    print(f"return {over_seeds(mean, ci95, result.per_seed)}, {of}, {how} actions; length {result.lengths.mean():.1f}")
    if trainer.env.max_episode_steps is None:
        limit = trainer.config.evaluation.episode_limit
        reached = f"{(result.lengths >= limit).sum()} of {result.lengths.size} episodes reached"
        print(f"{reached} evaluation.episode_limit={limit}, where they were cut")
    if len(seeds) > 1:
        each = zip(seeds, result.per_seed, strict=True)
        print("per seed: " + ", ".join(f"{seed}: {significant(value)}" for seed, value in each))


def film(trainer: Trainer, arguments: argparse.Namespace) -> None:
    """Write the film, then print its path and the returns of its episodes."""
    from stellaris_jax.policies import video
    from stellaris_jax.telemetry.format import plural

    with working(f"filming {plural(arguments.video_episodes, 'episode')} of {trainer.env.name}"):
        shown = video.film(trainer, arguments.video, arguments.video_episodes, arguments.seed, arguments.trained_seed)
    returns, lengths = shown.returns[0].tolist(), shown.lengths[0].tolist()
    if arguments.json:
        figures = {"round": trainer.round, "video": arguments.video, "returns": returns, "lengths": lengths}
        print(json.dumps(figures))
        return
    print(f"{trainer.config.env.name}, round {trainer.round}: {arguments.video}")
    for total, length in zip(returns, lengths, strict=True):
        print(f"return {total:.2f}, length {length}")
