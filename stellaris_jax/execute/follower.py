"""Part of a distributed run that every process but the first plays: it follows the first one's orders."""

from __future__ import annotations

import signal
import threading
from contextlib import closing
from typing import Any

import jax
import numpy as np

from stellaris_jax.config.tree import Config
from stellaris_jax.engine import processes
from stellaris_jax.execute.distributed import ADVICE, Order, ReceivedCheckpoint
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.runs.signals import SIGNALS


def follow(config: Config) -> dict[str, Any]:
    """Take part in a run that another process controls and records; returns no summary.

    The first process handles signals; this one ignores them. Raises RunError if the first process is gone.
    """
    if threading.current_thread() is threading.main_thread():
        for signum in SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
    print(f"process {jax.process_index() + 1} of {jax.process_count()}: the first one tells of the run", flush=True)
    with closing(Trainer(config)) as trainer, processes.naming_lost_process(ADVICE):
        while (order := Order(int(processes.broadcast_from_first(np.int32(0))))) != Order.END:
            match order:
                case Order.COMPILE:
                    trainer.compile()
                case Order.STEP:
                    trainer.step()
                case Order.GATHER:
                    _ = trainer.state
                case Order.RESTORE:
                    trainer.restore(ReceivedCheckpoint(), note=lambda text: None)  # type: ignore[arg-type]
    return {}
