"""Orbax's manager of the checkpoints of one run; imported late, because Orbax takes long to import."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from stellaris_jax.runs.orbax_patch import plug_leak


class OrbaxManager:
    """Checkpoints in a directory: the most recent `keep` and the one with the best score.

    Args:
      directory: parent directory; each checkpoint is a subdirectory named by its round.
      keep: number of most recent checkpoints kept.
      read_only: leave the disk untouched.
      scores: scores of rounds' policies, which the caller may add to.
    """

    def __init__(self, directory: Path, keep: int, read_only: bool, scores: dict[int, float]):
        policy = checkpoint_managers.AnyPreservationPolicy([checkpoint_managers.LatestN(keep), _Best(scores)])
        alone = ocp.options.MultiprocessingOptions()
        if jax.process_count() > 1:  # the other processes neither write nor wait
            mine = jax.process_index()
            alone = ocp.options.MultiprocessingOptions(
                primary_host=mine, active_processes={mine}, barrier_sync_key_prefix=f"process{mine}"
            )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy,
            cleanup_tmp_directories=not read_only,
            create=False,
            multiprocessing_options=alone,
        )
        # Orbax finds files to merge by a glob pattern, which characters of the directory's name may break.
        merged = not re.search(r"[][*?]", str(directory))
        handlers = {"state": ocp.StandardCheckpointHandler(use_ocdbt=merged), "host": ocp.JsonCheckpointHandler()}
        for name in ("absl", "asyncio"):
            logging.getLogger(name).addFilter(_is_news)
        if not isinstance(sys.unraisablehook, _WithoutAsyncio):
            sys.unraisablehook = _WithoutAsyncio(sys.unraisablehook)
        plug_leak()
        self._manager = ocp.CheckpointManager(directory, item_handlers=handlers, options=options)

    def rounds(self) -> list[int]:
        """Rounds with a checkpoint, oldest first."""
        return sorted(self._manager.all_steps())

    def save(self, round_: int, leaves: list[np.ndarray], document: dict[str, Any]) -> None:
        """Begin to write a checkpoint."""
        arguments = ocp.args.Composite(state=ocp.args.StandardSave(leaves), host=ocp.args.JsonSave(document))
        # Forced, because the manager silently skips rounds below the latest.
        self._manager.save(round_, args=arguments, force=True)

    def wait(self) -> None:
        """Wait until the save under way is complete. Raises what the writer raised."""
        self._manager.wait_until_finished()

    def restore(self, round_: int, templates: list[Any]) -> tuple[list[np.ndarray], dict[str, Any]]:
        """Arrays of a round, of the templates' shapes and dtypes, and the document stored with them."""
        zeros = [np.zeros(template.shape, template.dtype) for template in templates]
        arguments = ocp.args.Composite(state=ocp.args.StandardRestore(zeros), host=ocp.args.JsonRestore())
        restored = self._manager.restore(round_, args=arguments)
        return restored["state"], restored["host"]

    def reload(self) -> None:
        """Read the directory again, after names in it have changed."""
        self._manager.reload()

    def close(self) -> None:
        """Close the directory."""
        self._manager.close()


class _Best:
    """Preservation policy: keep the checkpoint with the best score, the later one of equals."""

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


def _is_news(record: logging.LogRecord) -> bool:
    """True unless a log only repeats an error that Orbax raises as well, or concerns reads that Orbax gave up."""
    return "orbax" not in record.pathname and not re.search("never retrieved.*(zarr|OCDBT)", record.getMessage(), re.S)


class _WithoutAsyncio:
    """Filter for `sys.unraisablehook`: drops errors of TensorStore threads that still work on files Orbax gave up.

    These threads may fail at any time after a damaged file or a full disk, each with a long trace about a closed event
    loop.
    """

    def __init__(self, hook: Callable[[Any], Any]):
        self.hook = hook

    def __call__(self, unraisable: Any) -> None:
        if not any("asyncio" in frame.filename for frame in traceback.extract_tb(unraisable.exc_traceback)):
            self.hook(unraisable)
