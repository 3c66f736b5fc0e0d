"""Times RLlib's PPO and APPO (PyTorch); `install.sh` makes their environment.

They do the work of `benchmarks.cost.JOBS`: as many processes that step as many environments, the same network and
minibatches. Hopper is envpool's, of which every environment is a pool of one: RLlib's runners step environments of
gymnasium one by one. APPO's learner takes batches as they come, from runners that do not wait for it, and passes over
some: `learned_per_second` counts what was learned from, `steps_per_second` what was sampled.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import envpool
import gymnasium
import numpy as np
import ray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

from benchmarks.peers.contract import Figures, Goal, Stopwatch, main

ALGORITHMS: dict[str, type[AlgorithmConfig]] = {"ppo": PPOConfig, "appo": APPOConfig}
ENVS = {"cartpole": "CartPole-v1", "hopper": "envpool-hopper"}
RUNNERS, ENVS_EACH, STEPS = 2, 8, 128
MINIBATCHES, EPOCHS = 4, 4
ROUNDS = 20
"""That are timed."""
WARM_UP = 2, 10
"""Rounds before them: the fewest, and the most, until the learner has learned from something."""
SETTINGS: dict[str, Any] = {
    "gamma": 0.99,
    "lr": 3e-4,
    "num_epochs": EPOCHS,
    "entropy_coeff": 0.01,
    "grad_clip": 0.5,
    "train_batch_size_per_learner": RUNNERS * ENVS_EACH * STEPS,
    "minibatch_size": RUNNERS * ENVS_EACH * STEPS // MINIBATCHES,
}
OWN: dict[str, dict[str, Any]] = {"ppo": {"lambda_": 0.95, "use_kl_loss": False}, "appo": {"use_kl_loss": False}}
NETWORK = DefaultModelConfig(fcnet_hiddens=[256, 256], fcnet_activation="tanh", vf_share_layers=False)


class Hopper(gymnasium.Env):
    """One of envpool's."""

    def __init__(self, config: Any):
        self.pool = envpool.make("Hopper-v4", env_type="gymnasium", num_envs=1, seed=config.worker_index)
        space = self.pool.observation_space
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, space.shape, np.float32)
        self.action_space = self.pool.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return self.pool.reset()[0][0].astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = self.pool.step(np.asarray(action, np.float64)[None])
        return obs[0].astype(np.float32), float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}


def run(job: str, seed: int, goal: Goal | None) -> Figures:
    """Train one job once."""
    algorithm, _, env = job.partition("_")
    watch = Stopwatch(goal)
    register_env(ENVS["hopper"], Hopper)
    # More than there may be: it is the operating system that shares them.
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        with watch.compiling():
            trainer = settings(algorithm, ENVS[env], seed).build_algo()
            before = [Steps.of(trainer.train()) for _ in range(WARM_UP[0])]
            while before[-1].learned == 0 and len(before) < WARM_UP[1]:
                before.append(Steps.of(trainer.train()))
        watch.start()
        results = [trainer.train() for _ in range(ROUNDS)]
        watch.stop()
        trainer.stop()
    finally:
        ray.shutdown()
    found = [*before, *map(Steps.of, results)]
    learned = max(steps.learned for steps in found) - max(steps.learned for steps in before)
    mean = float(results[-1]["env_runners"].get("episode_return_mean", 0.0))
    figures = watch.figures(found[-1].sampled - before[-1].sampled, mean)
    return figures | {"learned_per_second": learned / watch.seconds}


def settings(algorithm: str, env: str, seed: int) -> AlgorithmConfig:
    """A job as RLlib has it."""
    config = ALGORITHMS[algorithm]().environment(env).debugging(seed=seed, log_level="ERROR")
    config = config.env_runners(
        num_env_runners=RUNNERS, num_envs_per_env_runner=ENVS_EACH, rollout_fragment_length=STEPS
    )
    config = config.rl_module(model_config=NETWORK).training(**SETTINGS, **OWN[algorithm])
    least = RUNNERS * ENVS_EACH * STEPS
    return config.reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=least)


class Steps(NamedTuple):
    """Env steps so far: those sampled, and those learned from, as far as a round's result tells of them."""

    sampled: int
    learned: float

    @classmethod
    def of(cls, result: dict[str, Any]) -> Steps:
        module = result.get("learners", {}).get("default_policy", {})
        learned = float(module.get("num_module_steps_trained_lifetime", 0.0)) / EPOCHS
        return cls(int(result["env_runners"]["num_env_steps_sampled_lifetime"]), learned)


if __name__ == "__main__":
    main("rllib", ray.__version__, [f"{algorithm}_{env}" for algorithm in ALGORITHMS for env in ENVS], run)
