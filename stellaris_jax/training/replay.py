"""`executor=replay`: the compiled engine repeats a live run from its trace, and says how far it comes."""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris_jax.config.inputs import read_text
from stellaris_jax.config.outputs import write_atomically
from stellaris_jax.config.schema import ConfigError
from stellaris_jax.config.stored import from_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.registry import register
from stellaris_jax.report.integrity import digest_of, seal_of
from stellaris_jax.report.runs import SUMMARY
from stellaris_jax.timeline import trace
from stellaris_jax.timeline.scaling.limits import is_scaled
from stellaris_jax.timeline.trace import Published, Recorded, Trace
from stellaris_jax.training.live import settled
from stellaris_jax.training.planner import Allotment, Planner
from stellaris_jax.training.program_cache import ProgramCache
from stellaris_jax.training.records import Record
from stellaris_jax.training.sources.host import HostSource
from stellaris_jax.training.trainer import Trainer

APART = 1e-3
"""Deviation, as a share of a version's norm, above which a replay is said to be another run."""
NAME = "replay.json"


class Deviation(NamedTuple):
    """How far a version of a replay is from the recorded one, as a share of its norm; 0 if they are the same to the
    bit."""

    version: int
    deviation: float


class Outline(NamedTuple):
    """Summary of a trace, of which no more than this is held.

    scales: every round's factor on the learning rate. actors: those of the first round. oldest: the largest number of
    versions that a gradient reaches back, or that a round publishes. penalised: every gradient has its weight of the KL
    penalty.
    """

    scales: Sequence[float]
    actors: int
    oldest: int
    penalised: bool = True

    @classmethod
    def of(cls, trace: Trace) -> Outline:
        """Read a trace from its beginning to its end."""
        scales, actors, oldest, penalised = array("d"), 1, 0, True
        for one in trace.rounds:
            groups = one.record.groups
            actors = actors if scales else one.record.actors
            scales.append(one.step_scale)
            ages = (group.clock - min([g.version, *g.peers]) for group in groups for g in group.gradients)
            oldest = max(oldest, len(groups), *ages)
            penalised &= all(g.kl_coefficient is not None for group in groups for g in group.gradients)
        return cls(scales, actors, oldest if scales else 1, penalised)


class ReplayPlanner(Planner):
    """Plans what was recorded.

    Args:
      recorded: the timeline of the one seed.
      scales: factors on the learning rate, where those of the run count.
      arguments: of `Planner`.
    """

    def __init__(self, recorded: Recorded, scales: Sequence[float] | None, *arguments: Any):
        self._recorded, self._scales = recorded, scales
        super().__init__(*arguments)
        self.adaptive = False

    def _timelines(self) -> Sequence[Any]:
        return [self._recorded]

    def _learning_rate_factor(self, round_: int) -> float:
        return super()._learning_rate_factor(round_) if self._scales is None else self._scales[round_]

    def _allot(self, asked: list[int] | None) -> Allotment:
        if not is_scaled(self.config) or self._recorded.done >= len(self._recorded.rounds):
            return super()._allot(asked)
        actors = self._recorded.rounds[self._recorded.done].record.actors
        return Allotment([actors], [actors * self.limits.envs], [self.source.width(actors)])


class ReplayTrainer(Trainer):
    """Trains one agent as a live run has done; see `Trainer`. Whatever is configured otherwise happens otherwise.

    `deviations` says how far its versions are from those of the live run.
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
        own = stored.system
        other = (config.system.weights, config.system.options) != (own.weights, own.options)
        weights = register.weight[config.system.weights](config.system.options) if other else None
        recorded = Recorded(self.trace.rounds, weights)
        same = config.algorithm.anneal == stored.algorithm.anneal
        scales = self._outline.scales if same else None
        return ReplayPlanner(recorded, scales, config, self.spec, self.seeds, self.source, self.accounts)

    def step(self, ahead: bool = False) -> list[Record]:
        """Repeat the next round; see `Trainer`. Its record says how far its versions are from the recorded ones."""
        number = self.round
        if number < len(self.trace.rounds) and self.trace.rounds[number].opened and isinstance(self.source, HostSource):
            self.source.begin_anew()
        records = super().step()
        if not records:
            return records
        found = [self._deviation(version) for version in self.trace.rounds[number].versions]
        self.deviations += found
        records[0]["replay_deviation"] = max((one.deviation for one in found), default=0.0)
        return records

    def _deviation(self, recorded: Published) -> Deviation:
        state = self.members.states[0]
        newest = int(state.version[0])
        row = state.params[0] if recorded.version == newest else state.ring[0, recorded.version % state.ring.shape[1]]
        return Deviation(recorded.version, recorded.deviation(np.asarray(jax.device_get(row))))

    def write(self, run_dir: Path) -> None:
        """Write down how far the replay has come with the recorded run."""
        apart = [one for one in self.deviations if not one.deviation <= APART]
        record = {
            "versions": len(self.deviations),
            "identical": sum(one.deviation == 0.0 for one in self.deviations),
            "largest_deviation": max((one.deviation for one in self.deviations), default=0.0),
            "apart_above": APART,
            "first_apart": apart[0]._asdict() if apart else None,
        }
        write_atomically(run_dir / NAME, json.dumps(record, indent=2) + "\n")


def _run_of(config: Config) -> Path:
    path = Path(config.trace)
    return path.parent if path.name == trace.NAME else path


def traced(config: Config) -> Trace:
    """The trace that a configuration names. Raises ConfigError, also where its run ended with another one."""
    run, path = _run_of(config), _run_of(config) / trace.NAME
    found = trace.read(path)
    try:
        summary = json.loads(read_text(run / SUMMARY))
        seal = seal_of(summary) if isinstance(summary, dict) else None
    except (OSError, ValueError):
        seal = None
    if seal is not None and seal.trace and seal.trace != digest_of(path):
        raise ConfigError(f"{path} is not as its run left it, says {run / SUMMARY}; put the right one back.")
    return found
