"""Trains the configurations that figures need, each once: finished runs are kept, interrupted ones go on.

Several processes may work on one study: each takes a run that nobody else has under way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Any

import jax

from stellaris_jax.config.commands import as_override
from stellaris_jax.config.options import PLACES, options_of
from stellaris_jax.config.schema import RunError
from stellaris_jax.config.tree import Config, PlatformConfig, knobs
from stellaris_jax.registry import register
from stellaris_jax.report.runs import Run, read_run
from stellaris_jax.reproduce.files import locked
from stellaris_jax.timeline.delays import Measured
from stellaris_jax.timeline.platform import Placement
from stellaris_jax.timeline.scaling.scheduler import SHIPPED, Scheduler
from stellaris_jax.training.loading import load_config
from stellaris_jax.training.run import train

BLOCK = 5
"""Seeds trained side by side in one run; more seeds are more runs, so that five become ten by adding five."""
IRRELEVANT = ("seed", "num_seeds", "resume", "plugins", "engine.", "run.", "checkpoint.", "env.timeout", "system.name",
              "scaling.name", "platform.name", "delays.name", "prices.name")  # fmt: skip
"""Keys, or what keys begin with, that change nothing of what is learned."""


def relevant(config: Config) -> dict[str, Any]:
    """The settings that change what is learned, by the keys they had when the first results were kept."""
    keys = (key for key in knobs() if not key.startswith(IRRELEVANT) and not key.endswith(".options"))
    return {key: attrgetter(key)(config) for key in keys}


def first_weights(config: Config) -> dict[str, Any]:
    """What `system.weights` was when the first results were kept: an option of the rule, by which all were powers."""
    own = "artifact" if config.system.rule == "artifact" else "power"
    named = config.system.weights
    return {"constant": {"system.weighting": False}, own: {}}.get(named, {"system.weights": named})


def first_key(section: str, option: str) -> str:
    """What an option was called when the first results were kept."""
    key = f"{section}.{option}"
    return {"system.c": "system.softsync_c", "system.s": "system.ssp_s"}.get(key, key)


def _options(config: Config) -> dict[str, Any]:
    """Options that are not at their defaults, by the keys they had when the first results were kept."""
    own = {}
    for place in PLACES:
        for name, option in ((n, o) for thing in place.things(config) for n, o in options_of(thing).items()):
            if (value := place.options(config)[name]) != option.default:
                own[first_key(place.section, name)] = value
    return own


def revisions(config: Config) -> list[str]:
    """What this package came to do differently, to what this configuration learns, since results are kept.

    Whoever changes a default of the schema, or what a setting means, adds a line: what was learned before is then of
    another digest, and trained anew.
    """
    changes = {
        "episodes of host environments outlast evaluations": config.env.name.startswith("envpool/"),
        "body and heads of a shared network have keys of their own": config.network.shared,
        "events of the same nanosecond happen in the order of scheduling": _ties(config),
        "learners that start up or are passed data slow nobody down": _waits_beside_others(config),
        "Adam's bias correction goes by beta_1 of every step": "less_momentum" in config.system.corrections,
    }
    return [change for change, concerns in changes.items() if concerns]


def _ties(config: Config) -> bool:
    """Whether learners may end together for equal durations, and it matters who is first: not where all are waited
    for."""
    delay = register.delay[config.delays.learner.kind]
    repeats = not delay.noise or issubclass(delay, Measured)
    several = config.system.learners > 1 and config.system.rule not in ("allreduce", "central")
    return config.executor == "simulated" and repeats and several


def _waits_beside_others(config: Config) -> bool:
    """Whether learners start up or are passed data where those that compute slow each other down.

    Pre-warmed containers that are kept as long as by default stay warm.
    """
    platform, placement = config.platform, Placement(config.platform, config.system.learners)
    shared = config.executor == "simulated" and (platform.contention > 0 or platform.interference > 0)
    passing = any(placement.passing(learner) for learner in range(config.system.learners))
    cools = not platform.prewarm or platform.keep_alive < PlatformConfig().keep_alive
    return shared and (passing or platform.warm_start > 0 or (cools and platform.cold_start > 0))


@dataclass(frozen=True)
class Variant:
    """A configuration of a study: the folder of its runs below the study's, and what one would write for it on the
    command line of `scripts/train.py`."""

    name: str
    overrides: tuple[str, ...]

    @cached_property
    def digest(self) -> str:
        """What tells what it learns from what others do: every setting that is not the schema's own, but for seeds,
        where runs lie, and how this machine computes them; the files it reads; and the package's own `revisions`."""
        config, plain = load_config([*self.overrides]), Config()
        own = {key: value for key, value in relevant(config).items() if value != attrgetter(key)(plain)}
        own.pop("system.weights", None)
        own |= first_weights(config) | _options(config)
        if config.scaling.rule == "minionsrl":
            own["scheduler"] = Scheduler.load(config.scaling.options["scheduler"] or SHIPPED).digest
        own |= dict.fromkeys(revisions(config), True)
        return sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:12]

    def with_settings(self, label: str, *overrides: str) -> Variant:
        """This variant with further settings, as `<name>-<label>`."""
        return Variant(f"{self.name}-{label}", (*self.overrides, *overrides))


@dataclass(frozen=True)
class Job:
    """One run: a variant and the seeds first, first + 1, ..., first + count - 1."""

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


def jobs(variant: Variant, seeds: range) -> list[Job]:
    """The runs that train a variant with these seeds."""
    return [Job(variant, seeds[i], min(BLOCK, len(seeds) - i)) for i in range(0, len(seeds), BLOCK)]


def runs(wanted: Sequence[Job], root: Path) -> list[Run]:
    """The finished runs of these jobs below `root`; what has not been trained yet is trained now.

    Runs that another process is at are waited for at the end. Raises ConfigError for a configuration that cannot run,
    and `Interrupted` after a signal, with everything saved. Raises RunError for a run whose metrics are lost.
    """
    missing = [job for job in wanted if not _finished(job, root)]
    for patient in (False, True):
        for job in missing:
            with locked(job.path(root), patient) as free:
                if free and not _finished(job, root):
                    print(f"training {job.path(root)}", flush=True)
                    _train(job, root)
    found = [read_run(job.path(root)) for job in wanted]
    for run in found:
        if run.damage or not run.curve:
            raise RunError(f"{run.path} is damaged; delete it, and it is trained anew.")
    return found


def _finished(job: Job, root: Path) -> bool:
    """Whether the run is over, and nothing of it is damaged. Raises RunError if it has no result."""
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
    jax.clear_caches()  # the next run compiles programs of its own, and what is kept grows by a gigabyte a run
