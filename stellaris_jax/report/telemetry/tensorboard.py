"""TensorBoard events of a run: flat names, env steps as the step."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import HistogramProto, Summary

from stellaris_jax.registry import register
from stellaris_jax.report.telemetry.logger import Logger

FLUSH_SECONDS = 30.0
_NOT_PLOTTED = {"kind", "round", "env_steps", "staleness_counts", "in_flight_counts", "queued_counts", "per_seed"}
_NAMES = {
    "train_return": "train/return",
    "staleness_mean": "staleness/mean",
    "staleness_max": "staleness/max",
    "staleness_in_flight": "staleness/in_flight",
    "staleness_queued": "staleness/queued",
    "staleness_seconds": "staleness/seconds",
    "data_lag": "staleness/data_lag",
    "actor_staleness": "staleness/actors",
    "ess": "drift/ess",
    "chi2": "drift/chi2",
    "k3": "drift/k3",
    "m2": "drift/m2",
    "tv": "drift/tv",
    "update_norm": "drift/update_norm",
    "update_cosine": "drift/update_cosine",
    "gate": "staleness/gate",
    "gate_escapes": "staleness/gate_escapes",
    "gate_groups": "staleness/gate_groups",
    "group_size": "staleness/group_size",
    "dropped": "staleness/dropped",
    "dropped_seconds": "staleness/dropped_seconds",
    "dropped_slowness": "staleness/dropped_slowness",
    "learner_utilisation": "simulated/learner_utilisation",
    "gradient_seconds": "simulated/gradient_seconds",
    "failed": "simulated/failed",
    "replay_deviation": "simulated/replay_deviation",
    "simulated_seconds": "simulated/seconds",
    "cost_usd": "simulated/cost_usd",
}


@register.logger("tensorboard")
class EventLog(Logger):
    """Writes TensorBoard events into `directory`. With `flush`, and every FLUSH_SECONDS, they become the operating
    system's, from which a kill does not take them.

    When round `resume_round` of a run is resumed, TensorBoard is told to forget what an earlier process logged
    after `last_env_steps`.
    """

    def __init__(self, directory: Path, resume_round: int | None = None, last_env_steps: float = 0.0) -> None:
        super().__init__(directory, resume_round, last_env_steps)
        # File names hold whole seconds: without the suffix, a quick resume would overwrite the first file.
        suffix = "" if resume_round is None else f".resumed-{resume_round}"
        self._writer = EventsWriter(str(directory.absolute() / "events"), suffix)
        if resume_round is not None:
            start = Event(session_log=SessionLog(status=SessionLog.START), step=int(last_env_steps) + 1)
            self._writer.write_event(start)
        self.flush()

    def rounds(self, records: list[dict[str, Any]]) -> None:
        """One point per round, and the staleness histogram of all these rounds together."""
        for record in records:
            plotted = {key: value for key, value in record.items() if key not in _NOT_PLOTTED}
            values = {_NAMES.get(key, f"train/{key}"): value for key, value in plotted.items()}
            self._scalars(values, record["env_steps"])
        self._staleness([record.get("staleness_counts") or [] for record in records], records[-1]["env_steps"])
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def evaluation(self, record: dict[str, Any]) -> None:
        """The return of the policy: mean, interval and every seed."""
        returns = record.get("per_seed", {}).get("eval_return_mean", [])
        values = {
            **{f"eval/{key.removeprefix('eval_')}": value for key, value in record.items() if key.startswith("eval_")},
            **{f"eval/return_seed_{seed}": value for seed, value in enumerate(returns)},
        }
        self._scalars(values, record["env_steps"])

    def flush(self) -> None:
        """Hands what was written to the operating system."""
        self._writer.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Closes the file; a second call does nothing. What cannot be written was told of by the call that wrote it."""
        with suppress(OSError, ValueError):  # the second is of a closed file
            self._writer.close()

    def _scalars(self, values: dict[str, Any], step: float) -> None:
        # One event for all of a round's scalars.
        numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
        self._write([Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()], step)

    def _write(self, values: list[Summary.Value], step: float) -> None:
        self._writer.write_event(Event(summary=Summary(value=values), step=int(step), wall_time=time.time()))

    def _staleness(self, counts: list[list[int]], step: float) -> None:
        length = max(map(len, counts))
        total = [sum(row[staleness] for row in counts if staleness < len(row)) for staleness in range(length)]
        if not any(total):
            return
        histogram = HistogramProto(
            min=next(staleness for staleness, count in enumerate(total) if count),
            max=max(staleness for staleness, count in enumerate(total) if count),
            num=sum(total),
            sum=sum(staleness * count for staleness, count in enumerate(total)),
            sum_squares=sum(staleness**2 * count for staleness, count in enumerate(total)),
            bucket_limit=[staleness + 0.5 for staleness in range(length)],
            bucket=total,
        )
        self._write([Summary.Value(tag="staleness/distribution", histo=histogram)], step)
