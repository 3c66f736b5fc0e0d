"""Checkpoints of everything: engine state, timelines, counters. Atomic, asynchronous, verified when restored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from stellaris_jax.actionlog import ActionLog


class CheckpointError(RuntimeError):
    """No checkpoint could be restored; the message says what was tried."""


def _is_key(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


def _leaves(state: Any) -> list[Any]:
    """The leaves of a state, PRNG keys as their data."""
    return [jax.random.key_data(x) if _is_key(x) else x for x in jax.tree.leaves(state)]


def to_host(state: Any) -> list[np.ndarray]:
    """The leaves of a state as NumPy copies (PRNG keys as their data), safe from the donation of the state."""
    return [np.array(x, copy=True) for x in jax.device_get(_leaves(state))]


def to_device(leaves: list[np.ndarray], abstract: Any) -> Any:
    """Undo `to_host` for a state of the given shapes, dtypes and shardings (any number of devices)."""
    targets, structure = jax.tree.flatten(abstract)

    def place(x: np.ndarray, target: Any) -> jax.Array:
        value = jax.random.wrap_key_data(jnp.asarray(x)) if _is_key(target) else x
        if value.shape != target.shape:
            raise ValueError(f"saved shape {value.shape} does not fit {target.shape}")
        return jax.device_put(value, target.sharding)

    return jax.tree.unflatten(structure, [place(x, t) for x, t in zip(leaves, targets, strict=True)])


def digest(leaves: list[np.ndarray], host: dict[str, Any]) -> str:
    """A fingerprint of all that a checkpoint holds."""
    sha = hashlib.sha256(json.dumps(host, sort_keys=True).encode())
    for leaf in leaves:
        sha.update(np.ascontiguousarray(leaf).tobytes())
    return sha.hexdigest()


class Checkpoints:
    """The checkpoints of one run: the most recent `keep` and the one with the best evaluation return.

    A checkpoint appears under its final name only when it is complete, so a killed run never leaves half of one. Beside
    them lies what host environments were given since they were opened (`actions`).
    """

    def __init__(self, directory: Path, keep: int):
        policy = checkpoint_managers.AnyPreservationPolicy(
            [
                checkpoint_managers.LatestN(keep),
                checkpoint_managers.BestN(
                    get_metric_fn=lambda metrics: metrics["eval_return"], n=1, keep_checkpoints_without_metrics=False
                ),
            ]
        )
        options = ocp.CheckpointManagerOptions(preservation_policy=policy, cleanup_tmp_directories=True)
        self._manager = ocp.CheckpointManager(directory.absolute(), options=options)
        self.actions = ActionLog(directory.absolute().with_name("actions.bin"))

    def rounds(self) -> list[int]:
        """Rounds there is a checkpoint of, oldest first."""
        return sorted(self._manager.all_steps())

    def save(self, round_: int, state: Any, host: dict[str, Any], eval_return: float | None) -> None:
        """Copy the state at once, write it in the background. A round that is saved already is left alone."""
        if round_ in self._manager.all_steps():
            return
        leaves = to_host(state)
        document = {"host": host, "digest": digest(leaves, host)}
        arguments = ocp.args.Composite(state=ocp.args.StandardSave(leaves), host=ocp.args.JsonSave(document))
        metrics = None if eval_return is None else {"eval_return": eval_return}
        self._manager.save(round_, args=arguments, metrics=metrics)

    def restore(self, abstract: Any, note: Callable[[str], None]) -> tuple[int, Any, dict[str, Any]]:
        """The newest intact checkpoint: its round, state and host data.

        A damaged one is passed over for the one before, and `note` is told.
        """
        wanted = self.rounds()
        for candidate in reversed(wanted):
            try:
                state, host = self._read(candidate, abstract)
            except Exception as error:  # whatever a damaged file makes the reader raise
                reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
                note(f"checkpoint of round {candidate} is damaged and passed over ({reason})")
                continue
            return candidate, state, host
        where = self._manager.directory
        raise CheckpointError(f"no intact checkpoint in {where}" + (f" (tried rounds {wanted})" if wanted else ""))

    def _read(self, round_: int, abstract: Any) -> tuple[Any, dict[str, Any]]:
        templates = jax.eval_shape(_leaves, abstract)
        arguments = ocp.args.Composite(
            state=ocp.args.StandardRestore([np.zeros(t.shape, t.dtype) for t in templates]), host=ocp.args.JsonRestore()
        )
        restored = self._manager.restore(round_, args=arguments)
        leaves, document = restored["state"], restored["host"]
        if digest(leaves, document["host"]) != document["digest"]:
            raise ValueError("its contents do not match their fingerprint")
        return to_device(leaves, abstract), document["host"]

    def wait(self) -> None:
        """Until what is being written is complete."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()

