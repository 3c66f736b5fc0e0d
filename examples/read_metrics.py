"""Reads what runs have left and draws two figures of it: return against seconds, and staleness over rounds.

python examples/read_metrics.py FILE.png RUN_DIR ...
"""

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure


def read(run_dir):
    """The records of a run: of its rounds and of its evaluations."""
    records = [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]
    kinds = ("round", "evaluation")
    return tuple([record for record in records if record["kind"] == kind] for kind in kinds)


def main(out, *run_dirs):
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    curves, lags = figure.subplots(1, 2)
    for run_dir in run_dirs:
        rounds, evaluations = read(run_dir)
        name = Path(run_dir).name
        seconds = [record["simulated_seconds"] for record in evaluations]
        curves.plot(seconds, [record["eval_return_mean"] for record in evaluations], marker=".", label=name)
        lags.plot([record["round"] for record in rounds], [record["staleness_mean"] for record in rounds], label=name)
        summary = json.loads((Path(run_dir) / "summary.json").read_text())
        print(f"{name}: return {summary['eval_return_mean']:.1f}, staleness {summary['staleness_mean']:.2f}")
    curves.set(xlabel="simulated seconds", ylabel="return")
    lags.set(xlabel="round", ylabel="mean staleness, in versions")
    curves.legend()
    figure.savefig(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
