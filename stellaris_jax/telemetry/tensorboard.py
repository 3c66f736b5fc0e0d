"""TensorBoard events of a run: flat names, env steps as the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter
from tensorboardX.proto.summary_pb2 import Summary

FLUSH_SECONDS = 30
_NOT_PLOTTED = {"kind", "round", "env_steps", "staleness_counts", "per_seed"}
_NAMES = {
    "train_return": "train/return",
    "staleness_mean": "staleness/mean",
    "staleness_max": "staleness/max",
    "gate": "staleness/gate",
    "gate_escapes": "staleness/gate_escapes",
    "gate_groups": "staleness/gate_groups",
    "group_size": "staleness/group_size",
    "dropped": "staleness/dropped",
    "failed": "simulated/failed",
    "simulated_seconds": "simulated/seconds",
    "cost_usd": "simulated/cost_usd",
}


class EventLog:
    """Writes TensorBoard events into `directory`.

    When round `resume_round` of a run is resumed, TensorBoard is told to forget what an earlier process logged
    after `last_env_steps`.
    """

    def __init__(self, directory: Path, resume_round: int | None, last_env_steps: float) -> None:
        resumed = resume_round is not None
        self._writer = SummaryWriter(
            str(directory),
            flush_secs=FLUSH_SECONDS,
            max_queue=1000,
            purge_step=int(last_env_steps) + 1 if resumed else None,
            # File names hold whole seconds: without this, a quick resume would overwrite the first file.
            filename_suffix=f".resumed-{resume_round}" if resumed else "",
        )

    def rounds(self, records: list[dict[str, Any]]) -> None:
        """One point per round, and the staleness histogram of all these rounds together."""
        for record in records:
            plotted = {key: value for key, value in record.items() if key not in _NOT_PLOTTED}
            values = {_NAMES.get(key, f"train/{key}"): value for key, value in plotted.items()}
            self._scalars(values, record["env_steps"])
        self._staleness([record.get("staleness_counts") or [] for record in records], records[-1]["env_steps"])

    def evaluation(self, record: dict[str, Any]) -> None:
        """The return of the policy: mean, interval and every seed."""
        returns = record.get("per_seed", {}).get("eval_return_mean", [])
        values = {
            **{f"eval/{key.removeprefix('eval_')}": value for key, value in record.items() if key.startswith("eval_")},
            **{f"eval/return_seed_{seed}": value for seed, value in enumerate(returns)},
        }
        self._scalars(values, record["env_steps"])

    def close(self) -> None:
        self._writer.close()

    def _scalars(self, values: dict[str, Any], step: int) -> None:
        # One event for all of a round's scalars takes a tenth of the time of one add_scalar call each.
        scalars = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
            if isinstance(value, (int, float))
        ]
        self._writer.file_writer.add_summary(Summary(value=scalars), step)

    def _staleness(self, counts: list[list[int]], step: int) -> None:
        length = max(map(len, counts))
        total = [sum(row[staleness] for row in counts if staleness < len(row)) for staleness in range(length)]
        if not any(total):
            return
        self._writer.add_histogram_raw(
            "staleness/distribution",
            min=next(staleness for staleness, count in enumerate(total) if count),
            max=max(staleness for staleness, count in enumerate(total) if count),
            num=sum(total),
            sum=sum(staleness * count for staleness, count in enumerate(total)),
            sum_squares=sum(staleness**2 * count for staleness, count in enumerate(total)),
            bucket_limits=[staleness + 0.5 for staleness in range(length)],
            bucket_counts=total,
            global_step=step,
        )
