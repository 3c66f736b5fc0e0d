"""Trainer of `executor=replay`: the compiled engine repeats a live run from its trace and reports deviations."""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.inputs import read_text
from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.base.registry import register
from stellaris_jax.config.stored import from_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.execute.live import settled
from stellaris_jax.execute.planner import Allotment, Planner
from stellaris_jax.execute.records import Record
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.report.runs import SUMMARY
from stellaris_jax.sources.host import HostSource
from stellaris_jax.telemetry.integrity import digest_of, seal_of
from stellaris_jax.timeline import trace
from stellaris_jax.timeline.scaling.limits import is_scaled
from stellaris_jax.timeline.trace import Published, Recorded, Trace

APART = 1e-3
"""Deviation, as a share of a version's norm, above which a replay counts as a different run."""
NAME = "replay.json"


class Deviation(NamedTuple):
    """Deviation of a replayed policy version from the recorded one.

    Attributes:
      version: number of the version.
      deviation: distance as a share of the recorded version's norm; 0 if they are equal to the bit.
    """

    version: int
    deviation: float


class Outline(NamedTuple):
    """Summary of a trace, which is too large to hold in memory.

    Attributes:
      scales: learning rate factor of every round.
      actors: number of actors in the first round.
      oldest: largest number of versions that a gradient reaches back or that a round publishes.
      penalised: whether every gradient has its KL penalty coefficient.
    """

    scales: Sequence[float]
    actors: int
    oldest: int
    penalised: bool = True

    @classmethod
    def of(cls, trace: Trace) -> Outline:
        """Read a trace from beginning to end."""
        scales, actors, oldest, penalised = array("d"), 1, 0, True
        for round_ in trace.rounds:
            groups = round_.record.groups
            actors = actors if scales else round_.record.actors
            scales.append(round_.step_scale)
            ages = (group.clock - min([g.version, *g.peers]) for group in groups for g in group.gradients)
            oldest = max(oldest, len(groups), *ages)
            penalised &= all(g.kl_coefficient is not None for group in groups for g in group.gradients)
        return cls(scales, actors, oldest if scales else 1, penalised)


class ReplayPlanner(Planner):
    """Planner of recorded rounds.

    Args:
      recorded: recorded timeline of the one seed.
      scales: learning rate factors of the recorded run, or `None` to use the schedule of this configuration.
      arguments: arguments of `Planner`.
    """

    def __init__(self, recorded: Recorded, scales: Sequence[float] | None, *arguments: Any):
        self._recorded, self._scales = recorded, scales
        super().__init__(*arguments)
        self.adaptive = False

    def _timelines(self) -> Sequence[Any]:
        return [self._recorded]

    def _learning_rate_factor(self, round_: int) -> float:
        return super()._learning_rate_factor(round_) if self._scales is None else self._scales[round_]

    def _allot(self, in_flight: list[int] | None) -> Allotment:
        if not is_scaled(self.config) or self._recorded.done >= len(self._recorded.rounds):
            return super()._allot(in_flight)
        actors = self._recorded.rounds[self._recorded.done].record.actors
        return Allotment([actors], [actors * self.limits.envs], [self.source.width(actors)])


class ReplayTrainer(Trainer):
    """Trainer of one agent that repeats a recorded live run; see `Trainer`. Changed settings take effect.

    `deviations` lists the deviations of its versions from the live run's.
    """

    executor = "replay"

    def __init__(self, config: Config, stopping: threading.Event | None = None, programs: ProgramCache | None = None):
        self.trace = traced(config)
        self.deviations: list[Deviation] = []
        self._outline = outline = Outline.of(self.trace)
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
        config = settled(config, outline.actors)
        versions = max(outline.oldest + 2, config.system.versions)
        super().__init__(config.replace({"system.versions": versions}), stopping, programs)

    def _planner(self) -> Planner:
        config = self.config
        stored = from_yaml(_run_of(config) / "config.yaml")
        system = stored.system
        changed = (config.system.weights, config.system.weight_options) != (system.weights, system.weight_options)
        weights = register.weight[config.system.weights](config.system.weight_options) if changed else None
        recorded = Recorded(self.trace.rounds, weights)
        same = config.algorithm.anneal == stored.algorithm.anneal
        scales = self._outline.scales if same else None
        return ReplayPlanner(recorded, scales, config, self.spec, self.seeds, self.source, self.accounts)

    def step(self, ahead: bool = False) -> list[Record]:
        """Repeat the next round; its record includes the deviation from the recorded versions. See `Trainer`."""
        number = self.round
        if number < len(self.trace.rounds) and self.trace.rounds[number].opened and isinstance(self.source, HostSource):
            self.source.begin_anew()
        records = super().step()
        if not records:
            return records
        deviations = [self._deviation(version) for version in self.trace.rounds[number].versions]
        self.deviations += deviations
        records[0]["replay_deviation"] = max((deviation.deviation for deviation in deviations), default=0.0)
        return records

    def _deviation(self, recorded: Published) -> Deviation:
        state = self.members.states[0]
        newest = int(state.version[0])
        row = state.params[0] if recorded.version == newest else state.ring[0, recorded.version % state.ring.shape[1]]
        return Deviation(recorded.version, recorded.deviation(np.asarray(jax.device_get(row))))

    def write(self, run_dir: Path) -> None:
        """Write the deviations of the replay so far to `replay.json`."""
        apart = [deviation for deviation in self.deviations if not deviation.deviation <= APART]
        record = {
            "versions": len(self.deviations),
            "identical": sum(deviation.deviation == 0.0 for deviation in self.deviations),
            "largest_deviation": max((deviation.deviation for deviation in self.deviations), default=0.0),
            "apart_above": APART,
            "first_apart": apart[0]._asdict() if apart else None,
        }
        write_atomically(run_dir / NAME, json.dumps(record, indent=2) + "\n")


def _run_of(config: Config) -> Path:
    path = Path(config.trace)
    return path.parent if path.name == trace.NAME else path


def traced(config: Config) -> Trace:
    """Trace that a configuration names. Raises ConfigError, also if the run's seal does not match the trace."""
    run, path = _run_of(config), _run_of(config) / trace.NAME
    result = trace.read(path)
    try:
        summary = json.loads(read_text(run / SUMMARY))
        seal = seal_of(summary) if isinstance(summary, dict) else None
    except (OSError, ValueError):
        seal = None
    if seal is not None and seal.trace and seal.trace != digest_of(path):
        raise ConfigError(f"{path} is not as its run left it, says {run / SUMMARY}; put the right one back.")
    return result
