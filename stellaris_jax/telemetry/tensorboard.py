"""TensorBoard events of a run: metrics named as in `names` over env steps, hyper-parameters, and the picture."""

from __future__ import annotations

import secrets
import struct
import time
from contextlib import suppress
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import HistogramProto, Summary
from tensorboardX.summary import hparams

from stellaris_jax.base import inputs
from stellaris_jax.base.registry import register
from stellaris_jax.telemetry.logger import Logger, RunInfo
from stellaris_jax.telemetry.names import METRICS, named

FLUSH_SECONDS = 30.0


@register.logger("tensorboard")
class EventLog(Logger):
    """Logger of TensorBoard events in the run directory.

    Events are flushed to the operating system by `flush`, and every FLUSH_SECONDS, so that a kill does not lose them.
    When a run is resumed, TensorBoard forgets events of earlier processes after `last_env_steps`.
    """

    def __init__(self, run: RunInfo, options: dict[str, Any] | None = None) -> None:
        super().__init__(run, options)
        # File names contain whole seconds. Without the suffix, a quick resume would overwrite the first file, or write
        # through a link in its place.
        suffix = f".{secrets.token_hex(4)}" + ("" if run.resume_round is None else f".resumed-{run.resume_round}")
        self._writer = EventsWriter(str(run.directory.absolute() / "events"), suffix)
        if run.resume_round is not None:
            start = Event(session_log=SessionLog(status=SessionLog.START), step=int(run.last_env_steps) + 1)
            self._writer.write_event(start)
        else:
            self._hyper_parameters()
        self.flush()

    def _hyper_parameters(self) -> None:
        """Log the configuration for the tab HParams, which compares runs by it."""
        known = {key: value for key, value in self.run.config.items() if isinstance(value, bool | int | float | str)}
        shown = {METRICS["eval_return_mean"].name: 0, METRICS["cost_usd"].name: 0, METRICS["train_return"].name: 0}
        for part in hparams(known, shown)[:2]:
            self._writer.write_event(Event(summary=part, wall_time=time.time()))

    def rounds(self, rows: list[dict[str, Any]]) -> None:
        """Log one point per round, and the staleness histogram of all these rounds together."""
        for row in rows:
            self._scalars(row)
        self._staleness([row.get("staleness_counts") or [] for row in rows], rows[-1]["env_steps"])
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def evaluation(self, row: dict[str, Any]) -> None:
        """Log the return of the policy: mean, interval and every seed."""
        self._scalars(row)

    def summary(self, summary: dict[str, Any]) -> None:
        """Log the picture of the run, and the end of its hyper-parameters' session."""
        picture = self.run.directory / "curve.png"
        if picture.is_file():
            data = inputs.read_bytes(picture)
            width, height = struct.unpack(">II", data[16:24])  # from the PNG header
            image = Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=data)
            self._write([Summary.Value(tag="curve", image=image)], summary["env_steps"])
        self._writer.write_event(Event(summary=hparams({}, {})[2], wall_time=time.time()))

    def flush(self) -> None:
        """Flush events to the operating system."""
        self._writer.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Close the file; a second call does nothing. Earlier calls have reported failed writes."""
        with suppress(OSError, ValueError):  # ValueError: the file is closed
            self._writer.close()

    def _scalars(self, row: dict[str, Any]) -> None:
        # All scalars of a record share one event.
        values = [Summary.Value(tag=name, simple_value=value) for name, value in named(row)]
        self._write(values, row["env_steps"])

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
