"""Times PPO, DQN and SAC of sbx, Stable-Baselines3 in JAX, in the environment of CleanRL that `install.sh` makes.

sbx compiles its functions when they are first called. In a job of `throughput` a first round is thrown away: its time
above that of a later one is compilation.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from flax import linen
from sbx import DQN, PPO, SAC
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from benchmarks.peers.contract import Figures, Goal, Stopwatch, main

THROUGHPUT: dict[str, dict[str, Any]] = {
    "cartpole_small": {"n_envs": 4, "n_steps": 128, "batch_size": 128, "learning_rate": 2.5e-4, "rounds": 64},
    "cartpole_large": {"n_envs": 2048, "n_steps": 32, "batch_size": 8192, "learning_rate": 1e-3, "rounds": 4},
}
"""Settings of PPO; `rounds` is how many of them are timed."""

OFF_POLICY: dict[str, dict[str, Any]] = {
    "cartpole_dqn": {
        "algorithm": DQN,
        "env": "CartPole-v1",
        "n_envs": 8,
        "train_freq": 4,
        "gradient_steps": 16,
        "batch_size": 128,
        "buffer_size": 50_000,
        "learning_starts": 1_000,
        "policy_kwargs": {"net_arch": [64, 64]},
        "total_timesteps": 50_000,
    },
    "pendulum_sac": {
        "algorithm": SAC,
        "env": "Pendulum-v1",
        "n_envs": 4,
        "train_freq": 4,
        "gradient_steps": 16,
        "batch_size": 256,
        "buffer_size": 20_000,
        "learning_starts": 1_000,
        "policy_kwargs": {"net_arch": [256, 256]},
        "total_timesteps": 8_000,
    },
}
"""Settings of DQN and SAC for the same work. They compile with their first gradients, beyond `learning_starts`."""

COMMON: dict[str, Any] = {"n_epochs": 4, "ent_coef": 0.01, "policy_kwargs": {"net_arch": [64, 64]}}


def falling(start: float) -> Any:
    """The zoo's `lin_`: a line from here to zero over the run."""
    return lambda left: left * start


