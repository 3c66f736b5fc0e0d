"""Checkpoints of engine state, timelines and counters: atomic, asynchronous, verified when restored."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.base import inputs
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.outputs import refuse_links
from stellaris_jax.config.schema import shown
from stellaris_jax.engine.processes import put
from stellaris_jax.runs import checkpoint_arrays
from stellaris_jax.sources.actionlog import ActionLog

if TYPE_CHECKING:
    from stellaris_jax.runs.orbax_manager import OrbaxManager

DAMAGED = "damaged-"
"""Prefix of the names of damaged checkpoints that were set aside."""
LIMITS = {
    "metadata": 4 * inputs.DOCUMENT, "_METADATA": inputs.DOCUMENT, "_CHECKPOINT_METADATA": inputs.DOCUMENT,
    ".zarray": checkpoint_arrays.LARGEST, checkpoint_arrays.MANIFEST: inputs.DOCUMENT,
}  # fmt: skip
"""Largest size, in bytes, of Orbax's documents in a checkpoint; `metadata` holds the timelines."""


class OtherSettings(ConfigError):
    """Error: a checkpoint was made with settings that differ from the run's configuration."""


class Saved(NamedTuple):
    """Arrays of a checkpoint.

    Attributes:
      engine: the engine's state.
      host: the data source's state; `None` if it has none.
    """

    engine: Any
    host: Any


class CheckpointError(RunError):
    """Error: a checkpoint could not be saved, or none could be restored; the message lists the attempts."""


