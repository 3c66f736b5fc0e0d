"""Inputs of a source that resumes a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from stellaris_jax.engine.seed_states import SeedStates
from stellaris_jax.sources.actionlog import ActionLog


class Resumption(NamedTuple):
    """Point at which a run resumes.

    Attributes:
      saved: state of the source that was restored; `None` for sources without any.
      log: log of the environments' actions.
      seed_states: states of the seeds.
      round: round of the checkpoint.
      note: reports how the environments continue.
    """

    saved: dict[str, Any] | None
    log: ActionLog
    seed_states: SeedStates
    round: int
    note: Callable[[str], None]
