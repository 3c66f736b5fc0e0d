"""Networks with memory, written out step by step in NumPy, float64: cells, rollouts, values, and PPO's loss.

It shares no code with the package: environments are walked through one by one and step by step, what is carried is
blanked where an episode has ended, and gradients are differences of losses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Tree = Any


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def gru(weights: Tree, x: np.ndarray, carry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    size = len(carry)
    of_x = x @ weights["inputs"]["kernel"] + weights["inputs"]["bias"]
    of_h = carry @ weights["recurrent"]["kernel"]
    r = sigmoid(of_x[:size] + of_h[:size])
    z = sigmoid(of_x[size : 2 * size] + of_h[size : 2 * size])
    new = np.tanh(of_x[2 * size :] + r * of_h[2 * size :])
    carry = (1.0 - z) * new + z * carry
    return carry, carry


def lstm(weights: Tree, x: np.ndarray, carry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    cell, hidden = carry
    size = len(cell)
    gates = x @ weights["inputs"]["kernel"] + weights["inputs"]["bias"] + hidden @ weights["recurrent"]["kernel"]
    i, f, g, o = (gates[k * size : (k + 1) * size] for k in range(4))
    cell = sigmoid(f + 1.0) * cell + sigmoid(i) * np.tanh(g)
    hidden = sigmoid(o) * np.tanh(cell)
    return np.stack([cell, hidden]), hidden


CELLS: dict[str, Callable[..., Any]] = {"gru": gru, "lstm": lstm}


class Network:
    """A network of one hidden layer and a cell, at its parameters; of one environment, one step at a time.

    What is carried is one array for each of its trunks: `[size]`, or `[2, size]` of a LSTM (cell, hidden).
    """

    def __init__(self, kind: str, tree: Tree, size: int):
        self.cell, self.tree = CELLS[kind], tree
        self.shape = (2, size) if kind == "lstm" else (size,)
        self.of = (
            {"actor": "body", "critic": "body"} if "body" in tree else {h: f"{h}_body" for h in ("actor", "critic")}
        )

    def initial_carry(self) -> dict[str, np.ndarray]:
        return {name: np.zeros(self.shape) for name in self.of.values()}

    def step(self, obs: np.ndarray, carry: dict[str, np.ndarray]) -> tuple[np.ndarray, float, dict[str, np.ndarray]]:
        """Logits, the value, and what is carried on."""
        onwards, outputs = {}, {}
        for name in dict.fromkeys(self.of.values()):
            trunk = self.tree[name]
            dense = trunk["encoder"]["Dense_0"]
            hidden = np.tanh(obs @ dense["kernel"] + dense["bias"])
            onwards[name], outputs[name] = self.cell(trunk["cell"], hidden, carry[name])
        heads = {head: self.tree[head]["Dense_0"] for head in ("actor", "critic")}
        logits, value = (outputs[self.of[head]] @ heads[head]["kernel"] + heads[head]["bias"] for head in heads)
        return logits, float(value[0]), onwards


def walk(network: Network, carry: Any, obs: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    """Logits `[T, D]`, values `[T]` of one environment's observations `[T, ...]`, and what is carried on from each."""
    logits, values, carries = [], [], []
    for t in range(len(obs)):
        own, value, carry = network.step(obs[t], network.initial_carry() if first[t] else carry)
        logits.append(own)
        values.append(value)
        carries.append(carry)
    return np.array(logits), np.array(values), carries


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))


def ppo(
    network: Network,
    carries: list[Any],
    batch: Any,
    value_coefficient: float,
    entropy_coefficient: float,
    kl_coefficient: float,
    clip: float = 0.2,
) -> float:
    """PPO's loss of a minibatch `[T, n]` of sequences that begin with what is carried to each."""
    terms = []
    for n, carry in enumerate(carries):
        logits, values, _ = walk(network, carry, batch["obs"][:, n], batch["first"][:, n])
        log_p, log_mu = log_softmax(logits), log_softmax(batch["distribution"][:, n])
        for t in range(len(logits)):
            action, advantage, target = (batch[key][t, n] for key in ("action", "advantage", "target"))
            ratio = np.exp(log_p[t, action] - log_mu[t, action])
            gain = min(ratio * advantage, np.clip(ratio, 1 - clip, 1 + clip) * advantage)
            old = batch["value"][t, n]
            near = old + np.clip(values[t] - old, -clip, clip)
            error = max((values[t] - target) ** 2, (near - target) ** 2)
            entropy = -np.sum(np.exp(log_p[t]) * log_p[t])
            kl = np.sum(np.exp(log_mu[t]) * (log_mu[t] - log_p[t]))
            terms.append(-gain + value_coefficient * 0.5 * error - entropy_coefficient * entropy + kl_coefficient * kl)
    return float(np.mean(terms))


def gradient(loss: Callable[[np.ndarray], float], params: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """The gradient of a loss of parameters `[P]`, float64, by central differences."""
    found = np.zeros_like(params)
    for i in range(len(params)):
        moved = np.zeros_like(params)
        moved[i] = step
        found[i] = (loss(params + moved) - loss(params - moved)) / (2 * step)
    return found
