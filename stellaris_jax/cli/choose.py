"""Chooses a system, a correction and a learning rate for a task, its delays and a number of learners.

stellaris-jax choose env=gymnax/cartpole delays=pareto system.learners=8 --target 400
stellaris-jax choose env=gymnax/cartpole --log jobs.csv --for dollars --budget 1h
stellaris-jax choose --resume DIR                               go on with a choice

First the timelines of all systems are compared, without training. Then candidates are trained a little, and the best
ones longer, until finalists and two baselines on equal hardware are judged on other seeds. DIR holds every run, a page
and the answer as JSON.
"""

from __future__ import annotations

import re
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stellaris_jax.base.commands import as_override, named_modules
from stellaris_jax.base.errors import ConfigError, printable
from stellaris_jax.base.registry import search_folder
from stellaris_jax.cli import program
from stellaris_jax.cli.working import working
from stellaris_jax.config.shipped import shipped_configs

if TYPE_CHECKING:
    from stellaris_jax.many.choose.files import Choice

MEASURES = ("seconds", "dollars", "return")
LONGEST_COMMAND = 2000
"""Characters of the longest command that is shown."""
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
NEW_ONLY = (
    "target",
    "for",
    "space",
    "systems",
    "seeds",
    "fresh-seeds",
    "finalists",
    "log",
    "live",
    "dir",
    "config-dir",
)
"""Options of a new choice; a resumed one keeps its own."""


