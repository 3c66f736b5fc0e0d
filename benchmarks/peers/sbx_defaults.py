"""Trains PPO of sbx with its own defaults on any gymnasium environment: `python -m benchmarks.peers.sbx_defaults ENV`.

Prints one JSON line with the mean return of the trained policy's most likely actions.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version

from sbx import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--episodes", type=int, required=True)
    arguments = parser.parse_args()
    model = PPO("MlpPolicy", make_vec_env(arguments.env, 1, seed=arguments.seed), seed=arguments.seed)
    model.learn(arguments.steps)
    played = make_vec_env(arguments.env, 8, seed=arguments.seed + 1000)
    mean, _ = evaluate_policy(model, played, arguments.episodes)
    print(json.dumps({"return_mean": float(mean), "steps": model.num_timesteps, "version": version("sbx-rl")}))


if __name__ == "__main__":
    main()
