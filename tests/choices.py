"""Choices of seconds: their settings, calls of the command, and answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from commands import call

SMALL = [
    "env=gymnax/cartpole", "env.num_envs=4", "algorithm.rollout_length=16", "network.hidden=[8]", "total_steps=1024",
    "algorithm.anneal=false", "evaluation.points=9", "evaluation.episodes=4", "delays=constant", "system.learners=2",
    "algorithm.minibatches=2",
]  # fmt: skip
FEW = ["--seeds", "1", "--fresh-seeds", "2", "--budget", "10m"]


def choose(*arguments: object) -> str:
    """Output of a choice that succeeds."""
    done = call("choose.py", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def answer(directory: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((Path(directory) / "choice.json").read_text())
    return document


def same(directory: str) -> dict[str, Any]:
    """Answer without the time that it took and the directory's name."""
    document = answer(directory)
    del document["seconds"]
    document["answer"][-1] = document["answer"][-1].partition("It took")[0]
    return document
