"""Trains CartPole from Python, with a callback that ends the run once the task is solved.

python examples/train.py [KEY=VALUE ...]
"""

import sys

from stellaris_jax import load_config, load_policy, train


def solved(round_, record, trainer):
    """Called after every round; true ends the run."""
    return record["train_return"] is not None and record["train_return"] > 475.0


def main(overrides):
    config = load_config(["env=gymnax/cartpole", "system.learners=8", "total_steps=200_000", *overrides])
    summary = train(config, callbacks=[solved])
    print(f"return {summary['eval_return_mean']:.1f} after {summary['env_steps']:,.0f} env steps")
    print(f"mean staleness {summary['staleness_mean']:.2f}, ${summary['cost_usd']:.3f} on the simulated platform")
    if config.run.dir:
        policy = load_policy(config.run.dir)
        print("action in an upright state:", int(policy([0.0, 0.0, 0.0, 0.0])))


if __name__ == "__main__":
    main(sys.argv[1:])
