"""Identity of a run directory: whether it is still where it was when the run began."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from stellaris_jax.config.schema import RunError
from stellaris_jax.report.telemetry.commands import resume_command

CHECKPOINTS = "checkpoints"
UNFINISHED = re.compile(r"\d+\.orbax-checkpoint-tmp.*|\d+")
"""Names of what a checkpoint that is being written leaves."""


class DirectoryGone(RunError):
    """The directory of a run, or its checkpoints, were moved or removed while it was trained."""


class Anchor:
    """Open descriptors of a run's directory and of its checkpoints, by which a move is told from a removal.

    Args:
      run_dir: the directory.
    """

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self._open: dict[Path, int] = {}
        for path in (run_dir, run_dir / CHECKPOINTS):
            with suppress(OSError):
                self._open[path] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def check(self) -> None:
        """Raise DirectoryGone where the directory, or the one of its checkpoints, is no longer in its place."""
        if trouble := self.trouble():
            raise DirectoryGone(trouble)

    def trouble(self) -> str:
        """What has become of the directory, in a sentence that says how to go on; "" while nothing has."""
        for path, descriptor in self._open.items():
            if not _is_same(path, descriptor):
                return self._whole(descriptor) if path == self.run_dir else self._checkpoints(path, descriptor)
        return ""

    def _whole(self, descriptor: int) -> str:
        new = _now_at(descriptor)
        if new is None:
            return f"{self.run_dir} was removed while it was trained; nothing of the run is left, so start it anew."
        number = _newest(new / CHECKPOINTS)
        state = f"round {number} is saved there" if number else "nothing has been saved there yet"
        return f"{self.run_dir} was moved to {new} while it was trained; {state}; continue with: {resume_command(new)}"

    def _checkpoints(self, path: Path, descriptor: int) -> str:
        new = _now_at(descriptor)
        if new is None:
            return (
                f"{path} was removed while the run was trained; what was trained is lost but for its metrics, so start "
                "the run anew in another directory."
            )
        return (
            f"{path} was moved to {new} while the run was trained; move it back, then continue with: "
            f"{resume_command(self.run_dir)}"
        )

    def clear(self) -> None:
        """Remove what writers that were under way have made again in the old place: unfinished checkpoints only."""
        if not self.trouble():
            return
        folder = self.run_dir / CHECKPOINTS
        with suppress(OSError):
            for path in folder.iterdir():
                if UNFINISHED.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                    _remove_unfinished(path)
        for path in (folder, self.run_dir):
            with suppress(OSError):
                path.rmdir()  # it fails where anything else is in it

    def close(self) -> None:
        """Let go of the descriptors."""
        while self._open:
            os.close(self._open.popitem()[1])


def _remove_unfinished(path: Path) -> None:
    if not path.name.isdecimal() or not (path / "_CHECKPOINT_METADATA").exists():
        shutil.rmtree(path)


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        there = os.stat(path)
    except OSError:
        return False
    ours = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _now_at(descriptor: int) -> Path | None:
    """Where an open directory lies now; None where it was removed, or where the system does not tell."""
    try:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    except OSError:
        return None
    return path if _is_same(path, descriptor) else None


def _newest(checkpoints: Path) -> int:
    with suppress(OSError):
        return max((int(path.name) for path in checkpoints.iterdir() if path.name.isdecimal()), default=0)
    return 0
