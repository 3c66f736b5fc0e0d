"""Files of a choice: its options and the directories of its runs.

`choose.yaml` holds the options and candidates, `decisions.json` what was decided and the seconds that were spent (see
`decisions`).
`candidates`, `judged` and `learners` are sweeps, with a directory for each run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from stellaris_jax.base.commands import as_override, command, path_argument
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import refuse_links, write_atomically
from stellaris_jax.config.compose import compose_configs
from stellaris_jax.config.schema import LAST_SEED, plain, shown
from stellaris_jax.config.stored import from_yaml, read_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.config.trust import Trust
from stellaris_jax.execute.loading import checked
from stellaris_jax.many.choose.arms import Arm, Candidate
from stellaris_jax.many.choose.decisions import is_number
from stellaris_jax.many.choose.objective import AXES, Goal
from stellaris_jax.many.sweep import laid_out, lay_out
from stellaris_jax.report.points import ABOUT as SWEEP
from stellaris_jax.runs.run_dir import writing

ABOUT = "choose.yaml"
FRESH = 1000
"""Distance of the first fresh seed from the first seed of the search."""
NOWHERE = {"resume": "", "run.dir": ""}
"""Values of a stored configuration, which does not say where it is."""
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


def begin(choice: Choice) -> Choice:
    """Write a new choice into its directory; returns it with the candidates' places.

    `choose.yaml` is written last, so a directory that has one has all candidates.

    Raises ConfigError if the directory holds something.
    """
    directory, runs = choice.directory, choice.directory / CANDIDATES
    if not str(directory).isprintable() or "\\" in str(directory.absolute()):
        raise ConfigError(f"--dir={str(directory)!r} has a backslash, or letters that cannot be printed, in its path.")
    if _is_not_begun(directory):
        with writing(directory):
            (runs / SWEEP).unlink(missing_ok=True)
        _remove_beginnings(runs)
    elif directory.is_dir() and any(directory.iterdir()):
        raise ConfigError(f"--dir={directory} is not empty; name another directory, or continue with --resume.")
    arms = choice.arms
    configs = lay_out(runs, [own.config for own in choice.candidates], choice.overrides)
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


def _is_not_begun(directory: Path) -> bool:
    """Whether a directory holds nothing but the beginnings of candidates, which a killed process has left."""
    runs = directory / CANDIDATES
    if not directory.is_dir() or runs.is_symlink() or not runs.is_dir():
        return False
    others = [path for path in directory.iterdir() if path != runs and not _is_temporary(path, "choose")]
    return not others and all(path.name == SWEEP or _is_beginning(path) for path in runs.iterdir())


def read(directory: Path, trust: Trust = False) -> Choice:
    """Choice on disk, to resume it.

    Args:
      directory: its directory.
      trust: plug-ins and modules that its runs may import (see `config.trust`).

    Raises ConfigError if the directory holds none, or a damaged one.
    """
    path = directory / ABOUT
    if not path.is_file():
        begun = ", because it was stopped before it began; begin it again" if (directory / CANDIDATES).is_dir() else ""
        raise ConfigError(f"--resume={directory} holds no choice: there is no {path}{begun}.")
    tree = read_yaml(path)
    try:
        options = Options(**tree["options"])
        _check(options)
        arms = [_arm(own) for own in tree["arms"]]
        pairs = [(arms[_count(index)], _rate(rate)) for index, rate in tree["candidates"]]
        overrides, log = _lines(tree["overrides"]), _line(tree["log"])
        refused = {_line(name): _line(reason) for name, reason in tree["refused"].items()}
        if not pairs or len({arm.name for arm in arms}) < len(arms):
            raise ValueError
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):
        raise ConfigError(f"{path} is not as a choice writes it; put it back as it was.") from None
    _refuse_links(directory)
    places = laid_out(directory / CANDIDATES)
    if len(places) != len(pairs):
        raise ConfigError(f"{directory / CANDIDATES} should hold {len(pairs)} runs, and holds {len(places)}.")
    configs = stored(places, trust)
    candidates = [Candidate(arm, rate, config) for (arm, rate), config in zip(pairs, configs, strict=True)]
    for own, place in zip(candidates, places, strict=True):
        _check_candidate(own, options, place / "config.yaml")
    return Choice(directory, options, overrides, log, tuple(candidates), refused)


def _check(options: Options) -> None:
    """Raise ValueError for options out of range."""
    counts = [options.seeds, options.fresh_seeds, options.finalists]
    counts += [] if options.parallel is None else [options.parallel]
    numbers = [options.budget, *([] if options.target is None else [options.target])]
    if options.measure not in AXES or not all(type(count) is int and 1 <= count <= LAST_SEED for count in counts):
        raise ValueError
    if not all(map(is_number, numbers)) or options.budget <= 0:
        raise ValueError


def _arm(tree: Any) -> Arm:
    """Arm in a file. Raises ValueError, TypeError or KeyError."""
    arm = Arm(**tree | {"overrides": _lines(tree["overrides"])})
    if not (isinstance(arm.one_learner, bool) and isinstance(arm.baseline, bool)):
        raise ValueError
    return arm._replace(name=_line(arm.name), system=_line(arm.system))


def _lines(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError
    return tuple(map(_line, value))


def _line(value: Any) -> str:
    """Text on one line. Raises ValueError, also for letters that a terminal would take for commands."""
    if not (isinstance(value, str) and value.isprintable()):
        raise ValueError
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value


def _rate(value: Any) -> float:
    if not is_number(value) or value <= 0:
        raise ValueError
    return float(value)


def _check_candidate(own: Candidate, options: Options, path: Path) -> None:
    """Raise ConfigError for a stored configuration that cannot be the candidate's."""
    wanted = {"algorithm.learning_rate": own.learning_rate, "num_seeds": options.seeds}
    for key, value in wanted.items():
        if (found := attrgetter(key)(own.config)) != value:
            raise ConfigError(f"{path}: {key} is {shown(found)}, and {value} in {ABOUT}; put the file back as it was.")
    if not own.config.evaluation.points or not own.config.evaluation.episodes:
        raise ConfigError(f"{path}: evaluation.points and evaluation.episodes must not be 0; put the file back.")
    try:
        checked(own.config)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def stored(places: Sequence[Path], trust: Trust = False) -> list[Config]:
    """Stored configurations of runs, each with its place. Raises ConfigError."""
    return compose_configs([[as_override("resume", place)] for place in places], None, trust)


