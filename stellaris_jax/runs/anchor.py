"""Identity of a run directory: whether it is still where it was when the run began."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from stellaris_jax.base.commands import resume_command
from stellaris_jax.base.errors import RunError

CHECKPOINTS = "checkpoints"
UNFINISHED = re.compile(r"\d+\.orbax-checkpoint-tmp.*|\d+")
"""Names of entries that an unfinished checkpoint leaves."""


class DirectoryGone(RunError):
    """Error: a run's directory or its checkpoints were moved or removed during training."""


class Anchor:
    """Open descriptors of a run's directory and its checkpoints; they tell a move from a removal.

    Args:
      run_dir: directory of the run.
    """

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self._open: dict[Path, int] = {}
        for path in (run_dir, run_dir / CHECKPOINTS):
            with suppress(OSError):
                self._open[path] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def check(self) -> None:
        """Raise DirectoryGone if the run's directory or its checkpoints are no longer in place."""
        if trouble := self.trouble():
            raise DirectoryGone(trouble)

    def trouble(self) -> str:
        """Sentence on a moved or removed directory and how to continue; "" while all is in place."""
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
        """Remove unfinished checkpoints that pending writes created again at the old path; keep everything else."""
        if not self.trouble():
            return
        folder = self.run_dir / CHECKPOINTS
        with suppress(OSError):
            for path in folder.iterdir():
                if UNFINISHED.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                    _remove_unfinished(path)
        for path in (folder, self.run_dir):
            with suppress(OSError):
                path.rmdir()  # fails if anything else is in it

    def close(self) -> None:
        """Close the descriptors."""
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
    opened = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)


def _now_at(descriptor: int) -> Path | None:
    """Current path of an open directory; None if it was removed or the system does not report paths."""
    try:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    except OSError:
        return None
    return path if _is_same(path, descriptor) else None


def _newest(checkpoints: Path) -> int:
    with suppress(OSError):
        return max((int(path.name) for path in checkpoints.iterdir() if path.name.isdecimal()), default=0)
    return 0
