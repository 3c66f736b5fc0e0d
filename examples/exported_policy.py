"""Exports the policy of a run and plays it in gymnasium (extras `gymnasium` and `onnx`, and onnxruntime).

python examples/exported_policy.py RUN_DIR [ENVIRONMENT [EPISODES]]
"""

import sys
import tempfile
from pathlib import Path

import gymnasium
import numpy as np

from stellaris_jax import export_policy, load_policy


def play(env, policy, seed):
    """Return of an episode."""
    (obs, _), total, over = env.reset(seed=seed), 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(np.asarray(policy(obs)))
        total, over = total + float(reward), terminated or truncated
    return total


def main(run_dir, name="CartPole-v1", episodes="16"):
    with tempfile.TemporaryDirectory() as folder:
        path = export_policy(run_dir, "onnx", Path(folder) / "policy.onnx")
        print(f"{path.name}: {path.stat().st_size:,} bytes")
        print(Path(f"{path}.md").read_text().partition("## Use")[0])
        policy = load_policy(path)
        env = gymnasium.make(name)
        returns = [play(env, policy, seed) for seed in range(int(episodes))]
    print(f"return {np.mean(returns):.1f} in {len(returns)} episodes of {name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
