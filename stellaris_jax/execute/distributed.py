"""One run of several processes (`engine.distributed=true`): the first decides and writes, the others follow.

The first process trains as a single process does. Before each step that uses all devices it broadcasts an order to the
others, which are in the same state. It also broadcasts each checkpoint that it reads.
"""

from __future__ import annotations

import hashlib
import json
import signal
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from enum import IntEnum
from typing import Any, ClassVar, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import SingleDeviceSharding

from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.config.tree import Config
from stellaris_jax.engine import processes
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.engine.seed_states import SeedStates
from stellaris_jax.engine.state import EngineState
from stellaris_jax.execute.records import Record
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.runs.checkpoint import Checkpoints, leaves_of, to_device, to_host
from stellaris_jax.runs.signals import SIGNALS

T = TypeVar("T")
ADVICE = "what was saved is whole: start all of them again with resume=RUN_DIR."


class Order(IntEnum):
    """Next action of all processes."""

    END = 0
    COMPILE = 1
    STEP = 2
    GATHER = 3
    RESTORE = 4


class SharedMembers(SeedStates):
    """Seed states on the devices of several processes."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        _ = self.states  # made now, because the program needs all processes at once

    @property
    def state(self) -> EngineState:
        """State of all seeds, gathered in this process; all processes must read it together."""
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


class SharedTrainer(Trainer):
    """Trainer of one process of a distributed run.

    Raises:
      ConfigError: the processes' configurations differ, or the environment is stepped outside the program.
    """

    distributed: ClassVar[bool] = True
    kept_by = SharedMembers

    def __init__(self, config: Config, stopping: threading.Event | None = None, programs: ProgramCache | None = None):
        digests = multihost_utils.process_allgather(_digest(config))
        if (digests != digests[0]).any():
            raise ConfigError("engine.distributed=true: the processes were started with different configurations.")
        super().__init__(config, stopping, programs)
        if self.spec.host_fragments:
            raise ConfigError(
                f"engine.distributed=true is not possible with env={config.env.name}, which is stepped by one process."
            )


class Leader(SharedTrainer):
    """Trainer of the first process: tells the others each step."""

    _led = True

    def compile(self) -> float:
        """Compile the engine for the next chunk, in all processes at once."""
        if self.compiled:
            return 0.0
        self._tell(Order.COMPILE)
        return super().compile()

    def step(self, ahead: bool = False) -> list[Record]:
        """Train one chunk of rounds; never ahead, because orders between chunks need the devices as well."""
        if self.finished:
            return []
        self.compile()
        self._tell(Order.STEP)
        with processes.naming_lost_process(ADVICE):
            return super().step()

    def save(self, checkpoints: Checkpoints) -> None:
        """Write a checkpoint of the current round in the background, gathered from all processes."""
        self._tell(Order.GATHER)
        with processes.naming_lost_process(ADVICE):
            super().save(checkpoints)

    def restore(self, checkpoints: Checkpoints, note: Callable[[str], None] = print, train: bool = True) -> int:
        """Continue from the newest intact checkpoint, in all processes; returns its round."""
        return super().restore(_BroadcastCheckpoints(checkpoints, self._tell), note, train)  # type: ignore[arg-type]

    def close(self) -> None:
        """End the other processes' part of the run."""
        if self._led:
            self._led = False
            with suppress(RunError):
                self._tell(Order.END)
        super().close()

    def _tell(self, order: Order) -> None:
        with processes.naming_lost_process(ADVICE):
            processes.broadcast_from_first(np.int32(order))


class Follower(SharedTrainer):
    """Trainer of any other process: follows the first one's orders."""

    def follow(self) -> None:
        """Follow orders until the run is over. Raises RunError if the first process is gone."""
        with processes.naming_lost_process(ADVICE):
            while (order := Order(int(processes.broadcast_from_first(np.int32(0))))) != Order.END:
                match order:
                    case Order.COMPILE:
                        self.compile()
                    case Order.STEP:
                        self.step()
                    case Order.GATHER:
                        _ = self.members.state
                    case Order.RESTORE:
                        self.restore(_ReceivedCheckpoint(), note=lambda text: None)  # type: ignore[arg-type]


class _BroadcastCheckpoints:
    """Checkpoints of the first process; each one it reads is broadcast."""

    def __init__(self, checkpoints: Checkpoints, tell: Callable[[Order], None]):
        self.checkpoints, self.tell = checkpoints, tell
        self.actions = checkpoints.actions

    def restore(self, abstract: Any, note: Callable[[str], None]) -> tuple[int, Any, dict[str, Any]]:
        restored, state, host = self.checkpoints.restore(_here(abstract), note)
        self.tell(Order.RESTORE)
        with processes.naming_lost_process(ADVICE):
            processes.broadcast_bytes(json.dumps([restored, host]).encode())
            processes.broadcast_from_first(to_host(state))
        return restored, state, host


class _ReceivedCheckpoint:
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


def follow(config: Config) -> dict[str, Any]:
    """Take part in a run that another process controls and records; returns no summary.

    The first process handles signals; this one ignores them.
    """
    if threading.current_thread() is threading.main_thread():
        for signum in SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
    print(f"process {jax.process_index() + 1} of {jax.process_count()}: the first one tells of the run", flush=True)
    with closing(Follower(config)) as trainer:
        trainer.follow()
    return {}
