"""A host environment with known answers and injectable faults."""

from __future__ import annotations

import threading
import time

import numpy as np

from stellaris_jax.envs.base import Box, Discrete, HostStep


class Clockwork:
    """Environment i of a pool has episodes of 3 + i steps, every other one truncated instead of terminated.

    It observes (seed, steps taken, episodes completed, 1) and pays the number of steps taken. `slow` seconds pass in
    every step; at the step numbered `fails` (counted over a pool) `error` is raised.
    """

    name = "test/clockwork"
    observation_space = Box((4,), (0.0,) * 4, (1e9,) * 4)
    action_space = Discrete(3)
    max_episode_steps = 100

    def __init__(self, slow: float = 0.0, fails: int = -1, error: type[BaseException] = OSError):
        self.slow, self.fails, self.error = slow, fails, error

    def open(self, num_envs: int, seed: int, evaluation: bool = False) -> ClockworkPool:
        return ClockworkPool(self, num_envs, seed)


class ClockworkPool:
    def __init__(self, env: Clockwork, num_envs: int, seed: int):
        self.env = env
        self.lengths = 3 + np.arange(num_envs)
        self.seed = np.full(num_envs, seed % 1000)
        self.steps, self.episodes = np.zeros(num_envs, int), np.zeros(num_envs, int)
        self.over = np.zeros(num_envs, bool)
        self.count = 0
        self.actions: list[np.ndarray] = []
        self.threads: set[str] = set()
        nothing = np.zeros(num_envs, bool)
        self.next = self._result(np.zeros(num_envs), nothing, nothing)

    def _result(self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> HostStep:
        n = len(reward)
        obs = np.stack([self.seed[:n], self.steps[:n], self.episodes[:n], np.ones(n)], axis=1)
        return HostStep(obs.astype(np.float32), reward.astype(np.float32), terminated, truncated)

    def send(self, action: np.ndarray) -> None:
        self.actions.append(np.array(action))
        self.threads.add(threading.current_thread().name)
        if self.count == self.env.fails:
            raise self.env.error("the clockwork broke")
        self.count += 1
        n = len(action)
        reset = self.over[:n].copy()
        self.steps[:n] = np.where(reset, 0, self.steps[:n] + 1)
        self.episodes[:n] += reset
        ended = ~reset & (self.steps[:n] == self.lengths[:n])
        odd = self.episodes[:n] % 2 == 1
        self.next = self._result(np.where(reset, 0.0, self.steps[:n]), ended & ~odd, ended & odd)
        self.over[:n] = ended

    def recv(self) -> HostStep:
        time.sleep(self.env.slow)
        return self.next

    def close(self) -> None:
        pass
