"""Writes a rule of aggregation and compares it with two that are there: what it waits for, and what that costs.

python examples/own_rule.py [KEY=VALUE ...]
"""

import sys

import stellaris_jax as sj


@sj.register.rule("patient")
class Patient(sj.Rule):
    """Aggregates once the mean staleness of what is queued is small, or too many learners wait."""

    staleness: float = sj.knob(1.0, "mean staleness to aggregate at, in versions", within="[0, inf)")
    share: float = sj.knob(0.5, "share of the learners that may wait", within="(0, 1]")

    def ready(self, staleness, view):
        calm = sum(staleness) / len(staleness) <= self.staleness
        return calm or len(staleness) >= self.share * view.learners


def main(overrides):
    settings = ["env=gymnax/cartpole", "total_steps=50_000", "system.learners=8", *overrides]
    print(f"{'rule':10}{'return':>10}{'staleness':>12}{'seconds':>10}")
    for rule in ("async", "allreduce", "patient"):
        trainer = sj.Trainer(sj.load_config([f"system.rule={rule}", *settings]))
        records = trainer.run()
        mean, _ = trainer.evaluate(episodes=32).mean_ci95()
        staleness = sum(record["staleness_mean"] for record in records) / len(records)
        print(f"{rule:10}{mean:10.1f}{staleness:12.2f}{records[-1]['simulated_seconds']:10.0f}")
        trainer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
