"""Pool of threads in the driver's process: live runs without Ray."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from stellaris_jax.base.registry import register
from stellaris_jax.config.tree import Config
from stellaris_jax.live.functions import Functions
from stellaris_jax.live.pool import Call, Done, Pool, function_error


@register.pool("threads")
class Threads(Pool):
    """Pool of threads of this process, one for each learner and actor, which share the same functions.

    A thread cannot be killed, so `live.timeout` has no effect.
    """

    def __init__(self, config: Config, actors: int):
        self._functions = Functions(config)
        self._threads = ThreadPoolExecutor(config.system.learners + actors, "live")
        self._under_way: dict[Future[Any], tuple[Call, float]] = {}

    def submit(self, call: Call, *arguments: Any) -> None:
        future = self._threads.submit(self._functions.invoke, call.kind, *arguments)
        self._under_way[future] = (call, time.monotonic())

    def wait(self) -> list[Done]:
        ended, _ = wait(self._under_way, return_when=FIRST_COMPLETED) if self._under_way else (set(), set())
        done = []
        for future in sorted(ended, key=lambda future: self._under_way[future][0].stamp):
            call, started = self._under_way.pop(future)
            if (error := future.exception()) is not None:
                raise function_error(call, error) from error
            value, seconds = future.result()
            done.append(Done(call, value, seconds, time.monotonic() - started))
        return done

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._functions.close()
