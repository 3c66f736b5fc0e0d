"""Several seeds in one program: executed apart, each by itself on the cores there are, and together under `vmap`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.own import waiting
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.trainer import Trainer

WAYS = ("apart", "together")


def members(counts: list[int], repeats: int, overrides: list[str], note: Callable[[str], None]) -> list[dict[str, Any]]:
    """Env steps/s of all seeds together, planning included: medians over chunks of either way, in turn."""
    rows = []
    for count in counts:
        trainers = {way: _trainer(count, way, overrides) for way in WAYS}
        speeds: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(repeats):
            for way, trainer in trainers.items():
                begin = time.perf_counter()
                rounds = len(trainer.step())
                speeds[way].append(rounds * trainer.steps_per_round * count / (time.perf_counter() - begin))
        for trainer in trainers.values():
            trainer.close()
        medians = {way: statistics.median(values) for way, values in speeds.items()}
        ratio = statistics.median(a / b for a, b in zip(speeds["apart"], speeds["together"], strict=True))
        waits = {way: waiting(trainer.summary(None))["planning_share"] for way, trainer in trainers.items()}
        rows.append(
            {"members": count, "steps_per_second": medians, "apart_to_together": ratio, "planning_share": waits}
        )
        note(f"{count} members: {medians['apart']:,.0f} steps/s apart, {medians['together']:,.0f} together")
    return rows


def _trainer(count: int, way: str, overrides: list[str]) -> Trainer:
    settings = [f"num_seeds={count}", f"engine.members={way}", "evaluation.episodes=0", "total_steps=1e9"]
    trainer = Trainer(load_config([*overrides, *settings]))
    trainer.step()  # which compiles
    return trainer