def seconds(text: str) -> float:
    """Positive duration such as 90s, 20m or 1.5h, in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?)([smh]?)", text)
    if match is None or float(match[1]) <= 0 or len(match[1]) > 9:
        raise ArgumentTypeError(f"{text} is no duration; accepted: 90s, 20m, 1.5h")
    return float(match[1]) * UNITS[match[2] or "s"]


@program.entry
def main(argv: Sequence[str]) -> None:
    """Run the command with these arguments, by default those of the process."""
    since = time.monotonic()
    parser = program.Parser("choose", __doc__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="task, delays and learners, as for train")
    parser.add_argument(
        "--target", type=program.finite, metavar="R", help="return to reach; chosen from the search by default"
    )
    parser.add_argument("--for", choices=MEASURES, metavar="WHAT", help="seconds (default), dollars, or return")
    parser.add_argument("--budget", type=seconds, metavar="TIME", help="real time to spend, as 90s, 20m or 1h (20m)")
    parser.add_argument(
        "--log", type=program.path, metavar="FILE", help="log of jobs that durations and learners are taken from"
    )
    parser.add_argument(
        "--live",
        type=program.path,
        metavar="DIR",
        help="live run that durations and learners are taken from; a short one is made there if there is none",
    )
    parser.add_argument("--systems", metavar="A,B", help="systems to choose from; by default all of the space")
    parser.add_argument(
        "--space", metavar="SPACE", help="candidates: a name of configs/choose (default), or a .yaml file"
    )
    parser.add_argument(
        "--seeds", type=program.at_least(1), metavar="N", help="seeds of each candidate in the search (2)"
    )
    parser.add_argument(
        "--fresh-seeds", type=program.at_least(2), metavar="N", help="other seeds that judge finalists (8)"
    )
    parser.add_argument("--finalists", type=program.at_least(1), metavar="N", help="systems that are judged (3)")
    parser.add_argument(
        "--parallel", type=program.at_least(1), metavar="N", help="most concurrent runs; one per core by default"
    )
    parser.add_argument("--dir", type=program.path, metavar="DIR", help="directory of a new choice")
    parser.add_argument("--resume", type=program.path, metavar="DIR", help="directory of a choice to go on with")
    parser.add_argument("--config-dir", metavar="DIR", help="as for train; its folder choose has precedence")
    program.add_trust(parser)
    given = parser.parse_mixed(argv)
    if given.resume is not None and (refused := _new_only(given)):
        raise ConfigError(
            f"{refused} cannot change when a choice is resumed; --resume accepts --budget, --parallel, --plugin and "
            "--trust."
        )
    if given.log is not None and given.live is not None:
        raise ConfigError("--log and --live both name durations; give one of them.")
    # Imported late, so that --help and mistakes are answered at once.
    from rich.console import Console

    from stellaris_jax.many.choose import files
    from stellaris_jax.many.choose.choose import choose
    from stellaris_jax.many.choose.page import write
    from stellaris_jax.many.choose.texts import lines, train_command
    from stellaris_jax.report.table import print_sentence

    search_folder(named_modules(given.overrides))
    choice = _new(given) if given.resume is None else files.read(given.resume, program.trust_of(given))
    changed = {name: value for name in ("budget", "parallel") if (value := getattr(given, name)) is not None}
    choice = choice._replace(options=choice.options._replace(**changed))
    console = Console()

    def say(text: str) -> None:
        print_sentence(console, text, style="dim")

    with program.signalled():
        answer = choose(choice, say, since)
    with working(f"writing the page and the tables of {choice.directory}"):
        written = write(answer)
    for line in lines(answer):
        print_sentence(console, line)
    for path in written:
        print(path)
    told = printable(train_command(answer, answer.results[0]))
    # One learner on durations from a log has a list of them as a setting.
    print(told if len(told) <= LONGEST_COMMAND else f"The command that trains it is long; it is in {written[0]}.")


def _new_only(given: Namespace) -> str:
    """First argument that only a new choice accepts; "" without one."""
    options = {f"--{name}": getattr(given, name.replace("-", "_")) for name in NEW_ONLY}
    return next((name for name, value in options.items() if value is not None), "") or " ".join(given.overrides[:1])


def _new(given: Namespace) -> Choice:
    from stellaris_jax.many.choose import files
    from stellaris_jax.many.choose.arms import Space
    from stellaris_jax.many.choose.building import candidates, refuse
    from stellaris_jax.many.space import space_file
    from stellaris_jax.runs.run_dir import reserved, stamped
    from stellaris_jax.timeline.joblog import read_log

    folders = [shipped_configs() / "choose", *([Path(given.config_dir) / "choose"] if given.config_dir else [])]
    space = Space.read(space_file(given.space or "default", folders))
    if given.systems is not None:
        space = space.only([name.strip() for name in given.systems.split(",")])
    named = {"measure": "for", **{name: name for name in files.Options._fields if name != "measure"}}
    values = {field: getattr(given, option) for field, option in named.items()}
    options = files.Options(**{field: value for field, value in values.items() if value is not None})
    if options.measure == "return" and options.target is not None:
        raise ConfigError("--target is for seconds and dollars; --for return looks for the highest return.")
    refuse(given.overrides)
    log = given.log or given.live
    if given.live is not None and not given.live.exists():
        from stellaris_jax.many.choose.measuring import measure

        with working(f"a short live run in {given.live}, to measure durations"):
            measure(given.live, given.overrides, given.config_dir)
    if log is not None:
        read_log(log)
        if twice := next((line for line in given.overrides if re.match(r"\+*delays(@\w+)?=", line)), None):
            raise ConfigError(f"{twice} and --{'log' if given.log else 'live'} both name durations; give one of them.")
    delays = [] if log is None else ["delays=trace", as_override("delays.log", str(log.absolute()))]
    overrides = [*delays, *given.overrides]
    with working("composing the candidates"):
        tried, refused = candidates(overrides, space, options, given.config_dir)
    if given.dir is not None:
        directory: Path = given.dir
    else:
        path = stamped(Path("runs") / "choose", tried[0].config.env.name)
        directory = reserved(path, "--dir=PATH names another place")
    shown = [*overrides, *([f"--config-dir={given.config_dir}"] if given.config_dir else [])]
    return files.begin(
        files.Choice(directory, options, tuple(shown), "" if log is None else str(log), tuple(tried), refused)
    )
