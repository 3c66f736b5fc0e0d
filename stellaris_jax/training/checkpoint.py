"""Checkpoints of everything: engine state, timelines, counters. Atomic, asynchronous, verified when restored."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from stellaris_jax.config import inputs
from stellaris_jax.config.outputs import refuse_links
from stellaris_jax.config.schema import ConfigError, RunError, shown
from stellaris_jax.engine.processes import put
from stellaris_jax.training import checkpoint_arrays
from stellaris_jax.training.sources.actionlog import ActionLog
from stellaris_jax.training.specs import plug_leak

DAMAGED = "damaged-"
"""What the name of a checkpoint that was set aside begins with."""
LIMITS = {
    "metadata": 4 * inputs.DOCUMENT, "_METADATA": inputs.DOCUMENT, "_CHECKPOINT_METADATA": inputs.DOCUMENT,
    ".zarray": checkpoint_arrays.LARGEST, checkpoint_arrays.MANIFEST: inputs.DOCUMENT,
}  # fmt: skip
"""Bytes that Orbax's documents in a checkpoint may have; the first one holds the timelines."""


class OtherSettings(ConfigError):
    """A checkpoint was made with other settings than the run's configuration has now."""


class Saved(NamedTuple):
    """The arrays of a checkpoint: the engine's state, and its source's (`None` without any)."""

    engine: Any
    host: Any


class CheckpointError(RunError):
    """A checkpoint could not be saved, or none could be restored; the message says what was tried."""