RETURN: dict[str, dict[str, Any]] = {
    "cartpole": {
        "env": "CartPole-v1",
        "n_envs": 8,
        "total_timesteps": 100_000,
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "ent_coef": 0.0,
        "learning_rate": falling(0.001),
        "clip_range": falling(0.2),
    },
    "acrobot": {
        "env": "Acrobot-v1",
        "normalize": True,
        "n_envs": 16,
        "total_timesteps": 1_000_000,
        "n_steps": 256,
        "gae_lambda": 0.94,
        "gamma": 0.99,
        "n_epochs": 4,
        "ent_coef": 0.0,
    },
    "cartpole_by_dqn": {
        "algorithm": DQN,
        "env": "CartPole-v1",
        "n_envs": 1,
        "total_timesteps": 100_000,
        "learning_rate": 2.3e-3,
        "batch_size": 64,
        "buffer_size": 100_000,
        "learning_starts": 1_000,
        "gamma": 0.99,
        "target_update_interval": 10,
        "train_freq": 256,
        "gradient_steps": 128,
        "exploration_fraction": 0.08,  # the zoo's 0.16 of its 50,000 steps
        "exploration_final_eps": 0.04,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
    "acrobot_by_dqn": {
        "algorithm": DQN,
        "env": "Acrobot-v1",
        "n_envs": 1,
        "total_timesteps": 100_000,
        "learning_rate": 6.3e-4,
        "batch_size": 128,
        "buffer_size": 50_000,
        "learning_starts": 0,
        "gamma": 0.99,
        "target_update_interval": 250,
        "train_freq": 4,
        "gradient_steps": -1,
        "exploration_fraction": 0.12,
        "exploration_final_eps": 0.1,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
    "pendulum_by_sac": {
        "algorithm": SAC,
        "env": "Pendulum-v1",
        "n_envs": 1,
        "total_timesteps": 20_000,
        "learning_rate": 1e-3,
    },
    "hopper_by_sac": {
        "algorithm": SAC,
        "env": "Hopper-v4",
        "n_envs": 1,
        "total_timesteps": 50_000,
        "learning_starts": 5_000,
    },
    "hopper": {
        "env": "Hopper-v4",
        "normalize": True,
        "n_envs": 1,
        "total_timesteps": 1_000_000,
        "n_steps": 512,
        "batch_size": 32,
        "gae_lambda": 0.99,
        "gamma": 0.999,
        "learning_rate": 9.80828e-05,
        "ent_coef": 0.00229519,
        "n_epochs": 5,
        "max_grad_norm": 0.7,
        "vf_coef": 0.835671,
        "policy_kwargs": {
            "log_std_init": -2,
            "ortho_init": False,
            "activation_fn": linen.relu,
            "net_arch": {"pi": [256, 256], "vf": [256, 256]},
        },
    },
}
"""The tuned settings of Stable-Baselines3's zoo at 22e3ff2, hyperparams/ppo.yml, dqn.yml and sac.yml. SAC on
Hopper has a twentieth of its steps, and half of the random ones that these begin with."""


class Evaluate(EvalCallback):
    """sbx's own evaluation, told to a stopwatch."""

    def __init__(self, env: VecEnv, goal: Goal, watch: Stopwatch, n_envs: int):
        super().__init__(env, n_eval_episodes=goal.episodes, eval_freq=max(1, goal.every // n_envs), verbose=0)
        self.watch = watch

    def _on_step(self) -> bool:
        super()._on_step()
        due = self.n_calls % self.eval_freq == 0
        return not (due and self.watch.evaluated(self.num_timesteps, self.last_mean_reward))


def run(job: str, seed: int, goal: Goal | None) -> Figures:
    """Train one job once."""
    watch = Stopwatch(goal)
    if job in OFF_POLICY:
        return off_policy(job, seed, watch)
    return throughput(job, seed, watch) if goal is None else to_return(job, seed, goal, watch)


def off_policy(job: str, seed: int, watch: Stopwatch) -> Figures:
    """A run of a fifth of the steps that compiles, and then the one that counts."""
    settings = dict(OFF_POLICY[job])
    kind, name, n_envs, steps = (settings.pop(key) for key in ("algorithm", "env", "n_envs", "total_timesteps"))

    def timed(steps: int) -> tuple[float, Any]:
        model = kind("MlpPolicy", make_vec_env(name, n_envs, seed=seed), seed=seed, **settings)
        begin = time.perf_counter()
        model.learn(steps)
        return time.perf_counter() - begin, model

    first, _ = timed(max(steps // 5, 2 * settings["learning_starts"]))
    watch.start()
    _, model = timed(steps)
    watch.stop()
    watch.compile_seconds = max(0.0, first - watch.seconds / 5)
    mean, _ = evaluate_policy(model, make_vec_env(name, 32, seed=seed + 1), 32)
    return watch.figures(model.num_timesteps, float(mean))


def throughput(job: str, seed: int, watch: Stopwatch) -> Figures:
    """One round that compiles, and then those that count."""
    settings = COMMON | THROUGHPUT[job]
    rounds = settings.pop("rounds")
    env = make_vec_env("CartPole-v1", settings.pop("n_envs"), seed=seed)
    model = PPO("MlpPolicy", env, seed=seed, **settings)
    size = env.num_envs * model.n_steps
    begin = time.perf_counter()
    model.learn(size)
    first = time.perf_counter() - begin
    watch.start()
    model.learn(rounds * size, reset_num_timesteps=False)
    watch.stop()
    watch.compile_seconds = first - watch.seconds / rounds
    mean, _ = evaluate_policy(model, make_vec_env("CartPole-v1", 32, seed=seed + 1), 32)
    return watch.figures(rounds * size, float(mean))


def to_return(job: str, seed: int, goal: Goal, watch: Stopwatch) -> Figures:
    """Train until an evaluation reaches the goal."""
    settings = dict(RETURN[job])
    kind = settings.pop("algorithm", PPO)
    name, n_envs, steps = (settings.pop(key) for key in ("env", "n_envs", "total_timesteps"))
    normalize = settings.pop("normalize", False)
    env = make_vec_env(name, n_envs, seed=seed)
    own = make_vec_env(name, goal.episodes, seed=seed + 1000)
    if normalize:
        env, own = VecNormalize(env, gamma=settings["gamma"]), VecNormalize(own, training=False, norm_reward=False)
    model = kind("MlpPolicy", env, seed=seed, **settings)
    callback = Evaluate(own, goal, watch, n_envs)
    watch.start()
    model.learn(steps, callback)
    watch.stop()
    return watch.figures(model.num_timesteps, float(callback.last_mean_reward))


if __name__ == "__main__":
    main("sbx", version("sbx-rl"), (*THROUGHPUT, *OFF_POLICY, *RETURN), run)
