"""Reading of the live run that `executor=replay` repeats; its trace is checked against seal and configuration."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.inputs import read_text
from stellaris_jax.base.registry import register
from stellaris_jax.config.stored import from_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.report.runs import SUMMARY
from stellaris_jax.telemetry.integrity import digest_of, summary_digests
from stellaris_jax.timeline import trace
from stellaris_jax.timeline.record_json import InvalidRecord
from stellaris_jax.timeline.records import Fragment, Group, Segment
from stellaris_jax.timeline.trace import ReplayedTimeline, Trace, not_as_written
from stellaris_jax.timeline.trace_checks import DataChecks


class Outline(NamedTuple):
    """Summary of a trace, which is too large to hold in memory.

    Attributes:
      scales: learning rate factor of every round.
      actors: number of actors in the first round.
      oldest: largest number of versions that a gradient or a segment reaches back, or that a round publishes.
      penalised: whether every gradient has its KL penalty coefficient.
      rows: rows of the store that fragments of independent actors use; 0 with other actors.
      constant: whether all rounds have as many actors.
      opened: first round in which host environments began new episodes, because they were lost; `None` if none did.
    """

    scales: Sequence[float]
    actors: int
    oldest: int
    penalised: bool = True
    rows: int = 0
    constant: bool = True
    opened: int | None = None

    @classmethod
    def of(cls, trace: Trace) -> Outline:
        """Read a trace from beginning to end.

        Raises ConfigError if data of independent actors do not fit one another.
        """
        scales, actors, oldest, penalised, rows = array("d"), 1, 0, True, 0
        clock, constant, opened, checks = 0, True, None, DataChecks()
        for round_ in trace.rounds:
            try:
                checks.check(round_.record)
            except InvalidRecord as error:
                raise not_as_written(trace.rounds.path, round_.record.index, error) from None
            groups = round_.record.groups
            actors = actors if scales else round_.record.actors
            constant &= round_.record.actors == actors
            opened = round_.record.index if round_.opened and opened is None else opened
            scales.append(round_.step_scale)
            ages = (group.clock - min([g.version, *g.peers]) for group in groups for g in group.gradients)
            oldest = max(oldest, len(groups), *ages)
            for event in round_.record.sequence:
                if isinstance(event, Group):
                    clock = event.clock + 1
                elif isinstance(event, Segment):
                    oldest, rows = max(oldest, clock - event.version), max(rows, event.row + 1)
                elif isinstance(event, Fragment):
                    rows = max(rows, event.row + 1)
            penalised &= all(g.kl_coefficient is not None for group in groups for g in group.gradients)
        return cls(scales, actors, oldest if scales else 1, penalised, rows, constant, opened)


class RecordedRounds(NamedTuple):
    """Recorded rounds that a schedule follows.

    Attributes:
      timeline: timeline of the one seed.
      factors: factors on the learning rate; `None` to compute them by the configuration.
    """

    timeline: ReplayedTimeline
    factors: Sequence[float] | None

    def actors(self) -> int | None:
        """Actors of the next round; `None` after the last one."""
        timeline = self.timeline
        return timeline.rounds[timeline.done].record.actors if timeline.done < len(timeline.rounds) else None


class Recording(NamedTuple):
    """Trace of a live run, with what a replay needs to know in advance.

    Attributes:
      trace: its rounds.
      outline: their summary.
      stored: configuration of the live run.
    """

    trace: Trace
    outline: Outline
    stored: Config

    @classmethod
    def of(cls, config: Config) -> Recording:
        """Recording that a configuration names.

        Raises ConfigError if it cannot be read, does not match its run's seal, or lacks rounds or values that the
        configuration asks for.
        """
        trace = read_trace(config)
        outline = Outline.of(trace)
        if config.rounds > len(outline.scales):
            steps = config.env.num_envs * config.algorithm.rollout_length * len(outline.scales)
            raise ConfigError(
                f"total_steps={config.total_steps} is more than the {steps} that trace={config.trace} has; ask for "
                "as many or fewer."
            )
        if config.algorithm.kl_coefficient > 0.0 and not outline.penalised:
            raise ConfigError(
                f"trace={config.trace} has gradients without kl_coefficient, which a replay with "
                f"algorithm.kl_coefficient={config.algorithm.kl_coefficient} needs; put back the trace as it was."
            )
        stored = from_yaml(_run_of(config) / "config.yaml")
        _check_actors(config, stored, outline)
        return cls(trace, outline, stored)

    def rounds(self, config: Config) -> RecordedRounds:
        """Rounds for a schedule; changed weights and another schedule of the learning rate take effect."""
        system, stored = config.system, self.stored.system
        changed = (system.weights, system.weight_options) != (stored.weights, stored.weight_options)
        weights = register.weight[system.weights](system.weight_options) if changed else None
        same = config.algorithm.anneal == self.stored.algorithm.anneal
        return RecordedRounds(ReplayedTimeline(self.trace.rounds, weights), self.outline.scales if same else None)


def _check_actors(config: Config, stored: Config, outline: Outline) -> None:
    """Raise ConfigError if a replay's actors cannot do what the recorded ones did."""
    free = "independent"
    keys = (
        "system.actors",
        "system.sync_steps",
        "system.batches_in_flight",
        "env.num_envs",
        "algorithm.rollout_length",
    )
    for key in keys if free in (config.system.actors, stored.system.actors) else ():
        value, recorded = attrgetter(key)(config), attrgetter(key)(stored)
        if value != recorded:
            raise ConfigError(f"{key}={value} is not possible with trace={config.trace}, which has {key}={recorded}.")
    if config.system.actors == free and outline.rows == 0:
        raise ConfigError(f"trace={config.trace} has no data of independent actors; put back the trace as it was.")
    if config.system.actors == free and not (outline.constant and config.env.num_envs % outline.actors == 0):
        raise ConfigError(
            f"trace={config.trace} has rounds of {outline.actors} shards and of others, or they do not divide "
            f"env.num_envs={config.env.num_envs}; put back the trace as it was."
        )


def read_trace(config: Config) -> Trace:
    """Trace that a configuration names. Raises ConfigError, also if the run's seal does not match the trace."""
    run, path = _run_of(config), _run_of(config) / trace.NAME
    result = trace.read(path)
    try:
        summary = json.loads(read_text(run / SUMMARY))
        seal = summary_digests(summary) if isinstance(summary, dict) else None
    except (OSError, ValueError):
        seal = None
    if seal is not None and seal.trace and seal.trace != digest_of(path):
        raise ConfigError(f"{path} is not as its run left it, says {run / SUMMARY}; put the right one back.")
    return result


def _run_of(config: Config) -> Path:
    path = Path(config.trace)
    return path.parent if path.name == trace.NAME else path
