"""What `check-env` says of the returns of random actions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.envs.base import Box, Discrete
from stellaris_jax.envs.ranges import Ranges, range_lines, ranges_of


@given(st.integers(2, 14), st.integers(1, 3), st.integers(1, 20) | st.none(), st.booleans(), st.integers(0, 2**16))
def test_returns_of_episodes(length: int, num: int, limit: int | None, host: bool, seed: int) -> None:
    """Returns of episodes that begin early enough to end, whatever their length; else of the first ones, so far."""
    random = np.random.default_rng(seed)
    rewards, done = random.normal(size=(length, num)).astype(np.float32), random.random((length, num)) < 0.4
    dead = np.zeros((length, num), bool)
    if host:
        for t in range(1, length):
            dead[t] = done[t - 1]
            done[t] &= ~dead[t]
        rewards[dead] = 0.0
    latest = length - limit if limit is not None and limit <= length else 0
    expected, steps, unfinished = [], [], 0
    for n in range(num):
        begin, total, count = -1, 0.0, 0
        for t in range(length):
            if dead[t, n]:
                continue
            begin = t if count == 0 else begin
            total, count = total + float(rewards[t, n]), count + 1
            if done[t, n] or t == length - 1:
                if begin <= latest:
                    expected.append(total)
                    steps.append(count)
                    unfinished += not done[t, n]
                total, count = 0.0, 0
    found = ranges_of(rewards, rewards, done, dead, limit)
    assert found.returns == pytest.approx(expected, abs=1e-5) and found.steps.tolist() == steps
    assert found.unfinished == unfinished


@pytest.mark.parametrize("limit", [500, 600, 1000])
def test_long_episodes_count_as_much_as_short_ones(limit: int) -> None:
    """Half of them end at once and cost 1, the others earn 500 in 500 steps: 249.5 on average."""
    random, length, num = np.random.default_rng(0), 1000, 400
    rewards, done = np.full((length, num), 1.0), np.zeros((length, num), bool)
    for n in range(num):
        t = 0
        while t < length:
            long = random.random() < 0.5
            end = t + 499 if long else t
            rewards[t, n] = 1.0 if long else -1.0
            if end < length:
                done[end, n] = True
            t = end + 1
    found = ranges_of(rewards, rewards, done, np.zeros_like(done), limit)
    half = 1.96 * found.returns.std() / len(found.returns) ** 0.5
    assert found.unfinished == 0 and abs(found.returns.mean() - 249.5) < 2 * half


def line_of(returns: list[float], steps: list[float], unfinished: int = 0, **settings: Any) -> str:
    env = SimpleNamespace(observation_space=Box((1,), -1.0, 1.0), action_space=Discrete(2))
    ranges = Ranges((0.0, 1.0), (0.0, 1.0), np.array(returns), np.array(steps), unfinished)
    return range_lines(cast(Any, env), ranges, EnvConfig(**settings))[2]


def test_the_line() -> None:
    assert line_of([8.0, 10.0] * 8, [1000.0] * 16) == (
        "random actions return 9 ± 0.55 per episode, of 1,000 steps (means over 16)"
    )
    assert line_of([8.0, 10.0] * 8, [59.0, 60.0] * 8, life_loss=True) == (
        "random actions return 9 ± 0.55 per life, of 59.5 steps (means over 16)"
    )
    assert line_of([-500.0] * 8, [500.0] * 8) == ("random actions return -500 per episode, of 500 steps (means over 8)")
    assert line_of([1.0, 2.0], [200.0, 3.0], 1) == (
        "random actions earn 1.5 ± 6.4 in the first 200 steps of each episode, after which 1 of 2 were not over"
    )
