"""Minibatches in float64, and the formulas of policy objectives and masks on them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import scipy.special
import scipy.stats

from stellaris_jax.base.registry import register
from stellaris_jax.config.options import completed

B, ACTIONS, DIMENSIONS = 24, 4, 2
VERSIONS = (23, 11)
"""Versions of the learner and of the behaviour policy; the learner's is a multiple of one interval below, 23."""

# Policies in float64 ----------------------------------------------------------------------------------------------


def log_prob(kind: str, theta: np.ndarray, action: np.ndarray) -> np.ndarray:
    """log pi(a|s) `[B]`."""
    if kind == "discrete":
        return scipy.special.log_softmax(theta, axis=1)[np.arange(len(theta)), action]
    mean, log_std = np.split(theta, 2, axis=1)
    return scipy.stats.norm.logpdf(action, mean, np.exp(log_std)).sum(axis=1)


def score(kind: str, theta: np.ndarray, action: np.ndarray) -> np.ndarray:
    """The gradient of log pi(a|s) by the policy's parameters `[B, D]`."""
    if kind == "discrete":
        return np.eye(theta.shape[1])[action] - scipy.special.softmax(theta, axis=1)
    mean, log_std = np.split(theta, 2, axis=1)
    z = (action - mean) / np.exp(log_std)
    return np.concatenate([z / np.exp(log_std), z**2 - 1.0], axis=1)


class Data(NamedTuple):
    """A minibatch: parameters of pi, mu and pi_prox, what was sampled, and versions of pi and mu."""

    kind: str
    pi: np.ndarray
    mu: np.ndarray
    prox: np.ndarray
    action: np.ndarray
    advantage: np.ndarray
    peers: np.ndarray
    valid: np.ndarray | None = None
    versions: tuple[int, int] = VERSIONS

    @property
    def log_mu(self) -> np.ndarray:
        return log_prob(self.kind, self.mu, self.action)

    @property
    def log_ratio(self) -> np.ndarray:
        return log_prob(self.kind, self.pi, self.action) - self.log_mu

    @property
    def counted(self) -> np.ndarray:
        """Valid rows, bool `[B]`."""
        return np.ones(len(self.pi), bool) if self.valid is None else self.valid


def single(x: np.ndarray) -> np.ndarray:
    """Rounded to float32, for both sides to start from the same numbers."""
    return x.astype(np.float32).astype(np.float64)


def drawn(kind: str, seed: int, partly: bool = False) -> Data:
    """Policies from very near to far away, log-ratios up to 3 and beyond; a third is invalid, or nothing."""
    random = np.random.default_rng(seed)
    size = ACTIONS if kind == "discrete" else 2 * DIMENSIONS
    width = np.full(size, 2.2) if kind == "discrete" else np.repeat([1.1, 0.35], DIMENSIONS)
    spread = random.uniform(0.0, 1.0, (B, 1)) * width
    mu = single(0.6 * random.normal(size=(B, size)))
    pi, prox = (single(mu + spread * random.normal(size=mu.shape)) for _ in range(2))
    if kind == "discrete":
        action = np.argmax(mu + random.gumbel(size=mu.shape), axis=1)
    else:
        mean, log_std = np.split(mu, 2, axis=1)
        action = single(random.normal(mean, np.exp(log_std)))
    advantage = single(random.normal(-0.1, 1.0, B))
    valid = random.random(B) < 0.67 if partly else None
    return Data(kind, pi, mu, prox, action, advantage, single(random.normal(0.0, 0.5, B)), valid)


def apart(data: Data, log_ratio: np.ndarray) -> Data:
    """The same with these log-ratios `[B]`: pi or mu, whichever is to be lower, gives the action up."""
    low, down = data.mu.copy(), np.abs(log_ratio)
    if data.kind == "discrete":
        every = np.arange(len(low))
        others = np.where(np.eye(ACTIONS, dtype=bool)[data.action], -np.inf, low)
        wanted = data.log_mu - down
        low[every, data.action] = scipy.special.logsumexp(others, axis=1) + wanted - np.log1p(-np.exp(wanted))
    else:
        deviation = np.exp(low[:, DIMENSIONS])
        z = (data.action[:, 0] - low[:, 0]) / deviation
        low[:, 0] = data.action[:, 0] - np.copysign(np.sqrt(z**2 + 2 * down), z) * deviation
    less = (log_ratio < 0)[:, None]
    return data._replace(pi=single(np.where(less, low, data.mu)), mu=single(np.where(less, data.mu, low)))


# The formulas -----------------------------------------------------------------------------------------------------


def surrogate(ratio: np.ndarray, advantage: np.ndarray, low: float, high: float) -> np.ndarray:
    """min(r A, clip(r, low, high) A)."""
    return np.minimum(ratio * advantage, np.clip(ratio, low, high) * advantage)


