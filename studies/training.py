"""Training of the configurations that figures need, each once: finished runs are kept, interrupted ones are resumed.

Several processes may work on one study: each takes a run that no other process is training.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Any

import jax

from stellaris_jax.base.commands import as_override
from stellaris_jax.base.errors import RunError
from stellaris_jax.base.registry import register
from stellaris_jax.config.optioned import options_of
from stellaris_jax.config.options import PLACES
from stellaris_jax.config.sections import PlatformConfig
from stellaris_jax.config.tree import Config, knobs
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.run import train
from stellaris_jax.report.runs import Run, read_run
from stellaris_jax.timeline.delays import Measured
from stellaris_jax.timeline.platform import Placement
from stellaris_jax.timeline.scaling.scheduler import SHIPPED, Scheduler
from studies.files import locked

BLOCK = 5
"""Seeds of one run, trained together. More seeds are more runs, so that five become ten by adding five."""
IRRELEVANT = ("seed", "num_seeds", "resume", "plugins", "engine.", "run.", "checkpoint.", "env.timeout", "system.name",
              "scaling.name", "platform.name", "delays.name", "prices.name")  # fmt: skip
"""Keys, or prefixes of keys, that do not affect training results."""

LOADER = "delays.loader"
"""Section whose options digests have never covered."""


def relevant(config: Config) -> dict[str, Any]:
    """Settings that affect training results, by the keys they had when the first results were stored."""
    keys = (key for key in knobs() if not key.startswith(IRRELEVANT) and not key.endswith("options"))
    return {key: attrgetter(key)(config) for key in keys}


def first_weights(config: Config) -> dict[str, Any]:
    """Value of `system.weights` in the keys of the first stored results: an option of the rule, always a power."""
    default = "artifact" if config.system.rule == "artifact" else "power"
    named = config.system.weights
    return {"constant": {"system.weighting": False}, default: {}}.get(named, {"system.weights": named})


def first_key(section: str, option: str) -> str:
    """Key of an option when the first results were stored."""
    key = f"{section}.{option}"
    return {"system.c": "system.softsync_c", "system.s": "system.ssp_s"}.get(key, key)


def _options(config: Config) -> dict[str, Any]:
    """Options that are not at their defaults, by the keys they had when the first results were stored.

    Options that shared such a key and have different values now have their own keys.
    """
    named = [(place, owner) for place in PLACES for owner in place.owners(config) if place.section != LOADER]
    values: dict[str, list[Any]] = {}
    for place, owner in named:
        for name in options_of(owner.thing):
            values.setdefault(first_key(place.section, name), []).append(owner.given[name])
    changed = {}
    for place, owner in named:
        for name, option in options_of(owner.thing).items():
            if (value := owner.given[name]) != option.default:
                first = first_key(place.section, name)
                shared = all(other == value for other in values[first])
                changed[first if shared else f"{owner.key}.{name}"] = value
    return changed


def revisions(config: Config) -> list[str]:
    """Changes of this package that affect this configuration's results, since the first results were stored.

    A change of a default of the schema, or of a setting's meaning, needs a new line here. It changes the digest, so
    that affected variants are trained again.
    """
    changes = {
        "episodes of host environments outlast evaluations": config.env.name.startswith("envpool/"),
        "body and heads of a shared network have keys of their own": config.network.shared,
        "events of the same nanosecond happen in the order of scheduling": _ties(config),
        "learners that start up or are passed data slow nobody down": _waits_during_contention(config),
        "Adam's bias correction goes by beta_1 of every step": "less_momentum" in config.system.corrections,
    }
    return [change for change, concerns in changes.items() if concerns]


def _ties(config: Config) -> bool:
    """Whether learners may end at once and their order matters; it does not if the rule waits for all learners."""
    delay = register.delay[config.delays.learner.kind]
    repeats = not delay.noise or issubclass(delay, Measured)
    several = config.system.learners > 1 and config.system.rule not in ("allreduce", "central")
    return config.executor == "simulated" and repeats and several


def _waits_during_contention(config: Config) -> bool:
    """Whether learners start up or receive data while computing learners slow each other down.

    Pre-warmed containers with at least the default keep-alive stay warm.
    """
    platform, placement = config.platform, Placement(config.platform, config.system.learners)
    shared = config.executor == "simulated" and (platform.contention > 0 or platform.interference > 0)
    passing = any(placement.passing(learner) for learner in range(config.system.learners))
    cools = not platform.prewarm or platform.keep_alive < PlatformConfig().keep_alive
    return shared and (passing or platform.warm_start > 0 or (cools and platform.cold_start > 0))


@dataclass(frozen=True)
class Variant:
    """Configuration of a study.

    Attributes:
      name: folder of its runs below the study's.
      overrides: settings, as on the command line of `scripts/train.py`.
    """

    name: str
    overrides: tuple[str, ...]

    @cached_property
    def digest(self) -> str:
        """Digest of all that affects its results.

        It covers every setting that differs from the schema's default, except seeds, paths, and how this machine
        computes. It also covers the files that the variant reads, and the package's own `revisions`.
        """
        config, default = load_config([*self.overrides]), Config()
        settings = {key: value for key, value in relevant(config).items() if value != attrgetter(key)(default)}
        settings.pop("system.weights", None)
        settings |= first_weights(config) | _options(config)
        if config.scaling.rule == "minionsrl":
            settings["scheduler"] = Scheduler.load(config.scaling.options["scheduler"] or SHIPPED).digest
        settings |= dict.fromkeys(revisions(config), True)
        return sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

    def with_settings(self, label: str, *overrides: str) -> Variant:
        """This variant with further settings, as `<name>-<label>`."""
        return Variant(f"{self.name}-{label}", (*self.overrides, *overrides))


@dataclass(frozen=True)
class Job:
    """Run of a variant.

    Attributes:
      variant: the variant.
      first: first seed.
      count: number of seeds, from the first one on.
    """

    variant: Variant
    first: int
    count: int

    def path(self, root: Path) -> Path:
        return root / self.variant.name / f"{self.variant.digest}-seeds-{self.seeds[0]}-{self.seeds[-1]}"

    @property
    def seeds(self) -> range:
        return range(self.first, self.first + self.count)

    @property
    def overrides(self) -> list[str]:
        return [*self.variant.overrides, f"seed={self.first}", f"num_seeds={self.count}"]


def jobs(variant: Variant, seeds: Sequence[int]) -> list[Job]:
    """Runs that train a variant with these seeds, in increasing order: each of at most `BLOCK` that follow each other.

    >>> [[*job.seeds] for job in jobs(Variant("a", ()), [0, 1, 2, 3, 4, 5, 8])]
    [[0, 1, 2, 3, 4], [5], [8]]
    """
    found: list[Job] = []
    for seed in seeds:
        if found and seed == found[-1].seeds[-1] + 1 and found[-1].count < BLOCK:
            found[-1] = replace(found[-1], count=found[-1].count + 1)
        else:
            found.append(Job(variant, seed, 1))
    return found


def runs(requested: Sequence[Job], root: Path) -> list[Run]:
    """Finished runs of these jobs below `root`; missing ones are trained now.

    Runs that another process is training are waited for at the end.

    Args:
      requested: the jobs.
      root: directory of the runs.

    Raises:
      ConfigError: a configuration cannot run.
      Interrupted: a signal stopped training, with everything saved.
      RunError: metrics of a run are lost.
    """
    missing = [job for job in requested if not _finished(job, root)]
    for patient in (False, True):
        for job in missing:
            with locked(job.path(root), patient) as free:
                if free and not _finished(job, root):
                    print(f"training {job.path(root)}", flush=True)
                    _train(job, root)
    finished = [read_run(job.path(root)) for job in requested]
    for run in finished:
        if run.damage or not run.curve:
            raise RunError(f"{run.path} is damaged; delete it, and it is trained anew.")
    return finished


def _finished(job: Job, root: Path) -> bool:
    """Whether the run is over and intact. Raises RunError if it failed."""
    run = read_run(job.path(root), lambda message: None)
    if run.failure is not None:
        raise RunError(f"{run.path}: {run.failure}")
    return run.summary is not None and not run.damage


def _train(job: Job, root: Path) -> None:
    path = job.path(root)
    started = (path / "config.yaml").is_file()
    place = as_override("resume" if started else "run.dir", path)
    overrides = [place] if started else [*job.overrides, place, "run.progress=false"]
    train(load_config(overrides))
    jax.clear_caches()  # the next run compiles its own programs, and the caches grow by a gigabyte a run