def resume_command(directory: Path) -> str:
    """Command that continues a choice."""
    return f"{command('choose')} --resume {path_argument(directory)}"


def with_budget(directory: Path, seconds: float) -> str:
    """Command that continues a choice with a budget, in whole minutes."""
    return f"{resume_command(directory)} --budget {max(1, math.ceil(seconds / 60))}m"


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
    for config, place in zip(configs, places, strict=True):
        if plain(from_yaml(place / "config.yaml")) != plain(config.replace(NOWHERE)):
            raise ConfigError(f"{place / 'config.yaml'} is of another run than this choice's; put it back as it was.")
    return [
        config.replace({"resume": str(place), "run.dir": str(place)})
        for config, place in zip(configs, places, strict=True)
    ]


def _refuse_links(directory: Path) -> None:
    """Raise RunError if directories of runs are links, which may lead to other runs of the user's."""
    with writing(directory):
        refuse_links(*(directory / name for name in (CANDIDATES, JUDGED, LEARNERS)))


def _remove_beginnings(directory: Path) -> None:
    """Remove what a killed process has made of a directory of runs before the first of them could start."""
    with writing(directory):
        refuse_links(directory)
        places = sorted(directory.iterdir())
        for place in places:
            if not (_is_temporary(place, "sweep") or _is_beginning(place)):
                raise ConfigError(f"{place} belongs to no choice; move it out of {directory}.")
        for place in places:
            for path in place.iterdir() if place.is_dir() else []:
                path.unlink()
            place.rmdir() if place.is_dir() else place.unlink()


def _is_beginning(place: Path) -> bool:
    """Whether a directory of a run holds nothing but its configuration."""
    if place.is_symlink() or not place.is_dir() or not place.name.isdecimal():
        return False
    return all(path.name == "config.yaml" or _is_temporary(path, "config") for path in place.iterdir())


def _is_temporary(path: Path, stem: str) -> bool:
    """Whether a file is what a kill has left of the writing of `STEM.yaml`."""
    return path.match(f".{stem}.*.tmp.yaml") and path.is_file() and not path.is_symlink()