def bapo_bounds(ratio: np.ndarray, data: Data, c: SimpleNamespace) -> tuple[float, float]:
    """BAPO's bounds, moved until positive advantages have their share of the objective."""
    low, high, gains = c.low_from, c.high_from, data.advantage > 0
    while True:
        size = np.where(data.counted, np.abs(surrogate(ratio, data.advantage, low, high)), 0.0)
        if size[gains].sum() >= c.share * size.sum() or (low >= c.low_to and high >= c.high_to):
            return low, high
        if high < c.high_to:
            high = min(high + c.high_step, c.high_to)
        else:
            low = min(low + c.low_step, c.low_to)


def objective(name: str, log_pi: np.ndarray, fixed: np.ndarray, data: Data, c: SimpleNamespace) -> np.ndarray:
    """Summands of the objective, `[B]`, at log pi; sg(x) is a function of `fixed`, which log pi moves away from."""
    advantage, log_mu = data.advantage, data.log_mu
    ratio, held = np.exp(log_pi - log_mu), np.exp(fixed - log_mu)
    if name == "ppo":
        return surrogate(ratio, advantage, 1 - c.clip, 1 + c.clip)
    if name == "importance":
        return ratio * advantage
    if name == "tis":
        return np.clip(held, c.weight_low, c.weight_cap) * advantage * log_pi
    if name == "cispo":
        return np.clip(held, 1 - c.clip_low, 1 + c.clip_high) * advantage * log_pi
    if name == "sapo":
        tau = np.where(advantage > 0, c.tau_positive, c.tau_negative)
        return scipy.special.expit(tau * (ratio - 1)) * 4 / tau * advantage
    if name == "topr":
        return np.where(advantage > 0, 1.0, np.clip(held, 0, 1)) * advantage * log_pi
    if name == "bapo":
        return surrogate(ratio, advantage, *bapo_bounds(held, data, c))
    if name == "decoupled":
        log_prox = log_prob(data.kind, data.prox, data.action)
    else:
        learner, behaviour = data.versions
        proximal = max(learner - learner % c.proximal_interval, behaviour)
        share = 0.0 if learner == behaviour else (proximal - behaviour) / (learner - behaviour)
        log_prox = log_mu + share * (fixed - log_mu)
    weight = np.minimum(np.exp(log_prox - log_mu), c.behaviour_cap)
    return weight * surrogate(np.exp(log_pi - log_prox), advantage, 1 - c.clip, 1 + c.clip)


def kept(name: str, data: Data, c: SimpleNamespace) -> np.ndarray:
    """Samples that a mask keeps, bool `[B]`."""
    log_ratio, advantage = data.log_ratio, data.advantage
    ratio = np.exp(log_ratio)
    if name == "icepop":
        return (c.ratio_low <= ratio) & (ratio <= c.ratio_high)
    if name == "dppo":
        gap = np.exp(data.log_mu + log_ratio) - np.exp(data.log_mu) if data.kind == "discrete" else (ratio - 1) / 2
        return ~((advantage > 0) & (gap > c.tv_bound) | (advantage < 0) & (-gap > c.tv_bound))
    if name == "opsm":
        return ~((advantage < 0) & (-log_ratio > c.opsm_bound))
    if name == "m2po_clip":
        moved = data.counted & ((advantage > 0) & (ratio > 1) | (advantage < 0) & (ratio < 1))
        sizes = np.abs(log_ratio)
        fitting = [s for s in sizes[moved] if np.mean(np.minimum(sizes[moved], s) ** 2) <= c.second_moment]
        cap = max(fitting, default=0.0)
        above = (advantage > 0) & (ratio > 1 + max(np.exp(cap) - 1, c.least_high))
        under = (advantage < 0) & (ratio < 1 - max(1 - np.exp(-cap), c.least_low))
        return ~(moved & (above | under))
    rest = sorted(np.flatnonzero(data.counted), key=lambda i: log_ratio[i] ** 2)
    while rest and np.mean(log_ratio[rest] ** 2) > c.second_moment:
        rest.pop()
    return np.isin(np.arange(len(ratio)), rest)


def expected(
    name: str,
    data: Data,
    options: dict[str, float],
    masks: tuple[str, ...] = (),
    cap: float | None = None,
) -> np.ndarray:
    """The gradient of the loss by the policy's parameters `[B, D]`, by central differences.

    cap: rho of Eq. 2, whose min(r, r_peers, rho) / r weighs every sample; `None`: there is no such weight.
    """
    c = SimpleNamespace(**completed(register.algorithm[name], options))
    factor = data.counted / data.counted.sum()
    for mask in masks:
        factor = factor * kept(mask, data, SimpleNamespace(**completed(register.mask[mask], options)))
    if cap is not None:
        ratio = np.exp(data.log_ratio)
        factor = factor * np.minimum(np.minimum(ratio, np.exp(data.peers)), cap) / ratio
    fixed, gradient = log_prob(data.kind, data.pi, data.action), np.empty_like(data.pi)
    for column in range(data.pi.shape[1]):
        step = 1e-6 * np.eye(data.pi.shape[1])[column]
        ends = (log_prob(data.kind, data.pi + sign * step, data.action) for sign in (1, -1))
        above, below = (objective(name, end, fixed, data, c) for end in ends)
        gradient[:, column] = -factor * (above - below) / 2e-6
    return gradient
