"""Options that envpool refuses, or that end the process, are refused before anything is compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("envpool")

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.envs.registry import make
from stellaris_jax.envs.suites import envpool


@pytest.mark.parametrize(
    ("task", "key", "value"),
    [
        ("Hopper-v4", "frame_skip", 0),
        ("Hopper-v4", "frame_skip", 2**31),
        ("Hopper-v4", "frame_skip", True),
        ("Hopper-v4", "num_threads", -5),
        ("Hopper-v4", "max_episode_steps", 0),
        ("Pong-v5", "noop_max", 0),
        ("Pong-v5", "img_height", 0),
    ],
)
def test_counts_are_positive(task: str, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"env\.kwargs\.{key}={value} must be"):
        make(f"envpool/{task}", {key: value})


@pytest.mark.parametrize(
    ("task", "options", "part"),
    [("Hopper-v4", {"num_threads": 100_000}, "num_threads"), ("Hopper-v4", {"xml_file": "/no.xml"}, "Error opening")],
)
def test_what_ends_the_process_is_found_out_in_another(task: str, options: dict, part: str) -> None:
    with pytest.raises(ConfigError, match=rf"cannot be used with envpool/{task}: envpool ends .*") as caught:
        make(f"envpool/{task}", options)
    assert part in str(caught.value)


def test_what_takes_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envpool, "TRIAL_SECONDS", 0.01)
    with pytest.raises(ConfigError, match="first steps take more than"):
        make("envpool/Hopper-v4", {"frame_skip": 2_000_000_000})


def test_threads_beyond_the_environments_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a configuration asks for may be more than a pool of a few environments can use."""
    env = make("envpool/CartPole-v1", {"num_threads": 3})
    asked: list[int] = []
    original = envpool.envpool.make

    def recorded(*arguments: Any, **options: Any) -> Any:
        asked.append(options["num_threads"])
        return original(*arguments, **options)

    monkeypatch.setattr(envpool.envpool, "make", recorded)
    for number in (2, 8):
        pool = env.open(number, seed=0)  # type: ignore[union-attr]
        assert np.shape(pool.recv().obs) == (number, 4)
        pool.close()
    assert asked == [2, 3]
