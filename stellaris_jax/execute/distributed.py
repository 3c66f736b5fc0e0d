"""One run of several processes (`engine.distributed=true`): the first decides and writes, the others follow.

The first process trains as a single process does. Before each step that uses all devices it broadcasts an order to the
others, which are in the same state. It also broadcasts each checkpoint that it reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import SingleDeviceSharding

from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.config.tree import Config
from stellaris_jax.engine import processes
from stellaris_jax.engine.program import Engine
from stellaris_jax.engine.seed_states import SeedStates
from stellaris_jax.engine.state import EngineState
from stellaris_jax.execute.schedule import Executed
from stellaris_jax.execute.simulated import SimulatedExecutor
from stellaris_jax.runs.checkpoint import Checkpoints, leaves_of, to_device, to_host

T = TypeVar("T")
ADVICE = "what was saved is whole: start all of them again with resume=RUN_DIR."


class Order(IntEnum):
    """Next action of all processes."""

    END = 0
    COMPILE = 1
    STEP = 2
    GATHER = 3
    RESTORE = 4


class SharedSeedStates(SeedStates):
    """Seed states on the devices of several processes.

    Args:
      engine, hyper, seeds: see `SeedStates`.
    """

    def __init__(self, engine: Engine, hyper: Hyper, seeds: Sequence[int]):
        super().__init__(engine, hyper, seeds)
        _ = self.states  # made now, because the program needs all processes at once

    @property
    def state(self) -> EngineState:
        """State of all seeds, gathered in this process; the first process has the others read it, too."""
        if processes.is_first():
            tell(Order.GATHER)
        with processes.naming_lost_process(ADVICE):
            return super().gather(lambda state: processes.gather(state, self.engine.mesh))

    @state.setter
    def state(self, state: EngineState) -> None:
        self._states = [self.engine.layout.place(block) for block in self.blocks(state)]

    def gather(self, pick: Callable[[EngineState], T]) -> T:
        """Value of `SeedStates.gather`; environment states are those of this process only."""
        return super().gather(lambda state: pick(processes.local_data(state)))

    def each(self, function: Callable[..., T], *rows: Any) -> list[T]:
        """Values of `SeedStates.each`, with the states that `gather` passes on."""
        return super().each(lambda state, *more: function(processes.local_data(state), *more), *rows)


class LeadingExecutor:
    """Executor of the first process: tells the others each step; see `stellaris_jax.execute.executor.Executor`.

    It never runs ahead, because orders between chunks need the devices as well.
    """

    def __init__(self, planned: SimulatedExecutor):
        self.planned, self.schedule = planned, planned.schedule
        self._leads = True

    @property
    def under_way(self) -> bool:
        return False

    @property
    def compiled(self) -> bool:
        return self.planned.compiled

    def compile(self) -> float:
        """Compile the engine for the next chunk, in all processes at once."""
        tell(Order.COMPILE)
        return self.planned.compile()

    def about_next(self) -> str:
        return self.planned.about_next()

    def step(self, ahead: bool) -> Executed:
        tell(Order.STEP)
        with processes.naming_lost_process(ADVICE):
            return self.planned.step(ahead=False)

    def restart(self) -> None:
        self.planned.restart()

    def write(self, run_dir: Path) -> None:
        pass

    def close(self) -> None:
        """End the other processes' part of the run."""
        if self._leads:
            self._leads = False
            with suppress(RunError):
                tell(Order.END)


def tell(order: Order) -> None:
    """Broadcast an order of the first process to the others. Raises RunError if one of them is gone."""
    with processes.naming_lost_process(ADVICE):
        processes.broadcast_from_first(np.int32(order))


def check_same(config: Config) -> None:
    """Raise ConfigError if the processes of a run were started with different configurations."""
    digests = multihost_utils.process_allgather(_digest(config))
    if (digests != digests[0]).any():
        raise ConfigError("engine.distributed=true: the processes were started with different configurations.")


class BroadcastCheckpoints:
    """Checkpoints of the first process; each one it reads is broadcast."""

    def __init__(self, checkpoints: Checkpoints):
        self.checkpoints, self.actions = checkpoints, checkpoints.actions

    def restore(self, abstract: Any, note: Callable[[str], None]) -> tuple[int, Any, dict[str, Any]]:
        restored, state, host = self.checkpoints.restore(_here(abstract), note)
        tell(Order.RESTORE)
        with processes.naming_lost_process(ADVICE):
            processes.broadcast_bytes(json.dumps([restored, host]).encode())
            processes.broadcast_from_first(to_host(state))
        return restored, state, host


class ReceivedCheckpoint:
    """Checkpoint received from the first process."""

    actions = None

    def restore(self, abstract: Any, note: Callable[[str], None]) -> tuple[int, Any, dict[str, Any]]:
        restored, host = json.loads(processes.broadcast_bytes(b""))
        leaves = processes.broadcast_from_first(
            [np.zeros(x.shape, x.dtype) for x in jax.eval_shape(leaves_of, abstract)]
        )
        return restored, to_device([np.asarray(x) for x in leaves], _here(abstract)), host


def _here(abstract: Any) -> Any:
    """Shapes and dtypes of arrays on one device of this process."""
    here = SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), abstract)


def _digest(config: Config) -> np.ndarray:
    """Digest of all settings that training depends on: eight numbers."""
    alike = config.replace({"run.dir": "", "run.name": "", "run.progress": "auto", "resume": ""})
    return np.frombuffer(hashlib.sha256(repr(alike).encode()).digest(), np.uint32)
