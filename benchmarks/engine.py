"""What asynchrony costs: time per gradient of asynchronous learners beside synchronous ones."""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax

from stellaris_jax.training.loading import load_config
from stellaris_jax.training.trainer import Trainer

SYSTEMS: dict[str, list[str]] = {
    "allreduce": ["system=allreduce"],
    "stellaris, no truncation": ["system=stellaris", "system.truncation=none"],
    "stellaris": ["system=stellaris"],
}


def engine_cost(rounds: int, repeats: int, overrides: list[str]) -> dict[str, Any]:
    """Time per gradient of stellaris against allreduce, chunks of all systems in turn within one process.

    Both compute the same number of gradients from the same amount of data; time includes collecting it and planning.
    Programs compiled after the first chunk are counted.
    """
    common = ["total_steps=1e12", "evaluation.points=0", f"engine.chunk_rounds={rounds}"]
    # all-reduce has no gate whose options could be set
    general = [line for line in overrides if not line.startswith("system.options.")]
    own = {name: general if name == "allreduce" else overrides for name in SYSTEMS}
    trainers = {name: Trainer(load_config([*common, *own[name], *SYSTEMS[name]])) for name in SYSTEMS}
    compiled: list[str] = []
    for trainer in trainers.values():
        trainer.compile()
        trainer.step()

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    times: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for _ in range(repeats):
        for name, trainer in trainers.items():
            begin = time.perf_counter()
            trainer.step()
            times[name].append(time.perf_counter() - begin)
    gradients = rounds * trainers["allreduce"].shape.gradients
    base = times["allreduce"]
    return {
        "env": trainers["allreduce"].config.env.name,
        "gradients_per_chunk": gradients,
        "chunks": repeats,
        "microseconds_per_gradient": {n: statistics.median(t) / gradients * 1e6 for n, t in times.items()},
        "ratio_to_allreduce": {
            n: statistics.median(a / b for a, b in zip(t, base, strict=True)) for n, t in times.items()
        },
        "occupancy": {n: t.summary(None)["occupancy"] for n, t in trainers.items()},
        "staleness_mean": {n: t.summary(None)["staleness_mean"] for n, t in trainers.items()},
        "compiled_after_first_chunk": len(compiled),
    }
