"""Choices of seconds: their settings, calls of the command, and answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from commands import SIGNS, call

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


ONE = {"systems": {"async": ["system=async"]}, "learning_rates": [1]}
ARGUMENTS = [*SMALL, "--space", "space.yaml", "--target", "15", *FEW]


def alike(directory: str) -> dict[str, Any]:
    """Answer without times and commands, which depend on the current folder."""
    document = same(directory)
    for own in [document, *document["results"]]:
        del own["command"]
    return document


def refused(*arguments: object, code: int | None = None) -> str:
    """The one line by which a choice ends."""
    done = call("choose.py", *arguments)
    assert "Traceback" not in done.stderr, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith((*SIGNS, "composing"))]
    assert done.returncode in ((1, 2) if code is None else (code,)), done.stderr
    assert lines[-1].startswith("error: ") and lines[-1].isprintable(), done.stderr
    return lines[-1]
