"""Checks of the shapes that plug-ins return, by `jax.eval_shape` before compilation; errors name file and line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from stellaris_jax.agent.losses.common import DRIFT, METRICS
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.registry import code_location, register
from stellaris_jax.config.schema import shown
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.corrections import Context, Correction, Stack
from stellaris_jax.envs.names import retold
from stellaris_jax.timeline.answers import is_truth

ROWS, PARAMETERS, INPUTS = 2, 4, 3
"""Numbers of gradients, parameters and features in the trial calls of plug-ins."""


def check_plugins(config: Config) -> None:
    """Check the memory cell and the corrections that a configuration names.

    Raises:
      ConfigError: a plug-in returns shapes that training cannot use; reports the first one.
    """
    if config.network.memory != "none":
        _check_cell(config.network.memory, config.network.memory_size)
    for name in config.system.corrections:
        _check_correction(name, register.correction[name](config.system.correction_options.get(name, {})))


def check_answer(callback: Callable[..., object], answer: object) -> bool:
    """Answer of a callback as a bool. Raises RunError for anything but true, false and None."""
    if answer is None or is_truth(answer):
        return bool(answer)
    name = next((name for name, thing in register.callback.items() if thing is callback), None)
    label = f"the callback {name}" if name else "a callback"
    accepted = "accepted: true, which ends the run, false or None"
    raise RunError(f"{label} ({code_location(callback)}) returned {shown(answer)}; {accepted}.")


def _check_cell(name: str, size: int) -> None:
    def trial(key: jax.Array) -> Any:
        cell = register.memory[name](size, nn.initializers.zeros)
        carry = cell.initial_carry(ROWS)
        step = lambda cell, carry, x: cell(carry, cell.project(x))  # noqa: E731
        result, _ = cell.init_with_output(key, carry, jnp.zeros((ROWS, INPUTS)), method=step)
        return carry, result

    what = f"network.memory={name}"
    carry, result = traced(what, register.memory[name].__call__, trial, jax.random.key(0))
    place = code_location(register.memory[name].__call__)
    if not isinstance(result, tuple) or len(result) != 2:
        raise ConfigError(f"{what} ({place}) returns {shapes_of(result)}, not a carry and outputs.")
    check_like(f"{what} ({place})", "a carry", result[0], carry)
    outputs = getattr(result[1], "shape", None)
    if outputs != (ROWS, size):
        raise ConfigError(
            f"{what} ({place}) returns outputs {shapes_of(result[1])} for {ROWS} rows, not {[ROWS, size]}."
        )


def _check_correction(name: str, correction: Correction) -> None:
    what = f"system.corrections=[{name}]"

    def trial(params: jax.Array) -> Any:
        rows = jnp.zeros(ROWS)
        metrics = dict.fromkeys((*METRICS, *DRIFT), rows)
        fetched = jnp.zeros((ROWS, PARAMETERS))
        context = Context(jnp.zeros(ROWS, jnp.int32), fetched, params, metrics, rows if correction.needs_kl else None)
        stack, state = Stack(fetched, rows), correction.init(params)
        published = correction.published(state, params, jnp.bool_(True))
        return stack, state, correction.update(stack, state, context), published

    update = type(correction).update
    stack, state, updated, published = traced(what, update, trial, jnp.zeros(PARAMETERS))
    place = f"{what} ({code_location(update)})"
    if not isinstance(updated, tuple) or len(updated) != 2:
        raise ConfigError(f"{place} returns {shapes_of(updated)} from update, not a stack and a state.")
    check_like(place, "a stack", updated[0], stack)
    check_like(place, "a state", updated[1], state)
    check_like(f"{what} ({code_location(type(correction).published)})", "a state", published, state)


def check_like(place: str, what: str, actual: Any, wanted: Any) -> None:
    """Raise ConfigError unless two trees have the same structure, shapes and dtypes.

    Args:
      place: begin of the sentence: the plug-in and its place.
      what: what it returns.
      actual: that.
      wanted: its counterpart before.
    """
    structure: Any = jax.tree.structure(actual)
    same = structure == jax.tree.structure(wanted)
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(wanted), strict=True) if same else ()
    if not same or any((leaf.shape, leaf.dtype) != (expected.shape, expected.dtype) for leaf, expected in pairs):
        raise ConfigError(f"{place} returns {what} of {shapes_of(actual)}, which was {shapes_of(wanted)} before.")


def traced(what: str, method: Any, trial: Callable[..., Any], *arguments: Any) -> Any:
    """Shapes of what a trial returns. Raises ConfigError if JAX cannot trace it.

    Args:
      what: key and value that name the plug-in.
      method: its method, whose place the error names.
      trial: function that calls it.
      arguments: arguments of the trial.
    """
    try:
        return jax.eval_shape(trial, *arguments)
    except Exception as error:  # plug-in code may raise anything
        raise ConfigError(f"{what} ({code_location(method)}) cannot be traced by JAX ({retold(error)}).") from error


def shapes_of(tree: Any) -> str:
    """Dtypes and shapes of a tree's arrays, for a sentence."""

    def shape_of(leaf: Any) -> str:
        return f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "shape") else type(leaf).__name__

    leaves = jax.tree.map(shape_of, tree)
    return ", ".join(map(str, jax.tree.leaves(leaves))) or "nothing"
