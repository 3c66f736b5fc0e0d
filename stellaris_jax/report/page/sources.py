"""Where the page's runs come from, on what they ran, and how they are run again."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stellaris_jax.config.commands import as_override, command
from stellaris_jax.config.compose import compose_config
from stellaris_jax.config.options import complete
from stellaris_jax.config.schema import ConfigError, flatten, plain
from stellaris_jax.config.stored import read_yaml
from stellaris_jax.report.points import load_points, points
from stellaris_jax.report.results import load_run
from stellaris_jax.report.runs import Run
from stellaris_jax.report.sweep import different

GROUPS = ("env", "algorithm", "system", "scaling", "platform", "delays", "prices")
"""Groups of the configuration whose choice is named in it."""
OF_THE_PLACE = ("run.dir", "run.name", "resume")
"""Keys that say where a run lies."""


@dataclass
class Sources:
    """Runs, the directories of sweeps among those that were named, and what reading them had to complain of."""

    runs: list[Run] = field(default_factory=list)
    sweeps: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def gather(places: Sequence[Path]) -> Sources:
    """The runs of directories: of each a run itself, the points of a sweep, or the runs that lie in it.

    Missing and damaged files leave their part empty, with a note. What was named twice is read once.

    Raises:
      ConfigError: a directory does not exist, or holds neither a run nor directories of runs.
    """
    found = Sources()
    seen: set[Path] = set()
    for place in places:
        if not place.is_dir():
            raise ConfigError(f"{place} is not a directory; name directories of runs, or of a sweep.")
        inside = _inside(place)
        if not inside:
            raise ConfigError(f"{place} holds neither a run (config.yaml, metrics.jsonl) nor directories of runs.")
        if inside != [place]:
            found.sweeps.append(place)
        note, is_sweep = found.notes.append, inside != [place] and inside == points(place)
        for run in load_points(place, note) if is_sweep else [load_run(path, note) for path in inside]:
            if run.path.resolve() not in seen:
                seen.add(run.path.resolve())
                found.runs.append(run)
    kept = different(found.runs)
    for run in found.runs:
        if not any(run is one for one in kept):
            found.notes.append(f"{run.path} has the configuration and the seed of a run before it, and is left out")
        elif not run.config:
            found.notes.append(f"{run.path} has no configuration that can be read, and is left out")
    found.runs = kept
    return found


def holds_runs(place: Path) -> bool:
    """Whether a directory is a run, or has runs in it."""
    return bool(_inside(place))


def _inside(place: Path) -> list[Path]:
    return [place] if _is_run(place) else points(place) or sorted(filter(_is_run, place.iterdir()))


def _is_run(place: Path) -> bool:
    return (place / "config.yaml").is_file() or (place / "metrics.jsonl").is_file()


def sweep_command(sweep: Path) -> str | None:
    """The command that a sweep was started with, by its multirun.yaml; None where there is none to be read."""
    path = sweep / "multirun.yaml"
    try:
        task = read_yaml(path)["hydra"]["overrides"]["task"] if path.is_file() else None
    except (ConfigError, KeyError, TypeError):
        return None
    if not isinstance(task, list) or not all(isinstance(line, str) for line in task):
        return None
    return shlex.join([*_called("train"), "-m", *task])


def run_command(run: Run) -> str | None:
    """A command that leads to the configuration of a run; None where there is none, as of plug-ins not at hand."""
    stored = {key: value for key, value in run.config.items() if key not in OF_THE_PLACE}
    if run.config.get("plugins"):
        return None  # composing would run their code
    chosen = [as_override(group, str(run.config[f"{group}.name"])) for group in GROUPS if f"{group}.name" in run.config]
    for choices in (chosen, []):
        try:
            known = composed(choices)
            changed = [_override(key, value) for key, value in stored.items() if known.get(key) != value]
            if composed([*choices, *changed]) == stored:
                return shlex.join([*_called("train"), *choices, *changed])
        except ConfigError:
            continue
    return None


def _called(name: str) -> list[str]:
    return shlex.split(command(name))


def composed(overrides: list[str]) -> dict[str, Any]:
    """What overrides lead to as a flat configuration, with all options written out as in that of a run."""
    flat = flatten(plain(complete(compose_config(overrides))))
    return {key: value for key, value in flat.items() if key not in OF_THE_PLACE}


def _override(key: str, value: Any) -> str:
    if isinstance(value, str):
        return as_override(key, value)
    return f"{key}={json.dumps(value)}" if value != {} else f"{key}={{}}"


def machines(runs: Sequence[Run]) -> list[str]:
    """What runs were executed on, each with how many of them."""
    counts = Counter(str(run.summary["device"]) for run in runs if run.summary and run.summary.get("device"))
    return [f"{device}: {_runs(count)}" for device, count in counts.items()]


def versions(runs: Sequence[Run]) -> list[str]:
    """The versions of what runs were executed with, each with how many of them."""
    texts = []
    for run in runs:
        named = run.summary.get("versions") if run.summary else None
        if isinstance(named, dict):
            texts.append(", ".join(f"{name} {number}" for name, number in named.items()))
    return [f"{text}: {_runs(count)}" for text, count in Counter(texts).items()]


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"
