"""Trains a population of learning rates, under late gradients and without: they share compiled programs.

python examples/population.py [KEY=VALUE ...]
"""

import sys

from stellaris_jax import Population, load_config

RATES = (1e-3, 3e-3, 1e-2)
SYSTEMS = ("allreduce", "async")


def main(overrides):
    settings = ["env=gymnax/cartpole", "total_steps=100_000", "num_seeds=3", *overrides]
    configs = {
        (system, rate): load_config([f"system={system}", *settings]).replace({"algorithm.learning_rate": rate})
        for system in SYSTEMS
        for rate in RATES
    }
    population = Population(list(configs.values()))
    print(f"{len(configs)} runs in {population.engines} programs")
    population.run()
    for (system, rate), evaluation in zip(configs, population.evaluate(episodes=32), strict=True):
        mean, half_width = evaluation.mean_ci95()
        print(f"{system:10} rate {rate:<6g} return {mean:6.1f} ± {half_width:.1f}")
    population.close()


if __name__ == "__main__":
    main(sys.argv[1:])
