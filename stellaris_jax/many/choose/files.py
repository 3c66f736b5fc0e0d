"""Files of a choice: its options, its decisions so far, and the directories of its runs.

`choose.yaml` holds the options and candidates, `decisions.json` what was decided and the seconds that were spent.
`candidates`, `judged` and `learners` are sweeps, with a directory for each run.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from stellaris_jax.base import inputs
from stellaris_jax.base.commands import as_override, command, path_argument
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.config.compose import compose_configs
from stellaris_jax.config.stored import read_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.config.trust import Trust
from stellaris_jax.many.choose.arms import Arm, Candidate
from stellaris_jax.many.choose.objective import AXES, Goal
from stellaris_jax.many.sweep import laid_out, lay_out
from stellaris_jax.report.results import ABOUT as SWEEP
from stellaris_jax.runs.run_dir import writing

ABOUT, DECISIONS = "choose.yaml", "decisions.json"
CANDIDATES, JUDGED, LEARNERS = "candidates", "judged", "learners"
"""Directories of the runs of the search, of the judgement, and with other numbers of learners."""


class Options(NamedTuple):
    """Options of a choice.

    Attributes:
      measure: `seconds`, `dollars` or `return`.
      target: return to reach; `None` to choose one after the search.
      budget: seconds of real time.
      seeds: seeds of each candidate in the search.
      fresh_seeds: other seeds, by which finalists are judged.
      finalists: number of systems that are judged beside the baselines.
      parallel: most concurrent runs; `None` for as many as cores and memory allow.
    """

    measure: str = "seconds"
    target: float | None = None
    budget: float = 1200.0
    seeds: int = 2
    fresh_seeds: int = 8
    finalists: int = 3
    parallel: int | None = None

    @property
    def goal(self) -> Goal:
        """Goal of the search."""
        return Goal(self.measure, None if self.measure == "return" else self.target)


class Choice(NamedTuple):
    """Choice on disk, as it was begun.

    Attributes:
      directory: its directory.
      options: options of the choice.
      overrides: overrides of the task, its delays and its learners.
      log: log of jobs that the delays come from; "" for none.
      candidates: all candidates, by number.
      refused: systems that cannot run with this task, each with the reason.
    """

    directory: Path
    options: Options
    overrides: tuple[str, ...]
    log: str
    candidates: tuple[Candidate, ...]
    refused: dict[str, str]

    @property
    def arms(self) -> list[Arm]:
        """Systems and corrections, in the order of their first candidates."""
        return list(dict.fromkeys(candidate.arm for candidate in self.candidates))


class Decisions:
    """Decisions of a choice, stored when they are made, and the real seconds that it has taken.

    A choice that is resumed repeats none of them, so it ends as an uninterrupted one does.

    Args:
      directory: directory of the choice.
    """

    def __init__(self, directory: Path):
        self.path = directory / DECISIONS
        self._made: dict[str, Any] = {}
        self._spent, self._since = 0.0, time.monotonic()
        if self.path.is_file():
            document = _read(self.path)
            self._made, self._spent = document["decisions"], float(document["seconds"])

    @property
    def seconds(self) -> float:
        """Real seconds spent so far, those before a resume included."""
        return self._spent + time.monotonic() - self._since

    def __contains__(self, name: str) -> bool:
        return name in self._made

    def __getitem__(self, name: str) -> Any:
        return self._made[name]

    def make(self, name: str, value: Any) -> Any:
        """Store a decision, unless it was made before; returns the one that holds."""
        if name not in self._made:
            self._made[name] = value
            self.save()
        return self._made[name]

    def save(self) -> None:
        """Store decisions and seconds."""
        with writing(self.path.parent):
            document = {"seconds": round(self.seconds, 1), "decisions": self._made}
            write_atomically(self.path, json.dumps(document, indent=1) + "\n")


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(inputs.read_text(path))
        decisions, seconds = document["decisions"], document["seconds"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read: {inputs.reason(error)}.") from None
    if not (isinstance(decisions, dict) and isinstance(seconds, int | float) and seconds >= 0):
        raise ConfigError(f"{path} is not as a choice writes it.")
    return {"decisions": decisions, "seconds": seconds}


def begin(choice: Choice) -> Choice:
    """Write a new choice into its directory; returns it with the candidates' places.

    `choose.yaml` is written last, so a directory that has one has all candidates.

    Raises ConfigError if the directory holds something.
    """
    directory = choice.directory
    if directory.is_dir() and any(directory.iterdir()):
        raise ConfigError(f"--dir={directory} is not empty; name another directory, or continue with --resume.")
    arms = choice.arms
    configs = lay_out(directory / CANDIDATES, [own.config for own in choice.candidates], choice.overrides)
    document = {
        "options": choice.options._asdict(),
        "overrides": list(choice.overrides),
        "log": choice.log,
        "arms": [arm._asdict() | {"overrides": list(arm.overrides)} for arm in arms],
        "candidates": [[arms.index(own.arm), own.learning_rate] for own in choice.candidates],
        "refused": choice.refused,
    }
    with writing(directory):
        write_atomically(directory / ABOUT, OmegaConf.to_yaml(OmegaConf.create(document)))
    placed = [own._replace(config=config) for own, config in zip(choice.candidates, configs, strict=True)]
    return choice._replace(candidates=tuple(placed))


def read(directory: Path, trust: Trust = False) -> Choice:
    """Choice on disk, to resume it.

    Args:
      directory: its directory.
      trust: plug-ins and modules that its runs may import (see `config.trust`).

    Raises ConfigError if the directory holds none, or a damaged one.
    """
    path = directory / ABOUT
    if not path.is_file():
        raise ConfigError(f"--resume={directory} holds no choice: there is no {path}.")
    tree = read_yaml(path)
    try:
        options = Options(**tree["options"])
        _check(options)
        arms = [Arm(**own | {"overrides": tuple(own["overrides"])}) for own in tree["arms"]]
        pairs = [(arms[index], float(rate)) for index, rate in tree["candidates"]]
        overrides, refused = tuple(map(str, tree["overrides"])), dict(tree["refused"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise ConfigError(f"{path} is not as a choice writes it; put it back as it was.") from None
    places = laid_out(directory / CANDIDATES)
    if len(places) != len(pairs):
        raise ConfigError(f"{directory / CANDIDATES} should hold {len(pairs)} runs, and holds {len(places)}.")
    configs = stored(places, trust)
    candidates = [Candidate(arm, rate, config) for (arm, rate), config in zip(pairs, configs, strict=True)]
    return Choice(directory, options, overrides, str(tree["log"]), tuple(candidates), refused)


def _check(options: Options) -> None:
    """Raise ValueError for options out of range."""
    counts = (options.seeds, options.fresh_seeds, options.finalists)
    numbers = (options.budget, 0.0 if options.target is None else options.target)
    if options.measure not in AXES or not all(type(count) is int and count >= 1 for count in counts):
        raise ValueError
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        raise ValueError


def stored(places: Sequence[Path], trust: Trust = False) -> list[Config]:
    """Stored configurations of runs, each with its place. Raises ConfigError."""
    return compose_configs([[as_override("resume", place)] for place in places], None, trust)


def resume_command(directory: Path) -> str:
    """Command that continues a choice."""
    return f"{command('choose')} --resume {path_argument(directory)}"


def laid(directory: Path, configs: Sequence[Config], overrides: Sequence[str]) -> list[Config]:
    """Configurations of the runs of one directory, each with its place; the directories are made if need be.

    Args:
      directory: directory of the runs.
      configs: configurations, in the order of their numbers.
      overrides: overrides that all of them share.

    Raises ConfigError if the directory holds other runs.
    """
    if not (directory / SWEEP).is_file():
        if directory.is_dir():
            _remove_beginnings(directory)
        return lay_out(directory, configs, overrides)
    places = laid_out(directory)
    if len(places) != len(configs):
        raise ConfigError(f"{directory} should hold {len(configs)} runs, and holds {len(places)}.")
    return [
        config.replace({"resume": str(place), "run.dir": str(place)})
        for config, place in zip(configs, places, strict=True)
    ]


def _remove_beginnings(directory: Path) -> None:
    """Remove what a killed process has made of a directory of runs before the first of them could start."""
    with writing(directory):
        for place in sorted(directory.iterdir()):
            if place.is_symlink() or not place.is_dir() or {path.name for path in place.iterdir()} - {"config.yaml"}:
                raise ConfigError(f"{place} belongs to no choice; move it out of {directory}.")
        for place in sorted(directory.iterdir()):
            for path in place.iterdir():
                path.unlink()
            place.rmdir()