def _is_key(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


ORBAX = threading.Lock()
"""Held while Orbax is called: what it counts and waits for is one for the process, and two threads that save at once
wait for each other for ever."""


def leaves_of(state: Any) -> list[Any]:
    """The leaves of a state, PRNG keys as their data."""
    return [jax.random.key_data(x) if _is_key(x) else x for x in jax.tree.leaves(state)]


def to_host(state: Any) -> list[np.ndarray]:
    """The leaves of a state as NumPy copies (PRNG keys as their data), safe from the donation of the state."""
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
    """A fingerprint of all that a checkpoint holds."""
    sha = hashlib.sha256(json.dumps(host, sort_keys=True).encode())
    for leaf in leaves:
        sha.update(np.ascontiguousarray(leaf).tobytes())
    return sha.hexdigest()


class _Best:
    """Preserves the checkpoint of the best score; the later one of equals."""

    def __init__(self, scores: dict[int, float]):
        self.scores = scores

    def should_preserve(
        self,
        checkpoints: Sequence[checkpoint_managers.PolicyCheckpointInfo],
        *,
        context: checkpoint_managers.PreservationContext,
    ) -> list[bool]:
        rounds = [checkpoint.step for checkpoint in checkpoints]
        scored = [round_ for round_ in rounds if round_ in self.scores]
        best = max(scored, key=lambda round_: (self.scores[round_], round_), default=None)
        return [round_ == best for round_ in rounds]


class Checkpoints:
    """The checkpoints of one run: the most recent `keep` and the one with the best score.

    A checkpoint appears under its final name only when it is complete, so a killed run never leaves half of one. Beside
    them lies what host environments were given since they were opened (`actions`).

    Args:
      directory: holds one directory a round.
      keep: most recent checkpoints kept.
      read_only: nothing on disk is touched, so that the checkpoints of a run that is being trained can be read.
      settings: of the run, by their dotted keys, those that never change; none are compared where there are none.

    Raises:
      OSError: the directory is a link, and checkpoints are to be written and deleted, or it cannot be made.
      CheckpointError: what Orbax would open in it is no regular file.
    """

    def __init__(self, directory: Path, keep: int, read_only: bool = False, settings: Mapping[str, Any] | None = None):
        self.directory, self._settings = directory.absolute(), dict(settings or {})
        self._scores: dict[int, float] = {}
        self._saving: int | None = None
        self._damaged: list[int] = []
        policy = checkpoint_managers.AnyPreservationPolicy(
            [checkpoint_managers.LatestN(keep), _Best(self._scores)],
        )
        alone = ocp.options.MultiprocessingOptions()
        if jax.process_count() > 1:  # the others neither write nor wait
            mine = jax.process_index()
            alone = ocp.options.MultiprocessingOptions(
                primary_host=mine, active_processes={mine}, barrier_sync_key_prefix=f"process{mine}"
            )
        if not read_only:
            refuse_links(self.directory)
            self.directory.mkdir(parents=True, exist_ok=True)
        for document in self.directory.glob("*/_CHECKPOINT_METADATA"):  # read by Orbax at once, whichever is restored
            try:
                inputs.open_regular(document, inputs.DOCUMENT).close()
            except OSError as error:
                raise CheckpointError(f"{document} cannot be read: {inputs.reason(error)}.") from None
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy,
            cleanup_tmp_directories=not read_only,
            create=False,
            multiprocessing_options=alone,
        )
        # Orbax finds what it has to merge in this format by a pattern, in which a directory may look like another one.
        merged = not re.search(r"[][*?]", str(self.directory))
        handlers = {"state": ocp.StandardCheckpointHandler(use_ocdbt=merged), "host": ocp.JsonCheckpointHandler()}
        for name in ("absl", "asyncio"):
            logging.getLogger(name).addFilter(_is_news)
        if not isinstance(sys.unraisablehook, _DeafToAsyncio):
            sys.unraisablehook = _DeafToAsyncio(sys.unraisablehook)
        plug_leak()
        with ORBAX:
            self._manager = ocp.CheckpointManager(self.directory, item_handlers=handlers, options=options)
        self.actions = ActionLog(self.directory.with_name("actions.bin"))

    def rounds(self) -> list[int]:
        """Rounds there is a checkpoint of, oldest first."""
        return sorted(self._manager.all_steps())

    def newest(self) -> int:
        """The newest round that is on disk, whole; 0 without one. What is being written is not, nor what is damaged."""
        rounds = {int(path.name) for path in self.directory.glob("[0-9]*") if path.name.isdigit() and path.is_dir()}
        return max(rounds - set(self._damaged), default=0)

    def score(self, round_: int, value: float | None) -> None:
        """What the policy of a round is worth; nothing where that is not a number."""
        if value is not None and math.isfinite(value):
            self._scores[round_] = value

    def save(self, round_: int, state: Any, host: dict[str, Any]) -> None:
        """Copy the state at once, write it in the background. A round that is saved already is left alone.

        Raises CheckpointError if this, or what was written before, could not be saved.
        """
        self.wait()
        self._set_aside()
        if round_ in self.rounds():
            return
        leaves = to_host(state)
        document = {"host": host, "digest": digest(leaves, host)}
        if self._settings:
            document |= {"settings": self._settings, "settings_digest": digest([], self._settings)}
        arguments = ocp.args.Composite(state=ocp.args.StandardSave(leaves), host=ocp.args.JsonSave(document))
        with self._told(round_):
            # Forced, for the manager passes over rounds below the latest without a word.
            self._manager.save(round_, args=arguments, force=True)
        self._saving = round_

    def wait(self) -> None:
        """Until what is being written is complete. Raises CheckpointError where it is not, after all."""
        if self._saving is None:
            return
        round_, self._saving = self._saving, None
        with self._told(round_):
            self._manager.wait_until_finished()
            if not (self.directory / str(round_)).is_dir():
                raise FileNotFoundError(f"there is no {self.directory / str(round_)}")

    @contextmanager
    def _told(self, round_: int) -> Iterator[None]:
        try:
            with ORBAX:
                yield
        except Exception as error:  # whatever the writer raises, in whichever of its threads
            place = f"round {round_} could not be saved in {self.directory}"
            raise CheckpointError(f"{place} ({_reason(error)}).") from error

    def restore(self, abstract: Any, note: Callable[[str], None]) -> tuple[int, Any, dict[str, Any]]:
        """The newest intact checkpoint: its round, state and host data.

        A damaged one is passed over for the one before, and `note` is told. The next `save` sets it aside. A save under
        way is waited for.
        """
        self.wait()
        wanted, damaged = self.rounds(), []
        for candidate in reversed(wanted):
            try:
                state, host = self._read(candidate, abstract)
            except OtherSettings:
                raise
            except Exception as error:  # whatever a damaged file makes the reader raise
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
        """The newest intact checkpoint of a run whose shapes are not known: leaves, PRNG keys as their data, and host
        data.

        Args:
          check: called with the bytes of a checkpoint before it is read; raises where these are too many.
          note: told of damaged checkpoints, which are passed over.
        """
        for candidate in reversed(self.rounds()):
            try:
                self._check_files(candidate)
                templates = checkpoint_arrays.templates(self.directory / str(candidate) / "state")
                size = sum(math.prod(one.shape) * one.dtype.itemsize for one in templates)
            except Exception as error:  # whatever a damaged file makes the reader raise
                note(f"checkpoint of round {candidate} is damaged and passed over ({_reason(error)})")
                continue
            check(size)
            try:
                leaves, document = self._leaves(candidate, templates)
                return leaves, document["host"]
            except Exception as error:  # whatever a damaged file makes the reader raise
                note(f"checkpoint of round {candidate} is damaged and passed over ({_reason(error)})")
        raise CheckpointError(f"there is no intact checkpoint in {self.directory}.")

    def _set_aside(self) -> None:
        """Rename what was found damaged, so that its rounds can be saved anew."""
        for round_ in self._damaged:
            aside = next(
                path
                for number in itertools.count(1)
                if not os.path.lexists(path := self.directory / f"{DAMAGED}{round_}{f'-{number}' * (number > 1)}")
            )
            with self._told(round_):
                (self.directory / str(round_)).rename(aside)
        if self._damaged:
            self._damaged = []
            self._manager.reload()

    def _read(self, round_: int, abstract: Any) -> tuple[Any, dict[str, Any]]:
        leaves, document = self._leaves(round_, jax.eval_shape(leaves_of, abstract))
        self._compare(round_, document)
        return to_device(leaves, abstract), document["host"]

    def _leaves(self, round_: int, templates: list[Any]) -> tuple[list[np.ndarray], dict[str, Any]]:
        """The arrays of a round, and the document beside them. Raises ValueError for what is damaged."""
        self._check_files(round_, checkpoint_arrays.largest_file(templates))
        checkpoint_arrays.check(self.directory / str(round_) / "state", templates)
        arguments = ocp.args.Composite(
            state=ocp.args.StandardRestore([np.zeros(t.shape, t.dtype) for t in templates]), host=ocp.args.JsonRestore()
        )
        with ORBAX:
            restored = self._manager.restore(round_, args=arguments)
        leaves, document = restored["state"], restored["host"]
        if digest(leaves, document["host"]) != document["digest"]:
            raise ValueError("its contents do not match their fingerprint")
        return leaves, document

    def _check_files(self, round_: int, largest: int | None = None) -> None:
        """Raise ValueError for what is no regular file, or longer than its limit, among the files of a round."""
        try:
            inputs.check_tree(self.directory / str(round_), LIMITS, largest)
        except OSError as error:
            raise ValueError(f"{error.filename}: {inputs.reason(error)}") from None

    def _compare(self, round_: int, document: dict[str, Any]) -> None:
        """Raise OtherSettings where a checkpoint's settings are not the run's; keys that only one has do not count."""
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
        """Wait, and let go of the directory. Raises CheckpointError as `wait` does."""
        try:
            self.wait()
        finally:
            with suppress(Exception), ORBAX:  # told of by `wait` already
                self._manager.close()


def _reason(error: Exception) -> str:
    """What the system says, where it has a word in it; else the first line of the message, which may be long."""
    text = str(error).strip()
    if code := re.search(r"os_error_code='(\d+)'|^\[Errno (\d+)\]", text):
        return os.strerror(int(code[1] or code[2]))
    return text.splitlines()[0][:200] if text else type(error).__name__


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a log says more than what Orbax raises as well, or than how reads failed that it had given up by then."""
    return "orbax" not in record.pathname and not re.search("never retrieved.*(zarr|OCDBT)", record.getMessage(), re.S)


class _DeafToAsyncio:
    """`sys.unraisablehook`, but for what TensorStore's threads meet that go on with files given up by Orbax.

    They may do so at any time after a damaged file or a full disk, and tell at length that the event loop is closed.
    """

    def __init__(self, hook: Callable[[Any], Any]):
        self.hook = hook

    def __call__(self, unraisable: Any) -> None:
        if not any("asyncio" in frame.filename for frame in traceback.extract_tb(unraisable.exc_traceback)):
            self.hook(unraisable)
