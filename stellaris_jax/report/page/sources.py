"""Sources of the page: its runs, their hardware and versions, and commands that repeat them."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from stellaris_jax.base.commands import as_override, command
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.compose import choices, compose_config
from stellaris_jax.config.options import complete
from stellaris_jax.config.schema import flatten, plain, shown
from stellaris_jax.config.stored import from_yaml, read_yaml
from stellaris_jax.config.tree import Config, knobs
from stellaris_jax.report.page.markup import bullets
from stellaris_jax.report.points import load_points, points
from stellaris_jax.report.results import load_run
from stellaris_jax.report.runs import Run
from stellaris_jax.report.sweep import different
from stellaris_jax.telemetry.format import plural

GROUPS = ("env", "algorithm", "system", "scaling", "platform", "delays", "prices")
"""Groups of the configuration that name the chosen file."""
OF_THE_PLACE = ("run.dir", "run.name", "resume")
"""Keys of a run's location."""


@dataclass
class Sources:
    """Runs of a page.

    Attributes:
      runs: the runs.
      sweeps: directories of sweeps among the named places.
      notes: sentences about missing or damaged files.
    """

    runs: list[Run] = field(default_factory=list)
    sweeps: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def gather(places: Sequence[Path]) -> Sources:
    """Runs of directories: the run itself, the points of a sweep, or the runs in a directory.

    Missing and damaged files leave their part empty, with a note. A run that is named twice is read once.

    Raises:
      ConfigError: a directory does not exist, or holds neither a run nor directories of runs.
    """
    sources = Sources()
    seen: set[Path] = set()
    for place in places:
        if not place.is_dir():
            raise ConfigError(f"{place} is not a directory; name directories of runs, or of a sweep.")
        inside = _inside(place)
        if not inside:
            raise ConfigError(f"{place} holds neither a run (config.yaml, metrics.jsonl) nor directories of runs.")
        if inside != [place]:
            sources.sweeps.append(place)
        note, is_sweep = sources.notes.append, inside != [place] and inside == points(place)
        for run in load_points(place, note) if is_sweep else [load_run(path, note) for path in inside]:
            if run.path.resolve() not in seen:
                seen.add(run.path.resolve())
                sources.runs.append(run)
    unique = different(sources.runs)
    for run in sources.runs:
        if not any(run is other for other in unique):
            sources.notes.append(f"{run.path} has the configuration and the seed of a run before it, and is left out")
        elif not run.config:
            sources.notes.append(f"{run.path} has no configuration that can be read, and is left out")
        elif unknown := [key for key in run.config if _is_unknown(key)]:
            sources.notes.append(f"{run.path}/config.yaml has {shown(unknown[0])}, which is not a config key")
    sources.runs = unique
    return sources


def _is_unknown(key: str) -> bool:
    """Whether the schema lacks a key of a run, so that the run can neither be opened nor repeated."""
    free = (name for name, knob in knobs().items() if knob.kind == dict[str, Any])
    return key not in knobs() and not any(key.startswith(f"{name}.") for name in free)


def holds_runs(place: Path) -> bool:
    """Whether a directory is a run, or contains runs."""
    return bool(_inside(place))


def _inside(place: Path) -> list[Path]:
    return [place] if _is_run(place) else points(place) or sorted(filter(_is_run, place.iterdir()))


def _is_run(place: Path) -> bool:
    return (place / "config.yaml").is_file() or (place / "metrics.jsonl").is_file()


def sweep_command(sweep: Path) -> str | None:
    """Command that started a sweep, from its multirun.yaml; None if that cannot be read."""
    path = sweep / "multirun.yaml"
    try:
        task = read_yaml(path)["hydra"]["overrides"]["task"] if path.is_file() else None
    except (ConfigError, KeyError, TypeError):
        return None
    if not isinstance(task, list) or not all(isinstance(line, str) for line in task):
        return None
    return shlex.join([*_command("train"), "-m", *task])


def run_command(run: Run) -> str | None:
    """Command that leads to the configuration of a run; None if there is none, as for a run with plug-ins.

    A run may come from anybody, so none of its text is composed, only names of shipped files. The run's own values are
    compared as data, and an override is shown only if Hydra's grammar reads the same value back.
    """
    try:
        config = from_yaml(run.path / "config.yaml")
        stored = flat(config)
    except ConfigError:
        return None
    if config.plugins:
        return None
    for chosen in (_choices(stored), []):
        base = complete(compose_config(chosen))
        known = flat(base)
        changed = {key: value for key, value in stored.items() if known.get(key) != value}
        lines = [_override(key, value) for key, value in changed.items()]
        if None not in lines and _leads_to(base, changed, stored):
            return shlex.join([*_command("train"), *chosen, *map(str, lines)])
    return None


def flat(config: Config) -> dict[str, Any]:
    """Configuration by its dotted keys, without the keys of a run's location."""
    return {key: value for key, value in flatten(plain(config)).items() if key not in OF_THE_PLACE}


def _choices(stored: Mapping[str, Any]) -> list[str]:
    """Choices of the groups that a configuration names: shipped files, or an environment with a plain name."""
    chosen = []
    for group in GROUPS:
        name = str(stored.get(f"{group}.name"))
        shipped = PLAIN_NAME.fullmatch(name) if group == "env" else name in choices(group)
        chosen += [as_override(group, name)] * bool(shipped)
    return chosen


PLAIN_NAME = re.compile(r"[a-z0-9_]+/[a-z][a-z0-9_.-]*", re.ASCII | re.IGNORECASE)
"""Pattern of an environment's name, `suite/name`, for which no module is imported."""


def _leads_to(base: Config, changed: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Whether a configuration with changed values is the stored one."""
    try:
        return flat(complete(base.replace(changed))) == stored
    except (ConfigError, RecursionError):
        return False


def _command(name: str) -> list[str]:
    return shlex.split(command(name))


def _override(key: str, value: Any) -> str | None:
    """Override that sets a key, if Hydra's grammar reads the value back; else None."""
    line = as_override(key, value) if isinstance(value, str) else f"{key}={json.dumps(value)}"
    try:
        (read,) = OverridesParser.create().parse_overrides([line])
        return line if read.key_or_group == key and read.value() == value and read.package is None else None
    except (HydraException, RecursionError, ValueError):
        return None


def origins(runs: Sequence[Run]) -> str:
    """Markup of the hardware and the package versions of runs."""
    parts = {"Hardware": machines(runs), "Versions": versions(runs)}
    return "".join(f"<h3>{name}</h3>{bullets(lines)}" for name, lines in parts.items() if lines)


def machines(runs: Sequence[Run]) -> list[str]:
    """Devices that runs were executed on, each with the number of runs."""
    counts = Counter(str(run.summary["device"]) for run in runs if run.summary and run.summary.get("device"))
    return [f"{device}: {plural(count, 'run')}" for device, count in counts.items()]


def versions(runs: Sequence[Run]) -> list[str]:
    """Versions of packages that runs were executed with, each with the number of runs."""
    texts = []
    for run in runs:
        named = run.summary.get("versions") if run.summary else None
        if isinstance(named, dict):
            texts.append(", ".join(f"{name} {number}" for name, number in named.items()))
    return [f"{text}: {plural(count, 'run')}" for text, count in Counter(texts).items()]
