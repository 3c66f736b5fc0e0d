"""Token tasks: small language-model problems with verifiers, whose policies learn in seconds."""

from __future__ import annotations

import inspect
from typing import Any

from stellaris_jax.envs.names import match
from stellaris_jax.envs.suites.tokens.env import TokenEnv, checked, token_env
from stellaris_jax.envs.suites.tokens.tasks import TASKS

REFUSED: dict[str, str] = {}


def available() -> list[str]:
    """Names of the token tasks."""
    return list(TASKS)


def make(name: str, **kwargs: Any) -> TokenEnv:
    """Environment of a token task.

    Args:
      name: name of the task.
      kwargs: `group`, the environments that share a prompt, and the task's options.

    Raises:
      ConfigError: an option is unknown or impossible.
    """
    task = TASKS[match(name, TASKS) or name]
    defaults = {key: value.default for key, value in inspect.signature(task).parameters.items()}
    checked(f"tokens/{name}", kwargs, defaults)
    return token_env(task)(**kwargs)
