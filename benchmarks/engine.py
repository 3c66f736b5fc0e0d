"""The cost of asynchrony and of its corrections: time per gradient beside that of a simpler system."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax

from benchmarks.own import waiting
from stellaris_jax.agent.losses import PolicyObjective
from stellaris_jax.base.registry import register
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.simulated import planner_of
from stellaris_jax.execute.trainer import Trainer

Jobs = dict[str, list[str]]
"""Overrides by what they are called; the first one is what the others are compared with."""


def systems(overrides: list[str]) -> Jobs:
    """Stellaris beside synchronous learners."""
    # all-reduce has no gate whose options could be set
    general = [line for line in overrides if not line.startswith("system.rule_options.")]
    return {
        "allreduce": [*general, "system=allreduce"],
        "stellaris, no truncation": [*overrides, "system=stellaris", "system.truncation=none"],
        "stellaris": [*overrides, "system=stellaris"],
    }


def methods(overrides: list[str]) -> Jobs:
    """Every correction, mask and policy objective beside pure asynchrony under PPO."""
    plain = [*overrides, "system=async"]
    corrections = {name: [*plain, f"system.corrections=[{name}]"] for name in register.correction}
    masks = {name: [*plain, f"algorithm.masks=[{name}]"] for name in register.mask}
    kinds = [name for name, kind in register.algorithm.items() if issubclass(kind, PolicyObjective) and name != "ppo"]
    return {"async": plain, **corrections, **masks, **{name: [*plain, f"algorithm={name}"] for name in kinds}}


def actors(overrides: list[str]) -> Jobs:
    """Independent actors beside those that wait for the round, under pure asynchrony."""
    plain = [*overrides, "system=async"]
    free = [*plain, "system.actors=independent", "system.actor_shards=8"]
    return {
        "barrier": plain,
        "pipelined": [*plain, "system.actors=pipelined"],
        "independent, no staleness": [*free, "system.data_admission=capacity", "system.data_admission_options.eta=0"],
        "independent": free,
        "independent, capacity": [*free, "system.data_admission=capacity"],
        "independent, 4 segments": [*free, "system.sync_steps=32"],
        "independent, 16 segments": [*free, "system.sync_steps=8"],
        "independent, episodes": [*free, "delays.by=episodes"],
    }


def policy_passes(trainer: Trainer) -> dict[str, float]:
    """Forward passes of other policies that truncation takes in the trainer's next chunk, per gradient, in minibatches.

    - direct: as they are taken, each version once per gradient that asks for it.
    - table: if log-probabilities were kept, and every version evaluated once on the whole fragment wherever that is
      cheaper, as the plan can tell.
    """
    chunk, whole = planner_of(trainer.executor).next(), trainer.spec.minibatch_layout.minibatches
    asked: Counter[tuple[int, int, int, int]] = Counter()
    gradients = 0
    for r, row in enumerate(chunk.rounds):
        for s, record in enumerate(row):
            for gradient in (one for group in record.groups for one in group.gradients):
                gradients += 1
                asked.update((r, s, gradient.fragment, version) for version in gradient.peers)
    taken = {"direct": sum(asked.values()), "table": sum(min(times, whole) for times in asked.values())}
    return {way: passes / gradients for way, passes in taken.items()}


def gradient_cost(jobs: Jobs, rounds: int, repeats: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Time per gradient of each job against the first, chunks of all in turn within one process.

    All compute the same number of gradients from the same amount of data; time includes collecting it and planning.
    ProgramCache compiled after the first chunk are counted.
    """
    common = ["total_steps=1e12", "evaluation.points=0", f"engine.chunk_rounds={rounds}"]
    trainers: dict[str, Trainer] = {}
    for name, overrides in jobs.items():
        trainers[name] = Trainer(load_config([*common, *overrides]))
        trainers[name].compile()
        trainers[name].step()
        note(f"{name}: compiled")
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    times: dict[str, list[float]] = {name: [] for name in jobs}
    collecting: dict[str, float] = {}
    for _ in range(repeats):
        for name, trainer in trainers.items():
            begin = time.perf_counter()
            records: list[dict[str, Any]] = []
            while len(records) < rounds:
                records += trainer.step()
            times[name].append(time.perf_counter() - begin)
            if "collect_occupancy" in records[-1]:
                collecting[name] = statistics.mean(record["collect_occupancy"] for record in records)
    (first, base), *_ = times.items()
    gradients = rounds * trainers[first].spec.shape.gradients
    return {
        "env": trainers[first].config.env.name,
        "gradients_per_chunk": gradients,
        "chunks": repeats,
        "microseconds_per_gradient": {n: statistics.median(t) / gradients * 1e6 for n, t in times.items()},
        f"ratio_to_{first}": {
            n: statistics.median(a / b for a, b in zip(t, base, strict=True)) for n, t in times.items()
        },
        "occupancy": {n: t.summary(None)["occupancy"] for n, t in trainers.items()},
        "staleness_mean": {n: t.summary(None)["staleness_mean"] for n, t in trainers.items()},
        "planning_share": {n: waiting(t.summary(None))["planning_share"] for n, t in trainers.items()},
        "policy_passes": {n: policy_passes(t) for n, t in trainers.items() if t.spec.peers},
        "collect_occupancy": collecting,
        "compiled_after_first_chunk": len(compiled),
    }