def _is_key(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


ORBAX = threading.RLock()
"""Lock around calls of Orbax. Orbax's counters and barriers are global to the process, so two threads that save at once
deadlock."""


def leaves_of(state: Any) -> list[Any]:
    """Leaves of a state, PRNG keys as their data."""
    return [jax.random.key_data(x) if _is_key(x) else x for x in jax.tree.leaves(state)]


def to_host(state: Any) -> list[np.ndarray]:
    """Leaves of a state as NumPy copies (PRNG keys as their data), safe from donation of the state."""
    return [np.array(x, copy=True) for x in jax.device_get(leaves_of(state))]


def to_device(leaves: list[np.ndarray], abstract: Any) -> Any:
    """Undo `to_host` for a state of the given shapes, dtypes and shardings (any number of devices)."""
    targets, structure = jax.tree.flatten(abstract)

    def place(x: np.ndarray, target: Any) -> Any:
        value = jax.random.wrap_key_data(jnp.asarray(x)) if _is_key(target) else x
        if value.shape != target.shape:
            raise ValueError(f"saved shape {value.shape} does not fit {target.shape}")
        return put(value, target.sharding)

    return jax.tree.unflatten(structure, [place(x, t) for x, t in zip(leaves, targets, strict=True)])


def digest(leaves: list[np.ndarray], host: dict[str, Any]) -> str:
    """SHA-256 fingerprint of a checkpoint's arrays and host data."""
    sha = hashlib.sha256(json.dumps(host, sort_keys=True).encode())
    for leaf in leaves:
        sha.update(np.ascontiguousarray(leaf).tobytes())
    return sha.hexdigest()


class Checkpoints:
    """Checkpoints of one run: the most recent `keep` and the one with the best score.

    A checkpoint appears under its final name only when it is complete, so a killed run never leaves half of one. The
    same directory holds a log of the actions that host environments have taken since they were opened (`actions`).

    Attributes:
      only: the only round that is restored; None for the newest intact one.

    Args:
      directory: parent directory; each checkpoint is a subdirectory named by its round.
      keep: number of most recent checkpoints kept.
      read_only: leave the disk untouched, so that another process can train the run meanwhile.
      settings: settings of the run that never change, by dotted key; without any, none are compared.

    Raises:
      OSError: the directory cannot be made, or it is a link and checkpoints are to be written.
      CheckpointError: a file that Orbax would open there is not a regular file.
    """

    def __init__(self, directory: Path, keep: int, read_only: bool = False, settings: Mapping[str, Any] | None = None):
        self._settings = dict(settings or {})
        self._scores: dict[int, float] = {}
        self._saving: int | None = None
        self._damaged: list[int] = []
        if not read_only:
            refuse_links(directory)
            directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory.resolve()  # Orbax takes no path with ".."
        for document in self.directory.glob("*/_CHECKPOINT_METADATA"):  # Orbax reads all of these at once
            try:
                inputs.open_regular(document, inputs.DOCUMENT).close()
            except OSError as error:
                raise CheckpointError(f"{document} cannot be read: {inputs.reason(error)}.") from None
        self.only: int | None = None
        self._keep, self._read_only = keep, read_only
        self.actions = ActionLog(directory.absolute().with_name("actions.bin"))

    @cached_property
    def _manager(self) -> OrbaxManager:
        # Imported late: a run trains before it saves, and Orbax takes long to import.
        from stellaris_jax.runs.orbax_manager import OrbaxManager

        with ORBAX:
            return OrbaxManager(self.directory, self._keep, self._read_only, self._scores)

    def rounds(self) -> list[int]:
        """Rounds with a checkpoint, oldest first; `only` that round, if it is set."""
        return [round_ for round_ in self._manager.rounds() if self.only in (None, round_)]

    def newest(self) -> int:
        """Newest round whose checkpoint is complete and not known to be damaged; 0 without one."""
        rounds = {int(path.name) for path in self.directory.glob("[0-9]*") if path.name.isdigit() and path.is_dir()}
        return max(rounds - set(self._damaged), default=0)

    def score(self, round_: int, value: float | None) -> None:
        """Record the score of a round's policy; scores that are not finite are ignored."""
        if value is not None and math.isfinite(value):
            self._scores[round_] = value

    def save(self, round_: int, state: Any, host: dict[str, Any]) -> None:
        """Copy the state at once and write it in the background; a round that is saved already is skipped.

        Args:
          round_: number of the round.
          state: arrays to save.
          host: further state, as JSON data.

        Raises:
          CheckpointError: this save or an earlier one failed.
        """
        self.wait()
        self._set_aside()
        if round_ in self.rounds():
            return
        leaves = to_host(state)
        document = {"host": host, "digest": digest(leaves, host)}
        if self._settings:
            document |= {"settings": self._settings, "settings_digest": digest([], self._settings)}
        with self._reported_failures(round_):
            self._manager.save(round_, leaves, document)
        self._saving = round_

    def wait(self) -> None:
        """Wait until the save under way is complete. Raises CheckpointError if it failed."""
        if self._saving is None:
            return
        round_, self._saving = self._saving, None
        with self._reported_failures(round_):
            self._manager.wait()
            if not (self.directory / str(round_)).is_dir():
                raise FileNotFoundError(f"there is no {self.directory / str(round_)}")

    @contextmanager
    def _reported_failures(self, round_: int) -> Iterator[None]:
        try:
            with ORBAX:
                yield
        except Exception as error:  # the writer may raise anything, in any of its threads
            place = f"round {round_} could not be saved in {self.directory}"
            raise CheckpointError(f"{place} ({_reason(error)}).") from error

    def restore(
        self, abstract: Any, note: Callable[[str], None], check: Callable[[dict[str, Any]], object] | None = None
    ) -> tuple[int, Any, dict[str, Any]]:
        """Newest intact checkpoint: its round, state and host data, of which `check` raises nothing.

        A damaged checkpoint is reported to `note` and skipped; the next `save` sets it aside. Waits for a save under
        way.
        """
        self.wait()
        wanted, damaged = self.rounds(), []
        for candidate in reversed(wanted):
            try:
                state, host = self._read(candidate, abstract)
                if check is not None:
                    check(host)
            except OtherSettings:
                raise
            except Exception as error:  # a damaged file can make the reader raise anything
                if self.only is not None:
                    place = self.directory / str(candidate)
                    raise CheckpointError(
                        f"{place} is damaged ({_reason(error)}); other rounds may be intact."
                    ) from error
                damaged.append(candidate)
                note(f"checkpoint of round {candidate} is damaged and passed over ({_reason(error)})")
                continue
            self._damaged = damaged
            return candidate, state, host
        raise CheckpointError(
            f"there is no intact checkpoint in {self.directory}" + (f" (tried rounds {wanted})." if wanted else ".")
        )

    def arrays(
        self, check: Callable[[int], None], note: Callable[[str], None]
    ) -> tuple[list[np.ndarray], dict[str, Any]]:
        """Newest intact checkpoint of a run whose shapes are unknown: leaves (PRNG keys as their data) and host data.

        Args:
          check: called with a checkpoint's size in bytes before it is read; raises if that is too large.
          note: reports damaged checkpoints, which are skipped.
        """
        for candidate in reversed(self.rounds()):
            try:
                self._check_files(candidate)
                templates = checkpoint_arrays.templates(self.directory / str(candidate) / "state")
                size = sum(math.prod(template.shape) * template.dtype.itemsize for template in templates)
            except Exception as error:  # a damaged file can make the reader raise anything
                note(f"checkpoint of round {candidate} is damaged and passed over ({_reason(error)})")
                continue
            check(size)
            try:
                leaves, document = self._leaves(candidate, templates)
                return leaves, document["host"]
            except Exception as error:  # a damaged file can make the reader raise anything
                note(f"checkpoint of round {candidate} is damaged and passed over ({_reason(error)})")
        raise CheckpointError(f"there is no intact checkpoint in {self.directory}.")

    def _set_aside(self) -> None:
        """Rename damaged checkpoints, so that their rounds can be saved again."""
        for round_ in self._damaged:
            aside = next(
                path
                for number in itertools.count(1)
                if not os.path.lexists(path := self.directory / f"{DAMAGED}{round_}{f'-{number}' * (number > 1)}")
            )
            with self._reported_failures(round_):
                (self.directory / str(round_)).rename(aside)
        if self._damaged:
            self._damaged = []
            self._manager.reload()

    def _read(self, round_: int, abstract: Any) -> tuple[Any, dict[str, Any]]:
        leaves, document = self._leaves(round_, jax.eval_shape(leaves_of, abstract))
        self._compare(round_, document)
        return to_device(leaves, abstract), document["host"]

    def _leaves(self, round_: int, templates: list[Any]) -> tuple[list[np.ndarray], dict[str, Any]]:
        """Arrays of a round and the document stored with them. Raises ValueError if they are damaged."""
        self._check_files(round_, checkpoint_arrays.largest_file(templates))
        checkpoint_arrays.check(self.directory / str(round_) / "state", templates)
        manager = self._manager
        with ORBAX:
            leaves, document = manager.restore(round_, templates)
        if digest(leaves, document["host"]) != document["digest"]:
            raise ValueError("its contents do not match their fingerprint")
        return leaves, document

    def _check_files(self, round_: int, largest: int | None = None) -> None:
        """Raise ValueError if a file of a round is not a regular file or exceeds its size limit."""
        try:
            inputs.check_tree(self.directory / str(round_), LIMITS, largest)
        except OSError as error:
            raise ValueError(f"{error.filename}: {inputs.reason(error)}") from None

    def _compare(self, round_: int, document: dict[str, Any]) -> None:
        """Raise OtherSettings if a checkpoint's settings differ from the run's in keys that both have."""
        saved = document.get("settings", {})
        if saved and document.get("settings_digest") != digest([], saved):
            raise ValueError("its settings do not match their fingerprint")
        for key in sorted(saved.keys() & self._settings.keys()):
            if saved[key] != self._settings[key]:
                path, now, then = self.directory.with_name("config.yaml"), shown(self._settings[key]), shown(saved[key])
                raise OtherSettings(
                    f"{path} has {key}={now}, but the checkpoint of round {round_} was made with {then}; write that "
                    "value back, or start a new run."
                )

    def close(self) -> None:
        """Wait for the save under way and close the directory. Raises CheckpointError as `wait` does."""
        try:
            self.wait()
        finally:
            if "_manager" in vars(self):
                with suppress(Exception), ORBAX:  # `wait` has reported it already
                    self._manager.close()


def _reason(error: Exception) -> str:
    """Operating system's message, if the error has a code; else the first line of the error, cut to 200 characters."""
    text = str(error).strip()
    if code := re.search(r"os_error_code='(\d+)'|^\[Errno (\d+)\]", text):
        return os.strerror(int(code[1] or code[2]))
    return text.splitlines()[0][:200] if text else type(error).__name__
