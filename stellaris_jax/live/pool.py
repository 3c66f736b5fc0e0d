"""Pools that run functions: what a pool offers the conductor, and the choice of one by `live.pool`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

from stellaris_jax.base.errors import RunError
from stellaris_jax.base.machine import Part
from stellaris_jax.base.registry import register
from stellaris_jax.config.tree import Config

LEARNER, ACTOR = "learner", "actor"


class Call(NamedTuple):
    """Invocation of a function.

    Attributes:
      kind: `LEARNER` or `ACTOR`.
      number: number of the learner or actor.
      stamp: unique number of the invocation.
      grace: seconds in addition to the usual timeout; an emulated wait is part of them.
    """

    kind: str
    number: int
    stamp: int
    grace: float = 0.0


class Done(NamedTuple):
    """Invocation that has ended.

    Attributes:
      call: the invocation.
      value: returned value; None if it died or timed out.
      seconds: seconds of computation, as `Functions.invoke` returns them; 0 if it died.
      elapsed: seconds since `submit`.
      reason: one line on why it died; empty if it returned a value.
      cold: whether `elapsed` includes the start of its process, or a compilation.
    """

    call: Call
    value: Any
    seconds: float
    elapsed: float
    reason: str = ""
    cold: bool = False


class Pool(ABC):
    """Pool that runs the functions of a live run; registered by `register.pool`.

    A subclass is made by `(config, actors)`: the configuration of the run, and its largest number of actors. It makes
    `stellaris_jax.live.functions.Functions(config)` wherever functions run, and computes each invocation by
    `value, seconds = functions.invoke(call.kind, *arguments)`. By default the functions share the driver's memory, so
    values need no handles.

    The conductor calls the methods from one thread and relies on these rules.

    - Every invocation ends in exactly one `Done` with its `call`, unless `wait` raises. Invocations may end in any
      order. Those that one `wait` returns are handled in the order of the list: sort them by `call.stamp`.
    - A learner may have several invocations under way when a resumed run repeats its gradients.
    - An invocation whose process died or timed out is `Done(call, None, 0.0, elapsed, reason)`. The conductor records
      it and submits the work again, up to `MOST_DEATHS` times in a row.
    - A function that raises would raise again. `wait` raises `function_error(call, error)`, which ends the run.
    - The pool enforces `live.timeout`: an invocation may take that many seconds plus `call.grace`, besides the start
      of its process. A pool that cannot stop a function ignores it.
    """

    @classmethod  # noqa: B027
    def check_installed(cls) -> None:
        """Raise ConfigError if a package that the pool needs is not installed; by default it needs none."""

    @classmethod
    def memory(cls, config: Config, actors: int) -> Iterator[Part]:
        """Parts of this machine's memory that the pool needs besides the driver's; by default none.

        Args:
          config: configuration of the run.
          actors: number of actors.
        """
        yield from ()

    def put(self, value: Any) -> Any:
        """Store a value; returns its handle for calls, so that the value is sent once."""
        return value

    def get(self, handle: Any) -> Any:
        """Value of a handle."""
        return handle

    @abstractmethod
    def submit(self, call: Call, *arguments: Any) -> None:
        """Start an invocation without waiting; handles among the arguments stand for their values."""

    @abstractmethod
    def wait(self) -> list[Done]:
        """Wait for at least one invocation to end; returns those that ended, or nothing if none is under way.

        Raises `function_error` if a function raised.
        """

    def cool(self) -> None:  # noqa: B027
        """End all idle processes, so that they have to be started again."""

    def close(self) -> None:  # noqa: B027
        """End all processes."""


def make_pool(config: Config, actors: int) -> Pool:
    """Pool that `live.pool` names.

    Args:
      config: configuration of the run.
      actors: largest number of actors.
    """
    pool: Pool = register.pool[config.live.pool](config, actors)
    return pool


def function_error(call: Call, error: BaseException) -> RunError:
    """Error of a function, which a retry would meet again, as one sentence."""
    last = (str(error).strip() or type(error).__name__).splitlines()[-1]
    return RunError(f"{call.kind} {call.number} cannot go on: {type(error).__name__}: {last}")
