"""Times PPO of sbx, Stable-Baselines3 in JAX; it shares the environment of CleanRL, which `install.sh` makes.

sbx compiles its functions when they are first called. In a job of `throughput` a first round is thrown away: its time
above that of a later one is compilation.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from flax import linen
from sbx import PPO
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
"""The tuned settings of Stable-Baselines3's zoo at 22e3ff2, hyperparams/ppo.yml."""


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
    return throughput(job, seed, watch) if goal is None else to_return(job, seed, goal, watch)


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
    name, n_envs, steps = (settings.pop(key) for key in ("env", "n_envs", "total_timesteps"))
    normalize = settings.pop("normalize", False)
    env = make_vec_env(name, n_envs, seed=seed)
    own = make_vec_env(name, goal.episodes, seed=seed + 1000)
    if normalize:
        env, own = VecNormalize(env, gamma=settings["gamma"]), VecNormalize(own, training=False, norm_reward=False)
    model = PPO("MlpPolicy", env, seed=seed, **settings)
    callback = Evaluate(own, goal, watch, n_envs)
    watch.start()
    model.learn(steps, callback)
    watch.stop()
    return watch.figures(model.num_timesteps, float(callback.last_mean_reward))


if __name__ == "__main__":
    main("sbx", version("sbx-rl"), (*THROUGHPUT, *RETURN), run)
