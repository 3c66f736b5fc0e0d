"""Times PPO, DQN and SAC of rejax, the fastest packaged peer in pure JAX; `install.sh` makes its environment.

rejax was written for gymnax before 1.0. Two small adapters let it run on the very environments this package trains on.
These are gymnax 1.0.1 (older ones differ in SpaceInvaders), and brax with its own auto-reset (rejax's bridge would set
up a new episode at every step).

Training is one compiled program, compiled ahead of time; in a job of `return`, one that trains up to an evaluation and
makes it, and is called until the target is reached. As rejax anneals nothing, it may then train for longer than its
settings say.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, NamedTuple

import gymnax
import jax
from gymnax.environments import spaces
from rejax import get_algo
from rejax.evaluate import evaluate

from benchmarks.peers.contract import Figures, Goal, Stopwatch, main


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

THROUGHPUT: dict[str, dict[str, Any]] = {
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
        "total_timesteps": 4_194_304,
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
        "total_timesteps": 409_600,
    },
    "minatar_spaceinvaders": COMMON
    | {
        "env": lambda: GymnaxEnv("SpaceInvaders-MinAtar"),
        "num_envs": 64,
        "num_steps": 128,
        "num_minibatches": 8,
        "learning_rate": 5e-3,
        "agent_kwargs": {"activation": "relu", "hidden_layer_sizes": (64, 64)},
        "total_timesteps": 524_288,
    },
}

DQN: dict[str, Any] = {
    "algorithm": "dqn",
    "batch_size": 100,
    "gamma": 0.99,
    "eps_start": 1.0,
    "eps_end": 0.05,
    "exploration_fraction": 0.5,
    "max_grad_norm": 10.0,
    "learning_rate": 0.001,
    "total_timesteps": 100_000,
}

THROUGHPUT |= {
    "cartpole_dqn": DQN
    | {
        "env": lambda: GymnaxEnv("CartPole-v1"),
        "agent_kwargs": {"activation": "relu"},
        "num_envs": 8,
        "num_epochs": 4,
        "batch_size": 128,
        "buffer_size": 50_000,
        "fill_buffer": 1_000,
        "total_timesteps": 50_000,
    },
    "pendulum_sac": {
        "algorithm": "sac",
        "env": lambda: GymnaxEnv("Pendulum-v1"),
        "agent_kwargs": {"activation": "relu"},
        "hidden_layer_sizes": (256, 256),
        "num_envs": 4,
        "num_epochs": 4,
        "batch_size": 256,
        "buffer_size": 20_000,
        "fill_buffer": 1_000,
        "learning_rate": 3e-4,
        "total_timesteps": 8_000,
    },
}

CLASSIC: dict[str, Any] = COMMON | {
    "num_envs": 5,
    "num_steps": 100,
    "num_epochs": 5,
    "num_minibatches": 5,
    "learning_rate": 0.00075,
    "total_timesteps": 500_000,
    "agent_kwargs": {"activation": "tanh"},
}

MINATAR: dict[str, Any] = COMMON | {
    "num_envs": 32,
    "num_steps": 32,
    "num_minibatches": 4,
    "learning_rate": 0.00025674088686342003,
    "max_grad_norm": 1,
    "gamma": 0.995,
    "total_timesteps": 2_000_000,
    "agent_kwargs": {"activation": "tanh"},
}

PENDULUM: dict[str, Any] = COMMON | {
    "env": lambda: GymnaxEnv("Pendulum-v1"),
    "num_envs": 100,
    "num_steps": 100,
    "num_epochs": 10,
    "num_minibatches": 10,
    "learning_rate": 0.001,
    "max_grad_norm": 10,
    "gamma": 0.995,
    "ent_coef": 0.0,
    "normalize_observations": True,
    "total_timesteps": 2_000_000,
    "agent_kwargs": {"activation": "swish"},
}

ALIKE: dict[str, Any] = COMMON | {
    "num_envs": 64,
    "num_steps": 64,
    "num_minibatches": 8,
    "learning_rate": 5e-3,
    "total_timesteps": 2_000_000,
    "agent_kwargs": {"activation": "relu", "hidden_layer_sizes": (64, 64)},
}
"""Our settings of MinAtar, but for the annealed learning rate, which rejax does not have."""

RETURN: dict[str, dict[str, Any]] = {
    "cartpole": CLASSIC | {"env": lambda: GymnaxEnv("CartPole-v1")},
    "acrobot": CLASSIC | {"env": lambda: GymnaxEnv("Acrobot-v1"), "normalize_observations": True},
    "breakout_minatar": MINATAR | {"env": lambda: GymnaxEnv("Breakout-MinAtar")},
    "asterix_minatar": MINATAR | {"env": lambda: GymnaxEnv("Asterix-MinAtar")},
    "spaceinvaders_minatar": MINATAR | {"env": lambda: GymnaxEnv("SpaceInvaders-MinAtar")},
    "freeway_minatar": MINATAR | {"env": lambda: GymnaxEnv("Freeway-MinAtar")},
    "pendulum": PENDULUM,
    "brax_hopper": MINATAR
    | {
        "env": lambda: BraxEnv("hopper", backend="spring"),
        "num_epochs": 9,
        "num_minibatches": 2,
        "normalize_observations": True,
    },
    "breakout_alike": ALIKE | {"env": lambda: GymnaxEnv("Breakout-MinAtar")},
    "asterix_alike": ALIKE | {"env": lambda: GymnaxEnv("Asterix-MinAtar"), "num_minibatches": 4},
    "cartpole_by_dqn": DQN
    | {
        "env": lambda: GymnaxEnv("CartPole-v1"),
        "agent": "DuelingQNetwork",
        "agent_kwargs": {"activation": "swish"},
        "num_envs": 10,
        "num_epochs": 5,
        "buffer_size": 50_000,
        "fill_buffer": 5_000,
        "polyak": 0.98,
    },
    "acrobot_by_dqn": DQN
    | {
        "env": lambda: GymnaxEnv("Acrobot-v1"),
        "agent": "DuelingQNetwork",
        "agent_kwargs": {"activation": "swish"},
        "num_envs": 10,
        "num_epochs": 5,
        "buffer_size": 10_000,
        "fill_buffer": 1_000,
        "target_update_freq": 200,
    },
    "pendulum_by_sac": {
        "algorithm": "sac",
        "env": lambda: GymnaxEnv("Pendulum-v1"),
        "agent_kwargs": {"activation": "swish"},
        "num_envs": 1,
        "num_epochs": 1,
        "buffer_size": 10_000,
        "fill_buffer": 256,
        "batch_size": 256,
        "learning_rate": 0.01,
        "gamma": 0.99,
        "polyak": 0.98,
        "normalize_observations": True,
        "total_timesteps": 20_000,
    },
    "breakout_by_dqn": DQN
    | {
        "env": lambda: GymnaxEnv("Breakout-MinAtar"),
        "agent": "DuelingQNetwork",
        "agent_kwargs": {"activation": "swish"},
        "num_envs": 10,
        "num_epochs": 5,
        "buffer_size": 100_000,
        "fill_buffer": 5_000,
        "polyak": 0.98,
        "total_timesteps": 500_000,
    },
}
"""rejax's own settings, of its repository at d751095: configs/gymnax/cartpole.yaml, acrobot.yaml and pendulum.yaml. For
MinAtar there is benchmark/breakout_1m.yaml alone, which the other games are given, too. brax's hopper has the rest of
configs/brax/hopper.yaml, but steps on another backend, as ours does. All may train for as long as ours, the pendulum
longer. There is none for DQN on MinAtar: Breakout has those of CartPole with a larger buffer."""


def run(job: str, seed: int, goal: Goal | None) -> Figures:
    """Train one job once."""
    watch = Stopwatch(goal)
    if goal is not None:
        return to_return(RETURN[job], seed, goal, watch)
    algorithm, evaluator = create(THROUGHPUT[job])
    key, eval_key = jax.random.split(jax.random.PRNGKey(seed))
    with watch.compiling():
        train = jax.jit(lambda key: algorithm.train(key)[0]).lower(key).compile()
    watch.start()
    state = jax.block_until_ready(train(key))
    watch.stop()
    _, returns = jax.jit(lambda state, key: evaluator(algorithm, state, key))(state, eval_key)
    return watch.figures(int(state.global_step), float(returns.mean()))


def create(settings: dict[str, Any]) -> tuple[Any, Any]:
    """An algorithm that trains without evaluations, and what evaluates it."""
    config = {"algorithm": "ppo"} | settings | {"env": settings["env"]()}
    kind = get_algo(config.pop("algorithm"))
    made = kind.create(**config, eval_freq=config["total_timesteps"], skip_initial_evaluation=True)
    return made.replace(eval_callback=lambda algorithm, state, key: ()), made.eval_callback


def to_return(settings: dict[str, Any], seed: int, goal: Goal, watch: Stopwatch) -> Figures:
    """Train from evaluation to evaluation, each stretch a call of one program, until one reaches the goal."""

    def callback(algorithm: Any, state: Any, key: jax.Array) -> jax.Array:
        limit = algorithm.env_params.max_steps_in_episode
        act = algorithm.make_act(state)
        _, returns = evaluate(act, key, algorithm.env, algorithm.env_params, goal.episodes, limit)
        return returns.mean()

    stretch = {"total_timesteps": goal.every}
    if "exploration_fraction" in settings:  # a share of the whole run
        stretch["exploration_fraction"] = settings["exploration_fraction"] * settings["total_timesteps"] / goal.every
    algorithm, _ = create(settings | stretch)
    algorithm = algorithm.replace(eval_callback=callback)
    watch.start()
    with watch.compiling():
        state = jax.jit(algorithm.init_state)(jax.random.PRNGKey(seed))
        train = jax.jit(lambda state: algorithm.train(train_state=state)).lower(state).compile()
    steps, over = 0, False
    while steps < settings["total_timesteps"] and not over:
        state, means = train(state)
        steps, mean = int(state.global_step), float(means[-1])
        over = watch.evaluated(steps, mean)
    watch.stop()
    return watch.figures(steps, mean)


if __name__ == "__main__":
    main("rejax", version("rejax"), (*THROUGHPUT, *RETURN), run)
