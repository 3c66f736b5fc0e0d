"""`engine.distributed=true`: one run of several processes; the first decides and writes, and the others follow.

The first one trains as any process does. Before each step that takes all devices it tells the others, who are in the
same state, to take it as well; what it alone has read, a checkpoint, it hands on.
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

from stellaris_jax.config.schema import ConfigError, RunError
from stellaris_jax.config.tree import Config
from stellaris_jax.engine import processes
from stellaris_jax.engine.state import EngineState
from stellaris_jax.training.checkpoint import Checkpoints, leaves_of, to_device, to_host
from stellaris_jax.training.program_cache import ProgramCache
from stellaris_jax.training.records import Record
from stellaris_jax.training.seed_states import SeedStates
from stellaris_jax.training.signals import SIGNALS
from stellaris_jax.training.trainer import Trainer

T = TypeVar("T")
ADVICE = "what was saved is whole: start all of them again with resume=RUN_DIR."


class Order(IntEnum):
    """What all processes do next."""

    END = 0
    COMPILE = 1
    STEP = 2
    GATHER = 3
    RESTORE = 4


class SharedMembers(SeedStates):
    """States that live on the devices of several processes."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        _ = self.states  # made now: the program needs all processes at once

    @property
    def state(self) -> EngineState:
        """The state of all seeds, whole, in this process; all of them must ask for it."""
        return super().gather(lambda state: processes.gathered(state, self.engine.mesh))

    @state.setter
    def state(self, state: EngineState) -> None:
        self._states = [self.engine.layout.place(block) for block in self.blocks(state)]

    def gather(self, pick: Callable[[EngineState], T]) -> T:
        """As of any members; of environments a state has those of this process only."""
        return super().gather(lambda state: pick(processes.own(state)))

    def each(self, function: Callable[..., T], *rows: Any) -> list[T]:
        """As of any members, with states as `together` has them."""
        return super().each(lambda state, *more: function(processes.own(state), *more), *rows)


class SharedTrainer(Trainer):
    """What all processes of a run have in common.

    Raises:
      ConfigError: they do not have the same configuration, or the environment is stepped outside the program.
    """

    distributed: ClassVar[bool] = True
    kept_by = SharedMembers

    def __init__(self, config: Config, stopping: threading.Event | None = None, programs: ProgramCache | None = None):
        digests = multihost_utils.process_allgather(_digest(config))
        if (digests != digests[0]).any():
            raise ConfigError("engine.distributed=true: the processes were started with different configurations.")
        super().__init__(config, stopping, programs)
        if self.spec.hosted:
            raise ConfigError(
                f"engine.distributed=true is not possible with env={config.env.name}, which is stepped by one process."
            )


class Leader(SharedTrainer):
    """The first process: a trainer that is not alone."""

    _led = True

    def compile(self) -> float:
        """Compile the engine for the next chunk, in all processes at once."""
        if self.compiled:
            return 0.0
        self._tell(Order.COMPILE)
        return super().compile()

    def step(self, ahead: bool = False) -> list[Record]:
        """Train one chunk of rounds; never ahead, for what is told between chunks needs the devices as well."""
        if self.finished:
            return []
        self.compile()
        self._tell(Order.STEP)
        with processes.naming_lost_process(ADVICE):
            return super().step()

    def save(self, checkpoints: Checkpoints) -> None:
        """Write a checkpoint of the current round, in the background, of what is gathered from all processes."""
        self._tell(Order.GATHER)
        with processes.naming_lost_process(ADVICE):
            super().save(checkpoints)

    def restore(self, checkpoints: Checkpoints, note: Callable[[str], None] = print, train: bool = True) -> int:
        """Continue from the newest intact checkpoint, and have the others do so; returns its round."""
        return super().restore(_HandedOn(checkpoints, self._tell), note, train)  # type: ignore[arg-type]

    def close(self) -> None:
        """Let the others go."""
        if self._led:
            self._led = False
            with suppress(RunError):
                self._tell(Order.END)
        super().close()

    def _tell(self, order: Order) -> None:
        with processes.naming_lost_process(ADVICE):
            processes.broadcast_from_first(np.int32(order))


class Follower(SharedTrainer):
    """Another process: does what the first one tells it."""

    def follow(self) -> None:
        """Do so, until the run is over. Raises RunError if the first process is gone."""
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
                        self.restore(_Received(), note=lambda text: None)  # type: ignore[arg-type]


class _HandedOn:
    """Checkpoints of the first process; what it reads it tells the others."""

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


class _Received:
    """The checkpoint that the first process has read."""

    actions = None

    def restore(self, abstract: Any, note: Callable[[str], None]) -> tuple[int, Any, dict[str, Any]]:
        restored, host = json.loads(processes.broadcast_bytes(b""))
        leaves = processes.broadcast_from_first(
            [np.zeros(x.shape, x.dtype) for x in jax.eval_shape(leaves_of, abstract)]
        )
        return restored, to_device([np.asarray(x) for x in leaves], _here(abstract)), host


def _here(abstract: Any) -> Any:
    """Shapes and dtypes of arrays that lie on one device of this process."""
    here = SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), abstract)


def _digest(config: Config) -> np.ndarray:
    """Of all that training depends on: eight numbers."""
    alike = config.replace({"run.dir": "", "run.name": "", "run.progress": "auto", "resume": ""})
    return np.frombuffer(hashlib.sha256(repr(alike).encode()).digest(), np.uint32)


def follow(config: Config) -> dict[str, Any]:
    """Take part in a run that another process decides on and writes down; there is no summary of it here.

    Signals are left to that process.
    """
    if threading.current_thread() is threading.main_thread():
        for signum in SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
    print(f"process {jax.process_index() + 1} of {jax.process_count()}: the first one tells of the run", flush=True)
    with closing(Follower(config)) as trainer:
        trainer.follow()
    return {}
