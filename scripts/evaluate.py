"""Evaluate the newest policy of a run: `python scripts/evaluate.py RUN_DIR [--episodes N] [--seed S] [--sample]`."""

from __future__ import annotations

import argparse
import json
import sys

from stellaris_jax.config import ConfigError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", help="directory of the run")
    parser.add_argument("--episodes", type=int, default=128, help="episodes per trained seed (default 128)")
    parser.add_argument("--seed", type=int, default=0, help="picks other episodes (default 0)")
    parser.add_argument("--sample", action="store_true", help="sample actions instead of taking the most likely")
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    arguments = parser.parse_args()

    from stellaris_jax.checkpoint import CheckpointError
    from stellaris_jax.run import open_run

    try:
        trainer = open_run(arguments.run_dir)
    except (ConfigError, CheckpointError) as error:
        sys.exit(f"error: {error}")
    trainer.config.evaluation.greedy = not arguments.sample
    result = trainer.evaluate(arguments.episodes, stream=arguments.seed)
    mean, ci95 = result.mean_ci95()
    if arguments.json:
        figures = {"round": trainer.round, "episodes": int(result.returns.size), "return_mean": mean}
        print(json.dumps({**figures, "return_ci95": ci95, "length_mean": float(result.lengths.mean())}))
        return
    over = "seeds" if len(trainer.seeds) > 1 else "episodes"
    print(f"{trainer.config.env.name}, round {trainer.round}: {result.returns.size} episodes")
    print(f"return {mean:.2f} ± {ci95:.2f} (95 % over {over}), length {result.lengths.mean():.1f}")
    if len(trainer.seeds) > 1:
        print("per seed: " + ", ".join(f"{s}: {r:.2f}" for s, r in zip(trainer.seeds, result.per_seed, strict=True)))


if __name__ == "__main__":
    main()
