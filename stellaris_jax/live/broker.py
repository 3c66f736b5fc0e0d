"""Ray's driver in a process of its own: Ray ends the process that it drives from, at once, when its raylet dies.

The trainer keeps its state, and asks the broker over a pipe, one request after the other, for what
`stellaris_jax.live.cluster.Processes` does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, NamedTuple

import jax

from stellaris_jax.config.schema import ConfigError, RunError
from stellaris_jax.config.tree import Config
from stellaris_jax.live.pool import Call, Done
from stellaris_jax.live.vitals import OUT_OF_REACH_SECONDS, ClusterDied, Vitals, Watch
from stellaris_jax.registry import load_plugins

POLL_SECONDS = 0.5
SILENCE_SECONDS = 60.0
"""How long Ray may be silent, at least: passing on a large array, or starting on a busy machine, takes a while."""
START_SECONDS = 300.0
"""How long Ray may take to start."""
END_SECONDS = 30.0
"""How long Ray may take to end."""
PROGRAM = "import sys; sys.path[:] = {path!r}; from stellaris_jax.live.broker import main; main({number})"


class Reference(NamedTuple):
    """A value that the broker holds, by its number."""

    number: int


class Handle:
    """A value that the broker holds until this object is gone.

    Args:
      number: of the value.
      drop: called with the number at the end.
    """

    def __init__(self, number: int, drop: Callable[[int], object]):
        self.number, self._drop = number, drop

    def __del__(self) -> None:
        self._drop(self.number)

    def __reduce__(self) -> tuple[type[Reference], tuple[int]]:
        return Reference, (self.number,)


class Failure(NamedTuple):
    """An exception of the broker. kind: name of its class. text: its message. trace: where it was raised."""

    kind: str
    text: str
    trace: str

    def raised(self) -> Exception:
        """The exception to be raised here."""
        if self.kind == "ConfigError":
            return ConfigError(self.text)
        text = self.text if self.kind == "RunError" else f"Ray cannot go on: {self.kind}: {self.text}"
        error = RunError(text)
        error.add_note(self.trace)
        return error


class Broker:
    """Processes on Ray, by way of a broker; see `stellaris_jax.live.pool.Pool`.

    Args:
      config: the run's.
      actors: the most there are.

    Raises:
      ConfigError: the cluster cannot be joined, or has not what is asked for.
      ClusterDied: it has died meanwhile, or does not answer.
    """

    def __init__(self, config: Config, actors: int):
        self._dropped: list[int] = []
        self._count, self._died = 0, ""
        self._over = threading.Event()
        self._allowed, self._heard = START_SECONDS, time.monotonic()
        self._busy = False
        self._watch: Watch | None = None
        self._pipe, theirs = Pipe()
        program = PROGRAM.format(path=sys.path, number=theirs.fileno())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called")
            self._process = subprocess.Popen(
                [sys.executable, "-c", program], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        theirs.close()
        threading.Thread(target=self._look, name="cluster", daemon=True).start()
        try:
            vitals: Vitals = self._ask("start", _joining(config), actors)
        except BaseException:
            self.close()
            raise
        self._allowed = max(config.live.timeout, SILENCE_SECONDS)
        self.vitals = vitals
        self._watch = Watch(vitals, min(config.live.timeout, OUT_OF_REACH_SECONDS))

    def put(self, value: Any) -> Handle:
        """What stands for a value in calls: it travels to every node once."""
        self._count += 1
        self._send("put", self._count, value)
        return Handle(self._count, self._dropped.append)

    def get(self, handle: Any) -> Any:
        """The value that stands behind it."""
        return self._ask("get", handle)

    def submit(self, call: Call, *arguments: Any) -> None:
        """Have a learner's or an actor's process called, which is started if it is not there."""
        self._send("submit", call, *arguments)

    def wait(self) -> list[Done]:
        """What has ended, at least one invocation; nothing if none is under way."""
        done: list[Done] = self._ask("wait")
        return done

    def cool(self) -> None:
        """End whatever is idle."""
        self._send("cool")

    def close(self) -> None:
        """End all processes, and the cluster if it is our own."""
        self._over.set()
        self._pipe.close()
        try:
            self._process.wait(0.0 if self._died else END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, name: str, *arguments: Any) -> Any:
        """What the broker answers to a request."""
        self._send(name, *arguments)
        return self._answer()

    def _send(self, name: str, *arguments: Any) -> None:
        dropped = [self._dropped.pop() for _ in range(len(self._dropped))]
        self._busy, self._heard = True, time.monotonic()
        try:
            self._pipe.send((name, dropped, arguments))
        except OSError:
            self._answer()  # why it has gone
        self._busy = False

    def _answer(self) -> Any:
        self._busy, self._heard = True, time.monotonic()
        try:
            while (answer := self._pipe.recv()) is BEAT:
                self._heard = time.monotonic()
        except (OSError, EOFError):
            raise self._death() from None
        finally:
            self._busy = False
        if isinstance(answer, Failure):
            raise answer.raised()
        return answer[0]

    def _look(self) -> None:
        """In a thread: see to it that nobody waits for what has died."""
        while not self._over.wait(POLL_SECONDS):
            if self._process.poll() is not None:
                return  # who asks will see it
            died = self._watch.died() if self._watch is not None else ""
            silent = time.monotonic() - self._heard
            if not died and self._busy and silent > self._allowed:
                died = f"Ray has not answered for {silent:.0f} seconds"
            if died:
                self._died = died
                self._process.kill()
                return

    def _death(self) -> ClusterDied:
        """What the run has died of, once the broker is gone."""
        code = self._process.wait()
        driver = f"Ray's driver (process {self._process.pid})"
        if not self._died and code < 0:
            self._died = f"{driver} was ended by {signal.Signals(-code).name}"
        if not self._died and self._watch is not None:  # Ray has ended it
            self._died = self._watch.died()
        self._died = self._died or f"{driver} has ended with exit code {code}"
        return ClusterDied(self._died + (self.vitals.about_logs if self._watch is not None else "") + ".")


def _joining(config: Config) -> Config:
    """The configuration with the address of the cluster that this process is part of, if its caller has joined one."""
    ray = sys.modules.get("ray")
    if config.live.address or ray is None or not ray.is_initialized():
        return config
    return config.replace({"live.address": ray.get_runtime_context().gcs_address})


BEAT = None
"""An answer that says only that the broker is still there."""


class _Served:
    """The broker's side: serves requests until the pipe is closed."""

    def __init__(self, pipe: Connection):
        self._pipe, self._held = pipe, dict[int, Any]()
        self._pool: Any = None
        self._beaten = time.monotonic()

    def serve(self) -> None:
        """Serve requests; raises EOFError once nobody asks any more."""
        while True:
            name, dropped, arguments = self._pipe.recv()
            for number in dropped:
                del self._held[number]
            self._serve(name, [self._held[x.number] if isinstance(x, Reference) else x for x in arguments])

    def _serve(self, name: str, arguments: list[Any]) -> None:
        if name == "start":
            self._start(*arguments)
        elif name == "put":
            number, value = arguments
            self._held[number] = self._pool.put(value)
        elif name in ("get", "wait"):
            self._pipe.send((getattr(self._pool, name)(*arguments),))
        else:
            getattr(self._pool, name)(*arguments)

    def _start(self, config: Config, actors: int) -> None:
        load_plugins(config.plugins)  # classes of states, for pickle
        from stellaris_jax.live.cluster import Processes

        self._pool = Processes(config, actors, self._beat)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the trainer ends the broker
        if session := self._pool.vitals.session:
            words = os.open(f"{session}/logs/driver.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for stream in (1, 2):
                os.dup2(words, stream)
        self._pipe.send((self._pool.vitals,))

    def _beat(self) -> None:
        """Say that the broker is there, and see whether the trainer is."""
        if self._pipe.poll():  # nobody asks before the answer
            raise EOFError
        if time.monotonic() - self._beaten > 1.0:
            self._beaten = time.monotonic()
            self._pipe.send(BEAT)

    def close(self) -> None:
        """End all processes."""
        self._held.clear()
        if self._pool is not None:
            self._pool.close()


def main(number: int) -> None:
    """Be the broker.

    Args:
      number: file descriptor of the pipe.
    """
    jax.config.update("jax_platforms", "cpu")  # should a plug-in start JAX: nothing is computed here
    pipe = Connection(number)
    served = _Served(pipe)
    try:
        served.serve()
    except (EOFError, OSError):
        pass
    except Exception as error:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        with suppress(OSError):
            pipe.send(Failure(type(error).__name__, text, traceback.format_exc()))
    finally:
        served.close()
