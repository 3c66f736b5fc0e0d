"""Replay buffers and off-policy losses, written anew from the papers in NumPy, one transition at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Step(NamedTuple):
    """Step of one environment; the next observation is that before any reset."""

    obs: float
    action: int
    reward: float
    terminated: bool
    truncated: bool
    valid: bool
    next_obs: float


class Expected(NamedTuple):
    """Transition of n steps."""

    obs: float
    action: int
    reward: float
    discount: float
    next_obs: float


def transition(steps: list[Step], begin: int, n: int, gamma: float) -> Expected:
    """Transition that begins with a step: rewards until n steps are over, an episode ends, or a step is invalid."""
    total, last = 0.0, steps[begin]
    for k, step in enumerate(steps[begin : begin + n]):
        if k > 0 and (last.terminated or last.truncated or not step.valid):
            break
        total, last, taken = total + gamma**k * step.reward, step, k + 1
    discount = 0.0 if last.terminated else gamma**taken
    return Expected(steps[begin].obs, steps[begin].action, total, discount, last.next_obs)


Network = Callable[[Any, np.ndarray], np.ndarray]


def perceptron(parameters: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Dense layers of flax (`Dense_0`, `Dense_1`, ...) with ReLUs between them, in 64 bits."""
    x = np.asarray(x, np.float64)
    for layer in range(len(parameters)):
        weights = parameters[f"Dense_{layer}"]
        x = x @ np.asarray(weights["kernel"], np.float64) + np.asarray(weights["bias"], np.float64)
        if layer + 1 < len(parameters):
            x = np.maximum(x, 0.0)
    return x


class Minibatch(NamedTuple):
    """Transitions `[B, ...]`."""

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    next_obs: np.ndarray
    valid: np.ndarray


def dqn_loss(q: Any, held: Any, target: Any, data: Minibatch, *, double: bool, huber: float) -> float:
    """DQN's loss; `held` are the learner's parameters where the loss is not differentiated by them."""
    losses = []
    for i in np.flatnonzero(data.valid):
        following = perceptron(target, data.next_obs[i])
        chooser = perceptron(held, data.next_obs[i]) if double else following
        value = data.reward[i] + data.discount[i] * following[int(np.argmax(chooser))]
        error = abs(perceptron(q, data.obs[i])[data.action[i]] - value)
        losses.append(0.5 * error**2 if error <= huber else huber * (error - 0.5 * huber))
    return float(np.mean(losses))


class Bounds(NamedTuple):
    """Bounds of actions `[n]`."""

    low: np.ndarray
    high: np.ndarray


def squashed_draw(actor: Any, obs: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, float]:
    """Draw of SAC's policy in [-1, 1], and its log-probability, by the change of variables."""
    mean, log_std = np.split(perceptron(actor, obs), 2)
    log_std = np.clip(log_std, -20.0, 2.0)
    u = mean + np.exp(log_std) * noise
    action = np.tanh(u)
    normal = -0.5 * noise**2 - log_std - 0.5 * np.log(2.0 * np.pi)
    return action, float(np.sum(normal - np.log1p(-(action**2))))


def sac_losses(
    tree: Any, held: Any, target: Any, data: Minibatch, noise: np.ndarray, next_noise: np.ndarray, bounds: Bounds
) -> float:
    """Sum of SAC's three losses; `held` are the parameters where each is not differentiated by them."""
    critic, policy, temperature = [], [], []
    alpha, held_alpha = np.exp(float(tree["temperature"])), np.exp(float(held["temperature"]))

    def values(critics: Any, obs: np.ndarray, action: np.ndarray) -> list[float]:
        joined = np.concatenate([obs, action])
        each = [{name: {k: w[i] for k, w in layer.items()} for name, layer in critics.items()} for i in range(2)]
        return [float(perceptron(one, joined)[0]) for one in each]

    for i in np.flatnonzero(data.valid):
        following, log_prob = squashed_draw(held["actor"], data.next_obs[i], next_noise[i])
        value = min(values(target["critic"]["values"], data.next_obs[i], following)) - held_alpha * log_prob
        wanted = data.reward[i] + data.discount[i] * value
        scaled = 2.0 * (data.action[i] - bounds.low) / (bounds.high - bounds.low) - 1.0
        critic.append(sum(0.5 * (q - wanted) ** 2 for q in values(tree["critic"]["values"], data.obs[i], scaled)))
        action, log_prob = squashed_draw(tree["actor"], data.obs[i], noise[i])
        policy.append(held_alpha * log_prob - min(values(held["critic"]["values"], data.obs[i], action)))
        held_log_prob = squashed_draw(held["actor"], data.obs[i], noise[i])[1]
        temperature.append(-alpha * (held_log_prob - len(bounds.low)))
    return float(np.mean(critic) + np.mean(policy) + np.mean(temperature))
