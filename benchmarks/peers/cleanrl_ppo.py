"""Times CleanRL's PPO for Atari (PyTorch, envpool) on the job `atari_spaceinvaders` of `scripts/benchmark.py`.

CleanRL is a file, not a package, and needs an environment of its own:

    python3.11 -m venv cleanrl
    cleanrl/bin/pip install torch==2.13.0 "envpool>=1.2.5,<1.3" "gym<0.27" tyro tensorboard
    curl -o cleanrl/ppo_atari_envpool.py \\
        https://raw.githubusercontent.com/vwxyzjn/cleanrl/fe8d8a03/cleanrl/ppo_atari_envpool.py
    cleanrl/bin/python benchmarks/peers/cleanrl_ppo.py atari_spaceinvaders

The file is looked for beside `bin/` and run as it is; an adapter gives it today's envpool with the interface of gym
that it was written for. `steps_per_second` is what it prints itself after its last round, start-up excluded: eight
games, 128 steps, four epochs of four minibatches, as in `configs/env/envpool/spaceinvaders.yaml`. The last line of the
output is one JSON object, as in `rejax_ppo.py`; return_mean is the mean of the last games it reports.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import resource
import runpy
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import envpool
import gym
import numpy as np

STEPS = 32_768


class Games(gym.Env):
    """envpool's games with gym's step of four values; rewards are given raw in `info`, as envpool 0.6 did."""

    def __init__(self, batch: Any, num_envs: int) -> None:
        self.batch, self.num_envs = batch, num_envs
        space = batch.action_space
        self.action_space = gym.spaces.Discrete(int(space.n))
        self.observation_space = gym.spaces.Box(0, 255, batch.observation_space.shape, np.uint8)

    def reset(self, **_: Any) -> np.ndarray:
        return self.batch.reset()[0]

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        obs, reward, terminated, truncated, info = self.batch.step(action)
        info.setdefault("terminated", terminated)
        return obs, reward, (terminated | truncated).astype(np.float32), info

    def close(self) -> None:
        self.batch.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=["atari_spaceinvaders"])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if not 0 <= arguments.seed < 2**32:
        parser.error(f"--seed={arguments.seed} must be from 0 to {2**32 - 1}")
    file = Path(sys.executable).parent.parent / "ppo_atari_envpool.py"
    make = envpool.make

    def old_make(task: str, env_type: str, num_envs: int, **options: Any) -> Games:
        return Games(make(task, env_type="gymnasium", num_envs=num_envs, **options), num_envs)

    envpool.make = old_make  # type: ignore[assignment]
    settings = {"env-id": "SpaceInvaders-v5", "total-timesteps": STEPS, "num-envs": 8, "seed": arguments.seed}
    sys.argv = [str(file), *(f"--{key}={value}" for key, value in settings.items())]
    printed = io.StringIO()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        os.chdir(folder)
        runpy.run_path(str(file), run_name="__main__")
    speeds = re.findall(r"SPS: (\d+)", printed.getvalue())
    returns = [float(found) for found in re.findall(r"avg_episodic_return=([\d.]+)", printed.getvalue())]
    figures = {
        "job": arguments.job,
        "peer": "cleanrl",
        "version": "fe8d8a03",
        "steps": STEPS,
        "seconds": STEPS / float(speeds[-1]),
        "steps_per_second": float(speeds[-1]),
        "compile_seconds": 0.0,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "return_mean": returns[-1] if returns else 0.0,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
