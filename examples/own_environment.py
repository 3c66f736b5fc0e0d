"""Registers an environment with gymnasium, checks it, and trains on it (extra `gymnasium`).

python examples/own_environment.py [KEY=VALUE ...]
"""

import sys

import gymnasium
import numpy as np

from stellaris_jax import Trainer, check_env, load_config
from stellaris_jax.envs import make


class Corridor(gymnasium.Env):
    """Walk right to the end of a corridor: -0.1 a step, 1 at the end."""

    length = 8
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(self.length // 2))
        return self._seen(), {}

    def step(self, action):
        self.place = max(0, self.place + (1 if action else -1))
        over = self.place >= self.length
        return self._seen(), 1.0 if over else -0.1, over, False, {}

    def _seen(self):
        return np.array([self.place / self.length], np.float32)


gymnasium.register("Corridor-v0", Corridor, max_episode_steps=50)


def main(overrides):
    check_env(make("gymnasium/Corridor-v0", {}))
    small = ["env=gymnasium/Corridor-v0", "env.num_envs=8", "network.hidden=[16]", "total_steps=16_384"]
    trainer = Trainer(load_config([*small, *overrides]))
    trainer.run()
    mean, half_width = trainer.evaluate(episodes=16).mean_ci95()
    print(f"return {mean:.2f} ± {half_width:.2f}; the best there is lies around 0.4")
    trainer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
