"""Checks of a token task: what its functions return, and whether prompts are on both sides of the split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import code_location
from stellaris_jax.envs.suites.tokens.task import END, PAD, TokenTask

TOKENS = 256
"""Most tokens of a vocabulary, since they are kept as uint8."""
DRAWN = 4096
"""Prompts drawn to see what they are like, and whether both sides of the split have any."""


def check_task(task: TokenTask) -> None:
    """Raise ConfigError, naming the function and what is accepted, unless a task keeps to `TokenTask`."""
    if task.vocabulary > TOKENS:
        raise ConfigError(
            f"{task.name} has {len(task.characters)} characters; at most {TOKENS - 2} are possible, beside the tokens "
            "for padding and the end."
        )
    for name, number in (("characters", len(task.characters)), ("prompt_length", task.prompt_length),
                         ("longest", task.longest)):  # fmt: skip
        if number < 1:
            raise ConfigError(f"{task.name} has {name}={getattr(task, name)!r}; at least 1 is needed.")
    key = jax.random.key(0)
    prompt = jax.ShapeDtypeStruct((task.prompt_length,), jnp.int32)
    completion = jax.ShapeDtypeStruct((task.longest,), jnp.int32)
    _check(task, "prompt", (key,), (task.prompt_length,), "integers [P], P = prompt_length", jnp.integer)
    _check(task, "demonstrate", (key, prompt), (task.longest,), "integers [L], L = longest", jnp.integer)
    _check(task, "verify", (prompt, completion), (), "a scalar that is a real number or a truth value", None)
    if not type(task).__module__.startswith("stellaris_jax."):
        _check_values(task)


def _check(task: TokenTask, name: str, inputs: Any, shape: tuple[int, ...], accepted: str, kind: Any) -> None:
    where = _where(task, name)
    try:
        made = jax.eval_shape(getattr(task, name), *inputs)
    except Exception as error:  # whatever a task's own code raises
        raise ConfigError(f"{where} fails ({type(error).__name__}: {_first_line(error)}).") from error
    if not isinstance(made, jax.ShapeDtypeStruct):
        raise ConfigError(f"{where} returns {type(made).__name__}, not {accepted}.")
    known = jnp.issubdtype(made.dtype, kind) if kind else not jnp.issubdtype(made.dtype, jnp.complexfloating)
    if made.shape != shape or not known:
        raise ConfigError(f"{where} returns {made.dtype} {[*made.shape]}, not {accepted}: {[*shape]}.")


def _where(task: TokenTask, name: str) -> str:
    function: Callable[..., Any] = getattr(task, name)
    return f"{task.name}: {name} ({code_location(function)})"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no message"])[0][:200]


def _check_values(task: TokenTask) -> None:
    """Raise ConfigError for foreign tokens, rewards that are no numbers, or a side of the split without prompts."""
    keys = jax.random.split(jax.random.key(0), DRAWN)
    prompts = jax.vmap(task.prompt)(keys)
    _check_tokens(task, "prompt", prompts)
    right = jax.vmap(task.demonstrate)(keys, prompts)
    _check_tokens(task, "demonstrate", right)
    _check_split(task, prompts)
    random = jax.random.randint(keys[0], right.shape, END, task.vocabulary)
    for completions in (right, random):
        ends = completions == END
        over = jnp.cumsum(ends, axis=1) - ends > 0
        rewards = np.asarray(jax.vmap(task.verify)(prompts, jnp.where(over, PAD, completions)), float)
        if not np.isfinite(rewards).all():
            odd = rewards[~np.isfinite(rewards)][0]
            raise ConfigError(f"{_where(task, 'verify')} returns {odd} for some completions; accepted: finite numbers.")


def _check_tokens(task: TokenTask, name: str, tokens: jax.Array) -> None:
    outside = np.asarray(tokens)[np.asarray((tokens < 0) | (tokens >= task.vocabulary))]
    if outside.size:
        accepted = f"0 to {task.vocabulary - 1}, as it has {len(task.characters)} characters"
        raise ConfigError(f"{_where(task, name)} returns the token {outside[0]}; accepted: {accepted}.")


def _check_split(task: TokenTask, prompts: jax.Array) -> None:
    held_out = np.asarray(jax.vmap(task.held_out)(prompts))
    if held_out.all() or not held_out.any():
        missing = "training" if held_out.all() else "evaluations"
        distinct = len(np.unique(np.asarray(prompts), axis=0))
        raise ConfigError(
            f"{task.name}: of {DRAWN} prompts ({distinct} different ones) none is left for {missing}, as one prompt of "
            "eight by hash is held out; a task needs more different prompts."
        )
