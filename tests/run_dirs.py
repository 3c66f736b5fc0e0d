"""Run directories made up here, as training would have left them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from stellaris_jax.base.statistics import mean_ci95
from stellaris_jax.timeline import Gradient, Group, Round, Usage, trace
from stellaris_jax.timeline.trace import Failure, Published, Roll, RoundTrace

STEPS = 2048


def make_run(
    path: Path,
    config: dict[str, Any] | None = None,
    returns: list[float] | None = None,
    *,
    rounds: int = 40,
    evaluations: int = 8,
    finished: bool = True,
) -> Path:
    """A run directory whose seeds learn up to `returns` along a saturating curve."""
    returns = returns or [480.0, 450.0, 495.0]
    pace = np.linspace(1.0, 1.2, len(returns))
    random = np.random.default_rng(0)
    path.mkdir(parents=True)
    names = {"system": {"name": "stellaris"}, "env": {"name": "gymnax/CartPole-v1"}, "run": {"dir": str(path)}}
    (path / "config.yaml").write_text(yaml.safe_dump(config or {**names, "seed": 0}))

    def now(round_: int) -> dict[str, Any]:
        seconds, dollars = 7.0 * round_ * pace, 0.02 * round_ * pace
        return {
            "round": round_,
            "env_steps": STEPS * round_,
            "wall_seconds": 0.1 * round_,
            "simulated_seconds": seconds.mean(),
            "cost_usd": dollars.mean(),
            "per_seed": {"simulated_seconds": seconds.tolist(), "cost_usd": dollars.tolist()},
        }

    lines = []
    for round_ in range(1, rounds + 1):
        learned = np.array(returns) * (1 - math.exp(-5 * round_ / rounds))
        trained = learned * random.uniform(0.6, 1.0, len(returns))
        counts = random.poisson(np.array([3.0, 8, 6, 4, 2, 1, 0.5, 0.2]))
        record = now(round_)
        record |= {
            "kind": "round",
            "gate": None if round_ == 1 else 8 * 0.96**round_,
            "staleness_counts": counts.tolist(),
        }
        record |= {"staleness_mean": float(counts @ np.arange(8) / max(1, counts.sum())), "staleness_max": 7}
        record |= {"train_return": None if round_ == 1 else trained.mean()}
        record["per_seed"]["train_return"] = [None if round_ == 1 else value for value in trained]
        lines.append(record)
        if evaluations and round_ % (rounds // evaluations) == 0:
            mean, half_width = mean_ci95(learned)
            record = {"kind": "evaluation", **now(round_), "eval_return_mean": mean}
            record["eval_return_ci95"] = half_width if math.isfinite(half_width) else None
            record["per_seed"]["eval_return_mean"] = learned.tolist()
            lines.append(record)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        summary = {"staleness_mean": 2.5, "staleness_max": 7, "steps_per_second": 2.8e5, "simulated_seconds": 281.0}
        (path / "summary.json").write_text(json.dumps({**summary, "cost_usd": 0.8, "updates": 640}))
    return path


def rewrite(run_dir: Path, curves: dict[int, list[float]]) -> None:
    """Replace the evaluations of a run: env steps, and the return of every seed there."""
    lines = [
        {
            "kind": "evaluation", "round": index, "env_steps": steps, "wall_seconds": steps / 1000,
            "simulated_seconds": steps / 100, "cost_usd": steps / 1e4, "eval_return_mean": None,
            "eval_return_ci95": None,
            "per_seed": {
                "eval_return_mean": returns, "simulated_seconds": [steps / 100] * len(returns),
                "cost_usd": [steps / 1e4 * (1 + s) for s in range(len(returns))],
            },
        }
        for index, (steps, returns) in enumerate(curves.items(), start=1)
    ]  # fmt: skip
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def lived() -> RoundTrace:
    """A round of a live run."""
    gradients = [Gradient(0, 1, 2, 3, 0.5, 1.5, peers=[2], staleness=1, in_flight=1, kl_coefficient=0.2)] * 2
    group = Group(gradients, [0.5, 1.0], clock=4, second=2.0, escaped=False, threshold=1.5, published=2.5)
    record = Round(0, 3, 0.0, 2, 0.4, 3, 0.5, groups=[group], dropped=gradients[:1], usage=Usage(seconds=2.5))
    failure = Failure("actor", 0, 0.0, 0.1, "killed")
    versions = [Published(5, 2.5, "ab", 1.0, [0.5] * trace.PROJECTIONS)]
    return RoundTrace(record, 0.9, [Roll(0, 0.0, 0.4)], [failure], versions)
