"""A host environment made of a gymnasium one. (Registered ones need no plug-in: env=gymnasium/CartPole-v1.)

stellaris-jax train plugins=[host_environment.py] env=mine/pole
"""

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import stellaris_jax as sj


class Pool:
    """Steps environments that reset themselves in the step after an episode's last, as gymnasium's do."""

    def __init__(self, num_envs, seed):
        make = [lambda: gymnasium.make("CartPole-v1")] * num_envs
        self.envs = SyncVectorEnv(make, autoreset_mode=AutoresetMode.NEXT_STEP)
        obs, none = self.envs.reset(seed=seed)[0], np.zeros(num_envs, bool)
        self.result = sj.HostStep(obs, np.zeros(num_envs, np.float32), none, none)

    def send(self, action):
        obs, reward, terminated, truncated, _ = self.envs.step(action)
        self.result = sj.HostStep(obs, reward.astype(np.float32), terminated, truncated)

    def recv(self):
        return self.result

    def close(self):
        self.envs.close()


@sj.register.environment("mine/pole")
class Pole:
    name, max_episode_steps = "mine/pole", 500
    observation_space, action_space = sj.Box((4,), (-1e9,) * 4, (1e9,) * 4), sj.Discrete(2)

    def open(self, num_envs, seed, evaluation=False):
        return Pool(num_envs, seed)
