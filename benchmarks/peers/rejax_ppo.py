"""Times PPO of rejax 0.1.3, the fastest packaged peer in pure JAX, on one of the four jobs of `scripts/benchmark.py`.

rejax has a virtual environment of its own:

    python3.12 -m venv peers
    peers/bin/pip install rejax==0.1.3 gymnax==1.0.1 jax==0.11.2 flax==0.12.12 brax==0.14.2 mujoco==4.0.0 \\
        mujoco-mjx==3.17.0 six
    peers/bin/python benchmarks/peers/rejax_ppo.py cartpole_small

rejax was written for gymnax before 1.0. Two small adapters let it run on the very environments this package trains on:
gymnax 1.0.1 (older ones differ in SpaceInvaders), and brax with its own auto-reset (rejax's bridge would set up a new
episode at every step).

Training is compiled ahead of time and timed alone: `seconds` holds neither compilation nor evaluation. The last line of
the output is one JSON object: job, peer, version, jax, steps (env steps), seconds, steps_per_second, compile_seconds
(tracing included), peak_memory_mb (resident, of the whole process) and return_mean (128 evaluation episodes).
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from importlib.metadata import version
from typing import Any, NamedTuple

import gymnax
import jax
from gymnax.environments import spaces
from rejax import get_algo


class GymnaxEnv:
    """A gymnax 1.0 environment with the five-value step that rejax expects."""

    def __init__(self, name: str) -> None:
        self.env, self.default_params = gymnax.make(name)
        self.reset = self.env.reset
        self.action_space = self.env.action_space
        self.observation_space = self.env.observation_space

    def step(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> tuple[Any, ...]:
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        return obs, state, reward, terminated | truncated, info

    def __deepcopy__(self, memo: dict[int, Any]) -> GymnaxEnv:
        return self  # rejax copies its configuration; an environment holds no state


class BraxParams(NamedTuple):
    max_steps_in_episode: int = 1000


class BraxEnv:
    """A brax environment, with episodes of 1000 steps and brax's auto-reset, in the interface that rejax expects."""

    default_params = BraxParams()

    def __init__(self, name: str, backend: str) -> None:
        from brax import envs  # slow to import, so only where it is used

        self.env = envs.create(name, backend=backend, episode_length=1000, auto_reset=True)

    def reset(self, key: jax.Array, params: BraxParams) -> tuple[jax.Array, Any]:
        state = self.env.reset(key)
        return state.obs, state

    def step(self, key: jax.Array, state: Any, action: jax.Array, params: BraxParams) -> tuple[Any, ...]:
        state = self.env.step(state, action)
        return state.obs, state, state.reward, state.done.astype(bool), {}

    def action_space(self, params: BraxParams) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (self.env.action_size,))

    def observation_space(self, params: BraxParams) -> spaces.Box:
        return spaces.Box(-float("inf"), float("inf"), (self.env.observation_size,))

    def __deepcopy__(self, memo: dict[int, Any]) -> BraxEnv:
        return self


COMMON: dict[str, Any] = {
    "num_epochs": 4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_eps": 0.2,
    "vf_coef": 0.5,
    "ent_coef": 0.01,
    "max_grad_norm": 0.5,
    "agent_kwargs": {"activation": "tanh", "hidden_layer_sizes": (64, 64)},
}

JOBS: dict[str, dict[str, Any]] = {
    "cartpole_small": COMMON
    | {
        "env": lambda: GymnaxEnv("CartPole-v1"),
        "num_envs": 4,
        "num_steps": 128,
        "num_minibatches": 4,
        "learning_rate": 2.5e-4,
        "total_timesteps": 500_000,
    },
    "cartpole_large": COMMON
    | {
        "env": lambda: GymnaxEnv("CartPole-v1"),
        "num_envs": 2048,
        "num_steps": 32,
        "num_minibatches": 8,
        "learning_rate": 1e-3,
        "total_timesteps": 10_000_000,
    },
    "hopper_spring": COMMON
    | {
        "env": lambda: BraxEnv("hopper", backend="spring"),
        "num_envs": 2048,
        "num_steps": 10,
        "num_minibatches": 32,
        "learning_rate": 3e-4,
        "ent_coef": 0.0,
        "normalize_observations": True,
        "agent_kwargs": {"activation": "tanh", "hidden_layer_sizes": (256, 256)},
        "total_timesteps": 1_000_000,
    },
    "minatar_spaceinvaders": COMMON
    | {
        "env": lambda: GymnaxEnv("SpaceInvaders-MinAtar"),
        "num_envs": 64,
        "num_steps": 128,
        "num_minibatches": 8,
        "learning_rate": 5e-3,
        "agent_kwargs": {"activation": "relu", "hidden_layer_sizes": (64, 64)},
        "total_timesteps": 1_000_000,
    },
}


def run(job: str, seed: int) -> dict[str, Any]:
    """Trains and evaluates once; returns the figures of the module's docstring."""
    config = JOBS[job] | {"env": JOBS[job]["env"]()}
    # One evaluation after all steps, and an empty one: only training is timed.
    ppo = get_algo("ppo").create(**config, eval_freq=config["total_timesteps"], skip_initial_evaluation=True)
    evaluate = ppo.eval_callback
    training = ppo.replace(eval_callback=lambda algorithm, state, key: ())
    train_key, eval_key = jax.random.split(jax.random.PRNGKey(seed))

    start = time.perf_counter()
    train = jax.jit(lambda key: training.train(key)[0]).lower(train_key).compile()
    compile_seconds = time.perf_counter() - start

    start = time.perf_counter()
    state = jax.block_until_ready(train(train_key))
    seconds = time.perf_counter() - start

    steps = int(state.global_step)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    _, returns = jax.jit(lambda state, key: evaluate(ppo, state, key))(state, eval_key)
    return {
        "job": job,
        "peer": "rejax",
        "version": version("rejax"),
        "jax": jax.__version__,
        "steps": steps,
        "seconds": round(seconds, 3),
        "steps_per_second": round(steps / seconds),
        "compile_seconds": round(compile_seconds, 2),
        "peak_memory_mb": round(peak / 2**20),
        "return_mean": round(float(returns.mean()), 2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Times rejax's PPO on one job; prints one JSON line.")
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if not 0 <= arguments.seed < 2**32:
        parser.error(f"--seed={arguments.seed} must be from 0 to {2**32 - 1}")
    print(json.dumps(run(arguments.job, arguments.seed)))
