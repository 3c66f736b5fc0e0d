"""Runs of the study: all candidates of a pair, and one choice, each with the processor seconds that it took."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from stellaris_jax.base.inputs import read_text
from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.config.tree import Config
from stellaris_jax.many.choose.arms import Space
from stellaris_jax.many.choose.building import candidates
from stellaris_jax.many.choose.choose import choose
from stellaris_jax.many.choose.files import ABOUT, Choice, Options, begin, laid, read
from stellaris_jax.many.choose.objective import Goal, Reached, seed_curves, to_target
from stellaris_jax.many.choose.stage import evaluations, is_over
from stellaris_jax.many.choose.texts import document
from stellaris_jax.many.concurrency import stoppable
from stellaris_jax.many.points import PointQueue
from stellaris_jax.telemetry.jsonl import plain
from stellaris_jax.telemetry.shared_display import SharedDisplay
from studies.choose.pairs import FRESH, SPACE, TASKS, Pair
from studies.study import Study

OPTIONS = Options(measure="seconds", budget=1e9, seeds=2, fresh_seeds=5, finalists=2)
"""Options of the choices; their budget is never spent, so they do not depend on the machine's speed."""


class Full(NamedTuple):
    """All candidates of a pair, on the same fresh seeds.

    Attributes:
      names: arm of each candidate.
      rates: learning rate of each candidate.
      values: seconds to the target `[candidate][seed]`, twice the longest run where it is not reached.
      reached: number of seeds of each candidate that reached it.
      seconds: processor seconds that all of it took; runs end once each seed has reached the target.
    """

    names: list[str]
    rates: list[float]
    values: list[list[float]]
    reached: list[int]
    seconds: float


def goal_of(pair: Pair) -> Goal:
    """Seconds to the task's target."""
    return Goal("seconds", TASKS[pair.task].target)


def full(pair: Pair, study: Study) -> Full:
    """All candidates of a pair; trained if the results do not have them."""
    path = _path(pair, study, "full")
    if path.is_file():
        return Full(**json.loads(read_text(path)))
    tried, refused = candidates(pair.overrides, Space.read(SPACE), OPTIONS)
    assert not refused, refused
    fresh = {"seed": FRESH[0], "num_seeds": len(FRESH)}
    place = study.runs / _slug(pair) / "full"
    configs = laid(place, [own.config.replace(fresh) for own in tried], pair.overrides)
    goal = goal_of(pair)
    with _clock(place.with_name("full_seconds.json")) as seconds:
        train([config for config in configs if not is_over(config, goal)], goal, place)
    runs = [evaluations(config) for config in configs]
    assert goal.target is not None
    cutoff = max(rows[-1][goal.axis] for rows in runs)
    curves = [seed_curves(rows, goal.axis) for rows in runs]
    values = [to_target(own, goal.target, cutoff) for own in curves]
    reached = [sum(value <= cutoff for value in own) for own in values]
    names, rates = [own.arm.name for own in tried], [own.learning_rate for own in tried]
    done = Full(names, rates, values, reached, seconds())
    write_atomically(path, json.dumps(done._asdict(), indent=1) + "\n")
    return done


def train(configs: Sequence[Config], goal: Goal, place: Path) -> None:
    """Train candidates until each of their seeds has reached the goal's target, or to their end."""
    assert goal.target is not None
    watches = [Reached(config.rounds, goal.target, every_seed=True) for config in configs]
    steps = [config.total_steps * config.num_seeds for config in configs]
    with (
        closing(SharedDisplay(Console(), steps, set(), unit="candidates")) as display,
        stoppable(display, place, lambda: "stopped; repeat the command to continue") as signals,
    ):
        PointQueue(configs, set(), display, signals, watch_of=watches.__getitem__).through()


def chosen(pair: Pair, study: Study) -> dict[str, Any]:
    """Answer of a choice among the candidates of a pair; made if the results do not have it."""
    path = _path(pair, study, "choice")
    if path.is_file():
        answer: dict[str, Any] = json.loads(read_text(path))
        return answer
    directory = study.runs / _slug(pair) / "choice"
    if (directory / ABOUT).is_file():
        choice = read(directory)
    else:
        options = OPTIONS._replace(target=TASKS[pair.task].target)
        tried, refused = candidates(pair.overrides, Space.read(SPACE), options)
        choice = begin(Choice(directory, options, pair.overrides, "", tuple(tried), refused))
    with _clock(directory.with_name("choice_seconds.json")) as seconds:
        answer = plain(document(choose(choice, print)))
    answer["processor_seconds"] = seconds()
    write_atomically(path, json.dumps(answer, indent=1) + "\n")
    return answer


@contextmanager
def _clock(path: Path) -> Iterator[Callable[[], float]]:
    """Processor seconds of work that may be interrupted, all threads together, kept in a file.

    They depend little on what else the machine does, unlike real seconds.
    """
    before = float(json.loads(read_text(path))) if path.is_file() else 0.0
    begin = time.process_time()

    def seconds() -> float:
        return before + time.process_time() - begin

    try:
        yield seconds
    finally:
        write_atomically(path, json.dumps(seconds()))


def _slug(pair: Pair) -> str:
    return "-".join(pair).replace(" ", "_")


def _path(pair: Pair, study: Study, kind: str) -> Path:
    return study.results / f"{_slug(pair)}-{kind}.json"
